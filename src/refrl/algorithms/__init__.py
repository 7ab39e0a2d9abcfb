"""Mathematics of post-training as pure functions of tensors and rows."""
