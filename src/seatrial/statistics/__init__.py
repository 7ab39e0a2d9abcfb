"""Tests and intervals that baselines, trials and trends share. Pure functions of numbers."""
