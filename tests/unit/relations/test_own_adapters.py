"""R31.own_adapters: a model with its own adapters holds, and each fault breaks its law."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import pytest
import torch
from torch import Tensor

from seatrial.relations.engine import run_relation
from seatrial.relations.laws.utilities.own_adapters import OWN, SIZES, Added, Operation, Owner
from seatrial.verdict import Outcome

WIDTH, VOCAB, LAYERS = 8, 16, ("one", "two")


def drawn(*shape: int, seed: int) -> Tensor:
    """Return random numbers."""
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def plain(added: Mapping[str, Callable[[Tensor], Tensor]], head: Tensor | None) -> Tensor:
    """Return the logits of two layers."""
    hidden_BSD = drawn(2, 5, WIDTH, seed=1)
    for number, name in enumerate(LAYERS):
        made_BSD = hidden_BSD @ drawn(WIDTH, WIDTH, seed=2 + number)
        hidden_BSD = (made_BSD + (added[name](hidden_BSD) if name in added else 0)).tanh()
    return hidden_BSD @ (drawn(VOCAB, WIDTH, seed=9) if head is None else head).T


def adapter(name: str) -> Added:
    """Return the tensors of an adapter."""
    seed = ord(name[0])
    rank = SIZES[name][0]
    factors = {
        layer: (drawn(rank, WIDTH, seed=seed + n), drawn(WIDTH, rank, seed=seed + 50 + n))
        for n, layer in enumerate(LAYERS)
    }
    return Added(factors, drawn(VOCAB, WIDTH, seed=seed) if name == "head" else None)


class Model:
    """Weights of adapters that are summed where it is due, with a fault in one law's subject."""

    def __init__(self, fault: str) -> None:
        """Have none."""
        self.fault, self.on = fault, True
        self.changes: dict[str, Added] = {}
        self.scales: dict[str, float] = {}
        self.use: list[str] = []
        self.training: list[str] = []

    def _new(self, name: str, source: str) -> None:
        self.changes[name] = adapter(source)
        if "swapped for another scale" not in self.fault or name not in self.scales:
            self.scales[name] = SIZES[source][1] / SIZES[source][0]

    def apply(self, operation: Operation) -> None:
        """Do it."""
        what, *given = operation
        if what in ("add", "load", "swap"):
            self._new(given[0], given[-1] if what == "swap" else given[0])
            if what != "swap":
                self.use = [given[0]]
                self.training = [] if what == "load" and not given[1] else [given[0]]
        elif what == "use":
            self.use, self.training = list(given[0]), list(given[0])
        elif what == "delete":
            self.changes.pop(given[0])
        elif what == "reload":
            self.training = []
        elif what != "prepare":
            self.on = what == "enable"

    def outputs(self) -> Tensor:
        """Return logits."""
        wrong = bool(self.fault) and "what trains" not in self.fault and "another scale" not in self.fault
        own = [(self.changes[name], self.scales[name]) for name in self.use] if self.on or wrong else []
        added = {
            layer: (
                lambda x, n=n: sum(
                    (x @ (o.factors[n][1] @ o.factors[n][0]).T * s for o, s in own), torch.zeros(())
                )
            )
            for layer, n in zip(LAYERS, LAYERS, strict=True)
        }
        heads = [one.head for one, _ in own if one.head is not None]
        return plain(added, heads[0] if heads else None) * (-1 if wrong else 1)

    def trains(self) -> frozenset[str]:
        """Return names."""
        return frozenset([*self.training, *(["base"] if "what trains" in self.fault else [])])

    def active(self) -> Sequence[str]:
        """Return names."""
        return self.use


class Stack:
    """A stack that has nothing but this."""

    def __init__(self, fault: str = "") -> None:
        """Make it with a fault in one law's subject."""
        self.fault = fault
        self.utilities: Mapping[str, Any] = {"own adapters": self.owner}

    def owner(self) -> Owner:
        """Return a model."""
        model = Model(self.fault)
        return Owner(
            apply=model.apply,
            outputs=model.outputs,
            plain=plain,
            drawn=adapter,
            tensors=lambda name: model.changes[name].factors,
            trains=model.trains,
            active=model.active,
        )


def test_a_plain_one_holds() -> None:
    verdict = run_relation(OWN, Stack(), seeds=[0])
    assert verdict.outcome is Outcome.PASS, verdict.reason


@pytest.mark.parametrize("law", [law.name for law in OWN.laws])
def test_each_law_breaks(law: str) -> None:
    verdict = run_relation(OWN, Stack(law), seeds=[0])
    assert verdict.outcome is Outcome.FAIL
    assert f"law '{law}' broken" in verdict.reason
