"""refrl's ways to cut tensors over ranks, called without processes."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import partial
from types import SimpleNamespace
from typing import Any, NamedTuple

import torch
from torch import Tensor

from refrl.distributed import World, _buckets
from refrl.policy.dtensor.scoring import OwnPositions
from refrl.policy.megatron.architecture import architecture_of
from refrl.policy.megatron.context import positions_of_context
from refrl.policy.megatron.conversion import as_in_checkpoint, in_memory, links
from seatrial.targets.reference.limits.models import config_of

RANKS = (1, 2, 4)
KINDS: Sequence[tuple[str, dict[str, Any]]] = (
    (
        "llama",
        {"num_attention_heads": 8, "num_key_value_heads": 4, "tie_word_embeddings": False, "vocab_size": 41},
    ),
    ("qwen2", {"num_attention_heads": 4, "num_key_value_heads": 4}),
    ("qwen3", {"num_attention_heads": 12, "num_key_value_heads": 4, "tie_word_embeddings": True}),
    (
        "qwen3_moe",
        {"num_key_value_heads": 4, "num_experts": 11, "moe_intermediate_size": 8, "mlp_only_layers": [0]},
    ),
)


class Joined(NamedTuple):
    """Tensors that were cut and joined again."""

    name: str
    tensors: Sequence[Tensor]
    ranks: int
    parts: Sequence[Tensor]
    joined: Sequence[Tensor]


def joined(seed: int) -> Iterator[Joined]:
    """Yield each way to cut tensors with what comes of it; no element is 0."""
    stream = torch.Generator().manual_seed(seed)
    for kind, changes in KINDS:
        architecture = architecture_of(config_of(kind, **changes))
        for link in links(architecture):
            tensors = [0.1 + torch.rand(shape, generator=stream) for shape in link.shapes]
            for ranks in RANKS:
                parts = [
                    link.merge([link.part(tensor, rank, ranks) for tensor in tensors])
                    for rank in range(ranks)
                ]
                divided = [link.divide(part) for part in parts]
                back = [
                    link.whole([of_rank[number] for of_rank in divided], number)
                    for number in range(len(tensors))
                ]
                yield Joined(f"{kind}'s {link.parameter}", tensors, ranks, parts, back)
        yield _as_in_memory(kind, architecture, stream)
    rows = 0.1 + torch.rand(7, 3, generator=stream)
    for ranks in (1, 2, 3, 9):
        shares = [rows[World(rank, ranks).share(len(rows))] for rank in range(ranks)]
        yield Joined("rows", [rows], ranks, shares, [torch.cat(shares)])
    for ranks in RANKS:
        yield _positions_of_both_ends(16, ranks, stream)
        for tensor_ranks in (1, 2):
            yield _filled(ranks, tensor_ranks, stream)
    gradients = [0.1 + torch.rand(size, generator=stream) for size in (5, 3, 8, 1)]
    gradients.insert(2, gradients[0].bfloat16())
    flat: list[Any] = [torch.cat(bucket) for bucket in _buckets(gradients)]
    sizes = [[one.numel() for one in bucket] for bucket in _buckets(gradients)]
    back = [part for bucket, of in zip(flat, sizes, strict=True) for part in bucket.split(of)]
    yield Joined("gradients in buckets", gradients, 1, [one.float() for one in flat], back)


def _as_in_memory(kind: str, architecture: Any, stream: torch.Generator) -> Joined:
    """Return all tensors of a model, which go into the form that it has in memory and back."""
    given = {
        name: 0.1 + torch.rand(shape, generator=stream)
        for link in links(architecture)
        for name, shape in zip(link.tensors, link.shapes, strict=True)
    }
    held = dict(in_memory(given.items(), architecture))
    back = dict(as_in_checkpoint(held, architecture))
    return Joined(
        f"{kind} in memory", list(given.values()), 1, list(held.values()), [back[name] for name in given]
    )


def _positions_of_both_ends(num_tokens: int, ranks: int, stream: torch.Generator) -> Joined:
    tokens = 0.1 + torch.rand(num_tokens, generator=stream)
    places = [positions_of_context(num_tokens, rank, ranks, "cpu") for rank in range(ranks)]
    found = torch.zeros_like(tokens)
    for place in places:
        found[place] = tokens[place]
    return Joined("tokens from both ends", [tokens], ranks, [tokens[place] for place in places], [found])


def _filled(ranks: int, tensor_ranks: int, stream: torch.Generator) -> Joined:
    rows = 0.1 + torch.rand(3, 7, generator=stream)
    parts = []
    for rank in range(ranks):
        context = SimpleNamespace(size=lambda: ranks, get_local_rank=partial(int, rank))
        meshes: Any = SimpleNamespace(context=context, tensor=SimpleNamespace(size=lambda: tensor_ranks))
        parts.append(OwnPositions(meshes, sequence_parallel=True).own(rows))
    whole = torch.cat(parts, dim=1)
    divides = whole.shape[1] % (ranks * tensor_ranks) == 0
    return Joined("filled rows", [rows], ranks, parts, [whole[:, : rows.shape[1]]] if divides else [])
