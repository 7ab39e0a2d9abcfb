"""What a trial needs: devices, and the longest time that it may take."""

from __future__ import annotations

import subprocess
from collections.abc import Collection, Mapping
from typing import Protocol, runtime_checkable

from seatrial.targets.base import Need, Target
from seatrial.trials.base import Trial

VISIBLE = "CUDA_VISIBLE_DEVICES"


@runtime_checkable
class DeclaresNeeds(Protocol):
    """A target that knows what its trials need."""

    def need(self, trial: str) -> Need:
        """Return what a trial needs."""
        ...


def need_of(trial: Trial, target: Target) -> Need:
    """Return what a trial needs on a target: what the target declares, else what the trial does."""
    if isinstance(target, DeclaresNeeds):
        return target.need(trial.name)
    return Need(num_gpus=getattr(trial, "num_processes", 1))


def visible_devices(environment: Mapping[str, str]) -> tuple[str, ...]:
    """Return the GPUs that this process may use: `CUDA_VISIBLE_DEVICES`, else those of nvidia-smi; none without."""
    if (named := environment.get(VISIBLE)) is not None:
        return tuple(word.strip() for word in named.split(",") if word.strip())
    try:
        listed = subprocess.run(
            ["nvidia-smi", "--query-gpu=index", "--format=csv,noheader"],
            capture_output=True, text=True, timeout=30, check=False,
        )  # fmt: skip
    except (OSError, subprocess.TimeoutExpired):
        return ()
    return tuple(listed.stdout.split()) if listed.returncode == 0 else ()


def fitting(needs: Mapping[str, Need], budget_gpu_hours: float) -> Collection[str]:
    """Return the names that fit in a budget together, in their order; a smaller one behind one that does not may fit.

    Args:
        needs: of each trial by its name, in the order of the run.
        budget_gpu_hours: the whole budget.
    """
    left, chosen = budget_gpu_hours, []
    for name, need in needs.items():
        if need.gpu_hours <= left:
            left -= need.gpu_hours
            chosen.append(name)
    return chosen
