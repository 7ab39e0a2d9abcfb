"""Rollouts as plain values, as a checkpoint keeps them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

from refrl.generation.base import Completion
from refrl.rewards import Scores
from refrl.rollout.sync import Rollouts
from refrl.tasks import Example


def to_plain(rollouts: Rollouts) -> dict[str, Any]:
    """Return rollouts as JSON values."""
    return {
        "examples": [asdict(example) for example in rollouts.examples],
        "completions": [asdict(completion) for completion in rollouts.completions],
        "texts": list(rollouts.texts),
        "scores": asdict(rollouts.scores),
    }


def from_plain(fields: Mapping[str, Any]) -> Rollouts:
    """Make rollouts of their plain form.

    Raises:
        ValueError: the columns have different lengths.
    """
    columns = ("examples", "completions", "texts")
    lens = {name: len(fields[name]) for name in columns} | {"rewards": len(fields["scores"]["rewards"])}
    if len(set(lens.values())) > 1:
        raise ValueError(f"rollouts of a checkpoint have columns of lengths {lens}")
    return Rollouts(
        examples=[Example(**example) for example in fields["examples"]],
        completions=[_completion(completion) for completion in fields["completions"]],
        texts=list(fields["texts"]),
        scores=Scores(**fields["scores"]),
    )


def _completion(fields: Mapping[str, Any]) -> Completion:
    """Make a completion of its plain form; lists, as JSON has them, become tuples."""
    return Completion(**{name: _tuples(value) for name, value in fields.items()})


def _tuples(value: Any) -> Any:
    return tuple(_tuples(item) for item in value) if isinstance(value, list | tuple) else value
