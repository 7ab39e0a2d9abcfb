"""Runs held to other runs: baselines, equivalence classes, repeats."""
