"""Groups of completions between those who sample them and those who train on them.

Ages are counted in training steps: a group whose sampling began with the weights of step v is `step - 1 - v` old when
step `step` trains on it. No group is trained on twice, none that is older than the window, and each that leaves the
buffer says why.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any, Literal

from refrl.algorithms.schedule import Schedule
from refrl.generation.base import Completion
from refrl.rewards import Scores
from refrl.rollout.sync import Rollouts
from refrl.tasks import Example

Added = Literal["added", "full", "stale", "duplicate"]
"""What became of a group that was to be added."""


@dataclass(frozen=True, kw_only=True)
class Group:
    """The completions of one prompt."""

    number: int
    """Place in the order of generation, from 0; no two groups of a run share one."""
    weight_step: int
    """Training steps that the weights had seen when the oldest of its rows began."""
    rollouts: Rollouts


class ReplayBuffer:
    """Holds groups in the order of their numbers. Not for several threads at once."""

    def __init__(self, schedule: Schedule, *, capacity: int) -> None:
        """Start empty.

        Args:
            schedule: says how old a group may be (inclusive).
            capacity: most groups held.

        Raises:
            ValueError: no room for a group.
        """
        if capacity < 1:
            raise ValueError(f"a replay buffer of capacity={capacity} holds nothing: take at least 1")
        self._schedule = schedule
        self._capacity = capacity
        self._groups: dict[int, Group] = {}
        self.watermark = 0
        """Every group of a lower number was taken or evicted: what comes late with one is not trained on again."""
        self._passed: set[int] = set()
        """Numbers beyond the watermark that were taken or evicted before their turn."""

    def __len__(self) -> int:
        """Return the groups held."""
        return len(self._groups)

    def add(self, group: Group, *, trained_steps: int) -> Added:
        """Keep a group for training; nothing changes unless the answer is `added`.

        Args:
            group: complete, with rewards.
            trained_steps: training steps done.

        Returns:
            `duplicate` where its number is held or was passed, `stale` where no step could train on it any more,
            `full` where there is no room: try again after a step.

        Raises:
            ValueError: it claims weights that the trainer does not have yet.
        """
        if group.number in self._groups or group.number in self._passed or group.number < self.watermark:
            return "duplicate"
        if not self._schedule.is_fresh(group.weight_step, trained_steps):
            return "stale"
        if len(self._groups) >= self._capacity:
            return "full"
        self._groups[group.number] = group
        return "added"

    def evict(self, *, trained_steps: int) -> list[Group]:
        """Remove and return the groups that are too old for the next step."""
        stale = [
            group
            for group in self._groups.values()
            if not self._schedule.is_fresh(group.weight_step, trained_steps)
        ]
        return self._remove(stale)

    def take(self, num_groups: int, *, trained_steps: int) -> list[Group] | None:
        """Remove and return the first fresh groups, in order; None, and nothing is removed, where there are too few.

        Raises:
            ValueError: a group is too old; `evict` first.
        """
        stale = [
            group.number
            for group in self._groups.values()
            if not self._schedule.is_fresh(group.weight_step, trained_steps)
        ]
        if stale:
            raise ValueError(
                f"groups {stale} are too old after {trained_steps} steps: evict them before a step is taken"
            )
        if len(self._groups) < num_groups:
            return None
        return self._remove([self._groups[number] for number in sorted(self._groups)[:num_groups]])

    def remaining(self) -> list[Group]:
        """Return what it holds, in order."""
        return [self._groups[number] for number in sorted(self._groups)]

    def state(self) -> dict[str, Any]:
        """Return everything as plain values, for a checkpoint."""
        return {
            "watermark": self.watermark,
            "passed": sorted(self._passed),
            "groups": [_plain(group) for group in self.remaining()],
        }

    def restore(self, state: Mapping[str, Any], *, trained_steps: int) -> list[Group]:
        """Take the place of the buffer that gave the state; return the groups that are too old to be kept.

        Raises:
            ValueError: the state is not whole, or holds a group twice, one that was trained on, one of weights that
                the trainer does not have, or more than there is room for.
        """
        missing = {"watermark", "passed", "groups"} - state.keys()
        if missing:
            raise ValueError(f"the state of the replay buffer lacks {', '.join(sorted(missing))}")
        groups = [_group(fields) for fields in state["groups"]]
        numbers = [group.number for group in groups]
        passed = [number for number in numbers if number < state["watermark"] or number in state["passed"]]
        if passed or len(set(numbers)) < len(numbers):
            raise ValueError(
                f"the state of the replay buffer holds groups {numbers}, of which {passed} had left it: each must be "
                "there once, and must not have been trained on"
            )
        fresh = [group for group in groups if self._schedule.is_fresh(group.weight_step, trained_steps)]
        if len(fresh) > self._capacity:
            raise ValueError(f"{len(fresh)} groups do not fit into a replay buffer of {self._capacity}")
        self.watermark, self._passed = state["watermark"], set(state["passed"])
        self._groups = {group.number: group for group in groups}
        return self.evict(trained_steps=trained_steps)

    def _remove(self, groups: Sequence[Group]) -> list[Group]:
        for group in groups:
            del self._groups[group.number]
            self._passed.add(group.number)
        while self.watermark in self._passed:
            self._passed.remove(self.watermark)
            self.watermark += 1
        return list(groups)


def split_groups(rollouts: Rollouts, size: int) -> list[Rollouts]:
    """Return the completions of each prompt by themselves, in order; each counts its own errors of the verifier.

    Args:
        rollouts: whole groups, one after the other; a prompt that was drawn twice has two.
        size: completions of a group.

    Raises:
        ValueError: some rows are not such a group.
    """
    groups = [rollouts.rows(range(first, first + size)) for first in range(0, len(rollouts.examples), size)]
    for number, group in enumerate(groups):
        prompts = {example.prompt_id for example in group.examples}
        if len(prompts) > 1:
            raise ValueError(f"group {number} of a batch has completions of prompts {sorted(prompts)}")
    return [_own_errors(group) for group in groups]


def _own_errors(rollouts: Rollouts) -> Rollouts:
    scores = rollouts.scores
    num_errors = sum(scores.failed)
    first_error = scores.first_error if num_errors else None
    return replace(rollouts, scores=replace(scores, num_errors=num_errors, first_error=first_error))


def _plain(group: Group) -> dict[str, Any]:
    rollouts = group.rollouts
    return {
        "number": group.number,
        "weight_step": group.weight_step,
        "examples": [asdict(example) for example in rollouts.examples],
        "completions": [asdict(completion) for completion in rollouts.completions],
        "texts": list(rollouts.texts),
        "scores": asdict(rollouts.scores),
    }


def _group(fields: Mapping[str, Any]) -> Group:
    """Make a group of its plain form.

    Raises:
        ValueError: its columns have different lengths.
    """
    columns = ("examples", "completions", "texts")
    lens = {name: len(fields[name]) for name in columns} | {"rewards": len(fields["scores"]["rewards"])}
    if len(set(lens.values())) > 1:
        raise ValueError(
            f"group {fields['number']} of the replay buffer's state has columns of lengths {lens}"
        )
    return Group(
        number=fields["number"],
        weight_step=fields["weight_step"],
        rollouts=Rollouts(
            examples=[Example(**example) for example in fields["examples"]],
            completions=[_completion(completion) for completion in fields["completions"]],
            texts=list(fields["texts"]),
            scores=Scores(**fields["scores"]),
        ),
    )


def _completion(fields: Mapping[str, Any]) -> Completion:
    """Make a completion of its plain form; lists, as JSON has them, become tuples."""
    return Completion(**{name: _tuples(value) for name, value in fields.items()})


def _tuples(value: Any) -> Any:
    return tuple(_tuples(item) for item in value) if isinstance(value, list | tuple) else value
