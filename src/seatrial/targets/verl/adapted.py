"""Functions of verl by the names of a contract: those that the installed release has."""

from __future__ import annotations

import contextlib
import inspect
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from seatrial.relations.not_served import NotServed
from seatrial.targets.common.stand_ins import import_without
from seatrial.targets.common.target import Gone, find_name, release

Table = Mapping[str, tuple[Sequence[str], Callable[..., Any]]]
"""By the name of the contract, the places of what a function needs, and what makes the function of them."""


def found(place: str) -> Any:
    """Return what is at `module:name`.

    Raises:
        Gone: the release has none.
    """
    return find_name("verl", [place])


def found_without(place: str, packages: tuple[str, ...], unused: Sequence[str]) -> Any:
    """Return what is at `module:name`; modules of these packages import what their functions do not use.

    Raises:
        Gone: the release has none.
    """
    module = place.partition(":")[0]
    if module.startswith(packages):
        with contextlib.suppress(ModuleNotFoundError):
            import_without(module, unused)
    return found(place)


def check_tensors(proto: Any, tensors: Mapping[str, Any]) -> None:
    """Check that batches of the release may be made of these tensors.

    Raises:
        NotServed: there are none, and the release needs some.
    """
    if not tensors and "tensors must not be empty" in inspect.getsource(proto.from_dict):
        raise NotServed(f"batches of verl {release('verl')} have tensors")


def adapted_functions(table: Table, find: Callable[[str], Any]) -> dict[str, Callable[..., Any]]:
    """Return, by the name of the contract, the functions that the installed release has, fitted to it.

    Args:
        table: the functions.
        find: returns what is at a place, or raises `Gone`, as the second of a row may; the row is left out then.
    """
    made: dict[str, Callable[..., Any]] = {}
    for name, (needed, adapt) in table.items():
        with contextlib.suppress(Gone):
            made[name] = adapt(*map(find, needed))
    return made


class Adapted:
    """An adapter of the functions of one table."""

    def __init__(self, table: Table, find: Callable[[str], Any] = found) -> None:
        """Find those that the installed release has.

        Raises:
            Gone: there are none.
        """
        made = adapted_functions(table, find)
        if not made:
            raise Gone(f"verl {release('verl')} has none of {', '.join(table)}")
        self.utilities: Mapping[str, Callable[..., Any]] = made
