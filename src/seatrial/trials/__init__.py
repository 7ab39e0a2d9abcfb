"""Trials: one deliverable of one coverage level each."""
