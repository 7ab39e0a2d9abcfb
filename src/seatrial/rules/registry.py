"""Every rule that exists: our own, listed in `families`, and those that installed packages bring.

A package adds rules with an entry point of the group `seatrial.rules` that names a rule, or a sequence of them:

    [project.entry-points."seatrial.rules"]
    my-rules = "my_package.rules:RULES"
"""

from __future__ import annotations

import importlib
from collections.abc import Iterable, Sequence
from functools import cache
from importlib.metadata import EntryPoint, entry_points
from typing import Any, cast

from seatrial.errors import UsageError
from seatrial.nearest import hint
from seatrial.rules.rule import Rule

GROUP = "seatrial.rules"
_PARTS = [
    "id",
    "family",
    "statement",
    "needs",
    "uses",
    "parameters",
    "meaning",
    "remedy",
    "catalogue",
    "judge",
]


@cache
def all_rules() -> tuple[Rule, ...]:
    """Return our rules and those of entry points, in the order of their families.

    Raises:
        UsageError: an entry point cannot be loaded, names no rule, or uses an id that another one has.
    """
    return _distinct([*own_rules(), *rules_of_entry_points(entry_points(group=GROUP))])


def own_rules() -> list[Rule]:
    """Return the rules of the modules that `seatrial.rules.families` lists."""
    families = importlib.import_module("seatrial.rules.families")
    modules = (importlib.import_module(f"{families.__name__}.{name}") for name in families.MODULES)
    return [rule for module in modules for rule in module.RULES]


def rules_of_entry_points(found: Iterable[EntryPoint]) -> list[Rule]:
    """Return what entry points name.

    Raises:
        UsageError: see `all_rules`.
    """
    rules: list[Rule] = []
    for point in found:
        try:
            loaded: Any = point.load()
        except (ImportError, AttributeError) as error:
            raise UsageError(
                f"rules of {point.name} ({point.value}) cannot be loaded: {error}; mend or uninstall that package"
            ) from error
        group = loaded if isinstance(loaded, Sequence) else (loaded,)
        for item in group:
            lacking = [part for part in _PARTS if not hasattr(item, part)]
            if lacking:
                raise UsageError(f"{point.name} ({point.value}) is no rule: it lacks {', '.join(lacking)}")
        rules += cast("Sequence[Rule]", group)
    return rules


def select(names: Sequence[str], without: Sequence[str] = ()) -> tuple[Rule, ...]:
    """Return the rules with these ids or of these families, all for no names, less those left out.

    Raises:
        UsageError: a name is unknown; the nearest are given.
    """
    known = {name for rule in all_rules() for name in (rule.id, rule.family)}
    for name in (*names, *without):
        if name not in known:
            raise UsageError(f"no rule or family {name!r}; {hint(name, sorted(known))}")
    return tuple(
        rule
        for rule in all_rules()
        if (not names or {rule.id, rule.family} & set(names)) and not {rule.id, rule.family} & set(without)
    )


def _distinct(rules: Iterable[Rule]) -> tuple[Rule, ...]:
    chosen: dict[str, Rule] = {}
    for rule in rules:
        if rule.id in chosen:
            raise UsageError(f"two rules have the id {rule.id}")
        chosen[rule.id] = rule
    return tuple(chosen.values())
