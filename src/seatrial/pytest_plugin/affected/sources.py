"""A Python file as tests depend on it: its code without comments and layout, what it imports, its parts.

Of a test module or `conftest.py` the parts are tests and fixtures: a test function belongs to that test alone, a
fixture to the tests that use it. Of any other file they are its functions, which belong to the tests that ran them.
Everything else is the *rest*: of a test module all of its tests share it, of another file all that import it.
"""

from __future__ import annotations

import ast
import functools
import hashlib
import re
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from seatrial.pytest_plugin.affected.compilers import may_be_compiled
from seatrial.pytest_plugin.affected.functions import (
    FunctionNode,
    Keepers,
    docstrings,
    dump,
    functions,
    keepers,
    skeleton,
)
from seatrial.pytest_plugin.affected.import_statements import Import, imports_in
from seatrial.pytest_plugin.affected.parsing import CANNOT_PARSE, parse

REST = ""
"""Name of the part that is left when tests and fixtures, or the bodies of functions, are taken out."""
DOCS = "#docstrings"
"""Name of the part that holds the docstrings of functions, for those that read them."""
_DOTTED = re.compile(r"""(["'])([A-Za-z_]\w*(?:\.[A-Za-z_]\w*)+)(?::[A-Za-z_]\w*)?\1""")
"""A quoted text that could name a module: for `importlib`, `python -m`, `monkeypatch.setattr`, entry points."""
FIXTURES = "#fixtures"
"""Name of the part that says which fixtures a test module or `conftest.py` has, for tests that ask by a made name."""
_TEST_NAME = re.compile(r"\btest\w*")
_TEST_DEFINITION = re.compile(r"\bdef\s+(test\w*)")
_DOC_READERS = re.compile(rb"\b(__doc__|getdoc|get_json_schema|docstring_parser|pydoc|doctest)\b")


NO_KEEPERS = Keepers(frozenset(), any_suspended=False)
_keepers: dict[str, Keepers] = {}


@dataclass(frozen=True)
class Part:
    """Code with one fingerprint."""

    fingerprint: str
    imports: tuple[Import, ...]


@dataclass(frozen=True)
class Source:
    """One Python file."""

    raw: str
    """Digest of its bytes."""
    whole: Part
    parts: dict[str, Part]
    """The rest, and each test, fixture or function by qualified name."""
    runs_unseen: bool = False
    """Whether functions that it calls may run without being seen: it compiles them, or reads their text."""
    reads_docstrings: bool = False

    def part(self, name: str) -> Part | None:
        """Return one part; of a file that does not parse the rest is everything."""
        return self.parts.get(name, self.whole if name == REST else None)


_compiled: dict[str, Source] = {}
"""Files that were read when they were compiled, by the digest of their bytes."""


@functools.cache
def splits(path: str) -> bool:
    """Return whether a file's tests and fixtures are told apart, and not its functions."""
    name = path.rpartition("/")[2]
    return name == "conftest.py" or name.startswith("test") or name.endswith("_test.py")


def digest(data: bytes) -> str:
    """Return the digest used for all contents."""
    return hashlib.blake2b(data, digest_size=10).hexdigest()


def read_source(content: bytes, *, split: bool) -> Source:
    """Read a Python file; one that does not parse counts by its bytes, without imports.

    Args:
        content: the file's bytes.
        split: whether to take it apart into tests, fixtures and the rest; else into functions and the rest.
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
    """Keep what a file that is being compiled says, for those that ask later: it need not be parsed again."""
    raw = digest(content)
    _compiled[raw] = _source_of(content, raw, tree, split=False)


def _source_of(content: bytes, raw: str, tree: ast.Module, *, split: bool) -> Source:
    lines = content.decode(errors="replace").splitlines()
    parts = _parts(tree, lines) if split else _function_parts(tree, lines)
    kept = NO_KEEPERS if split else keepers_of(raw, tree)
    return Source(
        raw,
        _joined(parts),
        parts,
        runs_unseen=may_be_compiled(content) or kept.any_suspended,
        reads_docstrings=_DOC_READERS.search(content) is not None,
    )


def keepers_of(raw: str, tree: ast.Module) -> Keepers:
    """Return the functions of a file that keep something; the file is looked through once.

    Args:
        raw: digest of its bytes.
        tree: its syntax tree.
    """
    found = _keepers.get(raw)
    if found is None:
        found = _keepers[raw] = keepers(tree)
    return found


def _joined(parts: dict[str, Part]) -> Part:
    fingerprint = digest(
        "\n".join(f"{name} {part.fingerprint}" for name, part in sorted(parts.items())).encode()
    )
    return Part(fingerprint, tuple(dict.fromkeys(one for part in parts.values() for one in part.imports)))


def _function_parts(tree: ast.Module, lines: list[str]) -> dict[str, Part]:
    nodes: dict[str, list[ast.stmt]] = {}
    texts: dict[str, list[str]] = {}
    for name, node in functions(tree.body):
        nodes.setdefault(name, []).extend(node.body)
        first, last = node.body[0].lineno - 1, node.end_lineno or node.lineno
        texts.setdefault(name, []).extend(lines[first:last])
        lines[first:last] = [""] * (last - first)
    parts = {name: _part(body, "\n".join(texts[name])) for name, body in nodes.items()}
    parts[REST] = _part(skeleton(tree.body), "\n".join(lines))
    parts[DOCS] = Part(digest("\0".join(docstrings(tree.body)).encode(errors="surrogatepass")), ())
    return parts


def _part(nodes: Sequence[ast.AST], text: str) -> Part:
    named = {match[2] for match in _DOTTED.finditer(text)}
    imports = [*imports_in(nodes), *(Import(0, name, (), False) for name in sorted(named))]
    return Part(_fingerprint(nodes), tuple(imports))


def _parts(tree: ast.Module, lines: list[str]) -> dict[str, Part]:
    mentioned = _mentioned_names("\n".join(lines))
    taken: dict[str, list[ast.stmt]] = {}
    rest: list[ast.stmt] = []
    for node in tree.body:
        if isinstance(node, FunctionNode) and _stands_alone(node, mentioned):
            taken.setdefault(node.name, []).append(node)
        elif isinstance(node, ast.ClassDef):
            rest.append(_without_tests(node, taken, mentioned))
        else:
            rest.append(node)
    parts = {}
    for name, nodes in taken.items():
        texts = []
        for node in nodes:
            first, last = _lines_of(node)
            texts += lines[first:last]
            # What is the test's is not the rest's; empty lines keep the numbers of the others.
            lines[first:last] = [""] * (last - first)
        parts[name] = _part(nodes, "\n".join(texts))
    parts[REST] = _part(rest, "\n".join(lines))
    fixtures = [
        f"{n} {dump(d)}" for n, node in functions(tree.body) for d in node.decorator_list if _is_fixture(d)
    ]
    parts[FIXTURES] = Part(digest("\n".join(sorted(fixtures)).encode()), ())
    return parts


def _lines_of(node: ast.stmt) -> tuple[int, int]:
    """Return the first line, decorators included, and the one behind the last, from 0."""
    decorators: list[ast.expr] = getattr(node, "decorator_list", [])
    first = min([node.lineno, *(decorator.lineno for decorator in decorators)])
    return first - 1, node.end_lineno or node.lineno


def _without_tests(
    node: ast.ClassDef, taken: dict[str, list[ast.stmt]], mentioned: frozenset[str]
) -> ast.ClassDef:
    kept: list[ast.stmt] = []
    for child in node.body:
        if isinstance(child, FunctionNode) and _stands_alone(child, mentioned):
            taken.setdefault(f"{node.name}.{child.name}", []).append(child)
        else:
            kept.append(child)
    return ast.ClassDef(
        name=node.name,
        bases=node.bases,
        keywords=node.keywords,
        body=kept or [ast.Pass()],
        decorator_list=node.decorator_list,
    )


def _stands_alone(node: FunctionNode, mentioned: frozenset[str]) -> bool:
    """Return whether pytest alone calls this function: a fixture, or a test that nothing else names."""
    if any(_is_fixture(decorator) for decorator in node.decorator_list):
        return True
    return node.name.startswith("test") and node.name not in mentioned


def _is_fixture(decorator: ast.expr) -> bool:
    target = decorator.func if isinstance(decorator, ast.Call) else decorator
    name = target.attr if isinstance(target, ast.Attribute) else getattr(target, "id", "")
    return name == "fixture"


def _mentioned_names(text: str) -> frozenset[str]:
    """Return the names of tests that stand somewhere else than where the test is defined."""
    counts = Counter(_TEST_NAME.findall(text))
    counts.subtract(_TEST_DEFINITION.findall(text))
    return frozenset(name for name, count in counts.items() if count > 0)


def _fingerprint(nodes: Iterable[ast.AST]) -> str:
    """Return a digest of the syntax tree: comments, layout and line numbers do not count."""
    return digest("\n".join(dump(node) for node in nodes).encode(errors="surrogatepass"))
