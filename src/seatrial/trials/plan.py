"""Which trials there are, and which of them a request names."""

from __future__ import annotations

from collections.abc import Sequence

from seatrial.errors import UsageError
from seatrial.nearest import hint
from seatrial.trials.architectures import architecture_trials
from seatrial.trials.async_filter_flow import AsyncFilterFlow
from seatrial.trials.base import Trial
from seatrial.trials.checkpointing import CheckpointSave, GrpoLora
from seatrial.trials.generation import GenerationMegatron, GenerationVllm
from seatrial.trials.grpo_smoke import GrpoSmoke
from seatrial.trials.learning_signal import LearningSignal
from seatrial.trials.parallel import layout_trials
from seatrial.trials.refit import RefitDelta, RefitNoncolocated
from seatrial.trials.resume_diamond import SftResumeDiamond, backend_diamonds

MAX_LEVEL = 6


def all_trials() -> list[Trial]:
    """Return every trial, lowest level first."""
    return [
        GrpoSmoke(),
        GrpoLora(),
        CheckpointSave(),
        SftResumeDiamond(),
        RefitNoncolocated(),
        RefitDelta(),
        AsyncFilterFlow(),
        GenerationVllm(),
        GenerationMegatron(),
        *layout_trials(),
        *backend_diamonds(),
        *architecture_trials(),
        LearningSignal(),
    ]


def parse_levels(text: str) -> list[int]:
    """Read `0`, `0,6`, `0-2,6` as sorted levels.

    Raises:
        UsageError: a part is no level or no range of levels.
    """
    levels: set[int] = set()
    for part in text.split(","):
        first, dash, last = part.strip().partition("-")
        if not first.isdecimal() or (dash and not last.isdecimal()):
            raise UsageError(f"--level {text!r}: {part.strip()!r} is no level; write 0, or 0,6, or 0-2,6")
        low, high = int(first), int(last) if dash else int(first)
        if low > high or high > MAX_LEVEL:
            raise UsageError(f"--level {text!r}: {part.strip()!r} is not within 0-{MAX_LEVEL}")
        levels.update(range(low, high + 1))
    return sorted(levels)


def select_trials(levels: Sequence[int] | None, names: Sequence[str]) -> list[Trial]:
    """Return the trials of these levels, or these trials by name; of both, those that both name.

    Raises:
        UsageError: a name is unknown (the nearest is named), or nothing is left.
    """
    known = all_trials()
    for name in names:
        if name not in {trial.name for trial in known}:
            names = [trial.name for trial in known]
            raise UsageError(f"--trial {name!r} is unknown; {hint(name, names)}")
    chosen = [
        trial
        for trial in known
        if (levels is None or trial.level in levels) and (not names or trial.name in names)
    ]
    if not chosen:
        raise UsageError(f"--trial {', '.join(names)} is not of level {', '.join(map(str, levels or ()))}")
    return chosen
