"""Laws of prompts, templates, tokens, batches, packs and rewards."""
