"""Every relation that exists: our own, listed in `laws`, and those that installed packages bring.

A package adds relations with an entry point of the group `seatrial.relations` that names a module that defines
relations, a `Relation`, or a sequence of them:

    [project.entry-points."seatrial.relations"]
    my-laws = "my_package.laws"
"""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Iterable, Sequence
from functools import cache
from importlib.metadata import EntryPoint, entry_points
from types import ModuleType

from seatrial.errors import BlockedError, UsageError
from seatrial.nearest import hint, meant
from seatrial.relations import laws
from seatrial.relations.contracts import COMPONENTS
from seatrial.relations.law import Relation

GROUP = "seatrial.relations"


@cache
def all_relations() -> tuple[Relation, ...]:
    """Return our relations and those of entry points, in the order of their numbers, then of their ids.

    Raises:
        UsageError: an entry point cannot be loaded, names no relation, or uses an id that another one has.
    """
    return ordered([*own_relations(), *relations_of_entry_points(entry_points(group=GROUP))])


def own_relations() -> tuple[Relation, ...]:
    """Return the relations that the modules below `seatrial.relations.laws` define.

    Raises:
        BlockedError: torch, which laws compute with, is missing or broken.
    """
    try:
        importlib.import_module("torch")
    except (ImportError, OSError) as error:
        raise BlockedError(
            f"relations need torch, which cannot be imported here ({error}): install it in the stack's environment"
        ) from error
    modules = pkgutil.walk_packages(laws.__path__, prefix=f"{laws.__name__}.")
    names = [module.name for module in modules if not module.ispkg]
    # A relation that two modules add laws to is a name of both.
    return ordered(
        dict.fromkeys(relation for name in names for relation in relations_in(importlib.import_module(name)))
    )


def relations_in(module: ModuleType) -> list[Relation]:
    """Return the relations among the names of a module."""
    return [value for value in vars(module).values() if isinstance(value, Relation)]


def relations_of_entry_points(found: Iterable[EntryPoint]) -> list[Relation]:
    """Return the relations of entry points that name a module, a relation or a sequence of relations.

    Raises:
        UsageError: see `all_relations`.
    """
    relations: list[Relation] = []
    for point in found:
        try:
            loaded = point.load()
        except (ImportError, AttributeError) as error:
            raise UsageError(
                f"relations of {point.name} ({point.value}) cannot be loaded: {error}; fix or uninstall that package"
            ) from error
        if isinstance(loaded, ModuleType):
            loaded = relations_in(loaded)
        group = (loaded,) if isinstance(loaded, Relation) else loaded
        if not isinstance(group, Sequence) or not all(isinstance(item, Relation) for item in group):
            raise UsageError(f"{point.name} ({point.value}) is no relation and no sequence of relations")
        if not group:
            raise UsageError(f"{point.name} ({point.value}) defines no relation")
        relations += group
    return relations


def ordered(relations: Iterable[Relation]) -> tuple[Relation, ...]:
    """Return relations sorted: R1 to R27 by number, then others by id.

    Raises:
        UsageError: two relations have one id.
    """
    chosen: dict[str, Relation] = {}
    for relation in relations:
        if relation.id in chosen:
            raise UsageError(
                f"two relations have the id {relation.id}: {chosen[relation.id].name}, {relation.name}"
            )
        chosen[relation.id] = relation
    return tuple(sorted(chosen.values(), key=_place))


def _place(relation: Relation) -> tuple[int, int, str]:
    number = relation.id.partition(".")[0][1:]
    return (
        (0, int(number), relation.id) if relation.id[:1] == "R" and number.isdigit() else (1, 0, relation.id)
    )


def of_components(relations: Sequence[Relation], components: Sequence[str]) -> tuple[Relation, ...]:
    """Return the relations about these components; all of them for no components.

    Raises:
        UsageError: a component is unknown, or none of the relations is about them.
    """
    unknown = [name for name in components if name not in COMPONENTS]
    if unknown:
        raise UsageError(f"no component {unknown[0]!r}; {hint(unknown[0], COMPONENTS)}")
    chosen = tuple(relation for relation in relations if not components or relation.component in components)
    if not chosen:
        raise UsageError(f"none of the relations named is about {', '.join(components)}")
    return chosen


def select(names: Sequence[str]) -> tuple[Relation, ...]:
    """Return the relations with these ids (R12.loss), numbers (R12) or names; all of them for no names.

    Raises:
        UsageError: a name is unknown; the nearest one is given.
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
            known = [one for relation in all_relations() for one in (relation.id, relation.name)]
            raise UsageError(
                f"no relation {name!r}; {meant(name, known)} `seatrial relations --list` lists them"
            )
        chosen.update((relation.id, relation) for relation in matching)
    return tuple(chosen.values())
