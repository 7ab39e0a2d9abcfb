"""Which canonical metrics are shown of a run, on a terminal and on a page."""

SHOWN = (
    "reward/mean",
    "validation/score",
    "loss",
    "grad_norm",
    "entropy",
    "kl/reference",
    "mismatch/mult_prob_error",
    "mismatch/kl",
    "length/completion_mean",
    "truncation_fraction",
    "preference/margin",
    "learning_rate",
)
"""Metrics that are shown of a run, where they are logged."""
