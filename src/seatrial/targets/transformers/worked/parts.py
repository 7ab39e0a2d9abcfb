"""Worked examples of the parts of Transformers' trainer: optimizers, callbacks, random numbers, and saved models."""

from __future__ import annotations

import importlib
import random
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from functools import partial
from itertools import product
from pathlib import Path
from types import ModuleType
from typing import Any
from unittest.mock import patch

import numpy as np
import torch
from torch import nn

from seatrial.targets.common.known import KnownFailure
from seatrial.targets.common.target import find_name
from seatrial.targets.common.tiny import tiny_model, tiny_tokenizer
from seatrial.targets.common.trainers import new_folder, resuming
from seatrial.targets.common.worked_rows import Row, unlike
from seatrial.targets.transformers.short_runs import Line
from seatrial.targets.transformers.worked.runs import RATE, arguments, line, numbered


class Mixed(nn.Module):
    """Weights that decay, that do not, and that do not train."""

    def __init__(self) -> None:
        """Make them."""
        super().__init__()
        self.first, self.norm, self.last = nn.Linear(2, 3), nn.LayerNorm(3), nn.Linear(3, 1)
        self.frozen = nn.Linear(3, 3).requires_grad_(False)

    def forward(self, number: Any, labels: Any = None) -> Any:
        """Return a mean of squared errors."""
        pairs = torch.stack([number, number**2], dim=1).float() / 50
        found = self.last(self.norm(self.frozen(self.first(pairs))))[:, 0]
        return {"loss": ((found - labels) ** 2).mean(), "logits": found}


Optimizers = Sequence[tuple[Mapping[str, Any], str, Mapping[str, Any]]]
OPTIMIZERS: Optimizers = (
    (
        {"adam_beta1": 0.7, "adam_beta2": 0.8, "adam_epsilon": 1e-4},
        "AdamW",
        {"betas": (0.7, 0.8), "eps": 1e-4},
    ),
    ({"optim": "sgd"}, "SGD", {"momentum": 0}),
    ({"optim": "adafactor"}, "Adafactor", {"scale_parameter": False, "relative_step": False}),
    ({"optim": "adagrad"}, "Adagrad", {}),
    ({"optim": "rmsprop"}, "RMSprop", {"alpha": 0.99}),
)
WITH_ARGUMENTS: Optimizers = (
    (
        {"optim": "sgd", "optim_args": "momentum=0.5,nesterov=True"},
        "SGD",
        {"momentum": 0.5, "nesterov": True},
    ),
    ({"optim": "rmsprop", "optim_args": "alpha=0.5"}, "RMSprop", {"alpha": 0.5}),
)


def _optimizers(table: Optimizers, trainer_class: Any) -> list[str]:
    """Return where the groups of an optimizer are not those of the options: decaying or not, and trainable."""
    wrong = []
    for options, kind, due in table:
        model = Mixed()
        trainer = trainer_class(model=model, args=arguments(weight_decay=0.3, **options))
        optimizer = trainer.create_optimizer()
        names = {id(value): name for name, value in model.named_parameters()}
        groups = {
            group["weight_decay"]: sorted(names[id(one)] for one in group["params"])
            for group in optimizer.param_groups
        }
        right = {
            0.3: ["first.weight", "last.weight"],
            0.0: ["first.bias", "last.bias", "norm.bias", "norm.weight"],
        }
        if type(optimizer).__name__ != kind or groups != right:
            wrong.append(f"{dict(options)}: {type(optimizer).__name__} of {groups}")
        for group in optimizer.param_groups:
            found = {name: group.get(name) for name in due} | {"lr": group["lr"]}
            wrong += [] if found == {**due, "lr": RATE} else [f"{dict(options)}: {found}"]
    return wrong


SCHEDULES: Sequence[tuple[str, Mapping[str, Any]]] = (
    ("linear", {}),
    ("constant", {}),
    ("constant_with_warmup", {}),
    ("cosine", {"num_cycles": 1.5}),
    ("cosine_with_restarts", {"num_cycles": 3}),
    ("polynomial", {"lr_end": 0.01, "power": 2.0}),
    ("inverse_sqrt", {"timescale": 3}),
    ("cosine_with_min_lr", {"min_lr_rate": 0.2, "num_cycles": 1.0}),
    ("cosine_with_min_lr", {"min_lr": 0.01}),
    ("cosine_warmup_with_min_lr", {"min_lr_rate": 0.2, "warmup_lr_rate": 0.5}),
    ("warmup_stable_decay", {"num_decay_steps": 3, "min_lr_ratio": 0.2, "decay_type": "linear"}),
)
"""Schedules with options of their own."""
LAYERWISE: Mapping[str, str] = {
    "galore_adamw": "galore_torch:GaLoreAdamW",
    "galore_adafactor": "galore_torch:GaLoreAdafactor",
    "apollo_adamw": "apollo_torch:APOLLOAdamW",
}
"""Optimizers that have a form of one optimizer a parameter, and the class of another package that each takes."""


class _Packages(ExitStack):
    """Packages of optimizers whose classes are plain gradient descent that keeps the rates of its steps."""

    def __init__(self) -> None:
        """Stand in for the packages, and say that they are installed."""
        super().__init__()
        self.rates: list[dict[int, float]] = []
        noted = self.rates

        class Noted(torch.optim.SGD):
            def __init__(self, params: Any, lr: float, **more: Any) -> None:
                super().__init__(params, lr=lr)

            def step(self, closure: Any = None) -> None:  # type: ignore[override]
                noted.append({id(one): group["lr"] for group in self.param_groups for one in group["params"]})
                super().step(closure)

        for name in {place.partition(":")[0] for place in LAYERWISE.values()}:
            made = ModuleType(name)
            for place in (*LAYERWISE.values(), "galore_torch:GaLoreAdamW8bit"):
                setattr(made, place.partition(":")[2], Noted)
            self.enter_context(patch.dict(sys.modules, {name: made}))
        for module in ("transformers.trainer", "transformers.trainer_optimizer"):
            try:
                found = importlib.import_module(module)
            except ImportError:
                continue
            for check in ("is_galore_torch_available", "is_apollo_torch_available"):
                if hasattr(found, check):
                    self.enter_context(patch.object(found, check, lambda: True))


def _layerwise(get_scheduler: Any) -> list[str]:
    """Return where a schedule of an optimizer of each parameter has other rates than one of a usual optimizer."""
    made: Any = find_name("transformers", ["transformers.trainer_pt_utils:LayerWiseDummyOptimizer"])
    wrong = []
    for (name, options), warmup in product(SCHEDULES, (0, 3)):
        given = {
            "num_warmup_steps": warmup,
            "num_training_steps": 12,
            "scheduler_specific_kwargs": dict(options),
        }
        rates: list[list[float]] = []
        for layerwise in (False, True):
            one = nn.Parameter(torch.ones(()))
            optimizer = torch.optim.SGD([one], lr=RATE)
            whole = made(optimizer_dict={one: optimizer}, lr=RATE) if layerwise else optimizer
            try:
                schedule = get_scheduler(name, whole, **given)
            except (ValueError, TypeError) as error:  # of an option that the schedule needs
                wrong.append(f"{name}, {dict(options)}, {layerwise=}: {error}")
                break
            seen = []
            for _ in range(12):
                seen.append(optimizer.param_groups[0]["lr"])
                optimizer.step()
                (one * 2).backward()  # type: ignore[no-untyped-call]
                schedule.step()
            rates.append(seen)
        if len(rates) == 2:
            wrong += unlike(rates[1], rates[0], f"{name}, {dict(options)}, {warmup} steps of warmup")[:1]
        if "constant" not in name and rates and len({*rates[0]}) < 2:
            wrong.append(f"{name}: the rate does not change")
    return wrong


def _layerwise_runs(trainer_class: Any) -> list[str]:
    """Return where an optimizer of each parameter has other rates than one of all, or leaves other weights."""
    wrong = []
    for optimizer, (schedule, options) in (
        *(("galore_adamw", one) for one in SCHEDULES[:1]),
        *((name, SCHEDULES[4]) for name in LAYERWISE),
    ):
        found = []
        for form in (optimizer, f"{optimizer}_layerwise"):
            with torch.random.fork_rng(devices=[]), _Packages() as packages:
                torch.manual_seed(0)
                model = Mixed()
                args = arguments(
                    optim=form, optim_target_modules=["first", "last"], lr_scheduler_type=schedule,
                    lr_scheduler_kwargs=dict(options), warmup_steps=2, max_steps=8,
                    per_device_train_batch_size=2, max_grad_norm=0.0,
                )  # fmt: skip
                trainer_class(model=model, args=args, train_dataset=numbered(8)).train()
            rates: dict[str, list[float]] = {}
            for name, value in model.named_parameters():
                if value.requires_grad:
                    rates[name] = [step[id(value)] for step in packages.rates if id(value) in step]
            found.append((rates, model.state_dict()))
        (rates, weights), (own, left) = found
        what = f"{optimizer}, {schedule}, {dict(options)}"
        for name, due in rates.items():
            wrong += unlike(own[name], due, f"{what}, rates of {name}")[:1]
        wrong += [
            f"{what}, weights of {name}"
            for name, value in weights.items()
            if not torch.allclose(left[name], value, atol=1e-6)
        ]
    return wrong[:5]


def _falling(trainer_class: Any) -> list[str]:
    """Return where the rate of a schedule that waits for a metric does not follow the metric that is named."""
    wrong = []
    for metric, greater in (("score", True), ("eval_score", False), (None, None)):
        values = iter([0.9, 1.0, 2.0, 3.0, 3.0, 3.0, 3.0])

        class Scored(trainer_class):  # type: ignore[misc]
            def evaluate(
                self, *given: Any, values: Iterator[float] = values, **more: Any
            ) -> dict[str, float]:
                value = next(values)
                found = {"eval_score": value, "eval_loss": 5 - value}
                self.control: Any = self.callback_handler.on_evaluate(
                    self.args, self.state, self.control, found
                )
                return found

        named = {} if metric is None else {"metric_for_best_model": metric, "greater_is_better": greater}
        options = {"mode": "max" if greater else "min", "factor": 0.5, "patience": 0}
        trainer = Scored(
            model=Line(),
            args=arguments(
                per_device_train_batch_size=7, max_steps=5, eval_strategy="steps", eval_steps=1, logging_steps=1,
                lr_scheduler_type="reduce_lr_on_plateau", lr_scheduler_kwargs=options, eval_on_start=True, **named,
            ),
            train_dataset=numbered(), eval_dataset=numbered(),
        )  # fmt: skip
        trainer.train()
        found = [entry["learning_rate"] for entry in trainer.state.log_history if "loss" in entry]
        falls = {True: [0, 0, 0, 0, 1], False: [0, 0, 1, 2, 3], None: [0, 0, 0, 0, 1]}[greater]
        wrong += unlike(found, [RATE * 0.5**number for number in falls], f"rates by {metric}")
        best = {True: 3.0, False: 1.0, None: 2.0}[greater]
        if named and trainer.state.best_metric != best:
            wrong.append(f"the best {metric} is {trainer.state.best_metric}, {best} is due")
    return wrong


def _streams(trainer_class: Any) -> list[list[bool]]:
    """Return whether Python's, NumPy's and torch's random numbers of a run continue in one that is resumed."""
    found = []
    for rows in (4, 2):  # within an epoch, and at its end
        drawn: list[list[float]] = []
        folder, checkpoint = new_folder(), None
        kept = random.getstate(), np.random.get_state(), torch.random.get_rng_state()
        for _ in range(2):
            trainer = line(
                trainer_class, numbered(rows), output_dir=folder, per_device_train_batch_size=1, max_steps=4,
                save_strategy="steps", save_steps=2,
            )  # fmt: skip
            trainer.add_callback(_drawing(drawn))
            with resuming():
                trainer.train(resume_from_checkpoint=checkpoint)
            checkpoint = str(Path(folder) / "checkpoint-2")
        random.setstate(kept[0])
        np.random.set_state(kept[1])
        torch.random.set_rng_state(kept[2])
        found.append([one == again for one, again in zip(drawn[2], drawn[4], strict=True)])
    return found


def _drawing(drawn: list[list[float]]) -> Any:
    import transformers

    class Drawing(transformers.TrainerCallback):
        def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
            drawn.append([random.random(), float(np.random.rand()), float(torch.rand(()))])

    return Drawing()


def _callbacks(trainer_class: Any) -> list[Any]:
    """Return what is left of callbacks that are added, taken and removed, by class and by instance."""
    import transformers

    class One(transformers.TrainerCallback):
        pass

    class Two(transformers.TrainerCallback):
        pass

    trainer = line(trainer_class)
    before = len(trainer.callback_handler.callbacks)
    one, two = One(), Two()
    trainer.add_callback(one)
    trainer.add_callback(Two)
    trainer.add_callback(two)

    def names() -> list[str]:
        return [type(kept).__name__ for kept in trainer.callback_handler.callbacks][before:]

    found = [names(), trainer.pop_callback(One) is one, names(), trainer.pop_callback(One)]
    trainer.remove_callback(two)
    found.append(names())
    trainer.remove_callback(Two)
    return [*found, names()]


def _loaded(trainer_class: Any) -> list[list[bool]]:
    """Return whether a saved model and its tokenizer are found again: the trainer's own, and its collator's."""
    import transformers

    found = []
    collator: Callable[..., Any] = transformers.DataCollatorForLanguageModeling
    for given in (
        {"processing_class": tiny_tokenizer()},
        {"data_collator": collator(tokenizer=tiny_tokenizer(), mlm=False)},
        {},
    ):
        trainer = trainer_class(model=tiny_model(tiny_tokenizer(), 3), args=arguments(), **given)
        trainer.save_model()
        folder = Path(trainer.args.output_dir)
        kept: Any = transformers.AutoModelForCausalLM.from_pretrained(folder)
        same = all(
            torch.equal(value, dict(kept.named_parameters())[name])
            for name, value in trainer.model.named_parameters()
        )
        options = folder / "training_args.bin"
        found.append([same, (folder / "tokenizer_config.json").exists(), options.exists()])
    return found


PLACE, SCHEDULER = "transformers:Trainer", "transformers:get_scheduler"
# Sources: the documentation of Trainer, TrainingArguments and TrainerCallback.
PART_ROWS: Sequence[Row] = (
    Row("starts", PLACE, "groups of an optimizer", partial(_optimizers, OPTIMIZERS), [], since="4.57"),
    Row("starts", PLACE, "arguments of an optimizer", partial(_optimizers, WITH_ARGUMENTS), [], since="5.8"),
    Row("steps", SCHEDULER, "schedules of an optimizer of each parameter", _layerwise, [], since="4.57"),
    Row(
        "steps",
        PLACE,
        "runs with an optimizer of each parameter",
        _layerwise_runs,
        [],
        since="5",
        known=KnownFailure(
            "the schedule is made of the wrapped optimizer, and the rates of the parameters stay the same",
            finding="Transformers: schedules of layer-wise optimizers",
        ),
    ),
    Row("steps", PLACE, "rates that wait for a metric", _falling, [], since="4.57"),
    Row("checkpoints", PLACE, "random numbers of a resumed run", _streams, [[True] * 3] * 2, since="4.57"),
    Row(
        "calls",
        PLACE,
        "callbacks that are added and removed",
        _callbacks,
        [["One", "Two", "Two"], True, ["Two", "Two"], None, ["Two"], []],
    ),
    Row(
        "files",
        PLACE,
        "models that it saves",
        _loaded,
        [[True, True, True], [True, True, True], [True, False, True]],
        since="4.57",
    ),
)
