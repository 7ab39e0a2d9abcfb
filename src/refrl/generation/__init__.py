"""Generation engines: prompts in, completions with their sampling log-probabilities out."""
