"""Laws of adapters: what they compute, how they merge, train, combine and are saved."""
