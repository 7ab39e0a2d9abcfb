"""The state of asynchronous rollouts for a checkpoint, as of the last moment at which nothing was being sampled."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from refrl.rollout.columns import from_plain, to_plain
from refrl.rollout.sync import Rollouts
from refrl.tasks import Example, PromptSource


@dataclass(frozen=True)
class Origin:
    """Metadata of a batch of groups."""

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
        """Return the origin with this state."""
        discarded = state["discarded"]
        return cls(
            served=[Example(**example) for example in state["served"]],
            counts=state["counts"],
            discarded=None if discarded is None else from_plain(discarded),
        )


class RolloutProgress:
    """A part of a checkpoint (`refrl.checkpointing.base.Stateful`); prompts drawn for later batches are drawn again."""

    def __init__(self, prompts: PromptSource) -> None:
        """Start at the beginning."""
        self._prompts = prompts
        self.collector: Mapping[str, Any] | None = None
        """State of the collector; None at the beginning."""
        self._drawn: Mapping[str, int] = prompts.state_dict()

    def note(self, collector: Mapping[str, Any]) -> None:
        """Record the state of a collector that is not sampling."""
        self.collector, self._drawn = collector, self._prompts.state_dict()

    def state_dict(self) -> Mapping[str, Any]:
        """Return the state recorded last."""
        return {"prompts": self._drawn, "collector": self.collector}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore the state that `state_dict` returned."""
        self._prompts.load_state_dict(state["prompts"])
        self._drawn, self.collector = state["prompts"], state["collector"]
