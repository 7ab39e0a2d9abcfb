"""What a task offers, the splits that are cut from it, and the order in which prompts are drawn."""

from __future__ import annotations

import dataclasses
import inspect
import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from refrl.config import ConfigError, DataConfig
from refrl.tasks.text import TASKS


class Task(Protocol):
    """A numbered space of prompts with verifiable answers; distinct numbers give distinct prompts."""

    @property
    def name(self) -> str:
        """Name that `data.task` takes."""
        ...

    @property
    def verifier(self) -> str:
        """Name of the verifier that suits the task."""
        ...

    @property
    def num_examples(self) -> int:
        """Size of the space."""
        ...

    def example(self, number: int) -> tuple[str, str]:
        """Return (prompt, answer) of a number below `num_examples`."""
        ...


@dataclass(frozen=True)
class Example:
    """One prompt and its answer."""

    prompt_id: int
    """Number of the example in the task's space; equal ids are equal prompts."""
    prompt: str
    answer: str
    task: str


@dataclass(frozen=True)
class Splits:
    """Prompts to train on and prompts held out; they share none."""

    train: Sequence[Example]
    validation: Sequence[Example]


def make_task(name: str, arguments: Mapping[str, int | float | str | bool]) -> Task:
    """Build a task by name.

    Raises:
        ConfigError: the task or an argument is unknown, or a value has the wrong type or range.
    """
    if name not in TASKS:
        raise ConfigError(f"data.task={name!r} is unknown; known: {', '.join(sorted(TASKS))}")
    task = TASKS[name]
    known = {field.name: field for field in dataclasses.fields(task)}
    types = inspect.get_annotations(task, eval_str=False)
    for key, value in arguments.items():
        if key not in known:
            raise ConfigError(f"data.task_args.{key} is unknown to {name}; it takes {', '.join(known)}")
        if types[key] == "int" and type(value) is not int:
            raise ConfigError(f"data.task_args.{key} should be an integer, got {value!r}")
    try:
        return task(**arguments)  # type: ignore[arg-type]
    except ValueError as error:
        raise ConfigError(f"data.task_args of {name}: {error}") from error


def make_splits(config: DataConfig) -> Splits:
    """Draw the train and the validation split without replacement from the task's space, seeded by `data.seed`.

    The validation split is drawn first: it stays the same when `num_train` changes.

    Raises:
        ConfigError: the task is unknown, or its space is smaller than both splits together.
    """
    task = make_task(config.task, config.task_args)
    wanted = config.num_validation + config.num_train
    if wanted > task.num_examples:
        raise ConfigError(
            f"data.num_train={config.num_train} and data.num_validation={config.num_validation} need {wanted} "
            f"different prompts, {config.task} has {task.num_examples}: lower them or widen data.task_args"
        )
    stream = random.Random(f"splits of {config.task}: {config.seed}")
    validation = stream.sample(range(task.num_examples), config.num_validation)
    held_out = set(validation)
    numbers = stream.sample(range(task.num_examples), wanted)
    train = [number for number in numbers if number not in held_out][: config.num_train]

    def examples(chosen: Sequence[int]) -> list[Example]:
        return [Example(number, *task.example(number), task.name) for number in chosen]

    return Splits(train=examples(train), validation=examples(validation))


class PromptSource:
    """Draws training prompts epoch after epoch; each epoch is a permutation of its own.

    The order depends on the seed and the number of prompts drawn before, and on nothing else.
    """

    def __init__(self, examples: Sequence[Example], *, seed: int, shuffle: bool) -> None:
        """Start before the first prompt.

        Args:
            examples: at least one.
            seed: of the order.
            shuffle: False keeps the order of `examples` in every epoch.
        """
        self._examples = examples
        self._seed = seed
        self._shuffle = shuffle
        self._num_drawn = 0
        self._epoch: int | None = None
        self._order: list[int] = []

    def draw(self, num: int) -> list[Example]:
        """Return the next prompts; an epoch's end is crossed without repeating or losing one."""
        drawn = []
        for _ in range(num):
            epoch, position = divmod(self._num_drawn, len(self._examples))
            drawn.append(self._examples[self._order_of(epoch)[position]])
            self._num_drawn += 1
        return drawn

    def state_dict(self) -> dict[str, int]:
        """Return the cursor."""
        return {"num_drawn": self._num_drawn}

    def load_state_dict(self, state: Mapping[str, int]) -> None:
        """Go on where `state_dict` was taken."""
        self._num_drawn = state["num_drawn"]

    def _order_of(self, epoch: int) -> list[int]:
        if epoch != self._epoch:
            self._order = list(range(len(self._examples)))
            if self._shuffle:
                random.Random(f"order of epoch {epoch}: {self._seed}").shuffle(self._order)
            self._epoch = epoch
        return self._order
