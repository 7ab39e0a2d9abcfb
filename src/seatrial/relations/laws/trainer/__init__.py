"""Laws of whole trainers."""
