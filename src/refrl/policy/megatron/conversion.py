"""Weights between Hugging Face and Megatron-core, tensor by tensor.

One `Link` says which Hugging Face tensors one Megatron-core parameter holds, how they lie in it, and how tensor
parallelism cuts them. The links of an architecture are a closed set: a name on either side that is in no link, or a
link without its name, is an error. Layers and experts are numbered over the whole model.

A tensor-parallel rank's parameter is made of its parts of the Hugging Face tensors, so one rule serves every size:
groups of queries, keys and values stay whole, gate and up are cut each for itself.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from refrl.policy.megatron.architecture import Architecture

Form = Literal["whole", "joined", "grouped"]
"""`whole`: one tensor. `joined`: gate, then up, along dimension 0. `grouped`: for each key head its query heads, the
key, the value."""


class ConversionError(ValueError):
    """A tensor that has no place on the other side, or no counterpart there; the message names it."""


@dataclass(frozen=True)
class Link:
    """One Megatron-core parameter, and the Hugging Face tensors in it."""

    parameter: str
    tensors: tuple[str, ...]
    """Names as in a Hugging Face checkpoint, where experts stand one by one."""
    shapes: tuple[tuple[int, ...], ...]
    """Of the whole tensors."""
    form: Form = "whole"
    split: int | None = None
    """Dimension of the Hugging Face tensors that tensor parallelism cuts; None: every rank has them whole."""
    head_dim: int = 0
    """Of `grouped`."""
    expert: int | None = None
    """Number of the expert that it belongs to."""
    padded: bool = False
    """Its rows are the vocabulary, padded with zeros until tensor parallelism divides them."""

    def merge(self, parts: Sequence[Tensor]) -> Tensor:
        """Return the parameter of a rank that has these parts of the tensors."""
        if self.form == "whole":
            return parts[0]
        if self.form == "joined":
            return torch.cat(list(parts))
        groups = parts[1].shape[0] // self.head_dim
        return torch.cat([part.unflatten(0, (groups, -1)) for part in parts], dim=1).flatten(0, 1)

    def divide(self, parameter: Tensor) -> tuple[Tensor, ...]:
        """Return the parts of the tensors that a rank's parameter is made of: views where that can be."""
        if self.form == "whole":
            return (parameter,)
        if self.form == "joined":
            return parameter.chunk(2)
        query_rows, key_rows, _ = (shape[0] for shape in self.shapes)
        heads = query_rows // key_rows
        grouped = parameter.unflatten(0, (-1, (heads + 2) * self.head_dim))
        sizes = [heads * self.head_dim, self.head_dim, self.head_dim]
        return tuple(part.flatten(0, 1) for part in grouped.split(sizes, dim=1))

    def part(self, tensor: Tensor, rank: int, size: int) -> Tensor:
        """Return a tensor-parallel rank's part of a whole tensor."""
        if self.split is None or size == 1:
            return tensor
        if self.padded:
            tensor = pad_vocabulary(tensor, size)
        return tensor.chunk(size, dim=self.split)[rank]

    def whole(self, parts: Sequence[Tensor], number: int) -> Tensor:
        """Return the whole of the `number`-th tensor from all ranks' parts of it."""
        if self.split is None or len(parts) == 1:
            return parts[0]
        return torch.cat(list(parts), dim=self.split)[: self.shapes[number][0]]


def pad_vocabulary(tensor: Tensor, size: int) -> Tensor:
    """Return a tensor whose rows are the vocabulary, with rows of zeros until `size` divides them."""
    missing = padded_vocabulary(len(tensor), size) - len(tensor)
    return torch.cat([tensor, tensor.new_zeros(missing, *tensor.shape[1:])]) if missing else tensor


def padded_vocabulary(vocab_size: int, size: int) -> int:
    """Return the rows of embedding and head over so many tensor-parallel ranks."""
    return math.ceil(vocab_size / size) * size


def links(architecture: Architecture) -> Iterator[Link]:
    """Yield every parameter of the whole model once, in the order of the Hugging Face model."""
    wide, rows = architecture.hidden_size, architecture.vocab_size
    yield Link(
        "embedding.word_embeddings.weight",
        ("model.embed_tokens.weight",),
        ((rows, wide),),
        split=0,
        padded=True,
    )
    for layer in range(architecture.num_layers):
        yield from _layer(architecture, layer)
    yield Link("decoder.final_layernorm.weight", ("model.norm.weight",), ((wide,),))
    if not architecture.tied:
        yield Link("output_layer.weight", ("lm_head.weight",), ((rows, wide),), split=0, padded=True)


def tied_head(architecture: Architecture) -> Link:
    """Return the link of the copy of the embedding that the last pipeline stage has as its head."""
    shape = (architecture.vocab_size, architecture.hidden_size)
    return Link("output_layer.weight", ("model.embed_tokens.weight",), (shape,), split=0, padded=True)


def check_names(given: Iterable[str], known: Iterable[str], *, what: str) -> None:
    """Hold the names that there are against those that have a place.

    Args:
        given: names that there are.
        known: names that the links have.
        what: whose names they are, for the message.

    Raises:
        ConversionError: names the first ones that are on one side only.
    """
    have, want = set(given), set(known)
    for names, text in ((have - want, "without a place"), (want - have, "missing")):
        if names:
            raise ConversionError(f"{what}: {len(names)} {text}: {', '.join(sorted(names)[:3])}")


def in_memory(
    tensors: Iterable[tuple[str, Tensor]], architecture: Architecture
) -> Iterator[tuple[str, Tensor]]:
    """Yield tensors named as in a checkpoint under the names of the Hugging Face model in memory.

    Where that model holds the experts of a layer in one tensor, those of a layer are put together; they have to come
    in the order of `links`.
    """
    if not architecture.fused_experts:
        yield from tensors
        return
    waiting: dict[str, list[Tensor]] = {}
    for name, tensor in tensors:
        head, found, tail = name.partition(".mlp.experts.")
        if not found:
            yield name, tensor
            continue
        number, _, kind = tail.partition(".")
        parts = waiting.setdefault(kind, [])
        parts.append(tensor)
        if int(number) == architecture.num_experts - 1 and kind == "down_proj.weight":
            gate, up, down = (waiting[f"{part}_proj.weight"] for part in ("gate", "up", "down"))
            pairs = [torch.cat(pair) for pair in zip(gate, up, strict=True)]
            yield f"{head}.mlp.experts.gate_up_proj", torch.stack(pairs)
            yield f"{head}.mlp.experts.down_proj", torch.stack(down)
            waiting = {}


def as_in_checkpoint(
    tensors: Mapping[str, Tensor], architecture: Architecture
) -> Iterator[tuple[str, Tensor]]:
    """Yield tensors of the Hugging Face model in memory as a checkpoint names them: the reverse of `in_memory`."""
    for name, tensor in tensors.items():
        head, fused, kind = name.partition(".mlp.experts.")
        if not fused or not architecture.fused_experts:
            yield name, tensor
            continue
        for number, expert in enumerate(tensor):
            where = f"{head}.mlp.experts.{number}"
            if kind == "down_proj":
                yield f"{where}.down_proj.weight", expert
            else:
                gate, up = expert.chunk(2)
                yield f"{where}.gate_proj.weight", gate
                yield f"{where}.up_proj.weight", up


def _layer(architecture: Architecture, layer: int) -> Iterator[Link]:
    ours, theirs = f"decoder.layers.{layer}", f"model.layers.{layer}"
    wide, head_dim = architecture.hidden_size, architecture.head_dim
    rows = [heads * head_dim for heads in (architecture.num_heads, *[architecture.num_kv_heads] * 2)]
    attention = f"{theirs}.self_attn"
    for kind in ("weight", "bias") if architecture.qkv_bias else ("weight",):
        yield Link(
            f"{ours}.self_attention.linear_qkv.{kind}",
            tuple(f"{attention}.{part}_proj.{kind}" for part in "qkv"),
            tuple((number, wide) if kind == "weight" else (number,) for number in rows),
            form="grouped",
            split=0,
            head_dim=head_dim,
        )
    yield Link(
        f"{ours}.self_attention.linear_proj.weight",
        (f"{attention}.o_proj.weight",),
        ((wide, rows[0]),),
        split=1,
    )
    if architecture.qk_norm:
        for part in "qk":
            name = f"{ours}.self_attention.{part}_layernorm.weight"
            yield Link(name, (f"{attention}.{part}_norm.weight",), ((head_dim,),))
    if architecture.expert_layers[layer]:
        router = (architecture.num_experts, wide)
        yield Link(f"{ours}.mlp.router.weight", (f"{theirs}.mlp.gate.weight",), (router,))
        for expert in range(architecture.num_experts):
            yield from _feed_forward(
                f"{ours}.mlp.experts.local_experts.{expert}",
                f"{theirs}.mlp.experts.{expert}",
                wide,
                architecture.expert_hidden_size,
                expert,
            )
    else:
        yield from _feed_forward(f"{ours}.mlp", f"{theirs}.mlp", wide, architecture.ffn_hidden_size, None)
    norms = {"input_layernorm": "input_layernorm", "pre_mlp_layernorm": "post_attention_layernorm"}
    for mine, other in norms.items():
        yield Link(f"{ours}.{mine}.weight", (f"{theirs}.{other}.weight",), ((wide,),))


def _feed_forward(ours: str, theirs: str, wide: int, inner: int, expert: int | None) -> Iterator[Link]:
    yield Link(
        f"{ours}.linear_fc1.weight",
        (f"{theirs}.gate_proj.weight", f"{theirs}.up_proj.weight"),
        ((inner, wide), (inner, wide)),
        form="joined",
        split=0,
        expert=expert,
    )
    yield Link(
        f"{ours}.linear_fc2.weight", (f"{theirs}.down_proj.weight",), ((wide, inner),), split=1, expert=expert
    )
