"""What a trainer's loop leaves whose generator, models and data are stand-ins; a function of `contracts.utilities`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import NamedTuple


@dataclass(frozen=True, kw_only=True)
class FlowPlan:
    """A run of the loop."""

    steps: int
    """The last step."""
    prompts: int = 4
    """Of a step."""
    steps_of_epoch: int = 3
    epochs: int = 4
    copies: int = 3
    """Answers of a prompt."""
    balanced: bool = False
    """Whether rows are put into another order, by their lengths, for `ranks` processes."""
    ranks: int = 2
    estimator: str = "grpo"
    critic: bool = False
    """Whether a critic gives values, and is trained in each step."""
    kl_in_reward: float = 0.0
    """Weight of the KL to the reference that rewards lose."""
    save_every: int = 0
    validate_every: int = 0
    validation_copies: int = 1
    """Answers of a prompt of a validation."""
    one_text: bool = False
    """Whether two prompts of a validation have one text."""
    warmup: int = 0
    """The policy is trained from this step on."""
    resumed: bool = False
    """Whether it continues from the checkpoint of the run before, in the same folder."""
    killed_at: int = 0
    """The step in which the run ends, before the policy is trained."""
    folder: str = ""


class FlowRow(NamedTuple):
    """A row that the policy is trained with; lists are of the answer's tokens."""

    prompt: int
    copy: int
    step: int
    """Of the generation that the answer has the number of."""
    group: str
    source: str
    answer_ids: list[int]
    mask: list[int]
    old_logprobs: list[float]
    ref_logprobs: list[float]
    scores: list[float]
    rewards: list[float]
    advantages: list[float]
    values: Sequence[float] = ()
    returns: Sequence[float] = ()
    """With a critic."""


@dataclass(kw_only=True)
class FlowRecord:
    """What happened, in order."""

    trained: dict[int, list[FlowRow]] = field(default_factory=dict)
    """By step."""
    events: list[tuple[str, int]] = field(default_factory=list)
    """`generate`, `update`, `update critic`, `save`, `load`, `sync` or `validate`, and the step."""
    logged: dict[int, dict[str, float]] = field(default_factory=dict)
    mini_batch: int = 0
    """Rows of a mini-batch that the policy was asked for; 0 where its workers know that themselves."""
    dumped: dict[int, list[tuple[str, str, float]]] = field(default_factory=dict)
    """By step: prompt, answer and score of each row that the loop writes to a file; texts are ids with blanks."""
    validated: Sequence[tuple[int, str]] = ()
    """Prompt and source of each row of the last validation."""


def prompt_ids(prompt: int) -> list[int]:
    """Return the ids of a prompt, of one to three tokens."""
    return [100 + prompt, *[7] * (prompt % 3)]


def prompt_of(ids: Sequence[int]) -> int:
    """Return the prompt that ids are of."""
    return ids[0] - 100


def answer_ids(prompt: int, copy: int, step: int) -> list[int]:
    """Return the ids of an answer, of one to five tokens; the first says what it is of."""
    return [10000 + 1000 * step + 20 * prompt + copy, *range(30, 30 + (2 * prompt + 3 * copy + step) % 5)]


def read_answer(first_id: int) -> tuple[int, int, int]:
    """Return prompt, copy and step of an answer, by its first id."""
    step, rest = divmod(first_id - 10000, 1000)
    return rest // 20, rest % 20, step


def score_of(prompt: int, copy: int, step: int) -> float:
    """Return the score of an answer."""
    return ((7 * prompt + 5 * copy + 3 * step) % 11) / 8.0


def source_of(prompt: int) -> str:
    """Return the source of a prompt."""
    return "even" if prompt % 2 == 0 else "odd"


def logprob_of(token: int, reference: bool = False) -> float:
    """Return a log-probability that says of which token it is."""
    return -token / (65536.0 if reference else 32768.0)


def value_of(token: int) -> float:
    """Return a value that says of which token it is."""
    return token / 16384.0
