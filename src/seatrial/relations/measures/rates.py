"""Rates that a run logs of each step."""

RATES = {
    "samples_per_sec": ("rows", "total_step_time"),
    "tokens_per_sec": ("tokens", "total_step_time"),
    "generation_tokens_per_sec": ("sampled", "generation"),
    "policy_and_reference_logprobs_tokens_per_sec": ("tokens", "policy_and_reference_logprobs"),
    "policy_training_tokens_per_sec": ("tokens", "policy_training"),
}
"""What a rate counts, and the phase that took the seconds, by NeMo RL's names."""
