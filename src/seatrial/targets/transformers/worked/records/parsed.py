"""Constants, defaults of arguments and attributes of classes in the text of Transformers' modules, not imported."""

from __future__ import annotations

import ast
from collections.abc import Sequence
from functools import cache
from pathlib import Path

from seatrial.relations.not_served import NotServed
from seatrial.targets.transformers.worked.every_class import crc


def constants_of(place: str) -> int:
    """Return a checksum of what the text of a module assigns to names, but words that are documentation."""
    found = assigned(text_of(place).body)
    if not found:
        raise NotServed("no constants")
    return crc(found)


def defaults_of(place: str) -> list[int]:
    """Return checksums of defaults of arguments in a module, without None, and of attributes of its classes."""
    arguments: dict[str, str] = {}
    attributes: dict[str, str] = {}
    for node in ast.walk(text_of(place)):
        if isinstance(node, ast.ClassDef):
            attributes |= {f"{node.name}.{name}": value for name, value in assigned(node.body).items()}
            for one in node.body:
                if isinstance(one, ast.FunctionDef):
                    arguments |= _arguments(f"{node.name}.{one.name}", one.args)
    for node in text_of(place).body:
        if isinstance(node, ast.FunctionDef):
            arguments |= _arguments(node.name, node.args)
    if not arguments and not attributes:
        raise NotServed("no defaults")
    return [crc(arguments), crc(attributes)]


@cache
def text_of(place: str) -> ast.Module:
    """Return the parsed text of a module, which is not imported."""
    import transformers

    path = Path(str(transformers.__file__)).parent.joinpath(*place.split(".")[1:]).with_suffix(".py")
    return ast.parse(path.read_text(encoding="utf-8"))


def assigned(body: Sequence[ast.stmt]) -> dict[str, str]:
    """Return the text of each value that statements assign to a name, but words that are documentation."""
    found: dict[str, str] = {}
    for node in body:
        if isinstance(node, ast.Assign | ast.AnnAssign) and node.value is not None:
            targets = node.targets if isinstance(node, ast.Assign) else [node.target]
            names = [
                one.id for one in targets if isinstance(one, ast.Name) and one.id not in ("logger", "__all__")
            ]
            found |= {
                name: ast.unparse(node.value) for name in names if not name.endswith(("DOCSTRING", "_DOC"))
            }
    return found


def _arguments(name: str, given: ast.arguments) -> dict[str, str]:
    places = [*given.posonlyargs, *given.args]
    pairs = [*zip(places[len(places) - len(given.defaults) :], given.defaults, strict=True),
             *zip(given.kwonlyargs, given.kw_defaults, strict=True)]  # fmt: skip
    found = {one.arg: ast.unparse(value) for one, value in pairs if value is not None}
    return {f"{name} {one}": value for one, value in found.items() if value != "None"}
