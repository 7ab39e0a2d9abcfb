"""What a sampler's worker is asked for in the laws of rollouts, and what it leaves."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple


class Asked(NamedTuple):
    """A row that is to be answered."""

    messages: Sequence[Mapping[str, str]]
    """The conversation; no two rows have the same one."""
    answer: Sequence[int]
    """Ids that the inference server returns."""
    logprobs: Sequence[float]
    """Of `answer`."""
    reward: float
    """What the reward's worker returns if it is given this row's answer."""


class Rolled(NamedTuple):
    """What a worker makes of a batch of rows."""

    prompts: Sequence[Sequence[int]]
    """Ids of each conversation with the template's generation prompt."""
    columns: Mapping[str, Any]
    """Tensors by verl's names."""
    positions: Sequence[Sequence[int]]
    """Position of each token that is no padding."""
    sampling: Sequence[Mapping[str, Any]]
    """Options of sampling that each row's request had."""
    turns: Sequence[int]
    asked: Sequence[Any]
    """Conversation of each row, as the batch names it."""
    scored: Sequence[Any]
    """What the reward's worker returned in addition to each row's reward; None if there is no such worker."""


class Part(NamedTuple):
    """An answer of an inference server, which may end before it is complete."""

    ids: Sequence[int]
    logprobs: Sequence[float]
    stop: str
    """`aborted` if the request has to be sent again with these ids."""
    version: int
    """Of the weights."""
    preempted: int


class Resumed(NamedTuple):
    """What a client makes of the parts of an answer."""

    ids: Sequence[int]
    logprobs: Sequence[float]
    stop: str
    versions: tuple[int, int]
    """Of the first part and of the last."""
    preempted: int
    requests: Sequence[Sequence[int]]
    """Ids of each request."""
    limits: Sequence[int | None]
    """Longest answer of each request."""
    options: Mapping[str, Any]
    """The caller's options of sampling, after the call."""
    released: Sequence[str]
    """Servers at which a request was reported to have ended, in order."""


class Prompted(NamedTuple):
    """A prompt that an agent sent."""

    sent: str
    """Text that the inference server got."""
    trained: str
    """Text of the prompt in the batch, without padding."""
    size: int
    """Tokens that the inference server got."""
