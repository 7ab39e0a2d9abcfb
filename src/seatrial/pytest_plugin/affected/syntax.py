"""The syntax of a Python file: its functions, its skeleton without their bodies, its imports, and parts of it.

A function's name is its name at module or class level (`decode`, `Field.load`); definitions inside a function belong
to that function. The skeleton is the code that runs on import.
"""

from __future__ import annotations

import ast
import copy
import hashlib
import re
import warnings
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Final, NamedTuple

FunctionNode = ast.FunctionDef | ast.AsyncFunctionDef
STATEMENT_FIELDS = ("body", "orelse", "finalbody", "handlers", "cases")
"""Fields of statements that contain statements."""
_UNREAD_FIELDS = frozenset(("ctx", "kind", "type_comment", "type_ignores"))
"""Fields without meaning beyond the node's position, or without meaning to Python."""
_FIELDS: dict[type, tuple[str, ...]] = {}
_AST, _NAME = ast.AST, ast.Name


def fields_of(kind: type[ast.AST]) -> tuple[str, ...]:
    """Return the fields of a kind of node that determine its behaviour."""
    found = _FIELDS.get(kind)
    if found is None:
        found = _FIELDS[kind] = tuple(name for name in kind._fields if name not in _UNREAD_FIELDS)
    return found


def walk(node: ast.AST) -> list[ast.AST]:
    """Return a node and all its descendants in no particular order; twice as fast as `ast.walk`, without contexts."""
    found = [node]
    for one in found:
        held = one.__dict__
        for name in _FIELDS.get(one.__class__) or fields_of(one.__class__):
            value = held.get(name)
            if value.__class__ is list:
                found += [child for child in value if isinstance(child, ast.AST)]
            elif isinstance(value, ast.AST):
                found.append(value)
    return found


def dump(node: ast.AST) -> str:
    """Return the text of a syntax tree, without comments, layout and line numbers."""
    pieces: list[str] = []
    _dump(node, pieces.append)
    return " ".join(pieces)


def _dump(node: ast.AST, add: Callable[[str], None]) -> None:
    kind = node.__class__
    add(kind.__name__)
    held = node.__dict__
    for name in _FIELDS.get(kind) or fields_of(kind):
        value: Any = held.get(name)
        held_kind = value.__class__
        if held_kind is list:
            add("[")
            for child in value:
                if isinstance(child, _AST):
                    _dump(child, add)
                else:
                    add(repr(child))
            add("]")
        elif held_kind is _NAME:  # a third of all nodes
            add("Name")
            add(repr(value.id))
        elif held_kind is not str and isinstance(value, _AST):
            _dump(value, add)
        else:
            add(repr(value))


def functions(body: Iterable[ast.stmt], prefix: str = "") -> Iterator[tuple[str, FunctionNode]]:
    """Yield the functions at module and class level with their names; a name may occur twice."""
    for node in body:
        if isinstance(node, FunctionNode):
            yield prefix + node.name, node
        elif isinstance(node, ast.ClassDef):
            yield from functions(node.body, f"{prefix}{node.name}.")
        else:
            yield from functions(_statements_in(node), prefix)


def definitions_in(node: FunctionNode) -> list[FunctionNode]:
    """Return a function and all functions defined inside it."""
    found: list[ast.AST] = [node]
    for one in found:
        for field in STATEMENT_FIELDS:
            found += getattr(one, field, ())
    return [one for one in found if isinstance(one, FunctionNode)]


def _statements_in(node: ast.AST) -> Iterator[ast.stmt]:
    for field in STATEMENT_FIELDS:
        for child in getattr(node, field, ()):
            if isinstance(child, ast.stmt):
                yield child
            else:  # an exception handler, a case
                yield from _statements_in(child)


def skeleton(body: Iterable[ast.AST]) -> list[ast.AST]:
    """Return statements without the bodies of functions; names, decorators, signatures and classes stay.

    The docstring of a decorated function stays too, because the decorator may read it.
    """
    return [_without_bodies(node) for node in body]


def _without_bodies(node: ast.AST) -> ast.AST:
    if isinstance(node, FunctionNode):
        bare = copy.copy(node)
        bare.body = node.body[:1] if node.decorator_list and ast.get_docstring(node, clean=False) else []
        return bare
    if not any(getattr(node, field, None) for field in STATEMENT_FIELDS) or isinstance(node, ast.expr):
        return node
    bare_node = copy.copy(node)
    for field in STATEMENT_FIELDS:
        children = getattr(node, field, None)
        if children:
            setattr(bare_node, field, [_without_bodies(child) for child in children])
    return bare_node


def docstrings(body: Iterable[ast.stmt]) -> list[str]:
    """Return the docstrings of all functions."""
    return [ast.get_docstring(node, clean=False) or "" for _, node in functions(body)]


class Import(NamedTuple):
    """One import statement, or a string that names a module."""

    level: int
    """Leading dots of a relative import."""
    module: str
    names: tuple[str, ...]
    """The imported names; each may be a module too. Empty for `import module`."""
    certain: bool
    """False for a string that only looks like a module's name."""


def imports_in(nodes: Iterable[ast.AST]) -> Iterator[Import]:
    """Yield the imports at any depth, also inside functions, except those for type checkers only."""
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
            for field in STATEMENT_FIELDS:
                waiting.extend(getattr(node, field, ()))


def _plugin_names(node: ast.Assign) -> Iterator[Import]:
    """Yield the modules in `pytest_plugins = [...]`, whose names need no dot."""
    if any(isinstance(target, ast.Name) and target.id == "pytest_plugins" for target in node.targets):
        for child in ast.walk(node.value):
            if isinstance(child, ast.Constant) and isinstance(child.value, str):
                yield Import(0, child.value, (), False)


def _is_type_checking(test: ast.expr) -> bool:
    name = test.attr if isinstance(test, ast.Attribute) else getattr(test, "id", "")
    return name == "TYPE_CHECKING"


CANNOT_PARSE = (SyntaxError, ValueError, RecursionError)
"""Exceptions that `parse` raises."""


def parse(content: bytes, filename: str = "<unknown>") -> ast.Module:
    """Parse a file and suppress its warnings.

    Raises:
        SyntaxError: it is not Python.
        ValueError: it contains null bytes.
        RecursionError: it is nested too deeply.
    """
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return ast.parse(content, filename)


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


_OF_BYTECODE = rb"torch\.compile|torch_compile|torch import\b[^\n]*\bcompile|_dynamo|numba|njit"
_BYTECODE_COMPILERS = re.compile(rb"\b(" + _OF_BYTECODE + rb")\b")
_MARKS = (b"compile", b"_dynamo", b"numba", b"njit", b"torch.jit", b"triton", b"jax.jit", b"getsource")
"""Each match of the patterns contains one of these; searching for them first is ten times as fast."""
_COMPILERS = re.compile(rb"\b(" + _OF_BYTECODE + rb"|torch\.jit|triton|jax\.jit|getsource|getsourcelines)\b")
"""Tools that run a function in another form than Python's, or read its source: its calls are not visible."""


def may_be_compiled(content: bytes) -> bool:
    """Return whether a file names a tool that runs functions in another form, or reads their source."""
    return _has_mark(content) and _COMPILERS.search(content) is not None


def compiles_bytecode(content: bytes) -> bool:
    """Return whether a file's code names a compiler of bytecode, which would see the probes in it.

    Tools that read a function's source (`torch.jit`, `triton`) or run it (`jax.jit`) do not see them. Comments and bare
    strings, such as docstrings, are not code.
    """
    if not _has_mark(content) or _BYTECODE_COMPILERS.search(content) is None:
        return False
    try:
        tree = parse(content)
    except CANNOT_PARSE:
        return True
    for node in walk(tree):
        for field in STATEMENT_FIELDS:
            held = getattr(node, field, None)
            if isinstance(held, list) and held:
                held[:] = [child for child in held if not _is_bare_string(child)] or [ast.Pass()]
    code = ast.unparse(ast.fix_missing_locations(tree))
    return _BYTECODE_COMPILERS.search(code.encode(errors="replace")) is not None


def _has_mark(content: bytes) -> bool:
    return any(mark in content for mark in _MARKS)


def _is_bare_string(node: ast.AST) -> bool:
    return (
        isinstance(node, ast.Expr)
        and isinstance(node.value, ast.Constant)
        and isinstance(node.value.value, str)
    )
