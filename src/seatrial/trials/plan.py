"""Which trials there are, and which of them a request names."""

from __future__ import annotations

from collections.abc import Collection, Sequence

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
from seatrial.trials.supervised_smoke import DpoSmoke, SftSmoke

MAX_LEVEL = 6


def all_trials() -> list[Trial]:
    """Return every trial, lowest level first."""
    return [
        GrpoSmoke(),
        SftSmoke(),
        DpoSmoke(),
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


def select_trials(
    levels: Sequence[int] | None, names: Sequence[str], offered: Collection[str] | None = None
) -> list[Trial]:
    """Return the trials of these levels, or these trials by name; of both, those that both name.

    Args:
        levels: of the trials; None: any.
        names: of the trials; empty: any.
        offered: trials that the target has a run for; None: all but those for stacks without GRPO.

    Raises:
        UsageError: a name is unknown (the nearest is named), or nothing is left.
    """
    known = all_trials()
    for name in names:
        if name not in {trial.name for trial in known}:
            raise UsageError(f"--trial {name!r} is unknown; {hint(name, [trial.name for trial in known])}")
        if offered is not None and name not in offered:
            raise UsageError(
                f"--trial {name}: the target has no recipe {name}; {hint(name, sorted(offered))}"
            )
    named = [
        trial
        for trial in known
        if (levels is None or trial.level in levels) and (not names or trial.name in names)
    ]
    left_out = (
        {SftSmoke.name, DpoSmoke.name} if offered is None else {trial.name for trial in known} - {*offered}
    )
    chosen = [trial for trial in named if trial.name in names or trial.name not in left_out]
    if not chosen and named:
        possible = ", ".join(trial.name for trial in named)
        raise UsageError(f"the target has no recipe for level {_words(levels)}: add one of {possible}")
    if not chosen:
        raise UsageError(f"--trial {', '.join(names)} is not of level {_words(levels)}")
    return chosen


def _words(levels: Sequence[int] | None) -> str:
    return ", ".join(map(str, levels or ()))
