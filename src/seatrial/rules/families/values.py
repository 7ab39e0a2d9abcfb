"""Values that are not finite or impossible: a negative time, a share above 1, a positive log-likelihood."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from seatrial.evidence.runlog import Series
from seatrial.rules.rule import HAND_SET, Finding, Level, Parameter, Rule, Streams, not_triggered
from seatrial.rules.windows import Flags, beyond_scale, in_a_row
from seatrial.vocabulary import Metric, metrics, words_of

_ONCE = ("loss", "reward/mean", "entropy", "kl/reference", "advantages/mean", "validation/loss")
"""Metrics that have no excuse for a single NaN."""


class Finite(Rule):
    """Every series of the log, known to the vocabulary or not."""

    def judge(self, streams: Streams) -> Finding:
        """Alarm at once for a loss and its like, after some in a row for a gradient norm, and notice anything else."""
        alarms: list[tuple[int, Series, float]] = []
        notices: list[tuple[int, Series, float]] = []
        once = {id(one) for name in _ONCE for one in streams.by_name.get(name, ())}
        scaled = {id(one) for one in streams.by_name.get("grad_norm", ())}
        evaluations = {one.tag for one in streams.by_name.get("validation/loss", ())}
        number = 0
        for series in streams.log.series.values():
            number += len(series)
            bad = ~np.isfinite(series.values)
            if series.nulls is not None:
                # What is not measured yet has no value: a row before training begins.
                bad &= ~np.logical_and.accumulate(series.nulls)
            if not bad.any():
                continue
            odd = bad
            if id(series) in once and series.nulls is not None:
                bad = bad & ~series.nulls
            if series.tag in evaluations and np.isfinite(series.values[-1]):
                bad = np.zeros_like(bad)
            alarming = bad if id(series) in once else in_a_row(bad, int(self.parameters["in_a_row"].value))
            if id(series) in once | scaled and alarming.any():
                alarms.append(_first(alarming, series))
            else:
                notices.append(_first(odd, series))
        found = alarms or notices
        if not number:
            return not_triggered("the log holds no series")
        if not found:
            return Finding(level=Level.QUIET, reason="in order", num_samples=number, bound="finite")
        step, series, value = min(found, key=lambda item: item[0])
        return Finding(
            level=Level.ALARM if alarms else Level.NOTICE,
            reason=f'"{series.tag}" is {value}; usually {self.meaning}',
            tags=tuple(dict.fromkeys(one.tag for _, one, _ in found)),
            step=step,
            value=value,
            bound="finite",
            num_samples=number,
            steps=(int(series.steps[0]), int(series.steps[-1])),
        )


def _first(bad: np.ndarray, series: Series) -> tuple[int, Series, float]:
    place = int(np.argmax(bad))
    return int(series.steps[place]), series, float(series.values[place])


_OF_PAIRS = ("preference/margin", "preference/accuracy")
_OF_OTHER_LOSSES = ("reward/mean", *_OF_PAIRS, "advantages/mean", "kl/reference")
"""A log that has one of these may have a loss below 0."""
_WORDS_OF_OTHER_LOSSES = re.compile(
    r"(?:^|[/_.])(?:pg|ppo|grpo|actor|critic|policy|advantages?|rewards?|rollouts?|teacher|student|distill\w*|kl|kld"
    r"|completions?|response|clip\w*|ratio|importance\w*|surrogate|opd)(?:[/_.]|$)",
    re.IGNORECASE,
)


@dataclass(frozen=True, kw_only=True)
class _OfManySeries(Rule):
    """What the rules on bounds share: each looks at all series that it can judge, and alarms at the first."""

    bound: str
    family: str = "bounds"
    parameters: Mapping[str, Parameter] = field(
        default_factory=lambda: {
            "in_a_row": Parameter(3, "hand-set: rounding makes single values"),
            "slack": Parameter(1e-6, "hand-set: float32 keeps seven digits"),
        }
    )

    def judge(self, streams: Streams) -> Finding:
        """Look at all that was logged so far."""
        looked = list(self.wrong(streams))
        if not looked:
            return not_triggered(f"log {', '.join(self.needs) or 'a metric that has bounds'}", self.needs)
        number = int(self.parameters["in_a_row"].value)
        broken = [(series, flags) for series, bad in looked if (flags := in_a_row(bad, number)).any()]
        count = sum(len(series) for series, _ in looked)
        if not broken:
            return Finding(level=Level.QUIET, reason="in order", bound=self.bound, num_samples=count)
        series, flags = min(broken, key=lambda item: int(item[0].steps[int(np.argmax(item[1]))]))
        place = int(np.argmax(flags))
        return Finding(
            level=Level.ALARM,
            reason=f'"{series.tag}": {self.statement}; usually {self.meaning}',
            tags=tuple(one.tag for one, _ in broken),
            step=int(series.steps[place]),
            value=float(series.values[place]),
            bound=self.bound,
            num_samples=count,
            steps=(int(series.steps[0]), int(series.steps[-1])),
        )

    def wrong(self, streams: Streams) -> Sequence[tuple[Series, Flags]]:
        """Return the series that can be judged, and where each is wrong."""
        raise NotImplementedError


class OutOfBounds(_OfManySeries):
    """Metrics against the bounds that the vocabulary gives them."""

    def wrong(self, streams: Streams) -> Sequence[tuple[Series, Flags]]:
        """Compare the main series of every metric that has a bound."""
        slack = self.parameters["slack"].value
        known = [(metric, streams.one(name)) for name, metric in metrics().items()]
        return [
            (series, _outside(metric, series, slack))
            for metric, series in known
            if series is not None and len(series) and (metric.low, metric.high) != (None, None)
        ]


def _outside(metric: Metric, series: Series, slack: float) -> Flags:
    low = -np.inf if metric.low is None else metric.low
    high = np.inf if metric.high is None else metric.high
    return np.asarray((series.values < low - slack) | (series.values > high + slack))


def is_supervised(streams: Streams) -> bool:
    """Say whether the loss is that of supervised training or of pairs: nothing in the log is of a policy gradient.

    Losses of policy gradients and of distillation may be negative, under any name.
    """
    if any(name in streams.by_name for name in _OF_PAIRS):
        return True
    if any(name in streams.by_name for name in _OF_OTHER_LOSSES):
        return False
    return not any(_WORDS_OF_OTHER_LOSSES.search(tag) for tag in streams.log.tags())


class NegativeLikelihoodLoss(_OfManySeries):
    """The loss of supervised training, where the log says nothing of rewards, pairs or a reference."""

    def wrong(self, streams: Streams) -> Sequence[tuple[Series, Flags]]:
        """Look at the loss, unless it may be another kind."""
        loss = streams.one("loss")
        if loss is None or not is_supervised(streams) or any(name in streams.by_name for name in _OF_PAIRS):
            return []
        return [(loss, np.asarray(loss.values < -self.parameters["slack"].value))]


_WORDS_OF_SCALE = frozenset(
    ("loss", "kl", "kld", "grad", "gradient", "norm", "divergence", "entropy", "perplexity", "ppl", "mse")
)


class LeavesItsScale(_OfManySeries):
    """Losses, norms and divergences under any name, known or not."""

    def wrong(self, streams: Streams) -> Sequence[tuple[Series, Flags]]:
        """Compare the last points of each with all before."""
        times, least = self.parameters["times"].value, self.parameters["least"].value
        return [
            (series, beyond_scale(series.values, times, least))
            for tag, series in streams.log.series.items()
            if len(series) >= int(self.parameters["points"].value) and _WORDS_OF_SCALE & set(words_of(tag))
        ]


RULES: tuple[Rule, ...] = (
    Finite(
        id="finite",
        family="finite",
        statement="a logged value is NaN or infinite",
        uses=(*_ONCE, "grad_norm"),
        meaning="an overflow, a division by zero (an empty mask, a group of one), or a damaged batch",
        remedy="look at the batch of that step; every later step trains on weights that it may have destroyed",
        parameters={
            "in_a_row": Parameter(
                3, "PyTorch's GradScaler skips steps whose gradient overflows while it finds its scale"
            )
        },
    ),
    OutOfBounds(
        id="out-of-bounds",
        statement="a value that the metric cannot have",
        bound="what the metric can be by construction (docs/evidence/vocabulary.md)",
        meaning="a sign, a unit or a divisor that is wrong where it is computed or logged",
        remedy="recompute the figure of one step from its rows",
    ),
    NegativeLikelihoodLoss(
        id="likelihood-loss-negative",
        statement="the loss of supervised training is below 0",
        needs=("loss",),
        uses=_OF_OTHER_LOSSES,
        bound=">= 0: a likelihood is at most 1",
        meaning="a loss of the wrong sign, or probabilities in place of their logarithms",
        remedy="compute the cross-entropy of one batch by hand",
    ),
    LeavesItsScale(
        id="scale-left",
        statement="a loss, norm or divergence has left its scale and stays there",
        bound="most of the last tenth of the points <= 100 times what came before, or <= 10",
        parameters={
            "times": Parameter(100, HAND_SET),
            "least": Parameter(10, HAND_SET),
            "points": Parameter(8, "least number of points"),
            "in_a_row": Parameter(1, "the test looks at a tenth of the points already"),
        },
        meaning="a learning rate that is too large, or a term of the loss without a bound",
        remedy="look at the first step at which it left its range, and resume before it",
    ),
)
