"""Compares runs with other runs: baselines, equivalence classes, repeats."""
