"""Disturb one named process of a run at a chosen moment, and see what the run makes of it."""
