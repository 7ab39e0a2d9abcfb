"""A Python file as tests depend on it: its code without comments and layout, what it imports, its parts.

Test modules and `conftest.py` are taken apart: a test function belongs to that test alone, a fixture to the
tests that use it; everything else of the file is its *rest*, which all of its tests share.
"""

from __future__ import annotations

import ast
import hashlib
import re
import warnings
from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple

REST = ""
"""Name of the part that is left when tests and fixtures are taken out."""
_DOTTED = re.compile(r"""(["'])([A-Za-z_]\w*(?:\.[A-Za-z_]\w*)+)(?::[A-Za-z_]\w*)?\1""")
"""A quoted text that could name a module: for `importlib`, `python -m`, `monkeypatch.setattr`, entry points."""
_BLOCKS = ("body", "orelse", "finalbody", "handlers", "cases")
"""Where statements hold statements."""
_FunctionNode = ast.FunctionDef | ast.AsyncFunctionDef


class Import(NamedTuple):
    """One import statement, or a text that names a module."""

    level: int
    """Leading dots of a relative import."""
    module: str
    names: tuple[str, ...]
    """What is imported from it; each may be a module too. Empty for `import module`."""
    certain: bool
    """False for a text that only looks like a module's name."""


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
    """The rest and each test or fixture, by qualified name; empty unless it was asked for."""

    def part(self, name: str) -> Part | None:
        """Return one part; of a file that was not taken apart the rest is everything."""
        return self.parts.get(name, self.whole if name == REST else None)


def digest(data: bytes) -> str:
    """Return the digest used for all contents."""
    return hashlib.blake2b(data, digest_size=10).hexdigest()


def read_source(content: bytes, *, split: bool) -> Source:
    """Read a Python file; one that does not parse counts by its bytes, without imports.

    Args:
        content: the file's bytes.
        split: whether to take it apart into tests, fixtures and the rest.
    """
    raw = digest(content)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            tree = ast.parse(content)
            lines = content.decode(errors="replace").splitlines()
            whole = _part(tree.body, "\n".join(lines))
            return Source(raw, whole, _parts(tree, lines) if split else {})
    except (SyntaxError, ValueError, RecursionError):
        broken = Part(raw, ())
        return Source(raw, broken, {REST: broken} if split else {})


def _part(nodes: list[ast.stmt], text: str) -> Part:
    named = {match[2] for match in _DOTTED.finditer(text)}
    imports = [*_imports(nodes), *(Import(0, name, (), False) for name in sorted(named))]
    return Part(_fingerprint(nodes), tuple(imports))


def _parts(tree: ast.Module, lines: list[str]) -> dict[str, Part]:
    mentioned = _mentioned_names(tree)
    taken: dict[str, list[ast.stmt]] = {}
    rest: list[ast.stmt] = []
    for node in tree.body:
        if isinstance(node, _FunctionNode) and _stands_alone(node, mentioned):
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
        if isinstance(child, _FunctionNode) and _stands_alone(child, mentioned):
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


def _stands_alone(node: _FunctionNode, mentioned: frozenset[str]) -> bool:
    """Return whether pytest alone calls this function: a fixture, or a test that nothing else names."""
    if any(_is_fixture(decorator) for decorator in node.decorator_list):
        return True
    return node.name.startswith("test") and node.name not in mentioned


def _is_fixture(decorator: ast.expr) -> bool:
    target = decorator.func if isinstance(decorator, ast.Call) else decorator
    name = target.attr if isinstance(target, ast.Attribute) else getattr(target, "id", "")
    return name == "fixture"


def _mentioned_names(tree: ast.Module) -> frozenset[str]:
    names = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Name):
            names.add(node.id)
        elif isinstance(node, ast.Attribute):
            names.add(node.attr)
    return frozenset(names)


def _imports(nodes: list[ast.stmt]) -> Iterator[Import]:
    """Find imports in statements of any depth, also inside functions; not those for type checkers alone."""
    waiting: list[ast.AST] = list(nodes)
    while waiting:
        node = waiting.pop()
        if isinstance(node, ast.Import):
            for alias in node.names:
                yield Import(0, alias.name, (), True)
        elif isinstance(node, ast.ImportFrom):
            yield Import(node.level, node.module or "", tuple(alias.name for alias in node.names), True)
        elif isinstance(node, ast.Assign):
            yield from _plugin_names(node)
        elif isinstance(node, ast.If) and _is_type_checking(node.test):
            waiting.extend(node.orelse)
        else:
            for field in _BLOCKS:
                waiting.extend(getattr(node, field, ()))


def _plugin_names(node: ast.Assign) -> Iterator[Import]:
    """Read `pytest_plugins = [...]`, whose names need no dot."""
    if any(isinstance(target, ast.Name) and target.id == "pytest_plugins" for target in node.targets):
        for child in ast.walk(node.value):
            if isinstance(child, ast.Constant) and isinstance(child.value, str):
                yield Import(0, child.value, (), False)


def _is_type_checking(test: ast.expr) -> bool:
    name = test.attr if isinstance(test, ast.Attribute) else getattr(test, "id", "")
    return name == "TYPE_CHECKING"


def _fingerprint(nodes: list[ast.stmt]) -> str:
    """Return a digest of the syntax tree: comments, layout and line numbers do not count."""
    return digest("\n".join(ast.dump(node) for node in nodes).encode(errors="surrogatepass"))
