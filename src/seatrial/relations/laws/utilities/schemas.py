"""R31.schemas: tools are described to a model with the types, defaults and choices that they have."""

from __future__ import annotations

import types
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Literal, Optional, Union, get_args, get_origin

from seatrial.relations.laws.utilities.numbers import Numbers
from seatrial.relations.laws.utilities.plain import Arguments, Plain, add_laws, relation_of

SCHEMAS = relation_of(
    "schemas",
    "tools-are-described-as-they-are",
    "The JSON schema of a function has the type, the description, the choices and the need of each argument.",
)
PLAIN_TYPES: Mapping[Any, str] = {
    int: "integer", float: "number", str: "string", bool: "boolean", list: "array", dict: "object", tuple: "array",
}  # fmt: skip
HINTS: Sequence[Any] = (
    int, float, str, bool, list, dict, list[int], list[list[str]], dict[str, float], dict[str, list[int]],
    int | None, list[int] | None, int | str, int | str | None, Literal["a", "b"], Literal[1, 2, 3],
    list[Literal["x", "y"]], tuple[int, str], list[int] | dict[str, str], Any,
    Optional[int], Union[int, str],  # noqa: UP007, UP045  the older way to write them
)  # fmt: skip


def _hints(case: Numbers) -> Iterable[Arguments]:
    return [(hint,) for hint in HINTS]


def schema_of(hint: Any) -> dict[str, Any]:
    """Return the JSON schema of a type."""
    origin, inner = get_origin(hint), get_args(hint)
    if hint is Any:
        return {}
    if origin is None:
        return {"type": PLAIN_TYPES[hint]}
    if origin is Literal:
        return {"type": PLAIN_TYPES[type(inner[0])], "enum": list(inner)}
    if origin in (Union, types.UnionType):
        kinds = [schema_of(one) for one in inner if one is not type(None)]
        if len(kinds) == 1:
            found = kinds[0]
        elif all(set(one) == {"type"} for one in kinds):
            found = {"type": sorted(one["type"] for one in kinds)}
        else:
            found = {"anyOf": kinds}
        return {**found, "nullable": True} if type(None) in inner else found
    if origin is list:
        return {"type": "array", "items": schema_of(inner[0])}
    if origin is tuple:
        return {"type": "array", "prefixItems": [schema_of(one) for one in inner]}
    return {"type": "object", "additionalProperties": schema_of(inner[1])}


WRITTEN = """Look up the weather.

    It is that of a day.

    Args:
        city: Where it is,
            over two lines.
        days: How many.
        unit: Of temperatures. (choices: ["c", "f"])

    Returns:
        A text: sun, rain.
    """


NESTED = WRITTEN.replace("over two lines.", "note: over two lines.")
"""With a line of a description that looks like an argument."""


def _nested_tools(case: Numbers) -> Iterable[Arguments]:
    yield NESTED, {"city": str, "days": int, "unit": str}, ("city",)


def _tools(case: Numbers) -> Iterable[Arguments]:
    for needed in (("city",), ("city", "days"), ("city", "days", "unit")):
        yield WRITTEN, {"city": str, "days": int, "unit": str}, needed


def tool(written: str, hints: Mapping[str, Any], needed: Sequence[str]) -> dict[str, Any]:
    """Return what is said of a function with this docstring, types, and arguments without a default."""
    lines = "note: over two lines." if "note:" in written else "over two lines."
    described = {"city": f"Where it is, {lines}", "days": "How many.", "unit": "Of temperatures."}
    properties: dict[str, dict[str, Any]] = {
        name: {"type": PLAIN_TYPES[hint], "description": described[name]} for name, hint in hints.items()
    }
    properties["unit"]["enum"] = ["c", "f"]
    return {
        "name": "weather",
        "description": "Look up the weather.\n\nIt is that of a day.",
        "parameters": {"type": "object", "properties": properties, "required": list(needed)},
    }


SCHEMA_FUNCTIONS: Sequence[Plain] = (
    Plain(
        name="schema of a type",
        law="types",
        suspects="a type in a list or a union that is lost, None that is no longer allowed",
        cases=_hints,
        right=schema_of,
    ),
    Plain(
        name="schema of a tool",
        law="tools",
        suspects="an argument with a default that is required, a description cut at a line",
        cases=_tools,
        right=tool,
    ),
    Plain(
        name="schema of a tool",
        law="tools with a nested description",
        suspects="a description that ends where a line of it looks like an argument",
        cases=_nested_tools,
        right=tool,
    ),
)
add_laws(SCHEMAS, SCHEMA_FUNCTIONS)
