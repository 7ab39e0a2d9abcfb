"""Finds functions that keep a result beyond their call, as far as their source shows."""

from __future__ import annotations

import ast
from collections import defaultdict
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

from seatrial.pytest_plugin.affected.syntax import FunctionNode, functions, walk

_CACHE_WORDS = ("cache", "memo", "once", "singleton")
_MUTATORS = frozenset(("append", "add", "update", "setdefault", "extend", "insert", "push", "register"))
_FILLING = (ast.Attribute, ast.Subscript, ast.Call)
_CONSTRUCTORS = frozenset(
    ("__init__", "__new__", "__post_init__", "__enter__", "__setattr__", "__set_name__")
)


class Keepers(NamedTuple):
    """The functions of a file that keep a result.

    Such a function runs for the first test that needs it, and later tests use what it kept: a decorator caches it, it
    assigns or fills a variable of a module or class, or it fills an attribute of its object, or a table in one, on
    demand.
    """

    names: frozenset[str]
    """Those that run from start to end without a pause."""
    suspended: frozenset[str]
    """Generators and coroutines among them: other functions run between their steps."""


def keepers(tree: ast.Module) -> Keepers:
    """Return the functions that keep a result."""
    shared = {name for node in tree.body for name in _assigned(node)}
    found = [
        (name, _is_suspended(node, nodes))
        for name, node in functions(tree.body)
        if _keeps(name, node, nodes := _by_kind(node), shared)
    ]
    suspended = frozenset(name for name, waits in found if waits)
    return Keepers(frozenset(name for name, _ in found) - suspended, suspended)


def _by_kind(node: ast.AST) -> Mapping[type, list[Any]]:
    """Return a node and its descendants by class."""
    found: defaultdict[type, list[Any]] = defaultdict(list)
    for one in walk(node):
        found[one.__class__].append(one)
    return found


def _is_suspended(node: FunctionNode, nodes: Mapping[type, list[Any]]) -> bool:
    """Return whether a function can pause and continue later."""
    return isinstance(node, ast.AsyncFunctionDef) or ast.Yield in nodes or ast.YieldFrom in nodes


def _assigned(node: ast.stmt) -> Iterator[str]:
    if isinstance(node, ast.ClassDef):
        yield node.name
    targets = node.targets if isinstance(node, ast.Assign) else [getattr(node, "target", None)]
    for target in targets:
        if isinstance(target, ast.Name):
            yield target.id


def _keeps(name: str, node: FunctionNode, nodes: Mapping[type, list[Any]], shared: set[str]) -> bool:
    if ast.Global in nodes or any(_is_cache(decorator) for decorator in node.decorator_list):
        return True
    arguments = [*node.args.posonlyargs, *node.args.args]
    first = arguments[0].arg if "." in name and arguments else ""
    loader = first if node.name not in _CONSTRUCTORS and _is_alone(node) else ""
    local = {n.id for n in nodes.get(ast.Name, ()) if type(n.ctx) is ast.Store}
    local |= {n.arg for n in nodes.get(ast.arg, ())}
    wide = (shared - local) | ({first} if first in ("cls", "mcs", "klass", "metacls") else set())
    branches = [child for kind in (ast.If, ast.Try) for child in nodes.get(kind, ())]
    return (
        any(_fills(child, wide) for kind in _FILLING for child in nodes.get(kind, ()))
        or (loader != "" and any(_loads_on_demand(child, loader) for child in branches))
        or (
            first != ""
            and any(_fills_table_on_demand(child, first, _gotten(nodes, first)) for child in branches)
        )
    )


def _is_cache(decorator: ast.expr) -> bool:
    target = decorator.func if isinstance(decorator, ast.Call) else decorator
    name = target.attr if isinstance(target, ast.Attribute) else getattr(target, "id", "")
    return any(word in name.lower() for word in _CACHE_WORDS)


def _is_alone(node: FunctionNode) -> bool:
    """Return whether a method takes only its object: a property, or a loader."""
    arguments = node.args
    return len(arguments.posonlyargs) + len(arguments.args) == 1 and not (
        arguments.vararg or arguments.kwonlyargs or arguments.kwarg
    )


def _fills(node: ast.AST, wide: set[str]) -> bool:
    """Return whether a statement stores into a value of a shared name, or calls one of its mutating methods."""
    if isinstance(node, ast.Attribute | ast.Subscript) and isinstance(node.ctx, ast.Store):
        return _base(node.value) in wide or _is_class_of(node.value)
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr in _MUTATORS:
        return _base(node.func.value) in wide
    return False


def _is_class_of(node: ast.expr) -> bool:
    """Return whether an expression is `type(x)` or `x.__class__`."""
    if isinstance(node, ast.Call):
        return isinstance(node.func, ast.Name) and node.func.id == "type"
    return isinstance(node, ast.Attribute) and node.attr == "__class__"


def _base(node: ast.expr) -> str:
    while isinstance(node, ast.Attribute | ast.Subscript):
        node = node.value
    return node.id if isinstance(node, ast.Name) else ""


def _loads_on_demand(node: ast.AST, own: str) -> bool:
    """Return whether a statement reads an attribute of the object, and sets the same one."""
    if not isinstance(node, ast.If | ast.Try):
        return False
    looked = {*_attributes(node.test, own)} if isinstance(node, ast.If) else set()
    for statement in node.body if isinstance(node, ast.Try) else ():
        looked |= set(_attributes(statement, own))
    looked |= {
        word.value
        for word in (walk(node.test) if isinstance(node, ast.If) else ())
        if isinstance(word, ast.Constant) and isinstance(word.value, str)
    }
    return bool(looked & {*_attributes(node, own, stored=True)})


def _attributes(node: ast.AST, own: str, *, stored: bool = False) -> Iterator[str]:
    for child in walk(node):
        if (
            isinstance(child, ast.Attribute)
            and isinstance(child.value, ast.Name)
            and child.value.id == own
            and isinstance(child.ctx, ast.Store) == stored
        ):
            yield child.attr


def _fills_table_on_demand(node: ast.If | ast.Try, own: str, gotten: Mapping[str, str]) -> bool:
    """Return whether a statement looks up a table in an attribute of the object, and stores into the same table."""
    below = list(walk(node))
    stored = {_table(child, own) for child in below if _is_store(child)} - {""}
    if not stored:
        return False
    looked = set()
    for child in walk(node.test) if isinstance(node, ast.If) else (c for s in node.body for c in walk(s)):
        if isinstance(child, ast.Compare) and any(isinstance(op, ast.In | ast.NotIn) for op in child.ops):
            looked |= {name for side in child.comparators for name in _attributes(side, own)}
        elif isinstance(child, ast.Subscript) and isinstance(node, ast.Try) and not _is_store(child):
            looked.add(_table(child, own))
        elif isinstance(child, ast.Name):
            looked.add(gotten.get(child.id, ""))
    return bool(stored & looked)


def _gotten(nodes: Mapping[type, list[Any]], own: str) -> dict[str, str]:
    """Return, for each name assigned from `get` on a table of the object, that table."""
    found = {}
    for node in [*nodes.get(ast.Assign, ()), *nodes.get(ast.NamedExpr, ())]:
        value = node.value
        if isinstance(value, ast.Call) and isinstance(value.func, ast.Attribute) and value.func.attr == "get":
            tables = list(_attributes(value.func.value, own))
            targets = node.targets if isinstance(node, ast.Assign) else [node.target]
            found.update(
                {target.id: tables[0] for target in targets if tables and isinstance(target, ast.Name)}
            )
    return found


def _is_store(node: ast.AST) -> bool:
    return isinstance(node, ast.Subscript) and isinstance(node.ctx, ast.Store)


def _table(node: ast.AST, own: str) -> str:
    """Return the attribute of the object that is subscripted; empty otherwise."""
    return next(_attributes(node.value, own), "") if isinstance(node, ast.Subscript) else ""
