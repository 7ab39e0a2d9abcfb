"""Worked examples of runs of Transformers' trainer whose every update, log and weight is computed again in float64."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from itertools import pairwise
from typing import Any

import torch

from seatrial.targets.common.worked_rows import Row, unlike
from seatrial.targets.transformers.short_runs import Line
from seatrial.targets.transformers.worked.runs import RATE, line, numbered

Options = Mapping[str, Any]
OPTIMIZERS: Mapping[str, Callable[[Any, Options], torch.optim.Optimizer]] = {
    "sgd": lambda groups, own: torch.optim.SGD(groups, lr=RATE),
    "adamw_torch": lambda groups, own: torch.optim.AdamW(
        groups,
        lr=RATE,
        betas=(own.get("adam_beta1", 0.9), own.get("adam_beta2", 0.999)),
        eps=own.get("adam_epsilon", 1e-8),
    ),
    "adagrad": lambda groups, own: torch.optim.Adagrad(groups, lr=RATE),
    "rmsprop": lambda groups, own: torch.optim.RMSprop(groups, lr=RATE),
}


def _constant(step: int, total: int, warmup: int) -> float:
    return 1.0


def _raised(step: int, total: int, warmup: int) -> float:
    return min(1.0, step / max(1, warmup))


def _linear(step: int, total: int, warmup: int) -> float:
    return step / warmup if step < warmup else (total - step) / (total - warmup)


def _cosine(step: int, total: int, warmup: int) -> float:
    if step < warmup:
        return step / warmup
    return 0.5 * (1 + math.cos(math.pi * (step - warmup) / (total - warmup)))


SHARES: Mapping[str, Callable[[int, int, int], float]] = {
    "constant": _constant, "constant_with_warmup": _raised, "linear": _linear, "cosine": _cosine,
}  # fmt: skip


class _Due:
    """A run that is computed again: its logs and its last weights."""

    def __init__(self, options: Options, rows: Sequence[Mapping[str, Any]]) -> None:
        """Train a line in float64 with torch's own optimizers."""
        size, parts = options["per_device_train_batch_size"], options.get("gradient_accumulation_steps", 1)
        batches = [rows[first : first + size] for first in range(0, len(rows), size)]
        if options.get("dataloader_drop_last"):
            batches = [one for one in batches if len(one) == size]
        updates = [batches[first : first + parts] for first in range(0, len(batches), parts)]
        total = options.get("max_steps", -1)
        total = math.ceil(options.get("num_train_epochs", 1) * len(updates)) if total < 0 else total
        self.model = Line().double()
        groups = [
            {"params": [self.model.slope], "weight_decay": options.get("weight_decay", 0.0)},
            {"params": [self.model.bias], "weight_decay": 0.0},
        ]
        optimizer = OPTIMIZERS[options["optim"]](groups, options)
        share = SHARES[options.get("lr_scheduler_type", "constant")]
        self.steps: list[dict[str, float]] = []
        for step in range(total):
            epoch, place = divmod(step, len(updates))
            rate = RATE * share(step, total, options.get("warmup_steps", 0))
            loss, norm = self._update(updates[place], optimizer, rate, options["max_grad_norm"])
            done = min((place + 1) * parts, len(batches)) / len(batches)
            self.steps.append(
                {
                    "loss": loss,
                    "grad_norm": norm,
                    "learning_rate": rate,
                    "epoch": epoch + done,
                    "step": step + 1,
                }
            )
        self.logs = self._windows(options, len(updates))

    def _update(
        self, micro_batches: Sequence[Any], optimizer: torch.optim.Optimizer, rate: float, limit: float | None
    ) -> tuple[float, float]:
        for group in optimizer.param_groups:
            group["lr"] = rate
        optimizer.zero_grad()
        loss = torch.zeros((), dtype=torch.float64)
        for rows in micro_batches:
            numbers = torch.tensor([row["number"] for row in rows], dtype=torch.float64)
            labels = torch.tensor([row["labels"] for row in rows], dtype=torch.float64)
            found = self.model.slope * numbers / 4 + self.model.bias
            loss = loss + ((found - labels) ** 2).mean() / len(micro_batches)
        loss.backward()  # type: ignore[no-untyped-call]
        weights = [self.model.slope, self.model.bias]
        norm = math.sqrt(sum(float(one.grad) ** 2 for one in weights if one.grad is not None))
        if limit and norm > limit:
            for one in weights:
                assert one.grad is not None
                one.grad *= limit / norm
        optimizer.step()
        return float(loss.detach()), norm

    def _windows(self, options: Options, num_updates: int) -> list[dict[str, float]]:
        every = options.get("logging_steps", 1)
        ends = [step for step in range(1, len(self.steps) + 1) if step % every == 0]
        if options.get("logging_strategy") == "epoch":
            ends = [
                step
                for step in range(1, len(self.steps) + 1)
                if step % num_updates == 0 or step == len(self.steps)
            ]
        if options.get("logging_first_step") and 1 not in ends:
            ends = [1, *ends]
        return [
            {**self.steps[end - 1], "loss": sum(one["loss"] for one in self.steps[start:end]) / (end - start)}
            for start, end in pairwise([0, *ends])
        ]


def _computed_again(options: Options, trainer_class: Any) -> list[str]:
    """Return where logs or weights of a run are not those of the run that is computed again."""
    given = {
        "num_train_epochs": 1,
        "per_device_train_batch_size": 2,
        "max_grad_norm": 0.0,
        "optim": "sgd",
        **options,
    }
    trainer = line(trainer_class, **given)
    found = trainer.train()
    due = _Due(given, numbered())
    history = [one for one in trainer.state.log_history if "loss" in one]
    # Releases of 4 log norms of gradients that they limit alone.
    has_norms = bool(given["max_grad_norm"]) or any("grad_norm" in one for one in history)
    names = ["loss", "learning_rate", "epoch", "step"] + ["grad_norm"] * has_norms
    wrong = []
    for name in names:
        wrong += unlike(
            [one[name] for one in history], [one[name] for one in due.logs], f"logged {name}", 1e-4
        )
    model = trainer.model
    wrong += unlike(
        [float(model.slope), float(model.bias)],
        [float(due.model.slope), float(due.model.bias)],
        "weights",
        1e-5,
    )
    mean = sum(one["loss"] for one in due.steps) / len(due.steps)
    return [*wrong, *unlike([found.training_loss], [mean], "the loss of the run", 1e-4)][:4]


TWO = {"num_train_epochs": 2}
RUNS: Sequence[tuple[str, Options]] = (
    ("gradients below their limit", {"max_grad_norm": 1000.0}),
    ("gradients above their limit", {**TWO, "max_grad_norm": 0.1}),
    ("gradients about their limit", {**TWO, "max_grad_norm": 2.0}),
    ("limits of several micro-batches", {**TWO, "max_grad_norm": 0.5, "gradient_accumulation_steps": 2}),
    ("limits of micro-batches that end early", {**TWO, "max_grad_norm": 0.5, "gradient_accumulation_steps": 3}),
    ("limits under Adam", {**TWO, "max_grad_norm": 0.5, "optim": "adamw_torch"}),
    ("windows of logs", {**TWO, "logging_steps": 3, "max_grad_norm": 0.5}),
    ("windows of logs after the first step", {**TWO, "logging_steps": 3, "logging_first_step": True}),
    ("windows of logs longer than epochs", {"num_train_epochs": 3, "logging_steps": 5}),
    ("logs of epochs", {**TWO, "logging_strategy": "epoch"}),
    ("logs of epochs of micro-batches", {**TWO, "logging_strategy": "epoch", "gradient_accumulation_steps": 2}),
    ("logs of epochs that end early", {"max_steps": 6, "logging_strategy": "epoch"}),
    ("micro-batches", {**TWO, "gradient_accumulation_steps": 2}),
    ("micro-batches that end early", {**TWO, "gradient_accumulation_steps": 3}),
    ("micro-batches of more than an epoch", {**TWO, "gradient_accumulation_steps": 7}),
    ("rows that are left out", {**TWO, "dataloader_drop_last": True, "per_device_train_batch_size": 3}),
    (
        "rows that are left out of micro-batches",
        {**TWO, "dataloader_drop_last": True, "gradient_accumulation_steps": 2},
    ),
    ("a part of an epoch", {"num_train_epochs": 1.6}),
    ("more steps than an epoch", {"max_steps": 7, "num_train_epochs": 1}),
    ("fewer steps than an epoch", {"max_steps": 2, "num_train_epochs": 5}),
    ("weights that decay", {**TWO, "weight_decay": 0.3}),
    ("weights that decay under AdamW", {**TWO, "weight_decay": 0.3, "optim": "adamw_torch"}),
    (
        "coefficients of AdamW",
        {**TWO, "optim": "adamw_torch", "adam_beta1": 0.5, "adam_beta2": 0.6, "adam_epsilon": 0.1},
    ),
    ("Adagrad", {**TWO, "optim": "adagrad", "weight_decay": 0.2}),
    ("RMSprop", {**TWO, "optim": "rmsprop", "weight_decay": 0.2}),
    ("rates of a line", {**TWO, "lr_scheduler_type": "linear"}),
    ("rates of a line after a warm-up", {**TWO, "lr_scheduler_type": "linear", "warmup_steps": 3}),
    (
        "rates of a line of micro-batches",
        {**TWO, "lr_scheduler_type": "linear", "warmup_steps": 1, "gradient_accumulation_steps": 3},
    ),
    ("rates of a cosine after a warm-up", {"max_steps": 9, "lr_scheduler_type": "cosine", "warmup_steps": 2}),
    ("rates that stay after a warm-up", {**TWO, "lr_scheduler_type": "constant_with_warmup", "warmup_steps": 4}),
    (
        "rates, limits and windows together",
        {
            "max_steps": 11, "lr_scheduler_type": "cosine", "warmup_steps": 2, "max_grad_norm": 0.7,
            "logging_steps": 2, "logging_first_step": True, "gradient_accumulation_steps": 3,
            "optim": "adamw_torch", "weight_decay": 0.1, "per_device_train_batch_size": 1,
        },
    ),
)  # fmt: skip
"""A name, and options of a run."""
PLACE = "transformers:Trainer"
# Sources: the documentation of TrainingArguments, and of the optimizers of torch.
UPDATE_ROWS: Sequence[Row] = tuple(
    Row("steps", PLACE, f"a run computed again, {name}", partial(_computed_again, options), [], since="4.57")
    for name, options in RUNS
)
