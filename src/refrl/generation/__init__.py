"""Sampling backends under one contract."""
