"""Log formats, one module each, and what they share."""
