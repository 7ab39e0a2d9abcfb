"""The policy that is trained."""
