"""Laws of small functions that move values and place models."""
