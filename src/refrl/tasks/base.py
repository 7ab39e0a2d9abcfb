"""What a task offers, the splits that are cut from it, and the order in which prompts are drawn."""

from __future__ import annotations

import inspect
import random
from collections.abc import Iterable, Mapping, Sequence
from typing import Protocol, runtime_checkable

from refrl.config import ConfigError, DataConfig
from refrl.config.registry import Registry
from refrl.tasks.examples import Example, Splits, stable_id
from refrl.tasks.files.splits import make_file_splits

TASKS: dict[str, str] = {
    "reverse": "refrl.tasks.text:ReverseTask",
    "add": "refrl.tasks.text:AddTask",
    "count_letters": "refrl.tasks.text:CountLettersTask",
    "lookup": "refrl.tasks.lookup:LookupTask",
    "colour": "refrl.tasks.media:ColourTask",
    "pitch": "refrl.tasks.media:PitchTask",
    "code_print": "refrl.tasks.code:CodePrintTask",
}
"""The built-in tasks by the name that `data.task` takes."""

TASK_REGISTRY = Registry("task", "refrl.tasks", TASKS)
"""What `data.task` may name: built in, of an installed package, or by import path."""


MADE_TRAIN, MADE_VALIDATION = 1024, 128
"""Prompts of a made task where the configuration does not say."""


@runtime_checkable
class Task(Protocol):
    """A numbered space of prompts with verifiable answers; distinct numbers give distinct prompts.

    A method `solution(number) -> str` is optional: a completion that is right where it is not the answer itself.
    """

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


def make_task(name: str | None, arguments: Mapping[str, int | float | str | bool]) -> Task:
    """Build a task by name; arguments are held against the signature of its class.

    Raises:
        ConfigError: the task or an argument is unknown, or a value has the wrong type or range.
    """
    if name is None:
        raise ConfigError("data.task is not given: there is no task to make")
    factory = TASK_REGISTRY.find(name, "data.task")
    try:
        known = inspect.signature(factory).parameters
    except (TypeError, ValueError) as error:
        raise ConfigError(
            f"data.task={name} is no task: it must be a class or a function that makes one ({error})"
        ) from error
    for key, value in arguments.items():
        if key not in known:
            takes = ", ".join(known) or "none"
            raise ConfigError(f"data.task_args.{key} is unknown to {name}; it takes {takes}")
        if known[key].annotation in (int, "int") and type(value) is not int:
            raise ConfigError(f"data.task_args.{key} should be an integer, got {value!r}")
    try:
        task = factory(**arguments)
    except (TypeError, ValueError) as error:
        raise ConfigError(f"data.task_args of {name}: {error}") from error
    if not isinstance(task, Task):
        raise ConfigError(
            f"data.task={name} is no task: it must have name, verifier, num_examples and example() (see docs/extend)"
        )
    return task


def default_verifier(config: DataConfig) -> str:
    """Return the name of the verifier where the configuration names none: the task's own, or `exact_match` for files.

    Raises:
        ConfigError: the task is unknown.
    """
    return "exact_match" if config.task is None else make_task(config.task, config.task_args).verifier


def make_splits(config: DataConfig) -> Splits:
    """Return the prompts to train on and those held out, drawn without replacement and seeded by `data.seed`.

    Of a made task the validation split is drawn first: it stays the same when `num_train` changes.

    Raises:
        ConfigError: the task is unknown, its space is smaller than both splits together, or a file or one of its rows
            cannot be used.
    """
    if config.task is None:
        return make_file_splits(config)
    task = make_task(config.task, config.task_args)
    num_train, num_validation = config.num_train or MADE_TRAIN, config.num_validation or MADE_VALIDATION
    wanted = num_validation + num_train
    if wanted > task.num_examples:
        raise ConfigError(
            f"data.num_train={num_train} and data.num_validation={num_validation} need {wanted} "
            f"different prompts, {config.task} has {task.num_examples}: lower them or widen data.task_args"
        )
    stream = random.Random(f"splits of {config.task}: {config.seed}")
    validation = _draw(task, num_validation, stream)
    held_out = set(validation)
    numbers = _draw(task, wanted, stream)
    train = [number for number in numbers if number not in held_out][:num_train]
    return Splits(train=_examples(task, train), validation=_examples(task, validation))


_COUNTABLE = 2**63
"""Numbers below it fit a tensor, and `random.sample` counts no further."""


def _draw(task: Task, num: int, stream: random.Random) -> list[int]:
    """Return different numbers of a task's space."""
    if task.num_examples < _COUNTABLE:
        return stream.sample(range(task.num_examples), num)
    drawn: dict[int, None] = {}
    while len(drawn) < num:
        drawn.setdefault(stream.randrange(task.num_examples))
    return list(drawn)


def _examples(task: Task, numbers: Iterable[int]) -> list[Example]:
    countable = task.num_examples < _COUNTABLE
    solution, media = getattr(task, "solution", None), getattr(task, "media", None)
    examples = []
    for number in numbers:
        prompt, answer = task.example(number)
        examples.append(
            Example(
                prompt_id=number if countable else stable_id(prompt),
                prompt=prompt,
                answer=answer,
                task=task.name,
                solution=None if solution is None else solution(number),
                media=None if media is None else media(number),
            )
        )
    return examples


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

    @property
    def num_prompts(self) -> int:
        """Prompts of an epoch."""
        return len(self._examples)

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
        """Restore the state that `state_dict` returned."""
        self._num_drawn = state["num_drawn"]

    def _order_of(self, epoch: int) -> list[int]:
        if epoch != self._epoch:
            self._order = list(range(len(self._examples)))
            if self._shuffle:
                random.Random(f"order of epoch {epoch}: {self._seed}").shuffle(self._order)
            self._epoch = epoch
        return self._order
