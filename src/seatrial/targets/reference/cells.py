"""The cells of refrl's conformance matrix: configurations in which every two options meet."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import cache
from importlib import resources
from typing import Any

import yaml

from seatrial.relations.cases.pairwise import names_of, pairwise
from seatrial.targets.reference.configuration import allowed


@cache
def dimensions() -> dict[str, dict[str, dict[str, Any]]]:
    """Return the options of each value of each dimension."""
    text = resources.files("seatrial.targets.reference").joinpath("cells.yaml").read_text(encoding="utf-8")
    found: dict[str, dict[str, dict[str, Any]]] = yaml.safe_load(text)
    return found


def cells() -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield each cell: its name, and its options."""
    values = {name: list(options.values()) for name, options in dimensions().items()}

    def options_of(row: Mapping[str, int]) -> dict[str, Any]:
        merged: dict[str, Any] = {}
        for name, index in row.items():
            merged |= values[name][index]
        return merged

    def may_be(row: Mapping[str, int]) -> bool:
        chosen = [values[name][index] for name, index in row.items()]
        merged = options_of(row)
        # Two dimensions may set one option.
        together = all(merged[key] == value for options in chosen for key, value in options.items())
        return together and allowed(merged)

    names = {name: list(options) for name, options in dimensions().items()}
    for row in pairwise({name: len(of) for name, of in values.items()}, may_be):
        yield names_of(row, names), options_of(row)
