"""A part of a Python file: some of its code, with a fingerprint and its imports."""

from __future__ import annotations

import ast
import hashlib
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final

from seatrial.pytest_plugin.affected.functions import dump
from seatrial.pytest_plugin.affected.import_statements import Import, imports_in

REST: Final = ""
"""Name of the part that remains without tests and fixtures, or without function bodies."""
_DOTTED = re.compile(r"""(["'])([A-Za-z_]\w*(?:\.[A-Za-z_]\w*)+)(?::[A-Za-z_]\w*)?\1""")
"""A string that could name a module: for `importlib`, `python -m`, `monkeypatch.setattr`, entry points."""


@dataclass(frozen=True)
class Part:
    """Code with a fingerprint and imports."""

    fingerprint: str
    imports: tuple[Import, ...]


def digest(data: bytes) -> str:
    """Return the digest that is used for all content."""
    return hashlib.blake2b(data, digest_size=10).hexdigest()


def part_of(nodes: Sequence[ast.AST], text: str, dumped: Callable[[ast.AST], str] = dump) -> Part:
    """Return some code as a part.

    Args:
        nodes: its syntax trees; comments, layout and line numbers do not count.
        text: its source.
        dumped: returns the text of a tree.
    """
    named = {match[2] for match in _DOTTED.finditer(text)}
    imports = [*imports_in(nodes), *(Import(0, name, (), False) for name in sorted(named))]
    trees = "\n".join(map(dumped, nodes))
    return Part(digest(trees.encode(errors="surrogatepass")), tuple(imports))


def joined(parts: dict[str, Part]) -> Part:
    """Return several parts combined."""
    fingerprint = digest(
        "\n".join(f"{name} {part.fingerprint}" for name, part in sorted(parts.items())).encode()
    )
    return Part(fingerprint, tuple(dict.fromkeys(one for part in parts.values() for one in part.imports)))
