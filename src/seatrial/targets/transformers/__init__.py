"""Transformers as it is installed: an adapter of its `Trainer`."""
