"""Serves the turns of completions that call tools, and keeps the rollouts that are due."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from seatrial.targets.trl.made_rows import MadeRows
from seatrial.targets.trl.tools import Turn, environment_of, parsed, reward_of_calls, spoken


@dataclass
class OpenRollout:
    """A rollout with the turns that it still gets."""

    rollout: dict[str, Any]
    """Fields of `contracts.trainers.Rollout`."""
    turns: tuple[Turn, ...]
    num_served: int = 1

    @property
    def ids(self) -> tuple[int, ...]:
        """All tokens up to now."""
        found: tuple[int, ...] = self.rollout["prompt_ids"] + self.rollout["ids"]
        return found


@dataclass
class Turns:
    """Turns of one generation after the other.

    A prompt that begins with all tokens of an open rollout requests its next turn. The
    rollout continues with the tokens that are due, without any beyond the limit of iterations or of its length; a
    trainer that has others then trains on rows that were not sampled.
    """

    rows: MadeRows
    limit: int | None
    """Of iterations of calls."""
    open: list[OpenRollout] = field(default_factory=list)

    def next(self, given: tuple[int, ...]) -> tuple[int, ...] | None:
        """Return the sampled ids of the next turn; None if the prompt continues no rollout."""
        found = next((one for one in self.open if given[: len(one.ids)] == one.ids and one.ids), None)
        if found is None:
            return None
        self.open.remove(found)
        if found.num_served == len(found.turns):
            return (self.rows.eos_id,)
        last, turn = found.turns[found.num_served - 1], found.turns[found.num_served]
        sampled = (*self.rows.ids_of(turn.text), self.rows.eos_id)
        if self.limit is not None and found.num_served > self.limit:
            return sampled
        suffix = self.rows.ids_of(last.suffix)
        rollout = found.rollout
        num_left = self.rows.setup.max_completion_length - len(rollout["ids"]) - len(suffix)
        if num_left < 0:
            return sampled
        kept = sampled[:num_left]
        rollout["ids"] += suffix + kept
        rollout["from_tools"] += (True,) * len(suffix) + (False,) * len(kept)
        rollout["calls"] += _calls(last)
        found.num_served += 1
        if kept == sampled:
            self._close(found)
        else:
            said = spoken(found.turns[: found.num_served - 1], found.num_served - 1)
            said += str(parsed(self.rows.text(kept))["content"])
            rollout |= {"ended": False, "rewards": self.rows.rewards_of(said, rollout["prompt_ids"])}
        return sampled

    def begin(self, rollout: dict[str, Any], turns: tuple[Turn, ...]) -> tuple[int, ...]:
        """Return the sampled ids of the first turn of a new rollout, and complete its fields."""
        sampled = (*self.rows.ids_of(turns[0].text), self.rows.eos_id)
        rollout |= {"ids": sampled, "ended": True, "from_tools": (False,) * len(sampled), "calls": ()}
        self._close(OpenRollout(rollout, turns))
        return sampled

    def _close(self, one: OpenRollout) -> None:
        """Give a rollout the rewards of its messages, and keep it while it has more turns."""
        said = spoken(one.turns[: one.num_served], one.num_served - 1)
        prompt_ids = one.rollout["prompt_ids"]
        one.rollout["rewards"] = self.rows.rewards_of(said, prompt_ids)
        if self.rows.setup.tools == "environments":
            counts = environment_of(self.rows.number_of(prompt_ids)) == "counting"
            one.rollout["rewards"] += (reward_of_calls(len(one.rollout["calls"])) if counts else None,)
        if one.num_served < len(one.turns):
            self.open.append(one)


def _calls(turn: Turn) -> tuple[bool, ...]:
    return tuple(name != "refuse" for name, _ in turn.calls)
