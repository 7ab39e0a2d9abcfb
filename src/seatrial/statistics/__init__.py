"""Tests and intervals shared by baselines, trials and trends. Pure functions of numbers."""
