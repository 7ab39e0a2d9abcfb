"""What a checkpoint holds, and the interfaces of the parts that it saves."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from pydantic import BaseModel, ConfigDict
from torch import Tensor

SCHEMA_VERSION = 1
NO_DIGEST = "0" * 64
"""Placeholder for the digest of a file while it is computed."""


class Stateful(Protocol):
    """A part of a run with a small state, such as a cursor or a counter; large state is the policy's tensors."""

    def state_dict(self) -> Mapping[str, Any]:
        """Return the state as JSON values."""
        ...

    def load_state_dict(self, state: Any) -> None:
        """Restore the state that `state_dict` returned."""
        ...


class StatefulPolicy(Protocol):
    """What a checkpoint requires of a policy (`refrl.policy.base.Policy`)."""

    def state_tensors(self) -> Mapping[str, Tensor]:
        """Return every tensor that training changes, live: weights, masters, moments; writing into them restores them.

        A tensor that is sharded over ranks is a DTensor.
        """
        ...

    def state_facts(self) -> Mapping[str, Any]:
        """Return counters, and digests of what training does not change, as JSON values."""
        ...

    def load_state_facts(self, facts: Mapping[str, Any]) -> None:
        """Restore the counters after the tensors have been written.

        Raises:
            ConfigError: the frozen weights have changed.
        """
        ...


class TrainingInfo(BaseModel):
    """`training_info.json`: all of a checkpoint except tensors. The directory is complete if its files match it."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)

    schema_version: int = SCHEMA_VERSION
    step: int
    """Completed steps."""
    finished: bool
    """Whether the loop stopped before its last step because it had reached its goal."""
    run_id: str
    """The run whose log this belongs to."""
    metric: float | None
    """Value of `checkpointing.metric_name` at this step; None if it was not logged, or none is named."""
    seed: int
    data: str
    """Digest of the training prompts and answers: a cursor is only valid with the same data."""
    world_size: int
    policy: dict[str, Any]
    """`StatefulPolicy.state_facts`."""
    parts: dict[str, Any]
    """`Stateful.state_dict` of each part by name."""
    streams: list[dict[str, Any]]
    """The global random streams of each rank (`refrl.streams.global_streams`)."""
    config: dict[str, Any]
    """The whole configuration of the run."""
    files: dict[str, int]
    """Bytes of every other file."""
    digests: dict[str, str] = {}
    """SHA-256 of every other file; empty in checkpoints of earlier versions, which only sizes can check."""
    digest: str = ""
    """SHA-256 of this file with `NO_DIGEST` in place of the value; empty in checkpoints of earlier versions."""


@dataclass(frozen=True)
class Checkpoint:
    """A complete checkpoint on disk."""

    directory: Path
    info: TrainingInfo
