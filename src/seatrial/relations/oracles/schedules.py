"""Learning rates of trainers in the form of Hugging Face's, from the documentation of their schedules."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Place:
    """Where a step is in a schedule."""

    done: int
    """Steps before it."""
    warmup: int
    num_updates: int
    options: Mapping[str, Any]
    """Of the schedule, by their own names."""
    peak: float

    @property
    def progress(self) -> float:
        """Share of the steps after the warm-up that are done."""
        return (self.done - self.warmup) / max(1, self.num_updates - self.warmup)

    @property
    def floor(self) -> float:
        """The lowest rate as a share of the peak."""
        if self.options.get("min_lr") is not None:
            return float(self.options["min_lr"]) / self.peak
        return float(self.options.get("min_lr_rate") or self.options.get("min_lr_ratio") or 0.0)


def scheduled_rate(options: Mapping[str, Any], update: int, num_updates: int) -> float:
    """Return the rate of update 1..num_updates: a warm-up that begins at 0, then the schedule.

    Args:
        options: `policy.optimizer.lr`, and of `policy.scheduler`: `.name`, `.warmup_steps` (below 1: a share of all
            updates), and the options that Transformers documents for a schedule of this name. `cosine_with_init_lr` is
            verl's: `init_lr_ratio` is where its warm-up begins, and it counts from 1 without `zero_indexed_step`.
        update: counted from 1; the first one has seen no step of the schedule.
        num_updates: of the whole run.

    Raises:
        ValueError: the schedule has no closed form here.
    """
    peak, name = float(options["policy.optimizer.lr"]), options.get("policy.scheduler.name", "constant")
    given = options.get("policy.scheduler.warmup_steps", 0)
    warmup = math.ceil(given * num_updates) if 0 < given < 1 else int(given)
    own = {
        key.removeprefix("policy.scheduler."): value for key, value in options.items() if "scheduler." in key
    }
    if name not in FORMULAS:
        raise ValueError(f"schedule {name!r} has no closed form here")
    done = update - 1 if own.get("zero_indexed_step", True) else update
    place = Place(done, warmup, num_updates, own, peak)
    if name != "constant" and place.done < warmup:
        return peak * _warming_up(name, place)
    return peak * FORMULAS[name](place)


def _warming_up(name: str, at: Place) -> float:
    """Return the share of the peak during the warm-up."""
    if name == "cosine_warmup_with_min_lr":
        start = at.options.get("warmup_lr_rate")
        if start is None:
            return (at.done + 1) / at.warmup
        return float(start + (1 - start) * at.done / max(1, at.warmup - 1))
    share = at.done / at.warmup
    if name != "warmup_stable_decay":
        start = float(at.options.get("init_lr_ratio", 0.0))
        return start + (1 - start) * share
    shape = at.options.get("warmup_type", "linear")
    share = {
        "linear": share,
        "cosine": (1 - math.cos(math.pi * share)) / 2,
        "1-sqrt": 1 - math.sqrt(1 - share),
    }[shape]
    return at.floor + (1 - at.floor) * share


def _wave(progress: float, cycles: float, floor: float = 0.0) -> float:
    """Return the cosine from 1 to the floor, of so many waves."""
    return floor + (1 - floor) * 0.5 * (1 + math.cos(2 * math.pi * cycles * progress))


def _cosine(at: Place, floor: float = 0.0, progress: float | None = None) -> float:
    return _wave(at.progress if progress is None else progress, at.options.get("num_cycles", 0.5), floor)


def _restarts(at: Place) -> float:
    return _wave((at.options.get("num_cycles", 1) * at.progress) % 1.0, 0.5)


def _polynomial(at: Place) -> float:
    end, power = at.options.get("lr_end", 1e-7), at.options.get("power", 1.0)
    return float(end + (at.peak - end) * (1 - at.progress) ** power) / at.peak


def _inverse_sqrt(at: Place) -> float:
    scale = at.options.get("timescale") or at.warmup or 10_000
    return 1 / math.sqrt((at.done - at.warmup + scale) / scale)


def _cosine_counted_from_one(at: Place) -> float:
    return _cosine(at, at.floor, (at.done - at.warmup + 1) / max(1, at.num_updates - at.warmup))


def _stable_then_decay(at: Place) -> float:
    num_decay = int(at.options["num_decay_steps"])
    num_stable = at.options.get("num_stable_steps", at.num_updates - at.warmup - num_decay)
    since = at.done - at.warmup - num_stable
    if since < 0:
        return 1.0
    if since >= num_decay:
        return at.floor
    progress, shape = since / num_decay, at.options.get("decay_type", "cosine")
    if shape == "cosine":
        return _cosine(at, at.floor, progress)
    share: float = {"linear": 1 - progress, "1-sqrt": 1 - math.sqrt(progress)}[shape]
    return at.floor + (1 - at.floor) * share


FORMULAS: Mapping[str, Callable[[Place], float]] = {
    "constant": lambda at: 1.0,
    "constant_with_warmup": lambda at: 1.0,
    "linear": lambda at: 1 - at.progress,
    "cosine": _cosine,
    "cosine_with_restarts": _restarts,
    "cosine_with_init_lr": lambda at: _cosine(at, at.floor),
    "cosine_with_min_lr": lambda at: _cosine(at, at.floor),
    "cosine_warmup_with_min_lr": _cosine_counted_from_one,
    "polynomial": _polynomial,
    "inverse_sqrt": _inverse_sqrt,
    "warmup_stable_decay": _stable_then_decay,
}
"""The rate after the warm-up as a share of the peak."""
