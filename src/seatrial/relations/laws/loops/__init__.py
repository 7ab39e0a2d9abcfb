"""Laws of what wraps a training loop in several processes."""
