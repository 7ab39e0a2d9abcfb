"""The laws of histories of adapters: a plain model satisfies them, and faults that need a history are seen."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from pathlib import Path

import pytest
import torch
from tests.unit.relations.plain_adapters import ALPHA, RANK, PlainAdapted, PlainAdapters

from seatrial.relations.contracts.adapter_histories import OPTIONS
from seatrial.relations.contracts.adapters import WeightUpdate
from seatrial.relations.engine import run_relation
from seatrial.relations.not_served import NotServed
from seatrial.relations.registry import select
from seatrial.verdict import Outcome

(HISTORIES,) = select(["R29.histories"])
SCALE = ALPHA / RANK**0.5


class PlainHistory(PlainAdapted):
    """Adapters of any names, each with a factor; a fault is one line that differs."""

    def start(self, name: str, rank: int) -> PlainHistory:
        """Have this adapter alone, in use."""
        self.adapters.clear()
        self.factors: dict[str, float] = {}
        self.frozen = False
        self.put_rank(name, rank, self.seed)
        self.used = [name]
        return self

    def put_rank(self, name: str, rank: int, seed: int) -> None:
        """Add an adapter of a rank."""
        self.seed, kept = seed - len(self.adapters), self.seed
        self.make(name, rank)
        self.seed = kept
        if self.fault == "starts at the size of the first" and len(self.adapters) > 1:
            self.adapters[name]["A"] *= 9
        self.factors[name] = 1.0

    def put(self, options: str, name: str, *, seed: int) -> None:
        self.put_rank(name, RANK + OPTIONS.index(options), seed)

    def delta(self, name: str) -> torch.Tensor:
        return super().delta(name) * self.factors[name]

    def logits(self, ids_BS: torch.Tensor, names: Sequence[str]) -> torch.Tensor:
        base_BSV = super().logits(ids_BS, [])
        if self.taken:
            return base_BSV
        if self.fault == "names that begin alike":
            names = [*names, *[one for one in self.adapters if names and one.startswith(f"{names[0]}b")]]
        return base_BSV + self.base["embedding"][ids_BS] @ sum(
            (self.delta(one) for one in names), torch.zeros_like(self.base["weight"])
        ).T.to(self.dtype)

    def trainable(self) -> frozenset[str]:
        return frozenset() if self.frozen or not self.on else super().trainable()

    def updates(self, name: str) -> Sequence[WeightUpdate]:
        return [WeightUpdate(weight="weight", form="low rank", factors=self.adapters[name], scaling=SCALE)]

    def read_in(self, folder: Path, name: str, *, trainable: bool, low_memory: bool) -> None:
        if trainable:
            raise NotServed("one adapter trains")
        kept = torch.load(folder / "adapter.pt", weights_only=True)
        self.adapters[name] = {key: value.clone() for key, value in kept.items()}
        self.factors[name] = 1.0

    def use_one(self, name: str, *, trains: bool) -> None:
        if self.fault != "stays merged":
            self.unmerge()
        self.used = [name]
        self.frozen = not trains and self.fault != "trains for inference"

    def switch(self, on: bool) -> None:
        self.on = on

    def active(self) -> Sequence[str]:
        return self.used

    def set_scale(self, name: str, factor: float) -> None:
        self.factors[name] = factor

    def multiply_scale(self, factor: float) -> None:
        for name in self.adapters if self.fault == "scales all" else self.used:
            self.factors[name] *= factor

    def divide_scale(self, factor: float | None) -> None:
        for name in self.used:
            self.factors[name] = (
                self.factors[name] / factor if factor else float(self.fault != "reset to nothing")
            )

    def weigh(self, names: Sequence[str], weights: Sequence[float], how: str, new: str) -> None:
        rank = self.adapters[names[-1]]["A"].shape[0]
        parts = [(self.adapters[name], weight) for name, weight in zip(names, weights, strict=True)]
        if self.fault == "cuts to the rank of the last":
            parts = [({"A": one["A"][:rank], "B": one["B"][:, :rank]}, weight) for one, weight in parts]
        self.adapters[new] = {
            "A": torch.cat([one["A"] * weight for one, weight in parts]),
            "B": torch.cat([one["B"] for one, _ in parts], dim=1),
        }
        self.factors[new] = 1.0

    def copied(self) -> PlainHistory:
        return copy.deepcopy(self)

    def delete(self, name: str) -> None:
        super().delete(name)
        self.factors.pop(name, None)


class PlainHistories(PlainAdapters):
    """See `contracts.adapter_histories`."""

    def alone(self, options: str, name: str, *, seed: int, dropout: float = 0.0) -> PlainHistory:
        model = PlainHistory(self.fault, torch.float32, seed)
        return model.start(name, RANK + OPTIONS.index(options))

    def loaded(self, folder: Path, *, dtype: str, trainable: bool = True) -> PlainHistory:
        model = PlainHistory(self.fault, torch.float32, 77).start("first", RANK)
        model.read_in(folder, "first", trainable=False, low_memory=False)
        return model


SEEDS = range(6)
"""Enough that every call is made, some in pairs."""


def test_a_plain_model_satisfies_the_laws() -> None:
    """After every history."""
    verdict = run_relation(HISTORIES, PlainHistories(), seeds=SEEDS, thorough=True)
    assert verdict.outcome is Outcome.PASS, verdict.reason


@pytest.mark.parametrize(
    ("fault", "law"),
    [
        ("names that begin alike", "outputs"),
        ("stays merged", "outputs"),
        ("scales all", "scaled"),
        ("reset to nothing", "scaled alone"),
        ("trains for inference", "what trains"),
        ("starts at the size of the first", "tensors"),
        ("deleting leaves it", "tensors"),
        ("gradients of the other", "gradients"),
        ("saves all", "files"),
        ("names ignored", "rows"),
        ("cuts to the rank of the last", "combined"),
    ],
)
def test_a_fault_is_seen_by_the_law_about_it(fault: str, law: str) -> None:
    """Others may see it as well."""
    verdict = run_relation(HISTORIES, PlainHistories(fault), seeds=SEEDS, shrink_seconds=0, thorough=True)
    assert law in verdict.details["laws_broken"]


def test_a_block_without_adapters_leaves_what_trains() -> None:
    """Also of an adapter for inference."""

    class Thawing(PlainHistories):
        def alone(self, options, name, *, seed, dropout=0.0):  # type: ignore[no-untyped-def]
            model = super().alone(options, name, seed=seed, dropout=dropout)
            plain = model.outputs

            def outputs(*given, **named):  # type: ignore[no-untyped-def]
                model.frozen = model.frozen and model.on
                return plain(*given, **named)

            model.outputs = outputs  # type: ignore[method-assign]
            return model

    verdict = run_relation(HISTORIES, Thawing(), seeds=[0], shrink_seconds=0, thorough=True)
    assert "disabled while for inference" in verdict.details["laws_broken"]
