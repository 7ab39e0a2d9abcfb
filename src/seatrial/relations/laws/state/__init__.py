"""Laws of checkpoints, exports and resumed training."""
