"""R31.own_adapters: a model that adds, loads and chooses adapters itself computes and trains with those in use."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from seatrial.relations.law import Measure
from seatrial.relations.laws.utilities.numbers import Numbers, without
from seatrial.relations.laws.utilities.plain import relation_of

BOUND = 2e-4
"""Error of logits that several small layers of float32 give, relative to the largest; as of other adapters."""
SIZES: Mapping[str, tuple[int, int]] = {"a": (4, 6), "b": (2, 5), "c": (4, 20), "d": (4, 6), "head": (4, 6)}
"""Rank and alpha of each adapter. `head` has a whole head of its own, too; `b`, `c` and `d` replace `a`."""
Operation = tuple[Any, ...]
"""`add` a name; `use` names; `disable`; `enable`; `delete` a name; `load` a name from a file, and whether it trains;
`prepare` for swaps;
`swap` a name for the adapter in the file of another one; `reload`: save the model, and load it as a new one."""


class Added(NamedTuple):
    """Tensors of an adapter."""

    factors: Mapping[str, tuple[Tensor, Tensor]]
    """A and B by layer."""
    head: Tensor | None = None


class Owner(NamedTuple):
    """A model that has none yet."""

    apply: Callable[[Operation], None]
    outputs: Callable[[], Tensor]
    """() -> logits [B, S, V] of fixed ids."""
    plain: Callable[[Mapping[str, Callable[[Tensor], Tensor]], Tensor | None], Tensor]
    """(what is added to a layer's output, of its input, by its name, another head) -> the base's logits of them."""
    drawn: Callable[[str], Added]
    """(name) -> the tensors that an adapter of this name is given when it is added, and has in its file."""
    tensors: Callable[[str], Mapping[str, tuple[Tensor, Tensor]]]
    """(name) -> A and B by layer, as the model gives them to be saved."""
    trains: Callable[[], frozenset[str]]
    """() -> names of adapters that train, and `base` if anything of it does."""
    active: Callable[[], Sequence[str]]
    freezes: bool = True
    """Whether an adapter that is loaded is frozen unless it is to train."""


class State:
    """What the definition knows of a model."""

    def __init__(self) -> None:
        """Begin without adapters."""
        self.has: dict[str, str] = {}
        """The adapter whose tensors and alpha each name has."""
        self.used: list[str] = []
        self.trains: set[str] = set()
        self.enabled = True

    def apply(self, operation: Operation) -> None:
        """Change it as an operation does: an adapter that is added or loaded is the one that is used."""
        what, *given = operation
        if what == "add":
            self.has[given[0]] = given[0]
            self.used, self.trains = [given[0]], {given[0]}
        elif what == "use":
            self.used, self.trains = list(given[0]), set(given[0])
        elif what == "load":
            self.has[given[0]] = given[0]
            self.used, self.trains = [given[0]], {given[0]} if given[1] else set()
        elif what == "swap":
            self.has[given[0]] = given[1]
        elif what == "delete":
            del self.has[given[0]]
        elif what == "reload":
            self.trains = set()
        elif what != "prepare":
            self.enabled = what == "enable"


OWN = relation_of(
    "own_adapters",
    "a-model-uses-the-adapters-that-are-chosen",
    "After each operation the model computes with the adapters in use, and these train.",
)
SEQUENCES: Mapping[str, Sequence[Operation]] = {
    "added and used": (
        ("add", "a"), ("add", "b"), ("use", ["a"]), ("use", ["a", "b"]), ("disable",), ("enable",), ("use", ["b"]),
        ("delete", "a"), ("add", "a"), ("use", ["b"]), ("reload",),
    ),
    "loaded": (("load", "a", False), ("load", "b", False), ("use", ["b"]), ("use", ["a", "b"]), ("disable",)),
    "loaded to train": (("load", "a", True), ("load", "b", True), ("use", ["b"]), ("delete", "a")),
    "loaded next to one that trains": (("add", "a"), ("load", "b", False), ("use", ["a"]), ("reload",)),
    "saved with two": (("add", "a"), ("add", "b"), ("use", ["a"]), ("reload",)),
    "swapped": (("prepare",), ("load", "a", False), ("swap", "a", "d")),
    "swapped for another rank": (("prepare",), ("load", "a", False), ("swap", "a", "b")),
    "swapped for another scale": (("prepare",), ("load", "a", False), ("swap", "a", "c")),
    "a head of its own": (("add", "head"), ("disable",)),
    "a head of its own, enabled again": (("add", "head"), ("disable",), ("enable",)),
    "a head of its own, saved": (("add", "head"), ("reload",)),
}  # fmt: skip
NAME = "own adapters"


def _added(factors: tuple[Tensor, Tensor], scale: float) -> Callable[[Tensor], Tensor]:
    a, b = factors
    return lambda x_BSD: (x_BSD @ a.T @ b.T) * scale


def _right(owner: Owner, state: State) -> Tensor:
    adds: dict[str, list[Callable[[Tensor], Tensor]]] = {}
    head = None
    for name in state.used if state.enabled else ():
        rank, alpha = SIZES[state.has[name]]
        own = owner.drawn(state.has[name])
        head = own.head if own.head is not None else head
        for layer, factors in own.factors.items():
            adds.setdefault(layer, []).append(_added(factors, alpha / rank))
    whole = {
        layer: lambda x, own=own: sum((one(x) for one in own), torch.zeros(())) for layer, own in adds.items()
    }
    return owner.plain(whole, head)


def _difference(found: Tensor, right: Tensor) -> float:
    if found.shape != right.shape:
        return float("inf")
    return float((found - right).abs().max() / right.abs().max())


for _law in SEQUENCES:

    @OWN.law(
        _law,
        "an adapter that is used, or is not, against the last choice; a scale, a head or a file of another one",
        excluded=without(NAME),
        sequence=_law,
    )
    def outputs_are_those_of_the_adapters_in_use(stack: Any, case: Numbers, sequence: str) -> Measure:
        """Compare logits after each operation with the definition's, and what a file would get."""
        owner, state, found = stack.utilities[NAME](), State(), []
        for number, operation in enumerate(SEQUENCES[sequence]):
            owner.apply(operation)
            state.apply(operation)
            place = f"{operation}, number {number}"
            found.append((_difference(owner.outputs(), _right(owner, state)), place))
            if operation[0] in ("prepare", "reload", "swap") or not state.enabled:
                continue
            for name in state.has:
                given = owner.tensors(name)
                for layer, due in owner.drawn(state.has[name]).factors.items():
                    pairs = zip(given[layer], due, strict=True)
                    found += [
                        (_difference(one, other), f"tensors of {name} after {place}") for one, other in pairs
                    ]
        return Measure.largest(found, BOUND, "logits and tensors of a model with its own adapters")

    @OWN.law(
        f"{_law}: what trains and is active",
        "adapters that are frozen with another one, a base that trains, names of an earlier choice",
        excluded=without(NAME),
        sequence=_law,
    )
    def adapters_in_use_train(stack: Any, case: Numbers, sequence: str) -> Measure:
        """Count differences of the adapters that train and are active from the definition's."""
        owner, state, wrong = stack.utilities[NAME](), State(), []
        for operation in SEQUENCES[sequence]:
            owner.apply(operation)
            state.apply(operation)
            if (
                not state.enabled
                or operation[0] in ("prepare", "swap")
                or (operation[0] == "load" and len(state.has) > 1)
            ):
                continue  # what trains next to an adapter that is loaded is the caller's to choose
            if (operation[0] != "reload" or owner.freezes) and owner.trains() != state.trains:
                wrong.append(
                    f"after {operation} {sorted(owner.trains())} train, {sorted(state.trains)} should"
                )
            if sorted(owner.active()) != sorted(state.used):
                wrong.append(
                    f"after {operation} {sorted(owner.active())} are active, not {sorted(state.used)}"
                )
        return Measure.count(wrong, "adapters that train or are active against the last choice")
