"""Targets: stacks under trial."""
