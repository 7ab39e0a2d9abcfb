"""The functions of a Python file, and what is left of it without their bodies: what runs when it is imported.

A function's name is the one under which it stands at module or class level (`decode`, `Field.load`); what is
defined inside of it belongs to it.
"""

from __future__ import annotations

import ast
import copy
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, NamedTuple

FunctionNode = ast.FunctionDef | ast.AsyncFunctionDef
STATEMENT_FIELDS = ("body", "orelse", "finalbody", "handlers", "cases")
"""Where statements hold statements."""
_REMEMBERING_WORDS = ("cache", "memo", "once", "singleton")
_MUTATORS = frozenset(("append", "add", "update", "setdefault", "extend", "insert", "push", "register"))
_FILLING = (ast.Attribute, ast.Subscript, ast.Call)
_CONSTRUCTORS = frozenset(
    ("__init__", "__new__", "__post_init__", "__enter__", "__setattr__", "__set_name__")
)


_UNREAD_FIELDS = frozenset(("ctx", "kind", "type_comment", "type_ignores"))
"""What says nothing beyond its place in the tree, or nothing to Python."""
_FIELDS: dict[type, tuple[str, ...]] = {}
_AST, _NAME = ast.AST, ast.Name


def fields_of(kind: type[ast.AST]) -> tuple[str, ...]:
    """Return the fields of a kind of node that say what it does."""
    found = _FIELDS.get(kind)
    if found is None:
        found = _FIELDS[kind] = tuple(name for name in kind._fields if name not in _UNREAD_FIELDS)
    return found


def walk(node: ast.AST) -> list[ast.AST]:
    """Return a node and all below it, in no order: twice as fast as `ast.walk`, and without contexts."""
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
    """Return the text of a syntax tree: without comments, layout and line numbers."""
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
    """Return the functions at module and class level, with their names; a name may come twice."""
    for node in body:
        if isinstance(node, FunctionNode):
            yield prefix + node.name, node
        elif isinstance(node, ast.ClassDef):
            yield from functions(node.body, f"{prefix}{node.name}.")
        else:
            yield from functions(_statements_in(node), prefix)


def definitions_in(node: FunctionNode) -> list[FunctionNode]:
    """Return a function, and the functions that are defined inside of it at any depth."""
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
    """Return statements without the bodies of functions: names, decorators, signatures and classes stay.

    The docstring of a decorated function stays too, as the decorator may read it.
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


class Keepers(NamedTuple):
    """Functions of a file that keep something beyond their call, as far as their text tells.

    Such a function runs for the first test that needs it, and the tests after it use what it kept: it is cached
    by a decorator, assigns or fills a module's or class's variable, or fills an attribute of its object on demand.
    """

    names: frozenset[str]
    """Those that run from start to end at once."""
    any_suspended: bool
    """Whether there are others, such as generators: what runs between their steps is not under them."""


def keepers(tree: ast.Module) -> Keepers:
    """Find the functions that keep something."""
    shared = {name for node in tree.body for name in _assigned(node)}
    found = [
        (name, _is_suspended(node, nodes))
        for name, node in functions(tree.body)
        if _remembers(name, node, nodes := _by_kind(node), shared)
    ]
    return Keepers(frozenset(name for name, waits in found if not waits), any(waits for _, waits in found))


def _by_kind(node: ast.AST) -> Mapping[type, list[Any]]:
    """Return a node and all below it, by their classes."""
    found: defaultdict[type, list[Any]] = defaultdict(list)
    for one in walk(node):
        found[one.__class__].append(one)
    return found


def _is_suspended(node: FunctionNode, nodes: Mapping[type, list[Any]]) -> bool:
    """Return whether a function stops and goes on later."""
    return isinstance(node, ast.AsyncFunctionDef) or ast.Yield in nodes or ast.YieldFrom in nodes


def _assigned(node: ast.stmt) -> Iterator[str]:
    if isinstance(node, ast.ClassDef):
        yield node.name
    targets = node.targets if isinstance(node, ast.Assign) else [getattr(node, "target", None)]
    for target in targets:
        if isinstance(target, ast.Name):
            yield target.id


def _remembers(name: str, node: FunctionNode, nodes: Mapping[type, list[Any]], shared: set[str]) -> bool:
    if ast.Global in nodes or any(_is_cache(decorator) for decorator in node.decorator_list):
        return True
    arguments = [*node.args.posonlyargs, *node.args.args]
    first = arguments[0].arg if "." in name and arguments else ""
    loader = first if node.name not in _CONSTRUCTORS and _is_alone(node) else ""
    local = {n.id for n in nodes.get(ast.Name, ()) if type(n.ctx) is ast.Store}
    local |= {n.arg for n in nodes.get(ast.arg, ())}
    wide = (shared - local) | ({first} if first in ("cls", "mcs", "klass", "metacls") else set())
    return any(_fills(child, wide) for kind in _FILLING for child in nodes.get(kind, ())) or (
        loader != ""
        and any(
            _loads_on_demand(child, loader) for kind in (ast.If, ast.Try) for child in nodes.get(kind, ())
        )
    )


def _is_cache(decorator: ast.expr) -> bool:
    target = decorator.func if isinstance(decorator, ast.Call) else decorator
    name = target.attr if isinstance(target, ast.Attribute) else getattr(target, "id", "")
    return any(word in name.lower() for word in _REMEMBERING_WORDS)


def _is_alone(node: FunctionNode) -> bool:
    """Return whether a method takes nothing but its object: a property, or a loader."""
    arguments = node.args
    return len(arguments.posonlyargs) + len(arguments.args) == 1 and not (
        arguments.vararg or arguments.kwonlyargs or arguments.kwarg
    )


def _fills(node: ast.AST, wide: set[str]) -> bool:
    """Return whether a statement stores into, or calls a mutating method of, what a wide name holds."""
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
    """Return whether a statement looks at an attribute of the object, and sets the same one."""
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
        is_own = (
            isinstance(child, ast.Attribute) and isinstance(child.value, ast.Name) and child.value.id == own
        )
        if is_own and isinstance(child, ast.Attribute) and isinstance(child.ctx, ast.Store) == stored:
            yield child.attr
