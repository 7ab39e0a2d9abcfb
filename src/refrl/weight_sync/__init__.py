"""Weights on their way from the policy to a generator."""
