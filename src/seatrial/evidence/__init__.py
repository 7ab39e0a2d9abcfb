"""Evidence: what a run left, read whole or reported as damaged."""
