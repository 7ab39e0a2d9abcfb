"""Every relation that exists, found by importing the relation modules once."""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Sequence
from functools import cache

from seatrial.errors import UsageError
from seatrial.relations.engine import Relation


@cache
def all_relations() -> tuple[Relation, ...]:
    """Return the relations of `seatrial.relations.laws`, in the order of their numbers."""
    package = importlib.import_module("seatrial.relations.laws")
    found = [
        importlib.import_module(f"{package.__name__}.{module.name}").RELATIONS
        for module in pkgutil.iter_modules(package.__path__)
    ]
    relations = [relation for group in found for relation in group]
    return tuple(sorted(relations, key=lambda relation: (int(relation.id[1:].split(".")[0]), relation.id)))


def select(names: Sequence[str]) -> tuple[Relation, ...]:
    """Return the relations with these ids (R12.loss), numbers (R12) or names; all of them for no names.

    Raises:
        UsageError: a name is unknown; the known ones are listed.
    """
    if not names:
        return all_relations()
    chosen: dict[str, Relation] = {}
    for name in names:
        matching = [
            relation
            for relation in all_relations()
            if name in (relation.id, relation.id.split(".")[0], relation.name)
        ]
        if not matching:
            ids = ", ".join(relation.id for relation in all_relations())
            raise UsageError(f"no relation {name!r}; known: {ids}")
        chosen.update((relation.id, relation) for relation in matching)
    return tuple(chosen.values())
