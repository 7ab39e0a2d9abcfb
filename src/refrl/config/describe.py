"""A configuration as YAML with docs, and the schema as a page of all options."""

from __future__ import annotations

import ast
import gc
import inspect
import json
import sys
import textwrap
import types
import typing
from collections.abc import Iterator, Mapping
from functools import cache
from typing import Any, Literal

from pydantic import BaseModel
from pydantic.fields import FieldInfo

from refrl.config.run import GRPORunConfig, SFTRunConfig

WIDTH = 100


def effective_yaml(config: BaseModel) -> str:
    """Return the whole configuration as YAML that loads to the same, defaults included, with each option's doc."""
    return "\n".join(_lines(config, "")) + "\n"


def option_docs(schema: type[BaseModel]) -> dict[str, str]:
    """Return the doc of each field: the text under it in the source, or that of a class it inherits from."""
    docs: dict[str, str] = {}
    for kind in reversed(schema.__mro__):
        if kind not in (BaseModel, object) and issubclass(kind, BaseModel):
            docs |= _docs_in_source(kind)
    return {name: docs[name] for name in schema.model_fields if name in docs}


def _lines(section: BaseModel, indent: str) -> Iterator[str]:
    docs = option_docs(type(section))
    for name in type(section).model_fields:
        value = getattr(section, name)
        own = _first_sentence(type(value)) if isinstance(value, BaseModel) else ""
        yield from _comment(docs.get(name, own), indent)
        if isinstance(value, BaseModel):
            yield f"{indent}{name}:"
            yield from _lines(value, indent + "  ")
        else:
            yield f"{indent}{name}: {_written(value)}"


def _comment(text: str, indent: str) -> list[str]:
    return textwrap.wrap(
        text, WIDTH, initial_indent=f"{indent}# ", subsequent_indent=f"{indent}# ", break_on_hyphens=False
    )


def _written(value: Any) -> str:
    """Return a plain value as JSON, which is valid YAML."""
    return json.dumps(value, ensure_ascii=False)


def _first_sentence(kind: type[BaseModel]) -> str:
    return " ".join((kind.__doc__ or "").split("\n\n")[0].split())


def _docs_in_source(kind: type[BaseModel]) -> Mapping[str, str]:
    return _docs_in_module(kind.__module__).get(kind.__qualname__, {})


@cache
def _docs_in_module(name: str) -> Mapping[str, Mapping[str, str]]:
    """Return the docs of the fields of each class of a module; none of one without a source file."""
    try:
        tree = _parsed(inspect.getsource(sys.modules[name]))
    except (OSError, TypeError):
        return {}
    return {path: dict(_docs(definition)) for path, definition in _classes(tree, "")}


def _parsed(source: str) -> ast.Module:
    """Parse without collecting garbage: a finalizer that parses too makes `ast.parse` raise SystemError (gh-106905)."""
    collects = gc.isenabled()
    gc.disable()
    try:
        return ast.parse(source)
    finally:
        if collects:
            gc.enable()


def _classes(node: ast.AST, prefix: str) -> Iterator[tuple[str, ast.ClassDef]]:
    """Yield the classes within a node by their qualified names."""
    for child in ast.iter_child_nodes(node):
        inner = prefix
        if isinstance(child, ast.ClassDef):
            yield f"{prefix}{child.name}", child
            inner = f"{prefix}{child.name}."
        elif isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef):
            inner = f"{prefix}{child.name}.<locals>."
        if isinstance(child, ast.stmt):
            yield from _classes(child, inner)


def _docs(definition: ast.ClassDef) -> Iterator[tuple[str, str]]:
    for field, text in zip(definition.body, definition.body[1:], strict=False):
        if (
            isinstance(field, ast.AnnAssign)
            and isinstance(field.target, ast.Name)
            and isinstance(text, ast.Expr)
            and isinstance(text.value, ast.Constant)
            and isinstance(text.value.value, str)
        ):
            yield field.target.id, " ".join(text.value.value.split())


_BOUNDS = {"gt": "> ", "ge": ">= ", "lt": "< ", "le": "<= "}
"""Notation of each kind of bound."""
_NAMES: dict[Any, str] = {
    str: "text",
    int: "whole number",
    float: "number",
    bool: "true or false",
    type(None): "null",
    Any: "anything",
}


def configuration_page(note: str) -> str:
    """Return the sections of both loops as Markdown tables.

    Args:
        note: a sentence on how the page is made.
    """
    loops: dict[str, type[BaseModel]] = {"refrl grpo": GRPORunConfig, "refrl sft": SFTRunConfig}
    lines = [
        "# Configuration",
        "",
        f"Every option of `refrl grpo` and `refrl sft`. {note} A configuration is a YAML file, or the name of a",
        "recipe (`refrl recipes`); `section.option=value` on the command line replaces what the file says. An option",
        "that is not listed is refused, with the nearest name. `refrl grpo --config NAME --print-config` prints a",
        "whole configuration with these docs in it. How options work together: [refrl](../use/refrl.md),",
        "[own data](../use/own_data.md).",
    ]
    for section, readers in _readers(loops).items():
        schema = _schema_of(section, loops)
        lines += [
            "",
            f"## {section}",
            "",
            f"{_doc(schema)} Read by {' and '.join(f'`{name}`' for name in readers)}.",
        ]
        lines += ["", "| option | value | default | meaning |", "|---|---|---|---|", *_rows(schema, section)]
    return "\n".join(lines) + "\n"


def _readers(loops: dict[str, type[BaseModel]]) -> dict[str, list[str]]:
    """Return the sections, and which commands read each: those of one command first."""
    readers: dict[str, list[str]] = {}
    for command, schema in loops.items():
        for section in schema.model_fields:
            readers.setdefault(section, []).append(command)
    return dict(sorted(readers.items(), key=lambda held: len(held[1])))


def _schema_of(section: str, loops: dict[str, type[BaseModel]]) -> type[BaseModel]:
    (field,) = [schema.model_fields[section] for schema in loops.values() if section in schema.model_fields][
        :1
    ]
    found = field.annotation
    assert isinstance(found, type) and issubclass(found, BaseModel)
    return found


def _rows(schema: type[BaseModel], path: str) -> Iterator[str]:
    """Yield a row for each option, those of nested sections included."""
    docs = option_docs(schema)
    for name, field in schema.model_fields.items():
        if isinstance(field.annotation, type) and issubclass(field.annotation, BaseModel):
            yield from _rows(field.annotation, f"{path}.{name}")
        else:
            meaning = docs.get(name, "").replace("|", "\\|")
            yield f"| `{path}.{name}` | {_value(field)} | {_default(field)} | {meaning} |"


def _value(field: FieldInfo) -> str:
    bounds = [f"{sign}{getattr(held, name):g}" for held in field.metadata for name, sign in _BOUNDS.items()
              if getattr(held, name, None) is not None]  # fmt: skip
    return ", ".join([_type(field.annotation), *bounds])


def _type(annotation: Any) -> str:
    """Return a type in words."""
    if annotation in _NAMES:
        return _NAMES[annotation]
    origin, inner = typing.get_origin(annotation), typing.get_args(annotation)
    if origin is Literal:
        return " or ".join(f"`{word}`" for word in inner)
    if origin in (typing.Union, types.UnionType):
        return " or ".join(_type(part) for part in inner)
    if origin is typing.Annotated:
        return _type(inner[0])
    if origin is tuple and inner[-1] is not Ellipsis:
        return f"list of {len(inner)}: {_type(inner[0])}"
    if origin is tuple:
        return f"list: {_type(inner[0])}"
    if origin is dict:
        return f"mapping of names: {_type(inner[1])}"
    raise TypeError(f"no words for the type {annotation}")


def _default(field: FieldInfo) -> str:
    if field.is_required():
        return "required"
    return f"`{json.dumps(field.get_default(call_default_factory=True), ensure_ascii=False)}`"


def _doc(schema: type[BaseModel]) -> str:
    return " ".join((schema.__doc__ or "").split("\n\n")[0].split())
