"""Worked examples of runs of Transformers' trainer that are debugged: values that are not finite, and traces."""

from __future__ import annotations

import contextlib
import io
from collections.abc import Sequence
from typing import Any

import torch
from torch import nn

from seatrial.targets.common.worked_rows import Row
from seatrial.targets.transformers.worked.runs import arguments, numbered


class Two(nn.Module):
    """Two layers, of which the second one can be given a weight that is not finite."""

    def __init__(self) -> None:
        """Make them."""
        super().__init__()
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(0)
            self.first, self.second = nn.Linear(8, 8), nn.Linear(8, 1)

    def forward(self, number: torch.Tensor, labels: torch.Tensor) -> dict[str, torch.Tensor]:
        """Return the loss."""
        rows = torch.sin(number[:, None].float() * torch.arange(1, 9) / 3)
        found = self.second(torch.tanh(self.first(rows)))[:, 0]
        return {"loss": ((found.float() - labels) ** 2).mean(), "logits": found}


WORDS = ("first Linear", "second Linear", "Detected inf/nan during batch_number=0")


def _debugged(trainer_class: Any) -> list[Any]:
    """Return whether a run stops at a value that is not finite, with the layer that has it, and one that continues."""
    found: list[Any] = []
    for value in (float("inf"), float("nan"), 1.0):
        model = Two()
        with torch.no_grad():
            model.second.bias.fill_(value)
        args = arguments(debug="underflow_overflow", max_steps=1)
        trainer = trainer_class(model=model, args=args, train_dataset=numbered())
        with contextlib.redirect_stdout(io.StringIO()) as words:
            try:
                trainer.train()
                found.append("done")
            except ValueError as error:
                found.append("inf/nan detected" in str(error))
        text = words.getvalue()
        found.append(
            [
                one in text
                for one in ("first Linear", "second Linear", "Detected inf/nan during batch_number=0")
            ]
        )
    return found


DEBUGGED = [True, [True, True, True], True, [True, True, True], "done", [False, False, False]]


def _traced(debugging: Any) -> list[Any]:
    """Return what is printed of a batch that is traced, and after which batch a run is stopped."""
    model = Two()
    debugging(model, trace_batch_nums=[1], abort_after_batch_num=2)
    batch = {name: torch.tensor([row[name] for row in numbered()]) for name in ("number", "labels")}
    found: list[Any] = []
    for _ in range(4):
        with contextlib.redirect_stdout(io.StringIO()) as words:
            try:
                model(**batch)
            except ValueError as error:
                found.append("abort_after_batch_num=2" in str(error))
                break
        found.append(
            [name in words.getvalue() for name in ("first Linear", "second Linear", "weight", "input[0]")]
        )
    return found


# Sources: the documentation of TrainingArguments and DebugUnderflowOverflow.
DEBUGGED_ROWS: Sequence[Row] = (
    Row("steps", "transformers:Trainer", "a run that is debugged", _debugged, DEBUGGED, since="4.57"),
    Row(
        "steps", "transformers.debug_utils:DebugUnderflowOverflow", "batches that are traced", _traced,
        [[False] * 4, [True] * 4, True], since="4.57",
    ),
)  # fmt: skip
