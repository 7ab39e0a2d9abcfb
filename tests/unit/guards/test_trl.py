"""The guards on rows of TRL's GRPO trainer, on a stand-in with the three methods that they wrap (TRL 1.16)."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor

from seatrial.guards import Guards
from seatrial.guards.trl import guard_grpo


class Trainer:
    """Two prompts with a completion each, padded; log-probabilities are those of `level`."""

    def __init__(self) -> None:
        self.model = SimpleNamespace(training=True)
        self.state = SimpleNamespace(global_step=0)
        self.level = -1.0

    def _generate(self, prompts: list[str]) -> tuple[list[list[int]], list[list[int]]]:
        return [[1, 2], [3]], [[5, 6, 7], [8]]

    def _get_per_token_logps_and_entropies(self, *words: Any) -> tuple[Tensor, None, None]:
        return torch.full((2, 3), self.level, requires_grad=True), None, None

    def _compute_loss(self, model: Any, inputs: dict[str, Tensor]) -> Tensor:
        return self._get_per_token_logps_and_entropies()[0].sum()


def rows(**changed: Tensor) -> dict[str, Tensor]:
    """Return what the loss is computed from."""
    return {
        "prompt_ids": torch.tensor([[1, 2], [0, 3]]),
        "prompt_mask": torch.tensor([[1, 1], [0, 1]]),
        "completion_ids": torch.tensor([[5, 6, 7], [8, 0, 0]]),
        "completion_mask": torch.tensor([[1, 1, 1], [1, 0, 0]]),
        "old_per_token_logps": torch.full((2, 3), -1.0),
        **changed,
    }


def failed(step: int, **changed: Tensor) -> list[str]:
    """Return what fails when a micro-batch is trained some steps after it was sampled."""
    trainer: Any = Trainer()
    guards = guard_grpo(trainer, Guards(raises=False))
    trainer._generate(["a", "b"])
    trainer.state.global_step = step
    trainer._compute_loss(trainer.model, rows(**changed))
    assert guards.asked["guard ids trained = ids sampled"] == 1
    assert guards.asked["guard first mini-batch ratio"] == int(step == 0)
    return [verdict.name.removeprefix("guard ") for verdict in guards.failures]


def test_what_was_sampled_is_trained() -> None:
    """In the order of the trainer, padded, in the first mini-batch and later."""
    assert failed(0) == failed(1) == []


def test_another_id_is_seen() -> None:
    """Of a completion, or another prompt before it."""
    other = torch.tensor([[5, 6, 9], [8, 0, 0]])
    assert failed(0, completion_ids=other) == ["ids trained = ids sampled"]
    assert failed(0, prompt_ids=torch.tensor([[1, 2], [0, 1]])) == ["ids trained = ids sampled"]


def test_a_ratio_off_one_is_seen_before_the_first_update_alone() -> None:
    """Old log-probabilities half a nat lower; after an update the ratio may be anything."""
    lower = torch.full((2, 3), -1.5)
    assert failed(0, old_per_token_logps=lower) == ["first mini-batch ratio"]
    assert failed(1, old_per_token_logps=lower) == []


def test_a_trainer_without_these_methods_is_refused() -> None:
    """By the name of the one that it lacks."""
    with pytest.raises(TypeError, match="has no _generate"):
        guard_grpo(SimpleNamespace())
