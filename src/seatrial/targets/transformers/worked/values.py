"""Worked examples of Transformers' activations, initial values, and small functions of layers."""

from __future__ import annotations

import importlib
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from seatrial.targets.common.known import KnownFailure
from seatrial.targets.common.worked_rows import Row, unlike
from seatrial.targets.transformers.worked.attention import drawn


def _erf(x: float) -> float:
    return 0.5 * x * (1 + math.erf(x / math.sqrt(2)))


def _tanh(x: float) -> float:
    return 0.5 * x * (1 + math.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3)))


def _soft(x: float) -> float:
    return math.log1p(math.exp(x))


ACTIVATIONS: Mapping[str, Callable[[float], float]] = {
    "gelu": _erf,
    "gelu_10": lambda x: min(max(_erf(x), -10.0), 10.0),
    "gelu_fast": _tanh,
    "gelu_new": _tanh,
    "gelu_python": _erf,
    "gelu_pytorch_tanh": _tanh,
    "gelu_python_tanh": _tanh,
    "gelu_accurate": _tanh,
    "hardswish": lambda x: x * min(max(x + 3, 0.0), 6.0) / 6,
    "laplace": lambda x: 0.5 * (1 + math.erf((x - 0.707107) / (0.282095 * math.sqrt(2)))),
    "leaky_relu": lambda x: x if x > 0 else 0.01 * x,
    "linear": lambda x: x,
    "mish": lambda x: x * math.tanh(_soft(x)),
    "quick_gelu": lambda x: x / (1 + math.exp(-1.702 * x)),
    "relu": lambda x: max(x, 0.0),
    "relu2": lambda x: max(x, 0.0) ** 2,
    "relu6": lambda x: min(max(x, 0.0), 6.0),
    "sigmoid": lambda x: 1 / (1 + math.exp(-x)),
    "silu": lambda x: x / (1 + math.exp(-x)),
    "sqrtsoftplus": lambda x: math.sqrt(_soft(x)),
    "swish": lambda x: x / (1 + math.exp(-x)),
    "tanh": math.tanh,
    "prelu": lambda x: x if x > 0 else 0.25 * x,
    "xielu": lambda x: 0.8 * x * x + 0.5 * x if x > 0 else (math.expm1(min(x, -1e-6)) - x) * 0.8 + 0.5 * x,
}
"""Formulas of activations by their names."""


NUMBERS = (-20.0, -3.0, -1.25, -0.3, 0.0, 0.4, 1.0, 2.5, 7.0, 15.0)


def _activations(known: Any) -> list[str]:
    """Return where an activation is not its formula, and names without one."""
    wrong = [f"{name} has no formula here" for name in known if name not in ACTIVATIONS]
    for name in known:
        made = known[name]
        made = made.float() if isinstance(made, nn.Module) else made
        with torch.no_grad():
            found = made(torch.tensor(NUMBERS))
        bound = 1e-2 if name == "xielu" else 2e-5  # its own numbers are of bfloat16
        wrong += unlike(found.tolist(), [ACTIVATIONS[name](x) for x in NUMBERS], name, bound)
    return wrong[:4]


def _chunked(function: Any) -> list[Any]:
    """Return whether parts of tensors are computed one by one and joined in order, and what is refused."""
    seen: list[int] = []

    def forward(one: Tensor, other: Tensor) -> Tensor:
        seen.append(one.shape[1])
        return one * 2 + other

    one, other = drawn(2, 6, 3), drawn(2, 6, 3, seed=1)
    found: list[Any] = [
        torch.equal(function(forward, size, 1, one, other), one * 2 + other) for size in (2, 3, 6, 0)
    ]
    refused = []
    for size, tensors in ((4, (one, other)), (2, (one, other[:, :2])), (2, (one,))):
        try:
            function(forward, size, 1, *tensors)
        except ValueError:
            refused.append(True)
    return [found, seen, refused]


def _pruned(function: Any) -> list[Any]:
    """Return the weights and biases of layers of which some outputs, or inputs, are left."""
    found = []
    for dim, bias in ((0, True), (1, True), (0, False)):
        layer = nn.Linear(3, 4, bias=bias)
        with torch.no_grad():
            layer.weight.copy_(torch.arange(12.0).reshape(4, 3))
            if bias:
                layer.bias.copy_(torch.arange(4.0))
        made = function(layer, torch.tensor([2, 0]), dim=dim)
        found.append([made.weight.tolist(), made.bias.tolist() if bias else None, made.weight.requires_grad])
    return found


def _transposed(made: Any) -> list[Any]:
    layer = made(2, 3)
    with torch.no_grad():
        layer.weight.copy_(torch.arange(6.0).reshape(3, 2))
        layer.bias.copy_(torch.tensor([10.0, 20.0]))
        found = layer(torch.tensor([[[1.0, 0.0, 2.0]]]))
    return [found.tolist(), [float(one) for one in made(2, 3).bias]]


def _kept(module: Any) -> list[str]:
    """Return initial values that do not leave tensors alone that were loaded."""
    import transformers.initialization as init

    wrong = []
    for name, given in (
        ("uniform_", (1.0, 2.0)), ("normal_", (5.0, 0.1)), ("constant_", (3.0,)), ("ones_", ()), ("zeros_", ()),
        ("xavier_uniform_", ()), ("xavier_normal_", ()), ("kaiming_uniform_", ()), ("kaiming_normal_", ()),
        ("trunc_normal_", (5.0, 0.1, 4.0, 6.0)), ("orthogonal_", ()), ("eye_", ()),
        ("copy_", (torch.full((4, 4), 9.0),)), ("lecun_normal_", ()), ("default_flax_embed_init_", ()),
    ):  # fmt: skip
        for loaded in (True, False):
            value = nn.Parameter(torch.full((4, 4), 0.77))
            if loaded:
                value._is_hf_initialized = True  # type: ignore[attr-defined]
            with torch.no_grad():
                getattr(init, name)(value, *given)
            kept = bool((value == 0.77).all())
            wrong += [f"{name}, {loaded=}"] if kept != loaded else []
    return wrong


def _of_inputs(function: Any) -> bool:
    """Return whether the deviation of initial values is one over the root of the number of inputs."""
    with torch.random.fork_rng(devices=[]), torch.no_grad():
        torch.manual_seed(0)
        found = float(function(torch.empty(400, 100)).std())
    return abs(found - 0.1) < 0.003


def _spread(module: Any) -> list[bool]:
    """Return whether initial values have the mean, the deviation and the bounds that they are given."""
    init: Any = importlib.import_module("transformers.initialization")

    with torch.random.fork_rng(devices=[]), torch.no_grad():
        torch.manual_seed(0)
        values = {
            "normal": init.normal_(torch.empty(20000), 3.0, 0.5),
            "uniform": init.uniform_(torch.empty(20000), 2.0, 4.0),
            "truncated": init.trunc_normal_(torch.empty(20000), 1.0, 0.5, 0.5, 1.5),
            "embedding": init.default_flax_embed_init_(torch.empty(200, 100)),
            "narrow": init.orthogonal_(torch.empty(8, 8, dtype=torch.bfloat16), 2.0).float(),
        }  # fmt: skip
    due = {"normal": (3.0, 0.5), "uniform": (3.0, 0.577), "embedding": (0.0, 0.1)}
    found = [
        abs(float(values[name].mean()) - mean) < 0.02
        and abs(float(values[name].std()) - spread) < 0.03 * spread
        for name, (mean, spread) in due.items()
    ]
    square = values["narrow"] @ values["narrow"].T
    return [
        *found,
        bool(((values["truncated"] >= 0.5) & (values["truncated"] <= 1.5)).all()),
        bool((square - 4 * torch.eye(8)).abs().max() < 0.1),
    ]


UTILITIES = "transformers.pytorch_utils"


INIT = "transformers.initialization:normal_"


VALUE_ROWS: Sequence[Row] = (
    Row("formulas", "transformers.activations:ACT2FN", "every name", _activations, [], since="4.57"),
    Row(
        "calls",
        f"{UTILITIES}:apply_chunking_to_forward",
        "parts of a row",
        _chunked,
        [[True] * 4, [2, 2, 2, 3, 3, 6, 6], [True] * 3],
    ),
    Row(
        "calls",
        f"{UTILITIES}:prune_linear_layer",
        "outputs and inputs",
        _pruned,
        [
            [[[6.0, 7.0, 8.0], [0.0, 1.0, 2.0]], [2.0, 0.0], True],
            [[[2.0, 0.0], [5.0, 3.0], [8.0, 6.0], [11.0, 9.0]], [0.0, 1.0, 2.0, 3.0], True],
            [[[6.0, 7.0, 8.0], [0.0, 1.0, 2.0]], None, True],
        ],
    ),
    Row(
        "calls",
        f"{UTILITIES}:Conv1D",
        "a weight of inputs by outputs",
        _transposed,
        [[[[18.0, 31.0]]], [0.0, 0.0]],
    ),
    Row("models", INIT, "tensors that were loaded", _kept, [], since="5"),
    Row(
        "models",
        "transformers.initialization:lecun_normal_",
        "its deviation",
        _of_inputs,
        True,
        since="5",
        known=KnownFailure("it is cut at 2, not at 2 deviations", finding="Transformers: lecun_normal_"),
    ),
    Row("models", INIT, "means and deviations", _spread, [True] * 5, since="5.16"),
)
