"""Models that the lean decoder must leave to their own code, or that differ from what it computes."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import nn

from refrl.config import LoraConfig
from refrl.generation.lean_check import difference
from refrl.generation.lean_support import supports_lean
from refrl.generation.quantized import quantize_layers
from refrl.policy.lora import add_adapters
from seatrial.relations.contracts.refusals import Trial
from seatrial.targets.reference.limits.models import model_of, plain_trial

REFUSED = "the lean decoder does not serve it"
DIFFERS = "differ"
DYNAMIC = {"rope_type": "dynamic", "factor": 2.0}


def _hooked(model: Any) -> None:
    model.model.layers[1].mlp.register_forward_hook(lambda module, inputs, output: 1.5 * output)


def _hooked_before(model: Any) -> None:
    model.model.layers[1].register_forward_pre_hook(lambda module, inputs: inputs)


def _replaced(model: Any) -> None:
    attention = model.model.layers[0].self_attn
    attention.forward = type(attention).forward.__get__(attention)


def _adapted(model: Any) -> None:
    add_adapters(model, LoraConfig(enabled=True, dim=2))


def _mixed(model: Any) -> None:
    model.lm_head.bfloat16()


def _integers(model: Any) -> None:
    model.lm_head.weight = nn.Parameter(model.lm_head.weight.to(torch.int8), requires_grad=False)


def _cut(model: Any) -> None:
    model.model.layers = model.model.layers[:1]


def _replaced_layer(model: Any) -> None:
    class Wider(nn.Linear):
        """A layer of another class."""

    layer = model.model.layers[0].mlp
    layer.up_proj = Wider(layer.up_proj.in_features, layer.up_proj.out_features, bias=False)


def _hooked_last(model: Any) -> None:
    model.model.norm.register_forward_hook(lambda module, inputs, output: 1.5 * output)


def _nothing(model: Any) -> None:
    """Leave it as it is."""


CHANGES: tuple[tuple[str, str, Callable[[Any], None], dict[str, Any], bool], ...] = (
    ("as it is", "llama", _nothing, {}, True),
    ("with windows", "qwen2", _nothing, {"use_sliding_window": True, "sliding_window": 3}, True),
    ("with frequencies of its length", "llama", _nothing, {"rope_scaling": DYNAMIC}, False),
    ("of another kind", "gpt2", _nothing, {}, False),
    ("with experts", "qwen3_moe", _nothing, {"num_experts": 4}, False),
    ("with a hook", "qwen3", _hooked, {}, False),
    ("with a hook before a layer", "qwen3", _hooked_before, {}, False),
    ("with a replaced forward", "llama", _replaced, {}, False),
    ("with adapters", "llama", _adapted, {}, False),
    ("with weights in int8", "llama", quantize_layers, {}, False),
    ("with a head of integers", "llama", _integers, {"tie_word_embeddings": False}, False),
    ("with a head in another type", "llama", _mixed, {"tie_word_embeddings": False}, False),
    ("with a layer less than it says", "llama", _cut, {}, False),
    ("with a layer of another class", "mistral", _replaced_layer, {}, False),
)  # fmt: skip
"""By name: type, change, options, and whether the lean decoder serves it."""


def decoder_trials() -> Iterator[Trial]:
    """Yield whether each model is served, and whether one that computes something else is noticed."""
    for what, kind, change, options, serves in CHANGES:

        def call(kind: str = kind, change: Any = change, options: dict[str, Any] = options) -> None:
            model = model_of(kind, **options)
            change(model)
            if not supports_lean(model):
                raise ValueError(REFUSED)

        yield plain_trial(f"a {kind} model {what}", None if serves else REFUSED, call)
    for what, change, differs in (("as it is", _nothing, False), ("with a hook", _hooked_last, True)):

        def compare(change: Any = change) -> None:
            model = model_of("gemma2")
            change(model)
            found = difference(model)
            if found is not None:
                raise ValueError(found)

        yield plain_trial(f"a gemma2 model {what}, compared", DIFFERS if differs else None, compare)
