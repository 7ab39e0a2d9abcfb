"""Laws of a model: one forward pass in its many forms."""
