"""Hugging Face models and tokenizers by path, prompts and chat encoding, tiny models made locally."""
