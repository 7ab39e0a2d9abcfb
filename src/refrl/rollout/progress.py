"""Where asynchronous rollouts stand, for a checkpoint: as of the last moment when nothing was being sampled."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from refrl.rollout.plain import from_plain, to_plain
from refrl.rollout.sync import Rollouts
from refrl.tasks import Example, PromptSource


@dataclass(frozen=True)
class Origin:
    """What came with a batch of groups besides their rows."""

    served: Sequence[Example]
    counts: Mapping[str, float]
    discarded: Rollouts | None
    seconds: Mapping[str, float] = field(default_factory=dict)
    """Of the phases of its sampling; a checkpoint leaves them out."""

    def state(self) -> dict[str, Any]:
        """Return it as plain values."""
        return {
            "served": [asdict(example) for example in self.served],
            "counts": dict(self.counts),
            "discarded": None if self.discarded is None else to_plain(self.discarded),
        }

    @classmethod
    def of(cls, state: Mapping[str, Any]) -> Origin:
        """Return what gave the state."""
        discarded = state["discarded"]
        return cls(
            served=[Example(**example) for example in state["served"]],
            counts=state["counts"],
            discarded=None if discarded is None else from_plain(discarded),
        )


class RolloutProgress:
    """A part of a checkpoint (`refrl.checkpointing.base.Stateful`); prompts drawn for later batches are drawn again."""

    def __init__(self, prompts: PromptSource) -> None:
        """Stand at the beginning."""
        self._prompts = prompts
        self.collector: Mapping[str, Any] | None = None
        """State of the collector; None at the beginning."""
        self._drawn: Mapping[str, int] = prompts.state_dict()

    def note(self, collector: Mapping[str, Any]) -> None:
        """Take in the state of a collector that samples nothing now."""
        self.collector, self._drawn = collector, self._prompts.state_dict()

    def state_dict(self) -> Mapping[str, Any]:
        """Return what was noted last."""
        return {"prompts": self._drawn, "collector": self.collector}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on where `state_dict` was taken."""
        self._prompts.load_state_dict(state["prompts"])
        self._drawn, self.collector = state["prompts"], state["collector"]
