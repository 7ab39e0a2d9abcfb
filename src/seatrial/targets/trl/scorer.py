"""A reward model that a trainer is given in place of a reward function."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch

from seatrial.targets.common.tiny import tiny_scorer
from seatrial.targets.common.trainers import new_folder


class Scorer:
    """A model that gives a sequence one score."""

    def __init__(self) -> None:
        """Make the model, under the name by which the log knows it, and a copy that no trainer changes."""
        self.model = tiny_scorer(3)
        self.model.config._name_or_path = "reward0"
        self._own = copy.deepcopy(self.model).eval()

    def folder(self, tokenizer: Any) -> str:
        """Return a folder with the model and this tokenizer, which ends with the model's name in the log."""
        folder = Path(new_folder()) / "reward0"
        self.model.save_pretrained(folder)
        tokenizer.save_pretrained(folder)
        return str(folder)

    def score(self, ids: Sequence[int]) -> float:
        """Return the score of a sequence alone, without padding."""
        with torch.no_grad():
            return float(self._own(input_ids=torch.tensor([list(ids)])).logits[0, 0])
