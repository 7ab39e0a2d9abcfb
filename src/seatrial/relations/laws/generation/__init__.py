"""Laws of sampling, generation engines and weight syncs."""
