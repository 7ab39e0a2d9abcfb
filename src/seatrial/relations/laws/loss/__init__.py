"""Laws of losses, advantages and their gradients: pure functions of tensors."""
