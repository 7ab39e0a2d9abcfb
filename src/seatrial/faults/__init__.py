"""Faults planted in the reference stack, to see that the harness finds them."""
