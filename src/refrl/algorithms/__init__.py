"""Mathematics of post-training as pure functions, and the loops that use it."""
