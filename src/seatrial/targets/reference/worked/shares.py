"""Worked examples of what ranks share: replicas, experts and parts of sequences."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from types import SimpleNamespace
from typing import Any
from unittest.mock import patch

import numpy as np
import torch
from torch import Tensor, nn

from refrl.config import LoraConfig
from refrl.distributed import World
from refrl.policy.dtensor import context_parallel, expert_parallel, policy
from refrl.policy.dtensor.policy import _check_language, check_replicas
from refrl.policy.dtensor.scoring import OwnPositions, SharedForward
from refrl.policy.lora import add_adapters
from refrl.policy.module_policy import ModulePolicy
from refrl.policy.scoring import check_text
from seatrial.relations.contracts.worked import WorkedExample
from seatrial.targets.reference.configuration import policy_configuration
from seatrial.targets.reference.limits.models import model_of
from seatrial.targets.reference.worked.layouts import of_layouts
from seatrial.targets.reference.worked.made import batch, example, refused
from seatrial.targets.reference.worked.made_ranks import ALONE, Group, Mesh, backward, by_rank
from seatrial.targets.reference.worked.policy_views import of_policy_views
from seatrial.targets.reference.worked.spread_layers import of_spread_layers
from seatrial.targets.reference.worked.spread_models import of_spread_models
from seatrial.targets.reference.worked.spread_policies import of_spread_policies
from seatrial.targets.reference.worked.values import of_values


def examples() -> Iterator[WorkedExample]:
    """Yield the examples."""
    yield from _of_parts()
    yield from _of_sequences()
    yield from _of_refused_media()
    yield from _of_numbers()
    yield from _of_adapters()
    yield from _of_forms()
    yield from of_layouts()
    yield from of_values("dtensor")
    yield from of_spread_layers()
    yield from of_spread_models()
    yield from of_spread_policies()
    yield from of_policy_views()


def _replicas(norms: Sequence[float], weights: Sequence[Mapping[str, float]]) -> list[Any]:
    """Return how processes of one tensor-parallel group with these norms and weights compare."""

    def call(group: Group, rank: int) -> Any:
        meshes: Any = SimpleNamespace(
            tensor=Mesh(group, "tensor"), expert_copies=Mesh(ALONE, "expert_copies")
        )
        made = {name: torch.tensor([value, 1.0]) for name, value in weights[rank].items()}
        world: Any = World(rank, group.size(), group)  # type: ignore[arg-type]
        check_replicas(norms[rank], made, meshes, world)

    return by_rank(len(norms), call)


def _of_parts() -> Iterator[WorkedExample]:
    yield example(  # 0.5 + 250, 10 + 200, 500 + 10; and 100 + 0.5
        "experts that two processes share, of unequal tokens",
        [([250.5, 420.0, 1530.0], [250.5, 210.0, 510.0]), ([402.0], [100.5])],
        _shared_experts,
    )
    same = {"a": 1.0, "b": 2.0, "c": 3.0}
    yield example("processes that hold the same", [None, None], _replicas, [1.0, 1.0], [same, same])
    nan = {**same, "b": math.nan}
    yield example("processes that hold the same NaN", [None, None], _replicas, [math.nan] * 2, [nan, nan])
    yield example(
        "a process of another weight",
        "DivergenceError: after an update b is no longer the same on processes 1 and 0 of those that hold it alike "
        "(tensor): 2 of 3 weights differ",
        lambda: _replicas([1.0, 1.0], [same, {"a": 1.0, "b": 5.0, "c": 4.0}])[0],
    )
    yield example(
        "a process of another norm",
        "DivergenceError: after an update rank 1 has gradient norm 2.0, and rank 0 has 1.0",
        lambda: _replicas([1.0, 2.0], [same, same])[0],
    )
    values = torch.tensor([[1.0], [2.0]])

    def both(function: Any, rows: int) -> list[Any]:
        weights = torch.arange(1.0, rows + 1)[:, None]

        def call(group: Group, rank: int) -> Any:
            found, gradient = backward(
                lambda given: function.apply(given, group), values + 10 * rank, weights * (rank + 1)
            )
            return found.flatten().tolist(), gradient.flatten().tolist()

        return by_rank(2, call)

    whole = [1.0, 2.0, 11.0, 12.0]
    yield example(  # gradients 1 to 4 and their doubles are summed, and go to their owners
        "experts' tokens of all, and their gradients",
        [(whole, [3.0, 6.0]), (whole, [9.0, 12.0])],
        both,
        expert_parallel._Gathered,
        4,
    )
    yield example(  # each has a part of the sum; its gradient goes to all
        "a part of the sum, and its gradient",
        [([12.0], [1.0, 2.0]), ([14.0], [1.0, 2.0])],
        both,
        expert_parallel._Scattered,
        1,
    )


class _Experts(nn.Module):
    """Two experts of four, each of which scales a token; the number after the last one is none of them."""

    def __init__(self, scales: Sequence[float]) -> None:
        super().__init__()
        self.num_experts = len(scales)
        self.scales = [*scales, 0.0]

    def forward(self, hidden: Tensor, experts: Tensor, weights: Tensor) -> Tensor:
        factors = torch.tensor(self.scales)[experts]
        return hidden * (factors * weights).sum(1, keepdim=True)


TOKENS: Sequence[tuple[Sequence[float], Sequence[Sequence[int]], Sequence[Sequence[float]]]] = (
    ((1.0, 2.0, 3.0), ((0, 3), (1, 2), (3, 1)), ((0.5, 0.25), (1.0, 2.0), (0.5, 1.0))),
    ((4.0,), ((2, 0),), ((1.0, 0.5),)),
)
"""Of each process: its tokens, the experts that each goes to, and their weights."""


def _shared_experts() -> list[Any]:
    """Return what two processes make of their tokens, with experts that scale by 1, 10, 100 and 1000."""

    def call(group: Group, rank: int) -> Any:
        mesh: Any = Mesh(group)
        experts: Any = _Experts(((1.0, 10.0), (100.0, 1000.0))[rank])
        shared = expert_parallel._SharedExperts(experts, mesh)
        tokens, chosen, weights = TOKENS[rank]
        hidden = torch.tensor(tokens)[:, None]
        found, gradient = backward(
            lambda given: shared(given, torch.tensor(chosen), torch.tensor(weights)),
            hidden,
            torch.ones_like(hidden),
        )
        return found.flatten().tolist(), gradient.flatten().tolist()

    return by_rank(2, call)


def _of_sequences() -> Iterator[WorkedExample]:
    function: Any = context_parallel._Gathered

    def attended(group: Group, rank: int) -> Any:
        part = torch.tensor([[[[1.0], [2.0]]]]) + 10 * rank
        weights = torch.arange(1.0, 5.0).reshape(1, 1, 4, 1) * (rank + 1)
        found, gradient = backward(lambda given: function.apply(given, group), part, weights)
        return found.flatten().tolist(), gradient.flatten().tolist()

    whole = [1.0, 2.0, 11.0, 12.0]
    yield example(
        "keys of all parts, and their gradients",
        [(whole, [3.0, 6.0]), (whole, [9.0, 12.0])],
        by_rank,
        2,
        attended,
    )

    def scaled(group: Group, rank: int) -> Any:
        module = SimpleNamespace(context_group=group)
        query, key = torch.tensor([[[[1.0, 0.0]]]]), torch.tensor([[[[math.log(3.0) * rank, 0.0]]]])
        found, _ = context_parallel._attend(
            module, query, key, torch.ones_like(key) * 4 * rank, None, scaling=1.0
        )
        return found[0, 0, 0, 0].item()

    yield example("attention with the model's scale", [3.0, 3.0], by_rank, 2, scaled)

    def summed(group: Group, rank: int) -> Any:
        mesh: Any = Mesh(group)
        return backward(
            lambda given: context_parallel.sum_of_parts(given, mesh),
            torch.tensor([1.0 + rank]),
            torch.tensor([3.0 + rank]),
        )

    yield example("the sum of parts, and its gradients", [([3.0], [3.0]), ([3.0], [4.0])], by_rank, 2, summed)

    def owned(size: int, tensor: int, *, sequence_parallel: bool) -> list[Any]:
        def call(group: Group, rank: int) -> Any:
            meshes: Any = SimpleNamespace(context=Mesh(group), tensor=Mesh(Group(tensor)))
            positions = OwnPositions(meshes, sequence_parallel)
            return positions.own(torch.arange(1, 6)[None]), positions.fill(torch.ones(1, 5)).shape[1]

        return by_rank(size, call)

    yield example(
        "positions of two processes",
        [([[1, 2, 3]], 6), ([[4, 5, 0]], 6)],
        owned,
        2,
        3,
        sequence_parallel=False,
    )
    yield example(
        "positions where activations are shared too",
        [([[1, 2, 3, 4]], 8), ([[5, 0, 0, 0]], 8)],
        owned,
        2,
        4,
        sequence_parallel=True,
    )
    for packed in (False, True):
        yield example(
            f"two processes score as one, {'packed' if packed else 'padded'}",
            True,
            lambda packed=packed: _alike(_shared(1, packed), _shared(2, packed)),
        )
    name = "rows laid end to end score as padded ones"
    yield example(name, True, lambda: _alike(_shared(1, True), _shared(2, False)))


class _Counting:
    """A model whose logits depend on a token, its position, and the tokens that it sees."""

    scale: Tensor

    def __call__(
        self, *, input_ids: Tensor, position_ids: Tensor, attention_mask: Tensor, use_cache: bool
    ) -> Any:
        seen = (attention_mask == 0).sum(-1)[:, 0].float()
        base = input_ids.float() * 0.3 + position_ids.float() * 0.7 + seen * 1.1
        angles = base.unsqueeze(-1) * torch.arange(1.0, 11.0)
        return SimpleNamespace(logits=torch.sin(angles) * self.scale)


def _shared(size: int, packed: bool) -> list[Any]:
    def call(group: Group, rank: int) -> Any:
        meshes: Any = SimpleNamespace(context=Mesh(group), tensor=Mesh(ALONE))
        forward = SharedForward(
            positions=OwnPositions(meshes, False), packed=packed, temperature=0.5, dtype=torch.float32
        )
        model: Any = _Counting()
        model.scale = torch.ones((), requires_grad=True)
        logprobs, entropy = forward(model, batch())
        (gradient,) = torch.autograd.grad((2 * logprobs + entropy).sum(), model.scale)
        return logprobs.detach(), entropy.detach(), gradient

    return by_rank(size, call)


def _alike(one: Sequence[Any], other: Sequence[Any]) -> bool:
    (scores, entropies, _), *_ = one
    totals = [sum(gradient for *_, gradient in of) for of in (one, other)]  # each has that of its part
    return bool(scores.any()) and all(
        torch.allclose(own, found, atol=1e-4)
        for ones in other
        for own, found in zip((scores, entropies, totals[0]), (*ones[:2], totals[1]), strict=True)
    )


def _of_refused_media() -> Iterator[WorkedExample]:
    """Yield which layouts take models of images, and which forms of scoring take their rows."""

    def checked(takes_media: bool, tensor: int, context: int) -> None:
        layout = {"tensor_parallel_size": tensor, "context_parallel_size": context}
        given = {f"dtensor_cfg.{name}": size for name, size in {"enabled": True, **layout}.items()}
        own, text = SimpleNamespace(), SimpleNamespace()
        own.get_text_config = lambda: text if takes_media else own
        model: Any = SimpleNamespace(config=own)
        _check_language(policy_configuration(given), model)

    for tensor, context in ((1, 1), (2, 1), (1, 2), (2, 2)):
        name = f"a model in {tensor} x {context} parts"
        yield example(f"{name}, of language", None, checked, False, tensor, context)
        if tensor * context == 1:
            yield example(f"{name}, of images", None, checked, True, tensor, context)
        else:
            words = f"tensor_parallel_size={tensor} and context_parallel_size={context} are built for models of lang"
            yield refused(words, f"{name}, of images", checked, True, tensor, context)
    images = np.array(["x", None, None], dtype=object)
    yield example("rows without images", None, check_text, "o", batch())
    for num in (1, 3):
        some = replace(batch().rows(range(num)), media_BX=images[:num])  # type: ignore[arg-type]
        yield refused(
            "o is not built for prompts with images", f"{num} rows with images", check_text, "o", some
        )


def _of_numbers() -> Iterator[WorkedExample]:
    """Yield the numbers of the rows that observers are shown, of seven rows in micro-batches of two."""

    def shown(size: int, given: Sequence[Sequence[int]] | None) -> list[Any]:
        def pairs(own: Any) -> list[Any]:
            starts = range(0, own.num_rows, 2)
            return [
                (rows, own.rows(rows)) for rows in (slice(at, min(at + 2, own.num_rows)) for at in starts)
            ]

        def call(group: Group, rank: int) -> Any:
            made: Any = SimpleNamespace(
                model=SimpleNamespace(device="cpu"),
                _data=World(rank, size, group),  # type: ignore[arg-type]
                _scoring=SimpleNamespace(train_cut=SimpleNamespace(micro_batches=pairs)),
                _even=lambda passes, batch: passes,
                _learn=lambda micro, update, loss, scores: (torch.zeros(micro.num_rows, 1), {}),
                _sum_gradients=lambda: None,
            )
            made._passes = lambda *words: ModulePolicy._passes(made, *words)
            seven = batch().rows([0, 1, 2, 0, 1, 2, 0])
            loss: Any = None
            found = ModulePolicy.accumulate(made, seven, loss, given, with_rows=True)
            return [list(rows) for rows in found.micro_batches]

        return by_rank(size, call)

    for size, cut, chosen in (  # ranks have 7; 3 and 4; 2, 2 and 3 rows
        (1, [[0, 1], [2, 3], [4, 5], [6]], [[1, 0]]),
        (2, [[0, 1], [2], [3, 4], [5, 6]], [[1, 0], [4, 3]]),
        (3, [[0, 1], [2, 3], [4, 5], [6]], [[1, 0], [3, 2], [5, 4]]),
    ):
        yield example(f"rows that {size} ranks show", [cut] * size, shown, size, None)
        yield example(f"rows that {size} ranks show as chosen", [chosen] * size, shown, size, [[1, 0]])


def _of_adapters() -> Iterator[WorkedExample]:
    """Yield what trains of a model whose experts two processes share, and whether the second has its half."""

    def trained(adapters: bool) -> Any:
        model = model_of("qwen3_moe", num_hidden_layers=1, num_experts=4, moe_intermediate_size=4)
        if adapters:
            add_adapters(model, LoraConfig(enabled=True))
        whole = {name: weight.detach().clone() for name, weight in model.named_parameters()}
        mesh: Any = Mesh(Group(2))

        def second(tensor: Tensor, *words: Any, **options: Any) -> Tensor:
            return tensor.chunk(2)[1].clone()

        with patch.object(expert_parallel, "distribute_tensor", second):
            weights = expert_parallel.share_experts(model, mesh)
        own = dict(model.named_parameters())
        halves = [name for name, weight in own.items() if any(weight is one for one in weights)]
        assert all(torch.equal(own[name], whole[name].chunk(2)[1]) for name in halves)
        trains = {name for name, weight in own.items() if weight.requires_grad}
        return {
            "experts": sum(name in trains for name in halves),
            "adapters": any(".lora_" in name for name in trains),
            "others": any(".lora_" not in name and name not in halves for name in trains),
        }

    only = {"experts": 0, "adapters": True, "others": False}
    yield example("what trains with experts and adapters", only, trained, True)
    yield example(
        "what trains with experts", {"experts": 2, "adapters": False, "others": True}, trained, False
    )


def _of_forms() -> Iterator[WorkedExample]:
    """Yield how rows are scored in each layout: by one process's forward, or by parts of packed or padded rows."""

    def form(packs: bool, context: int, shares: bool, precision: str) -> Any:
        config = policy_configuration(
            {
                "sequence_packing.enabled": packs,
                "precision": precision,
                "dtensor_cfg.enabled": True,
                "dtensor_cfg.context_parallel_size": context,
                "dtensor_cfg.tensor_parallel_size": 2 if shares else 1,
                "dtensor_cfg.sequence_parallel": shares,
            }
        )
        nothing: Any = None
        with (
            patch.object(policy, "make_scoring", lambda config, model, temperature: ("alone", temperature)),
            patch.object(policy, "check_window", lambda *words: None),
            patch.object(policy, "SharedForward", dict),
            patch.object(policy, "assemble_scoring", lambda config, model, forward: forward),
        ):
            made: Any = policy._make_scoring(config, nothing, nothing, 0.25)
        return made if isinstance(made, tuple) else (made["packed"], made["temperature"], str(made["dtype"]))

    for packs in (False, True):
        for precision in ("float32", "bfloat16"):
            for context, shares in ((1, False), (2, False), (1, True), (2, True)):
                right = (packs, 0.25, f"torch.{precision}")
                yield example(
                    f"scoring of {precision} in {context} parts, shared {shares}, packed {packs}",
                    ("alone", 0.25) if context == 1 and not shares else right,
                    form,
                    packs,
                    context,
                    shares,
                    precision,
                )
