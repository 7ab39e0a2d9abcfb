"""A configuration as YAML, with the doc of each option above it."""

from __future__ import annotations

import ast
import inspect
import json
import textwrap
from collections.abc import Iterator
from typing import Any

from pydantic import BaseModel

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


def _docs_in_source(kind: type[BaseModel]) -> dict[str, str]:
    try:
        source = textwrap.dedent(inspect.getsource(kind))
    except (OSError, TypeError):  # a class without a source file has no docs to show
        return {}
    (definition,) = ast.parse(source).body
    docs: dict[str, str] = {}
    if not isinstance(definition, ast.ClassDef):
        return docs
    for field, text in zip(definition.body, definition.body[1:], strict=False):
        if (
            isinstance(field, ast.AnnAssign)
            and isinstance(field.target, ast.Name)
            and isinstance(text, ast.Expr)
            and isinstance(text.value, ast.Constant)
            and isinstance(text.value.value, str)
        ):
            docs[field.target.id] = " ".join(text.value.value.split())
    return docs
