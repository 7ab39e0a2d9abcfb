"""What a short run of supervised fine-tuning left: the rows that were learned, their updates, held-out losses.

Per-token fields have the length of the row's answer, the token that ends it included.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from seatrial.relations.records.run import UpdateRecord

if TYPE_CHECKING:
    from torch import Tensor


@dataclass(frozen=True, kw_only=True)
class Lesson:
    """A prompt and the answer that is to be learned, as the data give them."""

    prompt_id: int
    prompt: str
    """Its text as the model is given it: under the chat template, without what the tokenizer adds of its own."""
    answer: str
    """Text that is to be learned."""
    reward: float
    """What the stack's verifier says of that text as a completion; 1 is full marks."""


@dataclass(frozen=True, kw_only=True)
class AnswerRow:
    """A prompt and its answer as they were trained on."""

    prompt_id: int
    prompt_ids: tuple[int, ...]
    ids: tuple[int, ...]
    """Of the answer; all tokens before them are the prompt's."""
    mask: tuple[int, ...]
    """1 on the tokens that train."""
    media: Tensor | None = field(default=None, compare=False)
    """Image [C, H, W] or sound [bands, frames] that stands in the prompt."""


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
class TuningRecord:
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

    def weights_at(self, version: int) -> Mapping[str, Tensor]:
        """Return the weights of a version: 0 the initial ones, k those after step k."""
        return self.initial_weights if version == 0 else self.steps[version - 1].weights_after
