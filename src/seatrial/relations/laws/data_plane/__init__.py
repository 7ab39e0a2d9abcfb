"""Laws of the store between rollouts and training, and of the flow through it."""
