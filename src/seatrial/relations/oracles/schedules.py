"""Learning rates of trainers in the form of Hugging Face's, from the documentation of their schedules."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any


def scheduled_rate(options: Mapping[str, Any], update: int, num_updates: int) -> float:
    """Return the rate of update 1..num_updates: a linear warm-up that begins at 0, then the schedule.

    Args:
        options: `policy.optimizer.lr`, and of `policy.scheduler`: `.name`, `.warmup_steps` (below 1: a share of all
            updates), `.min_lr`, `.num_cycles`, `.power`, `.lr_end`.
        update: counted from 1; the first one has seen no step of the schedule.
        num_updates: of the whole run.

    Raises:
        ValueError: the schedule has no closed form here.
    """
    peak, name = float(options["policy.optimizer.lr"]), options.get("policy.scheduler.name", "constant")
    given = options.get("policy.scheduler.warmup_steps", 0)
    warmup = math.ceil(given * num_updates) if 0 < given < 1 else int(given)
    done = update - 1
    if name == "constant":
        return peak
    if done < warmup:
        return peak * done / warmup
    progress = (done - warmup) / max(1, num_updates - warmup)
    if name == "constant_with_warmup":
        return peak
    if name == "linear":
        return peak * (1 - progress)
    if name in ("cosine", "cosine_with_min_lr"):
        cycles = options.get("policy.scheduler.num_cycles", 0.5)
        share = 0.5 * (1 + math.cos(math.pi * 2 * cycles * progress))
        floor = options.get("policy.scheduler.min_lr", 0.0) / peak if name == "cosine_with_min_lr" else 0.0
        return peak * (floor + (1 - floor) * share)
    if name == "polynomial":
        end, power = options.get("policy.scheduler.lr_end", 1e-7), options.get("policy.scheduler.power", 1.0)
        return float(end + (peak - end) * (1 - progress) ** power)
    raise ValueError(f"schedule {name!r} has no closed form here")
