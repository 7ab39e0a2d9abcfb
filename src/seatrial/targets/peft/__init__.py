"""PEFT as it is installed: each type of adapter by contract, on tiny models."""
