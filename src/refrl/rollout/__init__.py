"""From prompts to rewarded completions."""
