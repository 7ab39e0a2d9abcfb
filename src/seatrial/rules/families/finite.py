"""Values that are not finite."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from seatrial.evidence.runlog import Series
from seatrial.rules.rule import Finding, Level, Parameter, Rule
from seatrial.rules.streams import Streams
from seatrial.rules.windows import in_a_row

_ONCE = ("loss", "reward/mean", "entropy", "kl/reference", "advantages/mean", "validation/loss")
"""Metrics that have no excuse for a single NaN."""


@dataclass(frozen=True, kw_only=True)
class Finite:
    """Every series of the log, known to the vocabulary or not."""

    id: str = "finite"
    family: str = "finite"
    statement: str = "a logged value is NaN or infinite"
    needs: Sequence[str] = ()
    uses: Sequence[str] = (*_ONCE, "grad_norm")
    meaning: str = "an overflow, a division by zero (an empty mask, a group of one), or a damaged batch"
    remedy: str = (
        "look at the batch of that step; every later step trains on weights that it may have destroyed"
    )
    catalogue: Sequence[str] = ()
    parameters: Mapping[str, Parameter] = field(
        default_factory=lambda: {
            "in_a_row": Parameter(
                3,
                "PyTorch's GradScaler skips steps whose gradient overflows while it finds its scale",
            )
        }
    )

    def judge(self, streams: Streams) -> Finding:
        """Alarm at once for a loss and its like, after some in a row for a gradient norm, and notice anything else."""
        alarms: list[tuple[int, Series, float]] = []
        notices: list[tuple[int, Series, float]] = []
        once = {id(one) for name in _ONCE for one in streams.by_name.get(name, ())}
        scaled = {id(one) for one in streams.by_name.get("grad_norm", ())}
        number = 0
        for series in streams.log.series.values():
            number += len(series)
            bad = ~np.isfinite(series.values)
            if not bad.any():
                continue
            if id(series) in once and series.nulls is not None:
                bad &= ~series.nulls
            alarming = bad if id(series) in once else in_a_row(bad, int(self.parameters["in_a_row"].value))
            if id(series) in once | scaled and alarming.any():
                alarms.append(_first(alarming, series))
            else:
                notices.append(_first(~np.isfinite(series.values), series))
        found = alarms or notices
        if not number:
            return Finding(level=Level.NOT_TRIGGERED, reason="not triggered: the log holds no series")
        if not found:
            return Finding(level=Level.QUIET, reason="in order", num_samples=number, bound="finite")
        step, series, value = min(found, key=lambda item: item[0])
        return Finding(
            level=Level.ALARM if alarms else Level.NOTICE,
            reason=f"{series.tag} is {value}; usually {self.meaning}",
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


RULES: tuple[Rule, ...] = (Finite(),)
