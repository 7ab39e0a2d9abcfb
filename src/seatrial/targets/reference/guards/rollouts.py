"""Checks the groups of asynchronous rollouts: each has one number and its prompt, and is as old as the run says."""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path

from refrl.config import GRPORunConfig
from refrl.training.session import Session, TrainedStep
from seatrial.guards import Guards
from seatrial.targets.reference.guards.base import check
from seatrial.targets.reference.guards.continued import check_continued
from seatrial.targets.reference.target import lag_is_exact


class RolloutGuard:
    """Checks the groups of each step against those before."""

    def __init__(self, config: GRPORunConfig, guards: Guards) -> None:
        """Begin with no group seen."""
        self._config, self._guards = config, guards
        self._next = 0
        self._served: dict[int, int] = {}
        """The prompt of each group that was announced, by its number."""
        self._num_served = 0

    def started(self, session: Session) -> None:
        """Continue after the groups of earlier attempts; check how a request that was given up is continued."""
        if self._config.grpo.async_grpo.enabled:
            check_continued(self._guards)
        step = session.attempt.step
        path = session.logger.directory / f"group_data_step{step}.jsonl"
        if step and path.is_file():
            self._next = max(_numbers(path)) + 1
        size = self._config.grpo.num_prompts_per_step
        # Prompts come with the first group of their batch.
        self._num_served = -(-self._next // size) * size

    def check_step(self, step: TrainedStep) -> None:
        """Check numbers, prompts and weights of the groups that a step trained on or dropped."""
        rollouts = self._config.grpo.async_grpo
        if not rollouts.enabled:
            return
        where, groups = f"step {step.step}: ", step.fates
        numbers = sorted(group.number for group in groups)
        right = list(range(self._next, self._next + len(groups)))
        wrong = "" if numbers == right else f"groups {numbers}, next are {right}"
        check(self._guards, "groups in order", wrong, number=len(groups), where=where)
        self._next += len(groups)
        if not self._config.grpo.use_dynamic_sampling:
            self._check_prompts(step)
        if rollouts.in_flight_weight_updates:
            return
        oldest = rollouts.max_trajectory_age_steps
        if not rollouts.drop_zero_variance and rollouts.drop_longer_than is None:
            # Others fill the step in place of what these drop, and what is left of their batch may wait for too long.
            stale = [
                f"group {one.number} of weights {one.weight_step}" for one in groups if one.fate == "stale"
            ]
            check(self._guards, "no group is stale", stale, number=len(groups), where=where)
        if lag_is_exact(self._config):
            # A batch is admitted as soon as the step that trains on it could not find it too old.
            first = {
                one.number: max(0, one.number // self._config.grpo.num_prompts_per_step - oldest)
                for one in groups
            }
            ahead = [
                f"group {one.number} has weights of step {one.weight_step}, not {first[one.number]}"
                for one in groups
                if one.weight_step != first[one.number]
            ]
            check(self._guards, "rollouts as far ahead as configured", ahead, number=len(groups), where=where)

    def _check_prompts(self, step: TrainedStep) -> None:
        for example in step.served:
            self._served[self._num_served] = example.prompt_id
            self._num_served += 1
        # A batch that an earlier attempt began was announced there.
        known = [group for group in step.fates if group.number in self._served]
        absent = [group for group in step.fates if group.number >= self._num_served]
        wrong = [
            f"group {group.number} is of prompt {group.prompt_id}, served was {self._served[group.number]}"
            for group in known
            if self._served[group.number] != group.prompt_id
        ]
        wrong += [f"group {group.number} is of a prompt that was not served" for group in absent]
        check(
            self._guards,
            "groups are of the prompts served",
            wrong,
            number=len(step.fates),
            where=f"step {step.step}: ",
        )


def _numbers(path: Path) -> Iterable[int]:
    """Return the numbers of the groups of a file, one a line."""
    return [int(json.loads(line)["number"]) for line in path.read_text(encoding="utf-8").splitlines()]
