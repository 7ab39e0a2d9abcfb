"""What refrl's configuration names, its tasks and its random streams, offered to the relations."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch

from refrl.config import ConfigError, DataConfig
from refrl.config.algorithms import ADVANTAGES, LOSSES
from refrl.rewards import score_completions
from refrl.rewards.code import sandbox_of
from refrl.rollout.environments import make_environment
from refrl.streams import random_stream
from refrl.training import build
from seatrial.relations import NotServed
from seatrial.relations.contracts.parts import TaskPrompt, WorkedTask
from seatrial.targets.reference.configuration import configuration, table

_OWN = f"{__package__}.custom"
OWN = {
    "loss": ("loss_fn.kind", f"{_OWN}:Weighed", "loss_fn.options"),
    "advantages": ("grpo.advantage.estimator", f"{_OWN}:Scaled", "grpo.advantage.options"),
}
"""By kind: the option that names a part, its import path, where its options stand."""


class ReferenceParts:
    """See `seatrial.relations.contracts.parts`."""

    options: Mapping[str, Any]

    def takes(self, options: Mapping[str, Any]) -> bool:
        needed = [
            table("parts")["needs"].get(value, {}) for value in options.values() if isinstance(value, str)
        ]
        added = {name: value for one in needed for name, value in one.items()}
        try:
            config = configuration({**self.options, **added, **options})
            LOSSES.find(config.loss_fn.kind, "loss_fn.kind")
            ADVANTAGES.find(config.grpo.advantage.estimator, "grpo.advantage.estimator")
            build.build_rewards(config.data)
            build.build_splits(config.data)
        except (NotServed, ConfigError):
            return False
        return True

    def names_of_parts(self) -> Mapping[str, Sequence[str]]:
        found: dict[str, list[str]] = table("parts")["names"]
        return found

    def own_kinds(self) -> Sequence[str]:
        return tuple(OWN)

    def options_of_own_part(self, kind: str, options: Mapping[str, Any]) -> Mapping[str, Any]:
        option, path, place = OWN[kind]
        config = configuration({option: path, place: dict(options)})
        try:
            if kind == "loss":
                part: Any = LOSSES.find(config.loss_fn.kind, option)(config.loss_fn)
            else:
                part = ADVANTAGES.find(config.grpo.advantage.estimator, option)(config.grpo.advantage)
        except ValueError as error:
            raise NotServed(str(error)) from error
        got: dict[str, Any] = part.options.model_dump()
        return got

    def worked_tasks(self) -> Sequence[WorkedTask]:
        return [
            WorkedTask(
                name=one["name"],
                arguments=one["arguments"],
                answers={str(prompt): str(answer) for prompt, answer in one["answers"].items()},
                tool=one.get("tool", {}),
            )
            for one in table("parts")["tasks"]
        ]

    def task_splits(
        self, task: WorkedTask, *, num_train: int, num_held_out: int, seed: int
    ) -> tuple[Sequence[TaskPrompt], Sequence[TaskPrompt]]:
        data = _data(task).model_copy(
            update={"num_train": num_train, "num_validation": num_held_out, "seed": seed}
        )
        splits = build.build_splits(data)
        train, held_out = (
            [TaskPrompt(prompt=one.prompt, answer=one.answer, target=one.target) for one in part]
            for part in (splits.train, splits.validation)
        )
        return train, held_out

    def judged_by_task(
        self, task: WorkedTask, completions: Sequence[str], answers: Sequence[str]
    ) -> list[float]:
        data = _data(task)
        try:
            sandbox_of([build.verifier_name(data)])
        except ConfigError as error:
            raise NotServed(str(error)) from error
        return list(score_completions(completions, answers, build.build_rewards(data)).rewards)

    def answered_by_tool(self, task: WorkedTask, turn: str) -> str | None:
        environment = make_environment(_data(task).model_copy(update={"environment": task.name}))
        assert environment is not None
        return environment.respond([turn])

    def drawn(self, seed: int, purpose: str, step: int, num: int) -> Sequence[int]:
        stream = random_stream(seed, purpose, step)
        numbers: list[int] = torch.randint(2**31, (num,), generator=stream).tolist()
        return numbers


def _data(task: WorkedTask) -> DataConfig:
    return DataConfig(task=task.name, task_args=dict(task.arguments))
