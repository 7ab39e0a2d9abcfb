"""What adapters of several stacks share: a tiny tokenizer and model, gradients captured, micro-batches fed."""
