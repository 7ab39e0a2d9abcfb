"""Finds the commit that broke a command, also when its results are noisy."""
