"""Transformers as it is installed: its `Trainer` held to the relations."""
