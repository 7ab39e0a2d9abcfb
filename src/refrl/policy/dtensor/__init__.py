"""A policy on PyTorch's own parallelism: any Hugging Face causal language model, its weights DTensors."""
