"""What the guards of a run of refrl share: its options, which steps are checked closely, one way to report."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from refrl.config import GRPORunConfig, SFTRunConfig
from seatrial.guards import Guards
from seatrial.targets.reference.configuration import dotted, effective

RunConfig = GRPORunConfig | SFTRunConfig
EARLY, EVERY = 3, 20
"""Closed forms are computed at the first steps, and at one in so many later ones."""


def is_checked_closely(step: int) -> bool:
    """Return whether closed forms are computed at this step."""
    return step <= EARLY or step % EVERY == 0


def loop_of(config: RunConfig) -> Any:
    """Return the section of the loop, `grpo` or `sft`."""
    return config.grpo if isinstance(config, GRPORunConfig) else config.sft


def options_of(config: RunConfig) -> dict[str, Any]:
    """Return every option by its dotted name."""
    return effective(config) if isinstance(config, GRPORunConfig) else dotted(config.model_dump(mode="json"))


def updates_per_step(config: RunConfig) -> int:
    """Return the number of optimizer updates of a step from which no filter takes rows."""
    if isinstance(config, SFTRunConfig):
        return 1
    return rows_per_step(config) // config.policy.train_global_batch_size


def rows_per_step(config: RunConfig) -> int:
    """Return the number of rows that a step trains on."""
    if isinstance(config, SFTRunConfig):
        return config.policy.train_global_batch_size
    return config.grpo.num_prompts_per_step * config.grpo.num_generations_per_prompt


def check(guards: Guards, name: str, wrong: str | Sequence[str], *, number: int, where: str = "") -> None:
    """Record a guard's result: it fails if something is wrong, of which the first three are named.

    Args:
        guards: where the result is recorded.
        name: of the guard.
        wrong: what is wrong; empty if nothing is.
        number: of samples that the result rests on.
        where: the place, before what is wrong.
    """
    text = wrong if isinstance(wrong, str) else ", ".join(wrong[:3])
    guards.hold(name, not wrong, f"{where}{text}", number=number)
