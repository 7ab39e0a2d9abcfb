"""A regression of two layers that `transformers.Trainer` trains in milliseconds, stopped and resumed.

Observed of a step: the learning rate with which the optimizer takes it, and the numbers of its examples.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from seatrial.targets.common.trainers import CPU_OPTIONS, freeze_imports, new_folder, resuming

WIDTH = 6
NUM_HELD_OUT = 5


class Small(nn.Module):
    """A regression from the number of an example to a target, with dropout between two layers."""

    def __init__(self, dropout: float, seed: int) -> None:
        """Make the layers; the same seed gives the same ones."""
        super().__init__()
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            self.first, self.last = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, 1)
        self.dropout = nn.Dropout(dropout)

    def forward(self, number: Tensor, labels: Tensor | None = None) -> dict[str, Tensor]:
        """Return predictions, and the mean of squared errors."""
        features_BD = torch.sin(number[:, None].float() * torch.arange(1, WIDTH + 1) / 2)
        found_B = self.last(self.dropout(torch.tanh(self.first(features_BD))))[:, 0]
        return (
            {"logits": found_B}
            if labels is None
            else {"loss": ((found_B - labels) ** 2).mean(), "logits": found_B}
        )


@dataclass
class Trained:
    """What was observed of a run, all its parts together."""

    rates: dict[int, float] = field(default_factory=dict)
    served: dict[int, list[int]] = field(default_factory=dict)
    trainer: Any = None
    """The last one, trained."""


def target_of(number: int) -> float:
    """Return the target of an example."""
    return float((number * 7) % 5) / 2 - 1


def train(
    options: Mapping[str, Any],
    *,
    num_examples: int,
    ends_after: Sequence[int] = (),
    loses_a_step: bool = False,
    dropout: float = 0.0,
    seed: int = 0,
) -> Trained:
    """Train, and observe each step.

    Args:
        options: of `TrainingArguments`; the schedule's rate and the number of steps among them.
        num_examples: of the training split.
        ends_after: steps after whose checkpoint the run is stopped; a new trainer resumes from it.
        loses_a_step: whether it is stopped one step after the checkpoint.
        dropout: probability.
        seed: of the weights, and of the run.
    """
    import transformers

    freeze_imports()
    folder = new_folder()
    observed = Trained()
    saving = {"save_strategy": "steps", "save_steps": 1} if ends_after else {}
    args: Any = transformers.TrainingArguments
    checkpoint: str | None = None
    for stop in (*ends_after, 0):
        observed.trainer = _trainer(
            Small(dropout, seed),
            args(output_dir=folder, **{**CPU_OPTIONS, "seed": seed, **options, **saving}),
            num_examples,
            observed,
            stop + int(loses_a_step and stop > 0),
        )
        with resuming():
            observed.trainer.train(resume_from_checkpoint=checkpoint)
        checkpoint = str(Path(folder) / f"checkpoint-{stop}")
    return observed


def _trainer(model: Small, args: Any, num_examples: int, observed: Trained, stop: int) -> Any:
    import transformers
    from datasets import Dataset

    rows = [{"number": number, "labels": target_of(number)} for number in range(num_examples + NUM_HELD_OUT)]
    seen: list[int] = []

    class Watching(transformers.TrainerCallback):
        def on_pre_optimizer_step(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
            # The trainer's own: the callbacks of 4.49 are given no optimizer.
            observed.rates[state.global_step + 1] = float(observed.trainer.optimizer.param_groups[0]["lr"])

        def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
            observed.served[state.global_step] = list(seen)
            seen.clear()
            if state.global_step == stop:
                control.should_training_stop = True

    trainer_class: Any = transformers.Trainer
    trainer = trainer_class(
        model=model,
        args=args,
        train_dataset=Dataset.from_list(rows[:num_examples]),
        eval_dataset=Dataset.from_list(rows[num_examples:]),
        callbacks=[Watching()],
    )
    step = trainer.training_step

    def watched(model: Any, inputs: Any, *more: Any) -> Any:
        seen.extend(int(number) for number in inputs["number"])
        return step(model, inputs, *more)

    trainer.training_step = watched
    return trainer
