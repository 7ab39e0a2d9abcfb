"""A Python file as a dependency: its code without comments and layout, its imports, its parts.

The parts of a test module or `conftest.py` are tests, fixtures and helpers (`modules_of_tests`). The parts of any other
file are its functions, on which the tests that ran them depend, and the rest, on which all importers depend.
"""

from __future__ import annotations

import ast
import functools
import re
from dataclasses import dataclass
from typing import Final

from seatrial.pytest_plugin.affected.compilers import may_be_compiled
from seatrial.pytest_plugin.affected.functions import docstrings, functions, skeleton
from seatrial.pytest_plugin.affected.keepers import Keepers, keepers
from seatrial.pytest_plugin.affected.modules_of_tests import parts_of_tests
from seatrial.pytest_plugin.affected.parsing import CANNOT_PARSE, parse
from seatrial.pytest_plugin.affected.parts import REST, Part, digest, joined, part_of

DOCS: Final = "#docstrings"
"""Name of the part with the docstrings of functions, for code that reads them."""
_DOC_READERS = re.compile(rb"\b(__doc__|getdoc|get_json_schema|docstring_parser|pydoc|doctest)\b")


NO_KEEPERS = Keepers(frozenset(), frozenset())
_keepers: dict[str, Keepers] = {}


@dataclass(frozen=True)
class Source:
    """One Python file."""

    raw: str
    """Digest of its bytes."""
    whole: Part
    parts: dict[str, Part]
    """The rest, and each test, fixture or function by qualified name."""
    runs_unseen: bool = False
    """Whether calls of its functions may be invisible, because it compiles functions or reads their source."""
    reads_docstrings: bool = False

    def part(self, name: str) -> Part | None:
        """Return one part; the rest of a file that cannot be parsed is the whole file."""
        return self.parts.get(name, self.whole if name == REST else None)


_compiled: dict[str, Source] = {}
"""Files that were read when they were compiled, by the digest of their bytes."""


@functools.cache
def splits(path: str) -> bool:
    """Return whether a file is split into tests and fixtures instead of functions."""
    name = path.rpartition("/")[2]
    return name == "conftest.py" or name.startswith("test") or name.endswith("_test.py")


def read_source(content: bytes, *, split: bool) -> Source:
    """Read a Python file; one that cannot be parsed is represented by its bytes, without imports.

    Args:
        content: the file's bytes.
        split: whether to split it into tests, fixtures and the rest; otherwise into functions and the rest.
    """
    raw = digest(content)
    found = None if split else _compiled.get(raw)
    if found is not None:
        return found
    try:
        return _source_of(content, raw, parse(content), split=split)
    except CANNOT_PARSE:
        broken = Part(raw, ())
        return Source(raw, broken, {REST: broken} if split else {})


def read_compiled(content: bytes, tree: ast.Module) -> None:
    """Cache the parts of a file that is being compiled, so that it need not be parsed again."""
    raw = digest(content)
    _compiled[raw] = _source_of(content, raw, tree, split=False)


def _source_of(content: bytes, raw: str, tree: ast.Module, *, split: bool) -> Source:
    lines = content.decode(errors="replace").splitlines()
    parts = parts_of_tests(tree, lines, content) if split else _function_parts(tree, lines)
    kept = NO_KEEPERS if split else keepers_of(raw, tree)
    return Source(
        raw,
        joined(parts),
        parts,
        runs_unseen=may_be_compiled(content) or bool(kept.suspended),
        reads_docstrings=_DOC_READERS.search(content) is not None,
    )


def keepers_of(raw: str, tree: ast.Module) -> Keepers:
    """Return the functions of a file that keep a result; each file is analysed once.

    Args:
        raw: digest of its bytes.
        tree: its syntax tree.
    """
    found = _keepers.get(raw)
    if found is None:
        found = _keepers[raw] = keepers(tree)
    return found


def _function_parts(tree: ast.Module, lines: list[str]) -> dict[str, Part]:
    nodes: dict[str, list[ast.stmt]] = {}
    texts: dict[str, list[str]] = {}
    for name, node in functions(tree.body):
        nodes.setdefault(name, []).extend(node.body)
        first, last = node.body[0].lineno - 1, node.end_lineno or node.lineno
        texts.setdefault(name, []).extend(lines[first:last])
        lines[first:last] = [""] * (last - first)
    parts = {name: part_of(body, "\n".join(texts[name])) for name, body in nodes.items()}
    parts[REST] = part_of(skeleton(tree.body), "\n".join(lines))
    parts[DOCS] = Part(digest("\0".join(docstrings(tree.body)).encode(errors="surrogatepass")), ())
    return parts
