"""The training loops, the builders of their parts, validation, and step metrics."""
