"""Worked examples of layers that processes share: what goes in, how it is cut, what comes out, and what is compared."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from types import SimpleNamespace
from typing import Any, cast
from unittest.mock import patch

import torch
from torch import nn
from torch.distributed.tensor import Replicate, Shard
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel

from refrl.distributed import World
from refrl.policy.dtensor import policy, tensor_parallel
from refrl.policy.lora import LoraLinear
from refrl.policy.optimizer import clip_spread_gradients
from refrl.streams import random_stream
from seatrial.relations.contracts.worked import WorkedExample
from seatrial.targets.reference.worked.made import example
from seatrial.targets.reference.worked.made_ranks import ALONE, Group, Mesh, by_rank


def of_spread_layers() -> Iterator[WorkedExample]:
    """Yield the examples."""
    whole, rows, columns = "R", "S(0)", "S(1)"
    for kind, given, returned, parts in (
        (
            "columns",
            "R>R",
            "S(-1)",
            {"weight": rows, "bias": rows, "lora_A.weight": whole, "lora_B.weight": rows},
        ),
        (
            "rows",
            "S(-1)>S(-1)",
            "S(1)",
            {"weight": columns, "bias": whole, "lora_A.weight": columns, "lora_B.weight": whole},
        ),
    ):
        right = [
            parts,
            ["lora_A.weight", "lora_B.weight"],
            f"x {given}",
            "spread >" + given.partition(">")[2],
            f"y >{returned} local",
        ]
        yield example(f"a layer with an adapter that is cut by {kind}", right, _adapted, kind)
    for local in (False, True):
        gathered = "x S(1)>R" + " local R" * local
        right_whole = [((gathered, 1), {"k": 2}), ((), {"hidden_states": gathered, "k": 2})]
        yield example(
            f"hidden states that are gathered, the same on each: {local}", right_whole, _gathered, local
        )
    yield example("hidden states that are cut", ["x R>S(1) local S(1)", ("x R>S(1) local S(1)", 7)], _cut)
    for names, placements, mesh, right_cut in (
        (("shards", "tensor"), (Shard(0), Shard(0)), "tensor", True),
        (("shards", "tensor"), (Shard(0), Replicate()), "tensor", False),
        (("shards",), (Shard(0),), "tensor", False),
        (("shards",), (Shard(0),), "expert_copies", True),
        (("experts",), (Shard(0),), "expert_copies", False),
        (None, (), "tensor", False),
    ):
        name = f"whether processes of {mesh} have other parts of a weight over {names}, {placements}"
        yield example(name, right_cut, _is_cut, names, placements, mesh)
    for values, rank in (((1.0, math.nan), 1), ((math.nan, 1.0), 1), ((1.0, 1.0, math.nan), 2)):
        yield example(
            f"processes with weights {values}", [f"processes {rank} and 0"] * len(values), _compared, values
        )
    for limit, right_clipped in ((10.0, [5.0, [3.0], [4.0], None]), (2.5, [5.0, [1.5], [2.0], None])):
        yield example(
            f"gradients that are clipped to {limit}, one of them not there", right_clipped, _clipped, limit
        )


def _text(placement: Any) -> str:
    return f"S({placement.dim})" if isinstance(placement, Shard) else "R"


class Spread:
    """A spread tensor that is the text of what was done with it."""

    def __init__(self, text: str) -> None:
        self.text = text

    @classmethod
    def from_local(cls, part: Any, mesh: str, placements: Sequence[Any], *, run_check: bool) -> Spread:
        """Return a spread tensor of parts."""
        assert mesh == "mesh" and not run_check
        return cls(f"{part} {_text(placements[0])}")

    def redistribute(self, *, placements: Sequence[Any]) -> Spread:
        """Return it laid out otherwise."""
        return Spread(f"{self.text}>{_text(placements[0])}")

    def to_local(self, *, grad_placements: Sequence[Any] | None = None) -> str:
        """Return this process's part."""
        return f"{self.text} local" + (f" {_text(grad_placements[0])}" if grad_placements else "")


def _adapted(kind: str) -> list[Any]:
    """Return how a layer's tensors are cut, which of them are trained, and what becomes of inputs and outputs."""
    style: Any = ColwiseParallel() if kind == "columns" else RowwiseParallel(output_layouts=Shard(1))
    layer: Any = LoraLinear(
        nn.Linear(2, 2).requires_grad_(False), dim=1, alpha=1, stream=random_stream(0, "made", 0)
    )
    cuts: dict[int, str] = {}

    def distribute(whole: Any, mesh: str, placements: Sequence[Any], *, src_data_rank: None) -> Any:
        assert mesh == "mesh"
        part = whole.clone()
        cuts[part.data_ptr()] = _text(placements[0])
        return part

    mesh: Any = "mesh"
    given: Any = "x"
    with (
        patch.object(tensor_parallel, "distribute_tensor", distribute),
        patch.object(tensor_parallel, "DTensor", Spread),
    ):
        own = tensor_parallel.Adapted(style)
        own._apply(layer, mesh)
        (hook,) = layer._forward_pre_hooks.values()
        (after,) = layer._forward_hooks.values()
        taken = hook(layer, (given,))[0].text
        spread = hook(layer, (Spread("spread "),))[0].text
        left = after(layer, (), Spread("y "))
    named = dict(layer.named_parameters())
    return [
        {name: cuts[weight.data_ptr()] for name, weight in named.items()},
        sorted(name for name, weight in named.items() if weight.requires_grad), taken, spread, left,
    ]  # fmt: skip


def _gathered(local: bool) -> list[Any]:
    mesh: Any = "mesh"
    module: Any = None
    given: Any = "x"
    with patch.object(tensor_parallel, "DTensor", Spread):
        gather = tensor_parallel._Gather(mesh, local=local)
        found = [gather(module, (given, 1), {"k": 2}), gather(module, (), {"hidden_states": given, "k": 2})]
    return [
        (tuple(map(_plain, words)), {name: _plain(one) for name, one in options.items()})
        for words, options in found
    ]


def _plain(one: Any) -> Any:
    return one.text if isinstance(one, Spread) else one


def _cut() -> list[Any]:
    mesh: Any = "mesh"
    module: Any = None
    with patch.object(tensor_parallel, "DTensor", Spread):
        cut = tensor_parallel._Cut(mesh)
        return [cut(module, (), "x"), cut(module, (), ("x", 7))]


def _is_cut(names: tuple[str, ...] | None, placements: Sequence[Any], mesh: str) -> bool:
    own: Any = SimpleNamespace(mesh_dim_names=(mesh,))
    weight: Any = torch.ones(1)
    if names is not None:
        weight = SimpleNamespace(device_mesh=SimpleNamespace(mesh_dim_names=names), placements=placements)
    with patch.object(policy, "DTensor", SimpleNamespace):
        return policy._is_cut(weight, own)


def _compared(values: Sequence[float]) -> list[str]:
    """Return, by process, which ones are said to differ that hold these weights."""

    def call(group: Group, rank: int) -> Any:
        meshes: Any = SimpleNamespace(
            tensor=Mesh(group, "tensor"), expert_copies=Mesh(ALONE, "expert_copies")
        )
        world = World(rank, group.size(), cast(Any, group))
        policy.check_replicas(1.0, {"a": torch.tensor([values[rank]])}, meshes, world)

    return [str(one).partition("same on ")[2].partition(" of those")[0] for one in by_rank(len(values), call)]


def _clipped(limit: float) -> list[Any]:
    """Return the norm of the gradients, and these, once they are clipped; a factor is rounded."""
    weights = [nn.Parameter(torch.zeros(1)) for _ in range(3)]
    weights[0].grad, weights[1].grad = torch.tensor([3.0]), torch.tensor([4.0])
    norm = float(clip_spread_gradients(weights, limit))
    return [norm, *(None if one.grad is None else [round(float(one.grad), 5)] for one in weights)]
