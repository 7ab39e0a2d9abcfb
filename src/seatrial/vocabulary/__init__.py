"""Canonical metric names and one map per stack."""
