"""R32.settings: settings are those of variables, arguments go first, and no object leaves any to the next one."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from seatrial.relations.contracts.settings import Setting
from seatrial.relations.law import Measure, Relation
from seatrial.relations.laws.functions.values import seeded

SETTINGS = Relation(
    id="R32.settings",
    name="settings-come-from-variables-and-arguments",
    component="settings",
    statement="A setting is the argument's if there is one, else the variable's, else the default.",
    cost="CPU, milliseconds",
    cases=seeded,
    seeded=False,
)


def _wrong(stack: Any, one: Setting, found: Any, due: Any, how: str) -> list[str]:
    value = found[one.field]
    same = type(value) is type(due) and value == due
    return (
        [] if same else [f"{one.of}.{one.field}, {how} {one.variable}={one.text}, is {value!r}, due {due!r}"]
    )


@SETTINGS.law(
    "read from variables", "a word that is taken for its contrary, an index that begins with 0 or 1"
)
def variables_are_read(stack: Any, case: Any) -> Measure:
    """Compare each field with the value of its variable, which is set alone."""
    wrong: list[str] = []
    for one in stack.settings:
        stack.clear()
        found = stack.settled(one.of, {**one.needs, one.variable: one.text})
        wrong += _wrong(stack, one, found, one.value, "with")
    return Measure.count(wrong, "settings that are not the variable's")


@SETTINGS.law("defaults", "a variable that is unset and read as set")
def defaults_are_used(stack: Any, case: Any) -> Measure:
    """Compare each field with its default, where its variable is not set."""
    wrong: list[str] = []
    for one in stack.settings:
        stack.clear()
        wrong += _wrong(stack, one, stack.settled(one.of, one.needs), one.default, "without")
    return Measure.count(wrong, "settings that are not the default")


@SETTINGS.law("read together", "a variable that is read in the place of another one")
def variables_are_read_together(stack: Any, case: Any) -> Measure:
    """Set all variables of an object that need no others, and compare each field with its own."""
    wrong: list[str] = []
    for of in dict.fromkeys(one.of for one in stack.settings):
        chosen = _one_of_each_variable([one for one in stack.settings if one.of == of])
        stack.clear()
        variables = {one.variable: one.text for one in chosen}
        needed = {name: text for one in chosen for name, text in one.needs.items() if name not in variables}
        found = stack.settled(of, {**needed, **variables})
        for one in chosen:
            wrong += _wrong(stack, one, found, one.value, "among others")
    return Measure.count(wrong, "settings that are not the variable's among others")


def _one_of_each_variable(settings: Sequence[Setting]) -> list[Setting]:
    """Return settings with other variables; what one needs is not what another one sets."""
    chosen: dict[str, Setting] = {}
    for one in settings:
        needed = {name: text for other in chosen.values() for name, text in other.needs.items()}
        clash = any(name in chosen and chosen[name].text != text for name, text in one.needs.items())
        if one.variable not in chosen and not clash and needed.get(one.variable, one.text) == one.text:
            chosen[one.variable] = one
    return list(chosen.values())


@SETTINGS.law("arguments go first", "a variable that overrules the argument")
def arguments_go_first(stack: Any, case: Any) -> Measure:
    """Give an argument of another value than the variable's, and compare the field with the argument."""
    wrong: list[str] = []
    for one in stack.settings:
        stack.clear()
        found = stack.settled(one.of, {**one.needs, one.variable: one.text}, {one.field: one.given})
        due = one.given if one.kept is None else one.kept
        wrong += _wrong(stack, one, found, due, f"given {one.given!r}, with")
    return Measure.count(wrong, "settings that are not the argument's")


@SETTINGS.law("one after another", "an argument that is left in the environment, or in the class")
def nothing_is_left(stack: Any, case: Any) -> Measure:
    """Make an object with an argument, then one without, and compare the second one's field with the default."""
    wrong: list[str] = []
    for one in stack.settings:
        stack.clear()
        stack.settled(one.of, one.needs, {one.field: one.given})
        found = stack.settled(one.of, one.needs)
        wrong += _wrong(stack, one, found, one.default, f"after one with {one.given!r}, without")
    stack.clear()
    return Measure.count(wrong, "settings that an object before left")
