"""NeMo RL from a checkout: adapters of its losses, advantages, packers and value loss."""
