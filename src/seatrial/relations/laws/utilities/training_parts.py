"""R31.training_parts: optimizers, rates, losses, activations and stops of a library are those of their formulas."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from seatrial.relations.laws.utilities.numbers import Numbers
from seatrial.relations.laws.utilities.plain import FLOAT32, Arguments, Plain, add_laws, relation_of

TRAINING_PARTS = relation_of(
    "training_parts",
    "parts-of-training-are-their-formula",
    "Activations, losses, optimizers by name, rates that follow a metric, early stops and options in a text are those "
    "of their formulas.",
)
Options = Mapping[str, Any]
IGNORED = -100


def _tanh_gelu(x: Tensor) -> Tensor:
    return 0.5 * x * (1 + torch.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3)))


def _gelu(x: Tensor) -> Tensor:
    return 0.5 * x * (1 + torch.erf(x / math.sqrt(2)))


def _softplus(x: Tensor) -> Tensor:
    return x.clamp(min=0) + torch.log1p((-x.abs()).exp())


ACTIVATIONS: Mapping[str, Callable[[Tensor], Tensor]] = {
    "gelu": _gelu,
    "gelu_10": lambda x: _gelu(x).clamp(-10, 10),
    "gelu_accurate": _tanh_gelu,
    "gelu_fast": _tanh_gelu,
    "gelu_new": _tanh_gelu,
    "gelu_python": _gelu,
    "gelu_pytorch_tanh": _tanh_gelu,
    "hardswish": lambda x: x * (x + 3).clamp(0, 6) / 6,
    "laplace": lambda x: 0.5 * (1 + torch.erf((x - 0.707107) / (0.282095 * math.sqrt(2)))),
    "leaky_relu": lambda x: torch.where(x > 0, x, 0.01 * x),
    "linear": lambda x: x,
    "mish": lambda x: x * torch.tanh(_softplus(x)),
    "quick_gelu": lambda x: x / (1 + (-1.702 * x).exp()),
    "relu": lambda x: x.clamp(min=0),
    "relu2": lambda x: x.clamp(min=0) ** 2,
    "relu6": lambda x: x.clamp(0, 6),
    "sigmoid": lambda x: 1 / (1 + (-x).exp()),
    "silu": lambda x: x / (1 + (-x).exp()),
    "swish": lambda x: x / (1 + (-x).exp()),
    "tanh": lambda x: x.tanh(),
}
"""By their names in Transformers."""


def _activated_cases(case: Numbers) -> Iterable[Arguments]:
    values = torch.cat([torch.linspace(-12, 12, 49), torch.randn(20, generator=case.generator())])
    return [(name, values) for name in ACTIVATIONS]


def activated(name: str, values: Tensor) -> Tensor:
    """Return values of an activation."""
    return ACTIVATIONS[name](values.double())


def _loss_cases(case: Numbers) -> Iterator[Arguments]:
    generator = case.generator()
    logits = 3 * torch.randn(3, 6, 9, generator=generator)
    labels = torch.randint(0, 9, (3, 6), generator=generator)
    labels[0, :3] = labels[1, 4:] = IGNORED
    for items in (None, 7):
        yield logits, labels, items, False
        yield logits, labels, items, True
    yield logits[:1], labels[:1], None, False


def causal_loss(logits: Tensor, labels: Tensor, num_items: int | None, shifted: bool) -> float:
    """Return the mean loss of next ids by a number of items; shifted: each label is that of its own place."""
    losses = [
        -float(row[place].double().log_softmax(0)[label])
        for row, own in zip(logits, labels.tolist(), strict=True)
        for place, label in (enumerate(own) if shifted else enumerate(own[1:]))
        if label != IGNORED
    ]
    return sum(losses) / (num_items or len(losses))


def _adafactor_cases(case: Numbers) -> Iterator[Arguments]:
    table: Sequence[Options] = (
        {"lr": 0.1, "scale_parameter": False, "relative_step": False},
        {"lr": 0.1, "scale_parameter": True, "relative_step": False, "weight_decay": 0.1},
        {"lr": None, "relative_step": True},
        {"lr": None, "relative_step": True, "warmup_init": True, "clip_threshold": 0.5},
        {"lr": 0.05, "scale_parameter": False, "relative_step": False, "beta1": 0.9, "decay_rate": -0.5},
        {"lr": 0.05, "scale_parameter": True, "relative_step": False, "eps": (1e-3, 0.5)},
    )
    for options in table:
        for shape in ((3, 4), (5,)):
            generator = case.generator()
            weights = torch.randn(*shape, generator=generator)
            yield (
                options,
                weights,
                [torch.randn(*shape, generator=generator) * scale for scale in (1.0, 0.1, 5.0)],
            )


def adafactor(options: Options, weights: Tensor, gradients: Sequence[Tensor]) -> list[Tensor]:
    """Return weights after each step (Shazeer and Stern 2018, algorithms 4 and 5, in Transformers' defaults)."""
    o = {
        "eps": (1e-30, 1e-3), "clip_threshold": 1.0, "decay_rate": -0.8, "beta1": None, "weight_decay": 0.0,
        "scale_parameter": True, "relative_step": True, "warmup_init": False, **options,
    }  # fmt: skip
    value, found = weights.double(), []
    rows = columns = whole = mean = torch.zeros((), dtype=torch.float64)
    for step, given in enumerate(gradients, start=1):
        g = given.double()
        rate = o["lr"]
        if o["relative_step"]:
            rate = min(1e-6 * step if o["warmup_init"] else 1e-2, step**-0.5)
        if o["scale_parameter"]:
            rate *= max(o["eps"][1], float(value.square().mean().sqrt()))
        beta = 1 - step ** o["decay_rate"]
        squares = g.square() + o["eps"][0]
        if g.dim() > 1:
            rows = beta * rows + (1 - beta) * squares.mean(-1)
            columns = beta * columns + (1 - beta) * squares.mean(-2)
            second = rows[..., :, None] * columns[..., None, :] / rows.mean(-1, keepdim=True)[..., None]
        else:
            second = whole = beta * whole + (1 - beta) * squares
        update = g / second.sqrt()
        update = rate * update / max(1.0, float(update.square().mean().sqrt()) / o["clip_threshold"])
        if o["beta1"] is not None:
            update = mean = o["beta1"] * mean + (1 - o["beta1"]) * update
        value = value * (1 - o["weight_decay"] * rate) - update
        found.append(value)
    return found


def _greedy_cases(case: Numbers) -> Iterator[Arguments]:
    falling = [1.0 - 0.1 * step for step in range(8)]
    flat = [*falling[:3], *[0.9] * 8]
    base = {"factor": 0.5, "patience": 1, "min_lr": 0.01, "max_lr": 1.0}
    mixed = [1.0, 0.9, 0.8, 0.95, 0.96, 0.7, 0.71, 0.72, 0.73, 0.5, 0.4, 0.3]
    for metrics in (falling, flat, mixed):
        yield base, metrics
        yield {**base, "mode": "max"}, metrics
        yield {**base, "threshold": 0.15, "threshold_mode": "abs"}, metrics
        yield {**base, "threshold": 0.15, "threshold_mode": "rel"}, metrics
        yield {**base, "cooldown": 2, "warmup": 1}, metrics
        yield {**base, "smooth": True, "window_size": 3}, metrics
    yield {**base, "reset_start": 2, "min_lr": 0.05}, [1.0] * 16


def greedy(options: Options, metrics: Sequence[float]) -> list[float]:
    """Return the rate after each metric, from 0.2 on, by Transformers' description of `GreedyLR`."""
    o = {
        "mode": "min", "threshold": 1e-6, "threshold_mode": "abs", "cooldown": 0, "warmup": 0, "smooth": False,
        "window_size": 50, "reset_start": 500, **options,
    }  # fmt: skip
    sign = 1.0 if o["mode"] == "min" else -1.0
    rate, best, good, bad, rest, resets, seen, found = 0.2, math.inf, 0, 0, 0, o["reset_start"], [], []
    for given in metrics:
        seen.append(given)
        metric = sum(seen[-o["window_size"] :]) / len(seen[-o["window_size"] :]) if o["smooth"] else given
        if rest:
            rest, good, bad = rest - 1, 0, 0
            found.append(rate)
            continue
        margin = o["threshold"] * (abs(best) if o["threshold_mode"] == "rel" else 1.0)
        better = math.isinf(best) or sign * metric < best - margin
        best = sign * metric if better else best
        good, bad = (good + 1, 0) if better else (0, bad + 1)
        if good > o["patience"]:
            rate, rest, good, resets = min(rate / o["factor"], o["max_lr"]), o["warmup"], 0, o["reset_start"]
        elif bad > o["patience"]:
            rate, rest, bad = max(rate * o["factor"], o["min_lr"]), o["cooldown"], 0
            resets -= rate <= o["min_lr"]
            if resets <= 0:
                rate, best, good, rest, resets, seen = 0.2, math.inf, 0, 0, o["reset_start"], []
        found.append(rate)
    return found


def _named_optimizers(case: Numbers) -> Iterator[Arguments]:
    generator = case.generator()
    weights = torch.randn(4, 3, generator=generator)
    gradients = [torch.randn(4, 3, generator=generator) for _ in range(3)]
    given = {
        "learning_rate": 0.1,
        "adam_beta1": 0.8,
        "adam_beta2": 0.95,
        "adam_epsilon": 1e-3,
        "weight_decay": 0.2,
    }
    for name in OPTIMIZERS:
        yield name, given, weights, gradients
    yield "sgd", {**given, "optim_args": "momentum=0.9"}, weights, gradients
    yield "rmsprop", {**given, "optim_args": "alpha=0.5,momentum=0.3"}, weights, gradients


OPTIMIZERS = ("adamw_torch", "adamw_torch_fused", "sgd", "adagrad", "rmsprop", "adafactor")


def named_optimizer(
    name: str, options: Options, weights: Tensor, gradients: Sequence[Tensor]
) -> dict[str, list[Tensor]]:
    """Return after each step a matrix, which decays, and a bias and a norm, which do not, of the same gradients."""
    matrix = _steps(name, options, weights, gradients, options["weight_decay"])
    vector = _steps(name, options, weights.flatten(), [one.flatten() for one in gradients], 0.0)
    shaped = [one.view_as(weights) for one in vector]
    return {"matrix": matrix, "bias": shaped, "norm": shaped}


def _steps(name: str, o: Options, weights: Tensor, gradients: Sequence[Tensor], decay: float) -> list[Tensor]:
    more = dict(pair.split("=") for pair in o.get("optim_args", "").split(",") if pair)
    rate, value, found = o["learning_rate"], weights.double(), []
    first = second = torch.zeros_like(value)
    if name == "adafactor":
        shared = {"lr": rate, "scale_parameter": False, "relative_step": False, "weight_decay": decay}
        return adafactor(shared, weights, gradients)
    for step, given in enumerate(gradients, start=1):
        g = given.double() + (0.0 if name.startswith("adamw") else decay * value)
        if name.startswith("adamw"):
            value = value * (1 - rate * decay)
            first = o["adam_beta1"] * first + (1 - o["adam_beta1"]) * g
            second = o["adam_beta2"] * second + (1 - o["adam_beta2"]) * g.square()
            mean, square = first / (1 - o["adam_beta1"] ** step), second / (1 - o["adam_beta2"] ** step)
            update = mean / (square.sqrt() + o["adam_epsilon"])
        elif name == "sgd":
            update = first = g if step == 1 else float(more.get("momentum", 0)) * first + g
        elif name == "adagrad":
            second = second + g.square()
            update = g / (second.sqrt() + 1e-10)
        else:
            alpha, momentum = float(more.get("alpha", 0.99)), float(more.get("momentum", 0))
            second = alpha * second + (1 - alpha) * g.square()
            first = momentum * first + g / (second.sqrt() + 1e-8)
            update = first
        value = value - rate * update
        found.append(value)
    return found


STOPS: Sequence[tuple[Sequence[float], Options]] = (
    ([5.0, 4.0, 4.5, 4.2, 3.0, 2.0], {"patience": 2, "greater": False, "threshold": 0.0}),
    ([5.0, 4.0, 4.5, 3.5, 3.6, 3.7], {"patience": 2, "greater": False, "threshold": 0.0}),
    ([1.0, 2.0, 1.5, 1.0, 3.0], {"patience": 2, "greater": True, "threshold": 0.0}),
    ([5.0, 4.9, 4.85, 4.0], {"patience": 2, "greater": False, "threshold": 0.5}),
    ([3.0, 3.0, 2.0, 2.0, 2.0], {"patience": 3, "greater": False, "threshold": 0.0}),
    ([-1.0, -2.0, -0.5, -0.7, -0.9], {"patience": 2, "greater": True, "threshold": 0.0}),
)


def _stop_cases(case: Numbers) -> Iterator[Arguments]:
    yield from STOPS
    yield STOPS[0][0], {**STOPS[0][1], "resumed_after": 3}


def _saved_cases(case: Numbers) -> Iterator[Arguments]:
    """Yield runs that save otherwise than after every step."""
    for metrics, options in STOPS[1:3]:
        yield from ((metrics, {**options, "saves": saves}) for saves in ("best", "epoch"))
    yield STOPS[0][0], {**STOPS[0][1], "saves": "best", "kept": 1}
    yield STOPS[5][0], {**STOPS[5][1], "saves": "steps", "kept": 1}


def early_stop(metrics: Sequence[float], options: Options) -> dict[str, Any]:
    """Return after how many evaluations a run stops, and which was the best."""
    sign = -1.0 if options["greater"] else 1.0
    best, at, waited, stopped = math.inf, 0, 0, len(metrics)
    for step, metric in enumerate(metrics, start=1):
        improves = sign * metric < best and (math.isinf(best) or best - sign * metric > options["threshold"])
        waited = 0 if improves else waited + 1
        if sign * metric < best:
            best, at = sign * metric, step
        if waited >= options["patience"]:
            stopped = step
            break
    return {"stopped after": stopped, "best": sign * best, "best step": at, "weights of step": at}


DEFAULTS: Options = {
    "n_layer": 2,
    "scale_attn_weights": True,
    "resid_pdrop": 0.1,
    "activation_function": "gelu_new",
}


def _texts(case: Numbers) -> Iterable[Arguments]:
    return [
        ("n_layer=5",),
        ("scale_attn_weights=false,resid_pdrop=0.25",),
        ("scale_attn_weights=0,activation_function=relu",),
        ("scale_attn_weights=yes,n_layer=1",),
        ("scale_attn_weights=no",),
    ]


def options_of_text(text: str) -> dict[str, Any]:
    """Return options of a configuration, some of them changed by a text."""
    found = dict(DEFAULTS)
    for name, word in (pair.split("=") for pair in text.split(",")):
        kind = type(found[name])
        found[name] = word in ("true", "1", "y", "yes") if kind is bool else kind(word)
    return found


TRAINING_PART_FUNCTIONS: Sequence[Plain] = (
    Plain(
        name="activated",
        law="activations",
        suspects="another approximation, a constant left out",
        cases=_activated_cases,
        right=activated,
        bound=FLOAT32,
    ),
    Plain(
        name="causal loss",
        law="loss of next ids",
        suspects="labels shifted twice or not at all, ignored ones in the mean, a count that is ignored",
        cases=_loss_cases,
        right=causal_loss,
        bound=FLOAT32,
    ),
    Plain(
        name="adafactor",
        law="Adafactor",
        suspects="an option that is ignored, a decay or a scale of another step",
        cases=_adafactor_cases,
        right=adafactor,
        bound=1e-4,
    ),
    Plain(
        name="greedy rates",
        law="rates that follow a metric",
        suspects="a patience off by one, a threshold of the other direction",
        cases=_greedy_cases,
        right=greedy,
        bound=FLOAT32,
    ),
    Plain(
        name="named optimizer",
        law="optimizers by name",
        suspects="an option of the run that the optimizer is not given, decay of biases and norms",
        cases=_named_optimizers,
        right=named_optimizer,
        bound=1e-4,
    ),
    Plain(
        name="early stop",
        law="early stops and the best checkpoint",
        suspects="a comparison the wrong way, patience that is not restored, the last weights in place of the best",
        cases=_stop_cases,
        right=early_stop,
        bound=FLOAT32,
    ),
    Plain(
        name="early stop",
        law="the best checkpoint in every way of saving",
        suspects="a step of the best that one way of saving does not keep, the best among those that are deleted",
        cases=_saved_cases,
        right=early_stop,
        bound=FLOAT32,
    ),
    Plain(
        name="options of text",
        law="options in a text",
        suspects="a word that is true where it says false",
        cases=_texts,
        right=options_of_text,
    ),
)
add_laws(TRAINING_PARTS, TRAINING_PART_FUNCTIONS)
