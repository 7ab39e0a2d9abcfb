"""Observes a trainer in the form of Hugging Face's `Trainer` while it trains: rows, raw gradients, weights, log."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any
from zlib import crc32

import torch
from torch import Tensor

from seatrial.relations.not_served import NotServed
from seatrial.targets.trl.made_rows import MadeRows, is_ids
from seatrial.targets.trl.predictions import Predictions
from seatrial.targets.trl.processes import is_one_of_several
from seatrial.targets.trl.served import as_trained, sequences_of
from seatrial.targets.trl.turns import Turns

SKIPPED_LOGS = ("runtime", "per_second", "flos", "step_time")
"""What depends on the clock."""
OF_DECODERS = ("layers", "embed_tokens", "norm")
"""What the plain model's decoder has."""
GENERATION_SETTINGS = (
    "temperature", "top_p", "top_k", "min_p", "repetition_penalty", "max_new_tokens", "do_sample", "typical_p",
)  # fmt: skip
"""What is kept of a generation's settings."""


class Watch:
    """Observes a trainer; one object for both parts of a run that is resumed."""

    def __init__(self, rows: MadeRows) -> None:
        """Start with nothing observed."""
        self._rows = rows
        self._parts: list[list[int]] = []
        self._gradients: dict[str, Tensor] = {}
        self._evaluation: dict[str, Any] | None = None
        self._in_loop = False
        self._served: dict[tuple[Any, ...], int] = {}
        self._calls: dict[int, int] = {}
        self._evaluations = 0
        self._turns = Turns(rows, rows.setup.options.get("max_tool_calling_iterations"))
        self.observed: dict[str, Any] = {
            "steps": [],
            "evaluations": [],
            "rollouts": [],
            "logged": {},
            "was_training": True,
            "sampling": [],
            "dropout": 0.0,
            "widths": [],
            "flattened": False,
            "served": [],
        }
        self.predictions = Predictions(rows)

    def attach(self, trainer: Any, ends_after: int) -> None:
        """Add the callback and the hooks to a trainer; training stops after the step `ends_after`, 0 for none."""
        self._trainer = trainer
        self._parts = []
        trainer.add_callback(_callback(self, ends_after))
        for name in ("compute_loss", "prediction_step"):
            self._wrap_forward(trainer, name)
        evaluate = trainer.evaluate

        def evaluated(*args: Any, **given: Any) -> Any:
            self._evaluation = {
                "step": trainer.state.global_step,
                "parts": [],
                "was_training": False,
                "flattened": False,
                "logged": {},
                "predictions": [],
            }
            try:
                return evaluate(*args, **given)
            finally:
                self._evaluation["predictions"] = self.predictions.taken()
                self.observed["evaluations"].append(self._evaluation)
                self._evaluation = None

        trainer.evaluate = evaluated
        self._wrap_loop(trainer)
        clip = trainer.accelerator.clip_grad_norm_

        def clipped(*args: Any, **given: Any) -> Any:
            self.keep_gradients()
            return clip(*args, **given)

        trainer.accelerator.clip_grad_norm_ = clipped
        if self._rows.setup.samples:
            trainer.model.generate = self._generate
        if "initial_weights" not in self.observed:
            self.observed["initial_weights"] = self._weights()
            self.observed["trainable"] = sorted(
                plain_name(name) for name, value in trainer.model.named_parameters() if value.requires_grad
            )

    def _wrap_loop(self, trainer: Any) -> None:
        """Observe when held-out rows are evaluated: some trainers print samples before, in passes of their own."""
        loop = trainer.evaluation_loop

        def looped(*args: Any, **given: Any) -> Any:
            self._in_loop = True
            try:
                return loop(*args, **given)
            finally:
                self._in_loop = False

        trainer.evaluation_loop = looped

    def _wrap_forward(self, trainer: Any, name: str) -> None:
        original = getattr(trainer, name)

        def wrapped(model: Any, inputs: Any, *args: Any, **given: Any) -> Any:
            self._see(trainer, name, inputs)
            return original(model, inputs, *args, **given)

        setattr(trainer, name, wrapped)

    def _see(self, trainer: Any, method: str, inputs: Any) -> None:
        """Keep the rows of a forward pass.

        Raises:
            NotServed: the batches of this release have no ids under a name that is known here.
        """
        if isinstance(inputs, Mapping) and not any(map(is_ids, inputs)) and "completion_ids" not in inputs:
            raise NotServed(f"batches of this release have no ids of their rows, but {', '.join(inputs)}")
        numbers = self._rows.numbers_of(inputs, self.observed["rollouts"])
        served = self._evaluation is None or method == "prediction_step"
        if served and not self._rows.setup.samples and not is_one_of_several():
            given = as_trained(inputs, trainer)
            sequences, num_padded = sequences_of(given, self._rows.pad_id, self._rows.sequences)
            self.observed["served"] += [(numbers, sequences, num_padded)] if sequences else []
        if self._evaluation is None:
            self._parts.append(numbers)
            self.observed["was_training"] &= trainer.model.training
            self.observed["dropout"] = max(self.observed["dropout"], largest_dropout(trainer.model))
            self.observed["widths"] += widths_of(inputs)
            self.observed["flattened"] |= 0 < num_rows_of(inputs) < len(numbers)
            return
        if not self._in_loop:
            return
        self._evaluation["was_training"] |= trainer.model.training
        self._evaluation["flattened"] |= 0 < num_rows_of(inputs) < len(numbers)
        if method == "prediction_step":
            self._evaluation["parts"].append(numbers)
        elif not self._evaluation["parts"][-1]:
            self._evaluation["parts"][-1] = numbers

    def keep_gradients(self) -> None:
        """Copy the gradients unless this step's are kept already."""
        if not self._gradients:
            self._gradients = {
                plain_name(name): value.grad.detach().clone()
                for name, value in self._trainer.model.named_parameters()
                if value.grad is not None
            }

    def end_step(self) -> None:
        """Keep the optimizer step that has just been taken."""
        self.observed["steps"].append(
            {
                "step": self._trainer.state.global_step,
                "parts": self._parts,
                "gradients": self._gradients,
                "rate": self.rate,
                "weights": self._weights(),
            }
        )
        self._parts, self._gradients = [], {}

    rate = float("nan")
    """Learning rate of the step."""

    def keep_rate(self) -> None:
        """Keep the rate with which the optimizer is about to step."""
        self.rate = float(self._trainer.optimizer.param_groups[0]["lr"])

    def keep_log(self, logs: Mapping[str, Any]) -> None:
        """Keep what is logged now."""
        numbers = {
            name: float(value)
            for name, value in logs.items()
            if isinstance(value, int | float) and not any(word in name for word in SKIPPED_LOGS)
        }
        step = str(self._trainer.state.global_step)
        if any(name.startswith("eval_") for name in numbers):
            target = self._evaluation if self._evaluation is not None else self.observed["evaluations"][-1]
            target["logged"] |= {name.removeprefix("eval_"): value for name, value in numbers.items()}
        elif "train_loss" not in numbers:
            self.observed["logged"].setdefault(step, {}).update(numbers)

    def finish(self) -> None:
        """Keep the state at the end of training."""
        model, optimizer = self._trainer.model, self._trainer.optimizer
        optimizer = getattr(optimizer, "optimizer", optimizer)
        names = {id(value): plain_name(name) for name, value in model.named_parameters()}
        self.observed["optimizer"] = {
            f"{names[id(value)]}.{key}": torch.as_tensor(moment).detach().clone()
            for value, state in optimizer.state.items()
            for key, moment in state.items()
            if moment is not None
        }
        self.observed["final_weights"] = self._weights()

    def _weights(self) -> dict[str, Tensor]:
        return {
            plain_name(name): value.detach().clone() for name, value in self._trainer.model.named_parameters()
        }

    def _generate(self, *args: Any, **given: Any) -> Tensor:
        """Replace `model.generate`: return prompts with made completions, [B, S], padded as the library pads."""
        prompts = args[0] if args else given[next(name for name in ("input_ids", "inputs") if name in given)]
        shown = given["attention_mask"].bool()
        settings = given.get("generation_config")
        copies = int(getattr(settings, "num_return_sequences", None) or 1)
        prompts, shown = prompts.repeat_interleave(copies, 0), shown.repeat_interleave(copies, 0)
        step, is_training = self._trainer.state.global_step, self._evaluation is None
        self._calls[step] = self._calls.get(step, 0) + int(is_training)
        self._evaluations += int(not is_training)
        if is_training:
            found = {name: getattr(settings, name, None) for name in GENERATION_SETTINGS}
            self.observed["sampling"].append({**found, **{k: v for k, v in given.items() if k in found}})
            # The state before the first one alone is the trainer's: it is set below for the next ones.
            self.observed.setdefault("sampling_state", crc32(torch.get_rng_state().numpy().tobytes()))
        if (
            is_training
        ):  # the trainer draws the order of these rows; evaluation draws in between are no concern of it
            torch.manual_seed(step)
        completions = []
        for ids, real in zip(prompts, shown, strict=True):
            prompt_ids = tuple(ids[real].tolist())
            if self._rows.setup.tools:
                completions.append(self._turn(prompt_ids, step, is_training))
                continue
            number = self._number(prompt_ids, step, is_training)
            made, ended = self._rows.completion(prompt_ids, step, number, is_training)
            completions.append(made)
            self.observed["rollouts"].append(
                {
                    "prompt_ids": prompt_ids,
                    "ids": made,
                    "ended": ended,
                    "rewards": self._rows.rewards(made, prompt_ids),
                    **self._origin(step, number, is_training),
                }
            )
        width = max(map(len, completions))
        pad = self._rows.pad_id
        return torch.cat(
            [prompts, torch.tensor([[*ids, *[pad] * (width - len(ids))] for ids in completions])], 1
        )

    def _number(self, prompt_ids: tuple[int, ...], step: int, is_training: bool) -> int:
        """Return the place of a completion among those of its prompt, which processes count apart."""
        key = (prompt_ids, step, is_training)
        self._served[key] = self._served.get(key, -1) + 1
        return self._served[key] + 100 * int(os.environ.get("RANK", 0))

    def _turn(self, prompt_ids: tuple[int, ...], step: int, is_training: bool) -> tuple[int, ...]:
        """Return the next turn of the rollout that a prompt continues, or the first one of a new rollout."""
        if (found := self._turns.next(prompt_ids)) is not None:
            return found
        number = self._number(prompt_ids, step, is_training)
        rollout = {"prompt_ids": prompt_ids, **self._origin(step, number, is_training)}
        self.observed["rollouts"].append(rollout)
        return self._turns.begin(rollout, self._rows.script(prompt_ids, step, number, is_training))

    def _origin(self, step: int, number: int, is_training: bool) -> dict[str, Any]:
        """Return which generation made a rollout, and its place there."""
        batch = step * 100 + self._calls[step] if is_training else -self._evaluations
        return {"batch": batch, "weight_version": step, "number": number}


def _callback(watch: Watch, ends_after: int) -> Any:
    from transformers import TrainerCallback

    class Callback(TrainerCallback):
        def on_pre_optimizer_step(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
            watch.keep_gradients()
            watch.keep_rate()

        def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
            watch.end_step()
            if state.global_step == ends_after:
                control.should_training_stop = True

        def on_log(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
            watch.keep_log(kwargs.get("logs") or {})

    return Callback()


def largest_dropout(model: Any) -> float:
    """Return the largest probability of dropout in a model: of its modules, and that of attention given as a number."""
    found = [0.0]
    for module in model.modules():
        value = (
            module.p if isinstance(module, torch.nn.Dropout) else getattr(module, "attention_dropout", 0.0)
        )
        found += [float(value)] if isinstance(value, int | float) else []
    return max(found)


def widths_of(inputs: Any) -> list[int]:
    """Return the lengths to which the ids of a batch are padded."""
    if not isinstance(inputs, Mapping):
        return []
    return [
        value.shape[1]
        for name, value in inputs.items()
        if (is_ids(name) or name in ("prompt_ids", "completion_ids")) and getattr(value, "ndim", 0) == 2
    ]


def num_rows_of(inputs: Any) -> int:
    """Return the number of rows of ids of a batch; 0 where it has none."""
    ids = inputs.get("input_ids") if isinstance(inputs, Mapping) else None
    return 0 if ids is None else int(ids.shape[0])


def plain_name(name: str) -> str:
    """Return the name of a tensor of PEFT's model as the plain model has it; adapters keep their part of it."""
    found = name.removeprefix("base_model.model.")
    if found.partition(".")[0] in OF_DECODERS:  # a model with virtual tokens has one level less
        found = f"model.{found}"
    return found.removeprefix("base_model.").replace(".base_layer.", ".").removeprefix("module.")
