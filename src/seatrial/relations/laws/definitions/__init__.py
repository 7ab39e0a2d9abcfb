"""R35: small parts of a trainer and its sampler equal their definitions."""
