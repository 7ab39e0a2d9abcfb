"""Laws of optimizer steps and learning rates."""
