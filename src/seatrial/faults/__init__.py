"""Faults planted in the reference stack, to measure what Seatrial detects."""
