"""Contract of logged scalars under the stack's own names: what each is a mean, sum or extremum of, and over what.

Part of `seatrial.relations.contracts`, which lists every component. Scalars under NeMo RL's names: `metrics` there.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, Protocol, runtime_checkable

from seatrial.relations.records import LossInputs, Row

Quantity = Literal[
    "one",
    "logprob",
    "ratio",
    "log_ratio",
    "clamped_ratio",
    "out_low",
    "out_high",
    "clipped_low",
    "clipped_high",
    "clipped",
    "capped",
    "surrogate",
    "old_minus_current",
    "current_k3",
    "ref_k1",
    "ref_k2",
    "ref_k3",
    "entropy",
    "weighted_surprise",
    "sampler_difference",
    "probability_difference",
    "sampler_mult",
    "sampler_k3",
    "trainer_k3",
    "advantage",
    "reward",
    "length",
    "completion_length",
    "prompt_length",
]
"""What is averaged; c, p, g and r are log-probabilities of the current, old, sampling and reference policy.

Of a token: `logprob` c, `log_ratio` c - p, `ratio` its exponential, `clamped_ratio` that within the clip, `out_low` and
`out_high` whether it is beyond a bound, `clipped_low` and `clipped_high` whether the clip takes the gradient away there
(below with a negative advantage, above with a positive one), `clipped` either of both,
`capped` whether the ratio of a token with a negative advantage is above its cap, `surrogate` the larger of the
negative advantage times `ratio` and times `clamped_ratio` (the loss of PPO), `old_minus_current` p - c,
`current_k3` k3 of c - p, `ref_k1`, `ref_k2`, `ref_k3` estimates of KL(c || r), `entropy` as the loss is given it,
`weighted_surprise` -exp(c - g) c, `sampler_difference` |g - p|, `sampler_mult` its exponential,
`probability_difference` |exp g - exp p|, `sampler_k3` k3 of
p - g, `trainer_k3` k3 of g - p, with k3(x) = exp(x) - 1 - x. Of a row, or of each of its tokens: `advantage`, `reward`,
`length` in training tokens. Of a row alone: `completion_length` and `prompt_length` in tokens, whether they train or
not. `one` counts.
"""


@dataclass(frozen=True, kw_only=True)
class MetricSpec:
    """What a stack says that a metric of an optimizer batch is."""

    quantity: Quantity
    how: Literal["mean", "sum", "min", "max", "std"] = "mean"
    over: Literal["tokens", "row_means", "rows"] = "tokens"
    """The training tokens of the batch; the means of each row over its own; rows, with a quantity of rows."""
    rows: Literal["trained", "all"] = "trained"
    """Of `row_means` and `rows`: those that have a training token, or all; a row without one has the mean 0."""
    clip: tuple[float, float] = (0.2, 0.2)
    """How far a ratio may be below and above 1."""
    cap: float = math.inf
    """Largest ratio of a token with a negative advantage whose gradient counts."""


@dataclass(frozen=True, kw_only=True)
class MetricPart:
    """The rows of a micro-batch, and what its loss is given of them."""

    rows: tuple[Row, ...]
    inputs: LossInputs


@runtime_checkable
class NamedMetrics(Protocol):
    """Logged scalars."""

    metric_specs: Mapping[str, MetricSpec]
    """By the stack's own names; each is logged of every optimizer batch."""

    def named_metrics(self, ranks: Sequence[Sequence[MetricPart]]) -> Mapping[str, float]:
        """Return what is logged of one optimizer batch; its micro-batches come by rank.

        Others than those that `metric_specs` names may be among them. A stack of one process refuses several ranks.
        """
        ...
