"""Callbacks in runs of a trainer: the weights that they keep and write, worked out in float64."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from seatrial.targets.trl.worked.limits import made_rows
from seatrial.targets.trl.worked.rows import Row
from seatrial.targets.trl.worked.seen import made_trainer, or_refused

LENGTHS = ((3, 5, 7), (6, 2, 4), (8, 9, 3), (2, 7, 8))
NUM_STEPS = 6
Weights = Mapping[str, Tensor]
SETTINGS: Mapping[str, Mapping[str, float]] = {
    "every step": {"update_freq": 1, "lag": 3},
    "every second step, after the first": {"update_freq": 2, "update_after": 1, "lag": 3, "multiplier": 0.7},
    "powers": {"update_freq": 2, "ema_power": 0.9, "bias_power": 1.3, "lag": 2, "multiplier": 2.0},
    "no correction, and a least share": {
        "update_freq": 1,
        "bias_power": 0.0,
        "lag": 5,
        "min_ema_multiplier": 0.6,
    },
    "nothing yet": {"update_freq": 1, "update_after": 50},
}


def _weights(model: Any) -> dict[str, Tensor]:
    return {name: value.detach().double().clone() for name, value in model.named_parameters()}


def averaged(steps: Sequence[Weights], settings: Mapping[str, float]) -> Weights:
    """Return the bias-corrected moving average of weights.

    Equations 1 to 4 of the documentation of `BEMACallback` (arXiv:2508.00180): theta_0 and the average are the weights
    at the step `update_after`, and each later update moves the average towards the weights.

    Args:
        steps: the weights before the first step, and after each.
        settings: arguments of the callback; those that are left out have their defaults.
    """
    first, every = int(settings.get("update_after", 0)), int(settings["update_freq"])
    lag, growth = settings.get("lag", 10), settings.get("multiplier", 1.0)
    if first >= len(steps):
        return steps[0]
    start = steps[first]
    mean = dict(start)
    found: Weights = steps[0] if first else start
    for step in range(first + every, len(steps), every):
        age = lag + growth * step
        share = max(age ** -settings.get("ema_power", 0.5), settings.get("min_ema_multiplier", 0.0))
        correction = age ** -settings.get("bias_power", 0.2)
        now = steps[step]
        mean = {name: (1 - share) * value + share * now[name] for name, value in mean.items()}
        found = {name: value + correction * (now[name] - start[name]) for name, value in mean.items()}
    return found


def _bema(settings: Mapping[str, float], parts: int, callback_class: Any) -> list[str]:
    """Return names of tensors that the callback writes otherwise than they are defined."""
    import transformers
    from safetensors.torch import load_file

    steps: list[Weights] = []

    class Keeping(transformers.TrainerCallback):
        def on_train_begin(self, args: Any, state: Any, control: Any, **given: Any) -> None:
            steps.append(_weights(given["model"]))

        def on_step_end(self, args: Any, state: Any, control: Any, **given: Any) -> None:
            steps.append(_weights(given["model"]))

    options = {
        "max_steps": NUM_STEPS,
        "learning_rate": 0.3,
        "per_device_train_batch_size": 4 // parts,
        "gradient_accumulation_steps": parts,
    }
    own = {name: int(value) if float(value).is_integer() else value for name, value in settings.items()}
    callbacks = [Keeping(), callback_class(**own)]
    trainer = made_trainer("SFT", made_rows("texts", LENGTHS), options, arguments={"callbacks": callbacks})
    trainer.train()
    due = averaged(steps, settings)
    written = load_file(Path(trainer.args.output_dir) / "bema" / "model.safetensors")
    after = _weights(trainer.model)
    wrong = [
        name for name, value in due.items() if not torch.allclose(written[name].double(), value, atol=1e-5)
    ]
    moved = [name for name, value in after.items() if not torch.equal(value, steps[-1][name])]
    return wrong + [f"{name} of the trained model" for name in moved]


def _rows() -> Sequence[Row]:
    return [
        Row(
            "steps",
            "trl:BEMACallback",
            f"{what}, {parts} parts",
            or_refused(partial(_bema, settings, parts)),
            [],
        )
        for what, settings in SETTINGS.items()
        for parts in ((1, 2) if what == "every second step, after the first" else (1,))
    ]


CALLBACKS: Mapping[str, Callable[[], Sequence[Row]]] = {"callbacks": _rows}
