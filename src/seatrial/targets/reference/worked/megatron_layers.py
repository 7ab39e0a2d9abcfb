"""Worked examples of Megatron-core's layers: what their parameters are made of, and what is scored."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack
from types import SimpleNamespace
from typing import Any, cast
from unittest.mock import patch

import torch
from torch import nn

from refrl.algorithms.kept_ids import gather_kept_ids
from refrl.config import LoraConfig
from refrl.policy import lora
from refrl.policy.megatron import conversion
from refrl.streams import random_stream
from seatrial.relations.contracts.worked import WorkedExample
from seatrial.targets.reference.worked.made import batch, example


def of_layers() -> Iterator[WorkedExample]:
    """Yield what the parameters of a layer are made of: part, tensors, expert, shapes, and where it is cut."""
    qkv = ("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj")
    attention: list[tuple[Any, ...]] = [
        (
            f"self_attention.linear_qkv.{kind}",
            [f"{one}.{kind}" for one in qkv],
            None,
            [(8, *wide), (4, *wide), (4, *wide)],
            0,
        )
        for kind, wide in (("weight", (6,)), ("bias", ()))
    ]
    attention.append(("self_attention.linear_proj.weight", ["self_attn.o_proj.weight"], None, [(6, 8)], 1))
    for one in "qk":
        norm = f"self_attn.{one}_norm.weight"
        attention.append((f"self_attention.{one}_layernorm.weight", [norm], None, [(2,)], None))
    norms = [
        ("input_layernorm.weight", ["input_layernorm.weight"], None, [(6,)], None),
        ("pre_mlp_layernorm.weight", ["post_attention_layernorm.weight"], None, [(6,)], None),
    ]

    def feed_forward(ours: str, theirs: str, inner: int, expert: int | None) -> list[tuple[Any, ...]]:
        inputs = [f"{theirs}.{name}_proj.weight" for name in ("gate", "up")]
        return [
            (f"{ours}.linear_fc1.weight", inputs, expert, [(inner, 6), (inner, 6)], 0),
            (f"{ours}.linear_fc2.weight", [f"{theirs}.down_proj.weight"], expert, [(6, inner)], 1),
        ]

    experts: list[tuple[Any, ...]] = [("mlp.router.weight", ["mlp.gate.weight"], None, [(3, 6)], None)]
    for number in range(3):
        names = f"mlp.experts.local_experts.{number}", f"mlp.experts.{number}"
        experts += feed_forward(*names, 7, number)
    dense = feed_forward("mlp", "mlp", 5, None)
    yield example("parameters of a dense layer", [*attention, *dense, *norms], _links, 0)
    yield example("parameters of a layer with experts", [*attention, *experts, *norms], _links, 1)
    for packs in (False, True):
        yield example(f"kept ids are scored, packed: {packs}", [True], _scored_with, packs)
    for seed in (0, 5):
        yield example(f"what first adapters are drawn from, at the seed {seed}", [], _drawn, seed)


def _links(layer: int) -> list[Any]:
    """Return the links of a dense layer 0 or of a layer 1 with experts, without the layers' names."""
    architecture: Any = SimpleNamespace(
        hidden_size=6, head_dim=2, num_heads=4, num_kv_heads=2, qkv_bias=True, qk_norm=True,
        expert_layers=(False, True), num_experts=3, expert_hidden_size=7, ffn_hidden_size=5,
    )  # fmt: skip
    ours, theirs = f"decoder.layers.{layer}.", f"model.layers.{layer}."
    return [
        (
            link.parameter.removeprefix(ours),
            [name.removeprefix(theirs) for name in link.tensors],
            link.expert,
            list(link.shapes),
            link.split,
        )
        for link in conversion._layer(architecture, layer)
    ]


def _scored_with(packs: bool) -> list[bool]:
    """Return whether the kept ids of a micro-batch arrive where it is scored."""
    from refrl.policy.megatron import forward

    made, seen = batch(), []
    made.kept_ids = gather_kept_ids([[(2,), (3,)], [], [(3,)]], made.mask_BT.shape[1])

    def score(*words: Any, **options: Any) -> None:
        seen.append(options["kept_ids"] is made.kept_ids)

    scorer = forward.Scorer(cast(Any, None), 9, 1.0, packs, torch.float32)
    lengths = {"_length": lambda self, num: num, "_lengthened": lambda self, ids: ids}
    with ExitStack() as stack:
        for name, call in {
            **lengths,
            "_own": lambda self, ids, **options: ids,
            "_whole": lambda self, logits: logits,
        }.items():
            stack.enter_context(patch.object(forward.Scorer, name, call))
        for name in ("compute_logprobs", "compute_logprobs_packed"):
            stack.enter_context(patch.object(forward, name, score))
        scorer.inputs(made).score(torch.zeros(1))
    return seen


def _drawn(seed: int) -> list[str]:
    """Return the first values of adapters that are other than those of their layers' own streams, by backend."""
    from refrl.policy.megatron.adapters import _links_of, _values

    layers = {"model.layers.0.q_proj": (4, 6), "model.layers.1.q_proj": (2, 6), "model.layers.1.down": (6, 3)}
    config, due, plain = LoraConfig(enabled=True, dim=2, seed=seed), {}, {}
    model: Any = nn.Module()
    for layer, (outputs, inputs) in layers.items():
        stream = random_stream(seed, f"lora_A of {layer}", 0)
        drawn = torch.rand((2, inputs), generator=stream)
        due[f"{layer}.lora_A.weight"] = (2 * drawn - 1) / inputs**0.5
        due[f"{layer}.lora_B.weight"] = torch.zeros(outputs, 2)
        plain[layer] = nn.Linear(inputs, outputs, bias=False)
    with (
        patch.object(lora, "chosen_layers", lambda *words: plain),
        patch.object(model, "set_submodule", lambda *words: None),
    ):
        others = {
            f"{name}.{half}.weight": weight
            for name, layer in lora.add_adapters(model, config).layers.items()
            for half, weight in (("lora_A", layer.lora_A.weight), ("lora_B", layer.lora_B.weight))
        }
    links = [
        own
        for layer, shape in layers.items()
        for own in _links_of(conversion.Link("made.weight", (f"{layer}.weight",), (shape,), split=0), 0, 2)
    ]
    backends = {"modules": others, "Megatron-core": _values(links, config)}
    return [
        f"{backend}: {name}"
        for backend, found in backends.items()
        for name, values in due.items()
        if not torch.allclose(found[name].float(), values, atol=1e-6)
    ]
