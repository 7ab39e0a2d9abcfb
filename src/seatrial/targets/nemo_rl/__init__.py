"""NeMo RL from a checkout: its losses, advantages, packers and value loss held to the relations."""
