"""Relations: laws of RL post-training, called on a stack's components."""
