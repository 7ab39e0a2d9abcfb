"""Laws of training on several ranks."""
