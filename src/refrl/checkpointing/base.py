"""What a checkpoint holds, and what it asks of the parts that go into it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from pydantic import BaseModel, ConfigDict
from torch import Tensor

SCHEMA_VERSION = 1


class Stateful(Protocol):
    """A part of a run whose state is small: a cursor, a counter. Large state is tensors, and the policy's."""

    def state_dict(self) -> Mapping[str, Any]:
        """Return the state as JSON values."""
        ...

    def load_state_dict(self, state: Any) -> None:
        """Go on where `state_dict` was taken."""
        ...


class StatefulPolicy(Protocol):
    """What a checkpoint asks of a policy (`refrl.policy.base.Policy`)."""

    def state_tensors(self) -> Mapping[str, Tensor]:
        """Return every tensor that training changes, live: weights, masters, moments. What is written into them holds.

        A tensor that is spread over ranks is a DTensor.
        """
        ...

    def state_facts(self) -> Mapping[str, Any]:
        """Return counters, and digests of what training does not change, as JSON values."""
        ...

    def load_state_facts(self, facts: Mapping[str, Any]) -> None:
        """Take in the counters when the tensors have been written.

        Raises:
            ConfigError: what training does not change is not what it was.
        """
        ...


class TrainingInfo(BaseModel):
    """`training_info.json`: everything of a checkpoint that is no tensor. Its directory is whole when it fits it."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)

    schema_version: int = SCHEMA_VERSION
    step: int
    """Steps taken."""
    finished: bool
    """Whether the loop had ended before its last step for a reason of its own."""
    run_id: str
    """Of the run whose log this belongs to."""
    metric: float | None
    """Value of `checkpointing.metric_name` at this step; None where none was logged, or none is named."""
    seed: int
    data: str
    """Digest of the prompts and answers trained on: a cursor means nothing over others."""
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


@dataclass(frozen=True)
class Checkpoint:
    """A whole checkpoint on disk."""

    directory: Path
    info: TrainingInfo
