"""R18.configurations: a class of options keeps each value that it is given, through files and copies too."""

from __future__ import annotations

import copy
import json
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from seatrial.relations.cases.case import AsItIs, as_it_is
from seatrial.relations.contracts.configurations import OptionClass
from seatrial.relations.law import Measure, Relation
from seatrial.relations.not_served import NotServed
from seatrial.relations.raised import error_line

CONFIGURATIONS = Relation(
    id="R18.configurations",
    name="classes-of-options-keep-their-values",
    component="configurations",
    statement="An object of options has each value that it is given, also after it is saved, loaded and copied; "
    "objects share no default, the caller's values stay, and defaults are those that the documentation names.",
    cost="CPU, a minute a library",
    cases=as_it_is,
    seeded=False,
)
DEFAULT = re.compile(
    r"[Dd]efaults? (?:is|to|value is)\s+"
    r"(?:`{1,2}([^`]+)`{1,2}|(True|False|None|-?\d+(?:\.\d+)?(?:e-?\d+)?)(?![\w%]))"
)
"""A default in a documentation's text."""
SHOWN = 60
"""Characters of a value in a message."""


def plain(value: Any) -> str:
    """Return a value as text, equal for equal values: sets in order, tuples as lists."""
    return json.dumps(_ordered(value), default=_named, sort_keys=True)


def _named(value: Any) -> str:
    """Return what names a value that is no plain one: its text without its place in memory."""
    return re.sub(r" at 0x[0-9a-f]+", "", str(value))


def _ordered(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {str(name): _ordered(one) for name, one in value.items()}
    if isinstance(value, (set, frozenset)):
        return sorted(map(str, value))
    return [_ordered(one) for one in value] if isinstance(value, (list, tuple)) else value


def other_value(name: str, value: Any, values: Sequence[Any] = ()) -> Any:
    """Return a value of the same type, or one of `values`, that is not this one; None if none is known."""
    if isinstance(value, bool):
        return not value
    if isinstance(value, int):
        return value + 1 if name.endswith(("_id", "_index")) or value < 4 else 2 * value
    if isinstance(value, float):
        return value / 2 if value else 0.25
    if isinstance(value, str) or values:
        return next((one for one in values if one != value), None)
    if isinstance(value, Mapping):
        return _other_entries(value)
    numbers = isinstance(value, list) and value and all(type(one) in (int, float) for one in value)
    return [*value, value[-1]] if numbers else None


def _other_entries(value: Mapping[str, Any]) -> dict[str, Any] | None:
    """Return a mapping with other numbers that have a point, None unless it is one of numbers and texts alone."""
    if not all(isinstance(one, (int, float, str)) for one in value.values()):
        return None
    others = {name: other_value(name, one) for name, one in value.items() if isinstance(one, float)}
    return {**value, **others} if others else None


def _values(one: OptionClass) -> dict[str, Any]:
    """Return a value away from its default for every option that has one."""
    found = {
        name: other_value(name, default, one.values.get(name, ()))
        for name, default in one.options(one.make(**one.defaults)).items()
        if not one.written or name in one.written
    }
    return {name: value for name, value in found.items() if value is not None}


def _made(one: OptionClass, values: Mapping[str, Any]) -> Any:
    """Return an object with these options, None if the class refuses them."""
    try:
        return one.make(**{**one.defaults, **copy.deepcopy(dict(values))})
    except Exception:  # noqa: BLE001  it refuses a value, or values together
        return None


def _together(one: OptionClass, values: Mapping[str, Any]) -> Iterator[Any]:
    """Yield objects with as many of the options as the class takes together."""
    made = _made(one, values)
    if made is not None:
        yield made
    elif len(values) > 1:
        names = list(values)
        for part in (names[: len(names) // 2], names[len(names) // 2 :]):
            yield from _together(one, {name: values[name] for name in part})


def _judged(stack: Any, law: str, found: Iterator[tuple[OptionClass, str, str]], what: str) -> Measure:
    """Return a measure that counts what is found (class, option, text) and not left out."""
    left_out = stack.options_allowed(law)
    wrong = [
        f"{one.name}.{name}: {text}"
        for one, name, text in found
        if one.name not in left_out and f"{one.name}.{name}" not in left_out
    ]
    return Measure.count(wrong, what)


@CONFIGURATIONS.law("each option is kept", "an option that is read under another name, or overwritten")
def options_are_kept(stack: Any, case: AsItIs) -> Measure:
    """Check that an object made with one option away from its default has that value."""

    def found() -> Iterator[tuple[OptionClass, str, str]]:
        for one in stack.option_classes:
            for name, value in _values(one).items():
                made = _made(one, {name: value})
                given = None if made is None else one.options(made).get(name)
                if made is not None and plain(given) != plain(value):
                    yield one, name, f"{value!r} is given, {str(given)[:SHOWN]} is kept"

    return _judged(stack, "kept", found(), "options that are not kept")


@CONFIGURATIONS.law("saved and loaded", "an option that files lack, a default that comes back")
def options_are_loaded(stack: Any, case: AsItIs) -> Measure:
    """Check that options, at their defaults and away from them, are what they were after a reload."""

    def found() -> Iterator[tuple[OptionClass, str, str]]:
        for one in stack.option_classes:
            if one.reload is None:
                continue
            older = (made for form in one.older if (made := _made(one, form.older)) is not None)
            for made in [one.make(**one.defaults), *_together(one, _values(one)), *older]:
                before = {other: plain(value) for other, value in one.options(made).items()}
                try:
                    after = one.options(one.reload(made))
                except Exception as error:  # noqa: BLE001  what it saves, it does not load
                    yield one, "all", error_line(error)[:SHOWN]
                    continue
                for other, value in before.items():
                    if value != plain(after.get(other)):
                        yield one, other, f"{value[:SHOWN]} becomes {plain(after.get(other))[:SHOWN]}"

    if not any(one.reload for one in stack.option_classes):
        raise NotServed("no class has files")
    return _judged(stack, "loaded", found(), "options that a reload changes")


@CONFIGURATIONS.law("older names", "an option of a published file that is ignored, or read as another one")
def older_names_act(stack: Any, case: AsItIs) -> Measure:
    """Check that options by their older names give those by their names of today."""

    def found() -> Iterator[tuple[OptionClass, str, str]]:
        for one in stack.option_classes:
            for form in one.older:
                made, right = _made(one, form.older), _made(one, form.newer)
                if made is None or right is None:
                    continue
                given, wanted = (_entries(one.options(each), form.newer) for each in (made, right))
                for name, value in wanted.items():
                    if given[name] != value:
                        yield one, "+".join(form.older), f"{name} is {given[name]}, by its name {value}"

    if not any(one.older for one in stack.option_classes):
        raise NotServed("no option has an older name")
    return _judged(stack, "older", found(), "older names that give other options")


def _entries(options: Mapping[str, Any], chosen: Mapping[str, Any]) -> dict[str, str]:
    """Return the chosen options as texts, of one that is a mapping the chosen entries."""
    found: dict[str, str] = {}
    for name, value in chosen.items():
        if isinstance(value, Mapping):
            own = options.get(name) or {}
            found |= {f"{name}.{entry}": plain(own.get(entry)) for entry in value}
        else:
            found[name] = plain(options.get(name))
    return found


@CONFIGURATIONS.law("older keywords", "an argument that is read and does not act")
def keywords_act(stack: Any, case: AsItIs) -> Measure:
    """Check that of every argument that a class reads a value changes an option, or is refused."""

    def found() -> Iterator[tuple[OptionClass, str, str]]:
        for one in stack.option_classes:
            before = {name: plain(value) for name, value in one.options(one.make(**one.defaults)).items()}
            for keyword, values in one.keywords.items():
                if not any(_acts(one, keyword, value, before) for value in values):
                    yield one, keyword, "no value changes an option"

    if not any(one.keywords for one in stack.option_classes):
        raise NotServed("no class reads other arguments")
    return _judged(stack, "keywords", found(), "arguments that are ignored")


def _acts(one: OptionClass, keyword: str, value: Any, before: Mapping[str, str]) -> bool:
    """Return whether an argument changes an option besides one of its own name."""
    made = _made(one, {keyword: value})
    after = {} if made is None else one.options(made)
    return any(plain(own) != before.get(name) for name, own in after.items() if name != keyword)


@CONFIGURATIONS.law("defaults are not shared", "one list or dictionary for all objects")
def defaults_are_not_shared(stack: Any, case: AsItIs) -> Measure:
    """Check that no list or dictionary of one object is that of a second one."""

    def found() -> Iterator[tuple[OptionClass, str, str]]:
        for one in stack.option_classes:
            first, second = (vars(one.make(**copy.deepcopy(dict(one.defaults)))) for _ in range(2))
            for name, value in first.items():
                if isinstance(value, (list, dict, set)) and second.get(name) is value:
                    yield one, name, "shared"

    return _judged(stack, "shared", found(), "defaults that objects share")


@CONFIGURATIONS.law("copies", "a copy that shares a value, or has another one")
def copies_are_equal(stack: Any, case: AsItIs) -> Measure:
    """Check that a deep copy has the same options, and shares no list or dictionary."""

    def found() -> Iterator[tuple[OptionClass, str, str]]:
        for one in stack.option_classes:
            made = one.make(**one.defaults)
            copied = copy.deepcopy(made)
            after = one.options(copied)
            for name, value in one.options(made).items():
                if plain(value) != plain(after.get(name)):
                    yield one, name, f"{str(value)[:SHOWN]} becomes {str(after.get(name))[:SHOWN]}"
            for name, value in vars(made).items():
                if isinstance(value, (list, dict, set)) and vars(copied).get(name) is value:
                    yield one, name, "shared"

    return _judged(stack, "copied", found(), "options that a copy has otherwise")


@CONFIGURATIONS.law("objects stay", "options that reading, saving or writing them changes")
def objects_stay(stack: Any, case: AsItIs) -> Measure:
    """Check that an object that was saved has the options that it had."""

    def found() -> Iterator[tuple[OptionClass, str, str]]:
        for one in stack.option_classes:
            made = one.make(**one.defaults)
            before = copy.deepcopy({name: plain(value) for name, value in vars(made).items()})
            one.options(made)
            if one.reload is not None:
                try:
                    one.reload(made)
                except Exception:  # noqa: BLE001  the law of reloads says so
                    continue
            for name, value in before.items():
                if plain(vars(made).get(name)) != value:
                    yield one, name, f"{value[:SHOWN]} becomes {plain(vars(made).get(name))[:SHOWN]}"

    return _judged(stack, "stays", found(), "options that saving changes")


def documented_default(text: str) -> str | None:
    """Return the default that the documentation of an option names, None if it names none."""
    found = DEFAULT.search(text)
    if found is None:
        return None
    return str(found[1] or found[2]).strip()


def same_default(documented: str, value: Any) -> bool:
    """Return whether a documented default is a value; True where the text is no plain value."""
    text = documented.strip().strip("\"'")
    try:
        right = json.loads({"None": "null", "True": "true", "False": "false"}.get(text, text))
    except ValueError:
        word = re.fullmatch(r"[A-Za-z_][\w\-]*", text)
        return not word or not isinstance(value, (str, bool, int, float)) or str(value) == text
    if right is None or value is None or isinstance(right, (list, dict)) or isinstance(value, str):
        return right is None or value is None or plain(right) == plain(value) or str(value) == text
    if isinstance(right, bool) or isinstance(value, bool):
        return right is value
    return not isinstance(value, (int, float)) or abs(right - value) <= 1e-12 * max(abs(right), 1e-30)


@CONFIGURATIONS.law("documented defaults", "a default that changed without its documentation, or by mistake")
def defaults_are_documented(stack: Any, case: AsItIs) -> Measure:
    """Check that options have the defaults that the documentation names."""

    def found() -> Iterator[tuple[OptionClass, str, str]]:
        for one in stack.option_classes:
            for name, text in one.documented.items():
                if name in one.written and not same_default(text, one.written[name]):
                    yield one, name, f"{text} is documented, {one.written[name]!r} is the default"

    if not any(one.documented for one in stack.option_classes):
        raise NotServed("no default is documented")
    return _judged(stack, "documented", found(), "defaults that the documentation names otherwise")
