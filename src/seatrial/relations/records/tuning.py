"""The record of a short run of supervised fine-tuning: trained rows, their updates, held-out losses.

Per-token fields have the length of the row's answer, its end token included.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from seatrial.relations.records.run import Record, UpdateRecord

if TYPE_CHECKING:
    from torch import Tensor


@dataclass(frozen=True, kw_only=True)
class Lesson:
    """A prompt of the data and the answer to learn."""

    prompt_id: int
    prompt: str
    """Its text under the chat template, without the tokens that the tokenizer adds."""
    answer: str
    """The text to learn."""
    reward: float
    """The reward that the stack's verifier gives that text as a completion; 1 is the highest."""


@dataclass(frozen=True, kw_only=True)
class AnswerRow:
    """A prompt and its answer as trained."""

    prompt_id: int
    prompt_ids: tuple[int, ...]
    ids: tuple[int, ...]
    """Ids of the answer."""
    mask: tuple[int, ...]
    """1 on the tokens that train."""
    media: Tensor | None = field(default=None, compare=False)
    """Image [C, H, W] or sound [bands, frames] in the prompt."""


@dataclass(frozen=True, kw_only=True)
class TuningStep:
    """One step."""

    step: int
    """Counted from 1."""
    rows: tuple[AnswerRow, ...]
    updates: tuple[UpdateRecord, ...]
    metrics: Mapping[str, float]
    """Logged scalars under NeMo RL's names (`loss`, `grad_norm`, `lr`), without the prefix `train/`."""
    weights_after: Mapping[str, Tensor]


@dataclass(frozen=True, kw_only=True)
class HeldOutLoss:
    """The loss of held-out answers, computed inside the run."""

    step: int
    """The step after which it was computed; 0 for one before training."""
    rows: tuple[AnswerRow, ...]
    loss: float


@dataclass(frozen=True, kw_only=True)
class TuningRecord(Record):
    """A whole short run of supervised fine-tuning."""

    options: Mapping[str, Any]
    """The effective value of every option that the stack knows under a name of `contracts.tuning`."""
    lessons: tuple[Lesson, ...]
    """The training split, each prompt once."""
    held_out: tuple[Lesson, ...]
    initial_weights: Mapping[str, Tensor]
    final_weights: Mapping[str, Tensor]
    trainable: frozenset[str]
    steps: tuple[TuningStep, ...]
    losses: tuple[HeldOutLoss, ...]
    end_id: int
    """Token that ends an answer."""
    global_streams_untouched: bool
    in_training_mode: bool

    def rows(self) -> list[tuple[str, AnswerRow]]:
        """Return all rows with their place in words: the trained ones, then the held-out ones."""
        trained = [(f"step {step.step}", step.rows) for step in self.steps]
        held_out = [(f"held out, step {loss.step}", loss.rows) for loss in self.losses]
        return [
            (f"{place}, row {index}", row)
            for place, rows in (*trained, *held_out)
            for index, row in enumerate(rows)
        ]

    def lesson(self, row: AnswerRow) -> Lesson:
        """Return the lesson that a row was made from."""
        return next(one for one in (*self.lessons, *self.held_out) if one.prompt_id == row.prompt_id)
