"""Worked examples of models that processes cut into parts, of more layers than one digit numbers."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping
from typing import Any
from unittest.mock import patch

import torch
from torch import nn
from torch.distributed.tensor.parallel import ColwiseParallel, SequenceParallel

from refrl.config import LoraConfig
from refrl.generation.quantized import Int8Linear, quantize_layers
from refrl.models.loading import _of_further_layers
from refrl.policy.dtensor import tensor_parallel
from refrl.policy.dtensor.policy import _check_probe
from refrl.policy.lora import LoraLinear, add_adapters
from seatrial.relations.contracts.worked import WorkedExample
from seatrial.targets.reference.configuration import policy_configuration
from seatrial.targets.reference.limits.models import model_of
from seatrial.targets.reference.worked.made import example, refused
from seatrial.targets.reference.worked.made_ranks import Group, Mesh

NUM_LAYERS = 12
LINEAR = {
    "self_attn.q_proj": "columns", "self_attn.k_proj": "columns", "self_attn.v_proj": "columns",
    "mlp.gate_proj": "columns", "mlp.up_proj": "columns", "self_attn.o_proj": "rows", "mlp.down_proj": "rows",
}  # fmt: skip
HEAD_NORMS = {"self_attn.q_norm": "heads", "self_attn.k_norm": "heads"}
NORMS = {"input_layernorm": "sequence", "post_attention_layernorm": "sequence"}


def of_layouts() -> Iterator[WorkedExample]:
    """Yield how each layer is cut, what is tied and trained then, and what a probe of the cut model refuses."""
    yield from _of_plans()
    yield from _of_many_layers()
    yield from _of_probes()


def _of_plans() -> Iterator[WorkedExample]:
    for family, tied, shares, adapted in (
        ("qwen3", False, False, True), ("qwen3", True, True, False), ("llama", True, False, False),
        ("llama", False, True, True), ("qwen3_moe", True, False, False), ("qwen3_moe", False, True, False),
    ):  # fmt: skip
        layer = {name: kind for name, kind in LINEAR.items() if family != "qwen3_moe" or "mlp" not in name}
        layer |= HEAD_NORMS if family != "llama" else {}
        layer |= NORMS if shares else {}
        ends = {"model.embed_tokens": "rows", "lm_head": "columns"} | (
            {"model.norm": "sequence"} if shares else {}
        )
        due = {"layers": {name: [kind, NUM_LAYERS] for name, kind in layer.items()}, "ends": ends}
        due |= {"tied": tied, "trained": True, "adapted": len(LINEAR) * NUM_LAYERS * adapted}
        hooks = {"self_attn": NUM_LAYERS, "mlp": NUM_LAYERS} if shares else {}
        words = f"tied {tied}, sequences shared {shares}, adapters {adapted}"
        yield example(
            f"a {family} that is cut: {words}", {**due, "hooks": hooks}, _cut, family, tied, shares, adapted
        )


def _cut(family: str, tied: bool, shares: bool, adapted: bool) -> Any:
    """Return how a model's parts are cut by a stand-in that gives each a weight of its own, and lets it train."""
    model = _deep(family, tie_word_embeddings=tied)
    if adapted:
        add_adapters(model, LoraConfig(enabled=True))
    else:
        model.model.layers[10].requires_grad_(False)
    before = {name for name, weight in model.named_parameters() if weight.requires_grad}
    plan: dict[str, Any] = {}

    def cut(whole: nn.Module, mesh: Any, styles: Mapping[str, Any]) -> None:
        plan.update(styles)
        for name in styles:
            for owner in whole.get_submodule(name).modules():
                for key, weight in list(owner.named_parameters(recurse=False)):
                    setattr(owner, key, nn.Parameter(weight.detach().clone()))

    mesh: Any = Mesh(Group(2))
    with patch.object(tensor_parallel, "parallelize_module", cut):
        tensor_parallel.parallelize(model, mesh, sequence_parallel=shares)
    inner, head = model.get_input_embeddings(), model.get_output_embeddings()
    hooked = [name for name, one in model.named_modules() if one._forward_pre_hooks and ".layers." in name]
    kinds = {name: _kind(style) for name, style in plan.items()}
    return {
        "layers": {name: [kind, len(numbers)] for (name, kind), numbers in _by_part(kinds).items()},
        "ends": {name: kind for name, kind in kinds.items() if ".layers." not in name},
        "tied": inner.weight is head.weight,
        "trained": before == {name for name, weight in model.named_parameters() if weight.requires_grad},
        "adapted": sum(isinstance(style, tensor_parallel.Adapted) for style in plan.values()),
        "hooks": {name: len(numbers) for (name, _), numbers in _by_part(dict.fromkeys(hooked, "")).items()},
    }


def _deep(family: str, **changes: Any) -> Any:
    more: dict[str, Any] = {"num_experts": 2, "moe_intermediate_size": 4} if family == "qwen3_moe" else {}
    return model_of(
        family, num_hidden_layers=NUM_LAYERS, hidden_size=8, intermediate_size=8, **more, **changes
    )


def _kind(style: Any) -> str:
    """Return what a style cuts: columns or rows of a weight, heads, or sequences."""
    if isinstance(style, tensor_parallel.Adapted):
        return "columns" if style._cut["weight"].is_shard(0) else "rows"
    if isinstance(style, SequenceParallel):
        return {1: "sequence", 2: "heads"}[style.sequence_sharding[0].dim]
    return "columns" if isinstance(style, ColwiseParallel) else "rows"


def _by_part(kinds: Mapping[str, str]) -> dict[tuple[str, str], set[int]]:
    """Return the numbers of the layers by what is named within them, and its kind."""
    found: dict[tuple[str, str], set[int]] = {}
    for name, kind in kinds.items():
        _, is_within, rest = name.partition(".layers.")
        if is_within:
            number, _, part = rest.partition(".")
            found.setdefault((part, kind), set()).add(int(number))
    return found


def _of_many_layers() -> Iterator[WorkedExample]:
    every = dict.fromkeys(LINEAR, NUM_LAYERS)

    def counted(names: Iterable[str]) -> dict[str, int]:
        return {name: len(numbers) for (name, _), numbers in _by_part(dict.fromkeys(names, "")).items()}

    def adapted() -> Any:
        model = _deep("llama")
        add_adapters(model, LoraConfig(enabled=True))
        return counted(name for name, one in model.named_modules() if isinstance(one, LoraLinear))

    def held() -> Any:
        model = _deep("llama")
        quantize_layers(model)
        return counted(name for name, one in model.named_modules() if isinstance(one, Int8Linear))

    def further(first: int) -> int:
        names = [f"model.layers.{number}.w" for number in range(NUM_LAYERS)]
        return len(_of_further_layers(names[first:], names[:first]))

    yield example(f"adapters of {NUM_LAYERS} layers", every, adapted)
    yield example(f"{NUM_LAYERS} layers in int8", every, held)
    for first in (1, 9, 10, 11):
        yield example(
            f"layers from {first} on that a model has no place for", NUM_LAYERS - first, further, first
        )


def _of_probes() -> Iterator[WorkedExample]:
    def probed(off: float, precision: str, place: int) -> None:
        found_BT = torch.zeros(2, 3)
        found_BT[place, place] = off
        config = policy_configuration({"precision": precision, "dtensor_cfg.enabled": True})
        _check_probe(config, found_BT, torch.zeros(2, 3))

    for off, precision in ((0.0, "float32"), (9e-4, "float32"), (-9e-4, "float32"), (0.24, "bfloat16")):
        yield example(f"a spread model that differs by {off}", None, probed, off, precision, 1)
    for off, precision in (
        (1.1e-3, "float32"), (-1.1e-3, "float32"), (0.26, "bfloat16"), (math.nan, "float32"), (math.nan, "bfloat16"),
        (math.inf, "float32"), (-math.inf, "bfloat16"),
    ):  # fmt: skip
        for place in (0, 1):
            name = f"a spread model of {precision} that differs by {off} in row {place}"
            yield refused(
                "log-probabilities of the spread model differ by", name, probed, off, precision, place
            )
