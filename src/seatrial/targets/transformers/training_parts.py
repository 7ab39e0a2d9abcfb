"""Optimizers, rates, losses, activations and stops of Transformers, by the names of `contracts.utilities`."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from packaging.version import Version
from torch import Tensor, nn

from seatrial.relations.laws.utilities.training_parts import DEFAULTS
from seatrial.relations.not_served import NotServed
from seatrial.targets.common.target import Gone, find_name, release
from seatrial.targets.common.trainers import configuration, freeze_imports, resuming
from seatrial.targets.transformers.small import Small


def _found(*places: str) -> Any:
    try:
        return find_name("transformers", list(places))
    except Gone as error:
        raise NotServed(str(error)) from error


def activated(name: str, values: Tensor) -> Tensor:
    """Return values of an activation."""
    known = _found("transformers.activations:ACT2FN")
    if name not in known:
        raise NotServed(f"no activation {name}")
    found: Tensor = known[name](values)
    return found


def causal_loss(logits: Tensor, labels: Tensor, num_items: int | None, shifted: bool) -> float:
    """Return the loss of causal language models."""
    loss = _found("transformers.loss.loss_utils:ForCausalLMLoss")
    if shifted and "shift_labels" not in inspect.signature(loss).parameters:
        raise NotServed("the loss of this release shifts its labels")
    given = {"labels": None, "shift_labels": labels} if shifted else {"labels": labels}
    return float(loss(logits, vocab_size=logits.shape[-1], num_items_in_batch=num_items, **given))


def _stepped(
    optimizer: Any, parameters: Mapping[str, Any], gradients: Sequence[Tensor]
) -> dict[str, list[Tensor]]:
    found: dict[str, list[Tensor]] = {name: [] for name in parameters}
    for gradient in gradients:
        for value in parameters.values():
            value.grad = gradient.clone().view_as(value)
        optimizer.step()
        for name, value in parameters.items():
            found[name].append(value.detach().double().view_as(gradient))
    return found


def adafactor(options: Mapping[str, Any], weights: Tensor, gradients: Sequence[Tensor]) -> list[Tensor]:
    """Return weights after each step of `Adafactor`."""
    value = nn.Parameter(weights.clone())
    made = _found("transformers.optimization:Adafactor")([value], **options)
    return _stepped(made, {"it": value}, gradients)["it"]


def greedy(options: Mapping[str, Any], metrics: Sequence[float]) -> list[float]:
    """Return the rates of `GreedyLR`; in the middle its state goes to another one."""
    made = _found("transformers.optimization:GreedyLR")

    def fresh() -> tuple[Any, Any]:
        optimizer = torch.optim.SGD([nn.Parameter(torch.zeros(1))], lr=0.2)
        return optimizer, made(optimizer, **options)

    optimizer, schedule = fresh()
    found = []
    for step, metric in enumerate(metrics):
        if step == len(metrics) // 2:
            rate, state = optimizer.param_groups[0]["lr"], schedule.state_dict()
            optimizer, schedule = fresh()
            schedule.load_state_dict(state)
            optimizer.param_groups[0]["lr"] = rate
        schedule.step(metric)
        found.append(float(optimizer.param_groups[0]["lr"]))
    return found


class _Parts(nn.Module):
    """A matrix, a bias and a norm, of as many numbers each."""

    def __init__(self, weights: Tensor) -> None:
        """Make each of the same numbers."""
        super().__init__()
        self.layer = nn.Linear(weights.shape[1], weights.shape[0], bias=False)
        self.bias = nn.Parameter(weights.flatten().clone())
        self.norm = nn.LayerNorm(weights.numel(), bias=False)
        with torch.no_grad():
            self.layer.weight.copy_(weights)
            self.norm.weight.copy_(weights.flatten())


def _arguments(**options: Any) -> Any:
    import transformers

    return configuration(transformers.TrainingArguments, options)


def named_optimizer(
    name: str, options: Mapping[str, Any], weights: Tensor, gradients: Sequence[Tensor]
) -> dict[str, list[Tensor]]:
    """Return the parts after each step of the optimizer that a trainer makes."""
    import transformers

    freeze_imports()
    if "optim_args" in options and Version(release("transformers")) < Version("5"):
        raise NotServed(f"{name} of this release has no options of its own")
    model = _Parts(weights)
    made: Any = transformers.Trainer
    trainer = made(model=model, args=_arguments(optim=name, **options))
    parts = {"matrix": model.layer.weight, "bias": model.bias, "norm": model.norm.weight}
    own = trainer.create_optimizer()
    return _stepped(own, parts, gradients)


def early_stop(metrics: Sequence[float], options: Mapping[str, Any]) -> dict[str, Any]:
    """Return after how many evaluations a trainer stops, its best one, and of which step its weights are."""
    import transformers

    freeze_imports()
    resumed_after = options.get("resumed_after", 0)
    if resumed_after and Version(release("transformers")) < Version("4.49"):
        raise NotServed("resumes of this release do not load random states with torch 2.6 and later")
    steps: list[int] = []
    weights: dict[int, Tensor] = {}
    saves = options.get("saves", "steps")
    if saves == "best" and Version(release("transformers")) < Version("4.47"):
        raise NotServed("this release does not save by a metric")
    rows = [{"number": number, "labels": float(number % 3)} for number in range(2 if saves == "epoch" else 8)]
    args = {
        "max_steps": len(metrics), "eval_strategy": "epoch" if saves == "epoch" else "steps", "eval_steps": 1,
        "save_strategy": saves, "save_steps": 1, "save_total_limit": options.get("kept"),
        "load_best_model_at_end": True, "metric_for_best_model": "score", "greater_is_better": options["greater"],
        "learning_rate": 0.05, "per_device_train_batch_size": 2,
        "restore_callback_states_from_checkpoint": True,
    }  # fmt: skip
    given = _arguments(**args)

    class Watching(transformers.TrainerCallback):
        def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
            steps.append(state.global_step)
            weights[state.global_step] = kwargs["model"].last.weight.detach().clone()

        def on_save(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
            if state.global_step == resumed_after:
                control.should_training_stop = True

    def trained(checkpoint: str | None) -> Any:
        made: Any = transformers.Trainer
        trainer = made(
            model=Small(0.0, 0),
            args=given,
            train_dataset=rows,
            eval_dataset=rows[:2],
            compute_metrics=lambda _: {"score": metrics[steps[-1] - 1]},
            callbacks=[
                Watching(),
                transformers.EarlyStoppingCallback(options["patience"], options["threshold"]),
            ],
        )
        with resuming():
            trainer.train(resume_from_checkpoint=checkpoint)
        return trainer

    trainer = trained(None)
    if resumed_after:
        resumed_after = 0
        trainer = trained(str(Path(given.output_dir) / f"checkpoint-{steps[-1]}"))
    own = trainer.model.last.weight.detach()
    return {
        "stopped after": steps[-1],
        "best": float(trainer.state.best_metric),
        "best step": int(Path(trainer.state.best_model_checkpoint or "none-0").name.partition("-")[2]),
        "weights of step": next((step for step, value in weights.items() if torch.equal(own, value)), 0),
    }


def options_of_text(text: str) -> dict[str, Any]:
    """Return options of a configuration after `update_from_string`."""
    config = _found("transformers:GPT2Config")(**DEFAULTS)
    config.update_from_string(text)
    return {name: getattr(config, name) for name in DEFAULTS}


FUNCTIONS: Mapping[str, Callable[..., Any]] = {
    "activated": activated,
    "causal loss": causal_loss,
    "adafactor": adafactor,
    "greedy rates": greedy,
    "options of text": options_of_text,
}
OF_TRAINERS: Mapping[str, Callable[..., Any]] = {"named optimizer": named_optimizer, "early stop": early_stop}
"""Those that make a trainer."""
