"""Values that a metric can take by construction, in any run.

A bound outside such a range holds on a broken run too. Names are those of NeMo RL, which refrl shares; the
formulas are theirs (`nemo_rl/algorithms/loss`, the trainers' logging).
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from types import MappingProxyType

from seatrial.checks.language.truth import EVERYTHING, NOT_NEGATIVE, Interval, range_of
from seatrial.vocabulary import Stack, metrics, twins_of

DEFAULT_RATIO_CLIP = 0.2
"""`loss_fn.ratio_clip_min` and `ratio_clip_max` where a recipe does not set them."""


def clip_ranges(ratio_clip_min: float, ratio_clip_max: float) -> dict[str, Interval]:
    """Return the ranges of the clamped probability ratios, which the clip sets.

    Args:
        ratio_clip_min: the ratio is clamped to at least 1 - ratio_clip_min.
        ratio_clip_max: and to at most 1 + ratio_clip_max.
    """
    why = f"with a ratio clip of {ratio_clip_min:g} below and {ratio_clip_max:g} above"
    clamped = Interval(1 - ratio_clip_min, 1 + ratio_clip_max, why)
    return {f"*/probs_ratio_clamped{suffix}": clamped for suffix in ("", "_min", "_max")}


KNOWN_RANGES: Mapping[str, Interval] = MappingProxyType(
    {
        **clip_ranges(DEFAULT_RATIO_CLIP, DEFAULT_RATIO_CLIP),
        "*/token_mult_prob_error": NOT_NEGATIVE,
        "*/gen_kl_error": NOT_NEGATIVE,
        "*/policy_kl_error": NOT_NEGATIVE,
        "*/js_divergence_error": NOT_NEGATIVE,
        "*/sampling_importance_ratio": NOT_NEGATIVE,
        "*/is_oob_ratio": Interval(0.0, 1.0),
        "*/grad_norm": NOT_NEGATIVE,
        "*/lr": NOT_NEGATIVE,
        "*/global_valid_toks": NOT_NEGATIVE,
        "*/global_valid_seqs": NOT_NEGATIVE,
        "*/mean_prompt_length": NOT_NEGATIVE,
        "*/truncation_rate": Interval(0.0, 1.0),
        "*/natural_termination_rate": Interval(0.0, 1.0),
        "timing/*": NOT_NEGATIVE,
        "ray/*": NOT_NEGATIVE,
    }
)
"""Ranges by tag or pattern. Those of the clamped ratios assume the default clip; `clip_ranges` gives others.

`gen_kl_error` and related metrics are the k3 estimate, exp(r) - 1 - r, which is never negative. Sentinels (the extrema
are -1.0 when no ratio was finite) lie outside: a log that holds one is judged as if no range were known.
"""


def ranges_of_stack(stack: Stack) -> dict[str, Interval]:
    """Return the ranges that the vocabulary gives to a stack's tags, except for those that are known here."""
    ranges = {}
    for tag, name in ((form, name) for listed, name in stack.tags.items() for form in twins_of(listed)):
        metric = metrics()[name]
        bounded = Interval(
            -math.inf if metric.low is None else metric.low, math.inf if metric.high is None else metric.high
        )
        if bounded != EVERYTHING and range_of(tag, KNOWN_RANGES) == EVERYTHING:
            ranges[tag] = bounded
    return ranges
