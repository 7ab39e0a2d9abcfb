"""Worked examples of a policy whose model is spread: what it is made of, what it sums, compares and gives."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import patch

import torch
from torch import Tensor, nn

from refrl.distributed import World
from refrl.policy.backends import PolicyRequest
from refrl.policy.dtensor import policy
from refrl.policy.dtensor.policy import DTensorPolicy
from refrl.policy.optimizer import clip_spread_gradients
from seatrial.relations.contracts.worked import WorkedExample
from seatrial.targets.reference.configuration import policy_configuration
from seatrial.targets.reference.worked.made import batch, example
from seatrial.targets.reference.worked.made_ranks import Group, Mesh, by_rank


def of_spread_policies() -> Iterator[WorkedExample]:
    """Yield the examples."""
    yield from _of_made()
    yield from _of_steps()


def _of_made() -> Iterator[WorkedExample]:
    for with_reference, adapts in ((False, False), (True, False), (False, True), (True, True)):
        copy = with_reference and not adapts
        spreads = [("first", "adapters" if adapts else None), *[("second, frozen", None)] * copy]
        right = {
            "spread": spreads,
            "optimizer": ("first", 5, True, torch.float32),
            "reference": "the model" if with_reference and adapts else "a copy" if copy else None,
            "auxiliary": ("first", 5, 0.75, "positions", "whole"),
            "positions": ("meshes", False),
            "scored": [("first", 0.75), ("first", 0.75)],
            "parts": ("tokenizer", 6, "world"),
        }
        yield example(
            f"a spread policy, with a reference: {with_reference}, adapted: {adapts}",
            right,
            _made,
            with_reference,
            adapts,
        )


def _made(with_reference: bool, adapts: bool) -> dict[str, Any]:
    """Return what a policy is made of."""
    config = policy_configuration(
        {"dtensor_cfg.enabled": True, "train_global_batch_size": 6, "lora_cfg.enabled": adapts}
    )
    found: dict[str, Any] = {"spread": [], "scored": []}
    labels: dict[int, str] = {}

    class Model(nn.Linear):
        def __init__(self) -> None:
            super().__init__(1, 1)
            labels[id(self)] = "second" if labels else "first"

    def scored(temperature: float) -> Any:
        def forward(model: Any, rows: Any) -> Any:
            found["scored"].append((labels[id(model)], temperature))
            return (torch.zeros(1, 1),)

        return forward

    models: list[Any] = []

    def load(directory: Path) -> Any:
        assert directory == Path(config.model_name)
        models.append(Model())
        return models[-1]

    def spread(model: Any, own: Any, of: Any, device: Any, dtype: Any, adapters: Any = None) -> Any:
        frozen = not any(weight.requires_grad for weight in model.parameters())
        assert own is config and of == "meshes" and dtype == torch.float32
        found["spread"].append((labels[id(model)] + ", frozen" * frozen, adapters))
        return SimpleNamespace(model=model, whole="whole", is_copy=frozen)

    def optimizer(model: Any, own: Any, number: int, clip: Any, *, precision: Any) -> str:
        found["optimizer"] = labels[id(model)], number, clip is clip_spread_gradients, precision
        return "optimizer"

    def auxiliary(
        own: Any, model: Any, *, num_updates: int, temperature: float, positions: Any, read: Any
    ) -> str:
        found["auxiliary"] = labels[id(model)], num_updates, temperature, positions, read
        return "auxiliary"

    def positions(of: Any, shares: bool) -> str:
        found["positions"] = of, shares
        return "positions"

    def made(spread: Any, tokenizer: Any, **options: Any) -> None:
        own = options["reference"]
        found["reference"] = own and (
            "the model" if own is spread else "a copy" if own.is_copy else "another"
        )
        found["parts"] = tokenizer, options["global_batch_size"], options["world"]
        assert options["optimizer"] == "optimizer" and options["auxiliary"] == "auxiliary"

    given = {
        "load_model": load,
        "_check_language": lambda *words: None,
        "make_meshes": lambda own, world, device: "meshes",
        "make_adapters": lambda model, own: "adapters" if own.enabled else None,
        "probe_batch": lambda model: batch(),
        "padded_forward": scored,
        "_spread": spread,
        "ClippedAdamW": optimizer,
        "OwnPositions": positions,
        "_make_scoring": lambda own, model, of, temperature: SimpleNamespace(forward=scored(temperature)),
        "make_auxiliary": auxiliary,
        "DTensorPolicy": made,
    }
    world: Any = "world"
    tokenizer: Any = "tokenizer"
    with ExitStack() as stack:
        for name, function in given.items():
            stack.enter_context(patch.object(policy, name, function))
        policy.make_policy(
            PolicyRequest(
                config=config, tokenizer=tokenizer, device=torch.device("cpu"), num_updates=5,
                with_reference=with_reference, world=world, temperature=0.75,
            )
        )  # fmt: skip
    return found


def _of_steps() -> Iterator[WorkedExample]:
    for trains in (False, True):
        right = [
            "step", "auxiliary", *[("compared", 0.5, ["a"])] * trains, ("replicas", 0.5, ["one", "two"], "m", True),
        ]  # fmt: skip
        yield example(
            f"a step of a spread policy, with an auxiliary: {trains}", [right, (0.5, 0.25)], _stepped, trains
        )
    yield example("gradients of shared experts", [([3.0, 0.0], ["a"])] * 2, _summed)
    yield example(
        "passes of processes with other numbers of them",
        [[1.0, 1.0, 0.0], [1.0, 1.0, 1.0]],
        by_rank,
        2,
        _evened,
    )
    yield example("gradients of a spread policy", {"one": [0.0], "two": [5.0]}, _gradients)
    yield example("weights that a spread policy trains", {"one": [1.0] * 2, "two": [2.0] * 2}, _trained)
    for adapts, right_frozen in ((True, ["base"]), (False, [])):
        yield example(f"frozen weights of a spread policy, adapted: {adapts}", right_frozen, _frozen, adapts)
    for kept, right_weights in ((True, "base"), (False, None)):
        yield example(f"weights of the reference of a spread policy: {kept}", right_weights, _reference, kept)
    for rank in (0, 1):
        yield example(
            f"what rank {rank} of a spread policy saves",
            ["tokenizer", "there", "write", rank == 0],
            _save,
            rank,
        )


def _policy(**parts: Any) -> Any:
    made = object.__new__(DTensorPolicy)
    model = nn.ParameterDict(
        {"one": torch.tensor([1.0]), "two": torch.tensor([2.0]), "kept": torch.tensor([3.0])}
    )
    model["kept"].requires_grad_(False)
    model["two"].grad = torch.tensor([5.0])
    vars(made).update({"model": model, **parts})
    return made


def _stepped(trains: bool) -> Any:
    noted: list[Any] = []
    names = {"a": torch.zeros(1)} if trains else {}

    def update() -> tuple[float, float]:
        noted.append("step")
        return 0.5, 0.25

    own = _policy(
        _optimizer=SimpleNamespace(step=update),
        _auxiliary=SimpleNamespace(step=lambda: noted.append("auxiliary"), weights=list(names)),
        _spread=SimpleNamespace(meshes="m"),
    )
    own._world = SimpleNamespace(check_agreement=lambda norm, of: noted.append(("compared", norm, of)))

    def check(norm: float, weights: Any, of: Any, world: Any) -> None:
        noted.append(("replicas", norm, list(weights), of, world is own._world))

    with patch.object(policy, "check_replicas", check):
        found = own.step()
    return [noted, found]


def _summed() -> Any:
    """Return, by process, gradients of two experts that both have, one without any, and what else is summed."""
    zeros = torch.zeros_like

    def made_zeros(like: Any, **options: Any) -> Any:
        if isinstance(like, Tensor):
            return zeros(like, **options)
        own = torch.zeros(1)
        return SimpleNamespace(to_local=lambda: own)

    def call(group: Group, rank: int) -> Any:
        noted: list[str] = []
        local = torch.tensor([1.0 + rank])
        experts: list[Any] = [
            SimpleNamespace(grad=SimpleNamespace(to_local=lambda: local)),
            SimpleNamespace(grad=None),
        ]
        own = _policy(
            _spread=SimpleNamespace(meshes=SimpleNamespace(expert_copies=Mesh(group)), experts=experts),
            _auxiliary=SimpleNamespace(weights=["a"]),
            _data=SimpleNamespace(sum_gradients=noted.extend),
        )
        own._sum_gradients()
        return [float(local), float(experts[1].grad.to_local())], noted

    # Around the threads: parts are plain objects, as is the gradient of zeros that an expert without one gets.
    with patch.object(policy, "DTensor", object), patch.object(torch, "zeros_like", made_zeros):
        return by_rank(2, call)


def _evened(group: Group, rank: int) -> list[float]:
    """Return the share of tokens that count in the passes of a process with two or three, against those of its rows."""
    rows = batch()
    passes: Sequence[Any] = [(slice(0, 1), rows.rows(slice(0, 1)))] * (2 + rank)
    own = _policy(_data=World(rank, group.size(), group))  # type: ignore[arg-type]
    found = own._even(passes, rows)
    assert [row is None for row, _ in found] == [False, False, not rank]
    assert float(rows.mask_BT[0].sum()) == 2.0
    return [float(micro.mask_BT.sum()) / 2.0 for _, micro in found]


def _gradients() -> Any:
    own = _policy()
    found = own.named_gradients()
    own.model["two"].grad.fill_(9.0)
    return {name: gradient.tolist() for name, gradient in found.items()}


def _trained() -> Any:
    own = _policy()
    with patch.object(policy, "whole", lambda part: torch.cat([part, part])):
        found = own.trained_weights()
    return {name: weight.tolist() for name, weight in found.items() if not weight.requires_grad}


def _frozen(adapts: bool) -> list[str]:
    spread = SimpleNamespace(adapters="there" if adapts else None, base_weights=lambda: iter(["base"]))
    return list(_policy(_spread=spread)._frozen_weights())


def _reference(kept: bool) -> Any:
    own = SimpleNamespace(base_weights=lambda: "base") if kept else None
    return _policy(_reference=own).reference_weights()


def _save(rank: int) -> list[Any]:
    noted: list[Any] = []
    spread = SimpleNamespace(
        save=lambda tokenizer, output, extra, *, writes: noted.extend([tokenizer, str(output), extra, writes])
    )
    own = _policy(
        _spread=spread,
        _tokenizer="tokenizer",
        _auxiliary=SimpleNamespace(write="write"),
        _world=World(rank, 2),
    )
    own.save(Path("there"))
    return noted
