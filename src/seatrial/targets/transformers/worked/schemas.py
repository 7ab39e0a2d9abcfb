"""Worked examples of the schemas that Transformers makes of tools."""

from __future__ import annotations

import enum
from collections.abc import Callable, Sequence
from typing import Any, Literal

from seatrial.targets.common.worked_rows import Row

SCHEMA = "transformers.utils:get_json_schema"


def weather(city: str, days: int = 1) -> dict[str, list[int]]:
    """Look it up.

    Args:
        city: Where. (choices: ["Rome", "Oslo"])
        days (int, optional): How
            many.

    Returns:
        Numbers.

    Raises:
        KeyError: no.
    """
    return {city: [days]}


class Colour(enum.Enum):
    """Colours."""

    RED = "red"
    BLUE = "blue"


class Mixed(enum.Enum):
    """Values of several types."""

    ONE = 1
    TWO = "two"


class Own:
    """A class."""

    def look(self, where: str) -> None:
        """Look.

        Args:
            where: Where.
        """

    @classmethod
    def of(cls, where: str) -> None:
        """Look.

        Args:
            where: Where.
        """


def _hint(hint: Any) -> Callable[[Any], Any]:
    """Return the schema of an argument of a type, or the name of the error."""

    def asked(made: Any) -> Any:
        def called(value: Any) -> None: ...

        called.__annotations__ = {"value": hint}
        called.__doc__ = "Do.\n\nArgs:\n    value: It."
        try:
            found = made(called)["function"]["parameters"]["properties"]["value"]
        except Exception as error:  # noqa: BLE001  its name is the answer
            return type(error).__name__
        return {name: one for name, one in found.items() if name != "description"}

    return asked


def _written(doc: str | None, **hints: Any) -> Callable[[Any], Any]:
    def asked(made: Any) -> Any:
        def called(value: Any) -> None: ...

        called.__annotations__, called.__doc__ = {"value": int, **hints}, doc
        try:
            found = made(called)["function"]
        except Exception as error:  # noqa: BLE001  its name is the answer
            return type(error).__name__
        return [
            found["description"],
            found["parameters"]["properties"]["value"].get("description"),
            found.get("return"),
        ]

    return asked


def _unhinted(made: Any) -> str:
    def called(value) -> None:  # type: ignore[no-untyped-def]
        """Do.

        Args:
            value: It.
        """

    try:
        return str(made(called))
    except Exception as error:  # noqa: BLE001  its name is the answer
        return type(error).__name__


def _of_methods(made: Any) -> Any:
    return [[found["name"], sorted(found["parameters"]["properties"]), found["parameters"]["required"]] for found in (
        made(one)["function"] for one in (Own().look, Own.of))]  # fmt: skip


ARGS = "Do it.\n\nArgs:\n    value: It"


def _schema(name: str, asked: Callable[[Any], Any], right: Any, since: str = "4.57") -> Row:
    return Row("chats", SCHEMA, name, asked, right, since=since)


SCHEMA_ROWS: Sequence[Row] = (
    _schema("a function", lambda made: made(weather), {"type": "function", "function": {
        "name": "weather", "description": "Look it up.", "parameters": {"type": "object", "properties": {
            "city": {"type": "string", "enum": ["Rome", "Oslo"], "description": "Where."},
            "days": {"type": "integer", "description": "How many."}}, "required": ["city"]},
        "return": {"type": "object", "additionalProperties": {"type": "array", "items": {"type": "integer"}},
                   "description": "Numbers."}}}, since="5.24"),
    _schema("methods", _of_methods, [["look", ["where"], ["where"]], ["of", ["where"], ["where"]]], since="5"),
    _schema("enumerations", lambda made: [_hint(Colour)(made), _hint(Mixed)(made), _hint(list[Colour])(made)],
            [{"type": "string", "enum": ["red", "blue"]}, {"type": ["integer", "string"], "enum": [1, "two"]},
             {"type": "array", "items": {"type": "string", "enum": ["red", "blue"]}}], since="5.23"),
    _schema("literals of several types", lambda made: [
        _hint(Literal[1, "a"])(made), _hint(Literal[True, None])(made)],
        [{"type": ["integer", "string"], "enum": [1, "a"]}, {"type": ["boolean", "null"], "enum": [True, None]}],
        since="5"),
    _schema("literals or none", _hint(Literal["a", "b"] | None), {"type": "string", "enum": ["a", "b"],
    "nullable": True}),
    _schema("lists of unions", _hint(list[int | str | None]),
            {"type": "array", "items": {"type": ["integer", "string"], "nullable": True}}),
    _schema("unions of lists and literals", _hint(list[int] | Literal["a"]),
            {"anyOf": [{"type": "array", "items": {"type": "integer"}}, {"type": "string", "enum": ["a"]}]},
            since="5.16.2"),
    _schema("unions of one type", _hint(list | tuple), {"type": "array"}, since="5.16.2"),
    _schema("tables of tables", _hint(dict[str, dict[str, bool]]),
            {"type": "object", "additionalProperties": {"type": "object",
            "additionalProperties": {"type": "boolean"}}}),
    _schema("types that are refused", lambda made: [_hint(hint)(made) for hint in (Own, tuple[int], tuple[int, ...])],
            ["TypeHintParsingException"] * 3, since="5.23"),
    _schema("a function without types", _unhinted, "TypeHintParsingException"),
    _schema("functions without descriptions", lambda made: [_written(None)(made), _written("Do.")(made)],
            ["DocstringParsingException"] * 2),
    _schema("a description over lines", _written(f"{ARGS},\n        and more.\n\n        And more."),
            ["Do it.", "It, and more. And more.", None]),
    _schema("what is returned", lambda made: [
        _written(f"{ARGS}.\n\nReturns:\n    A\n    number.", **{"return": int})(made)[2],
        _written(f"{ARGS}.", **{"return": int})(made)[2], _written(f"{ARGS}.\n\nReturns:\n    It.")(made)[2]],
        [{"type": "integer", "description": "A\n    number."}, {"type": "integer"}, None]),
    _schema("what is returned of a class", _written(f"{ARGS}.", **{"return": Own}), ["Do it.", "It.", None],
    since="5.23"),
    _schema("what is raised", _written(f"{ARGS}.\n\nRaises:\n    KeyError: no."), ["Do it.", "It.", None]),
    _schema("types in the description", _written("Do it.\n\nArgs:\n    value (int): It."), ["Do it.", "It.", None],
    since="5.24"),
    _schema("choices that are none", _written(f"{ARGS} (choices: a)."), ["Do it.", "It (choices: a).", None]),
    _schema("a broken list of choices", lambda made: _written(f"{ARGS} (choices: [a])")(made), "JSONDecodeError"),
)  # fmt: skip
