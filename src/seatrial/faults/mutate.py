"""One-line faults of refrl and the relations that must detect them, from the tables in `seatrial/faults/mutants/`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cache
from importlib import resources
from typing import Any

from seatrial.packaged import read_table


@dataclass(frozen=True, kw_only=True)
class Mutant:
    """A one-line fault, and the relations that must detect it."""

    id: str
    what: str
    """What is wrong with a stack that has the fault."""
    module: str
    """Module of refrl that is changed."""
    old: str
    """Text that occurs exactly once in the module."""
    new: str
    relations: tuple[str, ...]
    """Ids of the relations that must fail."""
    catalogue: tuple[str, ...] = ()
    """Ids of the known bugs that the fault reproduces (SBnnn)."""
    origin: str = "catalogue"
    """`catalogue`, or `harness` for the 42 mutants of the harness notes."""
    options: Mapping[str, Any] = field(default_factory=dict)
    """Options of refrl with which the faulty line runs."""
    layouts: tuple[str, ...] = ()
    """Layouts of processes to train in (R2, R25); empty: those of the default battery."""


@cache
def all_mutants() -> tuple[Mutant, ...]:
    """Return the mutants of every table in `seatrial/faults/mutants/`, in the order of their names."""
    found = []
    folder = resources.files("seatrial.faults").joinpath("mutants")
    for table in sorted(folder.iterdir(), key=lambda path: path.name):
        if table.name.endswith(".yaml"):
            for fields in read_table("seatrial.faults", "mutants", table.name):
                found.append(
                    Mutant(
                        **{
                            **fields,
                            "relations": tuple(fields["relations"]),
                            "catalogue": tuple(fields.get("catalogue", ())),
                            "layouts": tuple(fields.get("layouts", ())),
                        }
                    )
                )
    return tuple(found)
