"""A test module, or a `conftest.py`, in parts: tests, fixtures, and what their files' other code is to each.

A test function belongs to that test alone, a fixture to the tests that use it, and to both belongs what they name:
a plain function of the file, an import of the standard library, and what these name in turn. Such a *helper* runs
nothing when the file is imported, so that one which comes, goes or changes is nothing to a test that does not name
it. Everything else is the *rest*, which all tests of the file share: classes without their tests, other statements,
and the helpers that they name.
"""

from __future__ import annotations

import ast
import functools
import re
import sys
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import pairwise
from typing import Final

from seatrial.pytest_plugin.affected.functions import FunctionNode, dump, functions, walk
from seatrial.pytest_plugin.affected.parts import REST, Part, digest, part_of

FIXTURES: Final = "#fixtures"
"""Name of the part that says which fixtures a file has, for tests that ask by a made name."""
_HELPERS: Final = "#helpers"
"""Name of the part that holds all helpers, for who imports the file as a whole."""
_TEST_NAME = re.compile(r"\btest\w*")
_TEST_DEFINITION = re.compile(r"\bdef\s+(test\w*)")
_WORD = re.compile(r"\w+")
_AFTER_DOT = re.compile(r"\.(\w+)")
_CALLED_BY_NAME = ("pytest", "setup", "teardown", "test", "load_tests", "__")
"""How the names of functions begin that pytest, unittest or Python call."""
_LOOKS_AT_ITSELF = re.compile(
    rb"\b(globals|__dict__|__name__|getmembers|sys\.modules|import modules|(vars|dir|locals|eval|exec) ?\()"
)
"""What finds names of a module that its text does not show."""


def parts_of_tests(tree: ast.Module, lines: list[str], content: bytes) -> dict[str, Part]:
    """Take a test module apart; what is taken out of `lines` is left empty there, so that numbers stay."""
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
    texts_of = _Texts()
    helpers = {} if _LOOKS_AT_ITSELF.search(content) else _helpers(tree.body, texts_of)
    rest = [node for node in rest if not any(node is helper for helper in helpers.values())]
    closures = _Closures(helpers, texts_of)
    texts = {node: _cut(lines, node) for nodes in [*taken.values(), helpers.values()] for node in nodes}

    def part(nodes: list[ast.stmt], text: str) -> Part:
        used = closures.of(nodes)
        return part_of([*nodes, *used], "\n".join([text, *(texts[helper] for helper in used)]), texts_of.dump)

    parts = {name: part(nodes, "\n".join(texts[node] for node in nodes)) for name, nodes in taken.items()}
    for name, helper in helpers.items():
        if isinstance(helper, FunctionNode):  # a project may tell pytest that it is a test
            parts.setdefault(name, part([helper], texts[helper]))
    parts[REST] = part(rest, "\n".join(lines))
    parts[_HELPERS] = part_of([*helpers.values()], "\n".join(texts[helper] for helper in helpers.values()))
    parts[FIXTURES] = Part(digest("\n".join(sorted(_fixtures(tree))).encode()), ())
    return parts


class _Texts:
    """Looks at each statement once."""

    def __init__(self) -> None:
        self.dump = functools.cache(dump)
        """Returns the text of a syntax tree."""
        self.words = functools.cache(self._words_of)
        self.names = functools.cache(self._names_of)

    def _words_of(self, node: ast.AST) -> frozenset[str]:
        """Return all words of a statement, those in its quoted texts included."""
        if isinstance(node, ast.ClassDef):  # its methods are looked at one by one as well
            return frozenset((node.name,)).union(*map(self.words, _pieces(node)))
        return frozenset(_WORD.findall(" ".join({*self.dump(node).split()})))

    def _names_of(self, node: ast.AST) -> frozenset[str]:
        """Return the names in a statement, and what follows a dot in a quoted text.

        No attributes: `os` of `import os`, and not that of `shutil.os`.
        """
        if isinstance(node, ast.ClassDef):
            return frozenset().union(*map(self.names, _pieces(node)))
        pieces = self.dump(node).split()
        names = {name.strip("'") for kind, name in pairwise(pieces) if kind == "Name"}
        return frozenset(names.union(*(_AFTER_DOT.findall(piece) for piece in {*pieces} if "." in piece)))


def _pieces(node: ast.ClassDef) -> list[ast.AST]:
    """Return all that a class consists of."""
    return [*node.decorator_list, *node.bases, *node.keywords, *node.body]


class _Closures:
    """Finds the helpers that code names, and those that they name in turn."""

    def __init__(self, helpers: Mapping[str, ast.stmt], texts: _Texts) -> None:
        self._helpers = helpers
        self._texts = texts
        self._functions = {name for name, node in helpers.items() if isinstance(node, FunctionNode)}
        self._imports = helpers.keys() - self._functions
        self._named = {name: self._names_in([node]) - {name} for name, node in helpers.items()}

    def of(self, nodes: Iterable[ast.stmt]) -> list[ast.stmt]:
        """Return the helpers that some code can reach, by name, in the order of the file."""
        nodes = list(nodes)
        found: set[str] = set()
        waiting = self._names_in(nodes)
        while waiting:
            name = waiting.pop()
            if name not in found:
                found.add(name)
                waiting |= self._named[name]
        mine = {id(node) for node in nodes}
        return [node for name, node in self._helpers.items() if name in found and id(node) not in mine]

    def _names_in(self, nodes: Iterable[ast.stmt]) -> set[str]:
        if not self._helpers:
            return set()
        found: set[str] = set()
        for node in nodes:
            found |= self._texts.words(node) & self._functions
            found |= self._texts.names(node) & self._imports
        return found


def _helpers(body: Sequence[ast.stmt], texts: _Texts) -> dict[str, ast.stmt]:
    """Return the statements that give a name to a function or module, and do nothing else, by that name.

    One that nothing in the file names may serve somebody else, such as a fixture that asks for `request.module`.
    """
    bound: Counter[str] = Counter()
    first_lines = Counter(node.lineno for node in body)
    candidates: dict[str, ast.stmt] = {}
    for node in body:
        names = list(_bound_names(node, texts))
        bound.update(names)
        begun = sum(first_lines[line] for line in range(node.lineno, (node.end_lineno or node.lineno) + 1))
        if len(names) == 1 and begun == 1 and (_is_plain_function(node) or _is_standard_import(node)):
            candidates[names[0]] = node
    named = Counter(word for node in body for word in texts.words(node) & candidates.keys())
    return {name: node for name, node in candidates.items() if bound[name] == 1 and named[name] > 1}


def _bound_names(node: ast.stmt, texts: _Texts) -> Iterator[str]:
    """Return the names that a statement gives to something in its module, also from within its functions."""
    if isinstance(node, FunctionNode | ast.ClassDef):
        yield node.name
        if ast.Global.__name__ in texts.words(node):  # there may be such a statement
            yield from (name for child in walk(node) if isinstance(child, ast.Global) for name in child.names)
        return
    for child in walk(node):
        if isinstance(child, FunctionNode | ast.ClassDef):
            yield child.name
        elif isinstance(child, ast.alias):
            yield child.asname or child.name.partition(".")[0]
        elif isinstance(child, ast.Name) and isinstance(child.ctx, ast.Store | ast.Del):
            yield child.id


def _is_plain_function(node: ast.stmt) -> bool:
    """Return whether a definition runs nothing, and nobody but the file's own code calls it."""
    if not isinstance(node, FunctionNode) or node.decorator_list:
        return False
    arguments = node.args
    defaults = [*arguments.defaults, *(one for one in arguments.kw_defaults if one is not None)]
    is_example = ">>>" in (ast.get_docstring(node, clean=False) or "")
    return (
        not node.name.lower().startswith(_CALLED_BY_NAME)
        and not is_example
        and not any(isinstance(child, ast.Call) for default in defaults for child in walk(default))
    )


def _is_standard_import(node: ast.stmt) -> bool:
    """Return whether a statement imports from the standard library, which no test can tell from its absence."""
    if isinstance(node, ast.Import):
        modules = [alias.name for alias in node.names]
    elif isinstance(node, ast.ImportFrom) and node.level == 0 and node.module is not None:
        modules = [node.module]
    else:
        return False
    return all(name.partition(".")[0] in sys.stdlib_module_names and name != "__future__" for name in modules)


def _cut(lines: list[str], node: ast.stmt) -> str:
    """Take the lines of a statement, decorators included, out of a file."""
    decorators: list[ast.expr] = getattr(node, "decorator_list", [])
    first = min([node.lineno, *(decorator.lineno for decorator in decorators)]) - 1
    last = node.end_lineno or node.lineno
    text = "\n".join(lines[first:last])
    lines[first:last] = [""] * (last - first)
    return text


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


def _fixtures(tree: ast.Module) -> Iterator[str]:
    for name, node in functions(tree.body):
        yield from (f"{name} {dump(one)}" for one in node.decorator_list if _is_fixture(one))


def _mentioned_names(text: str) -> frozenset[str]:
    """Return the names of tests that stand somewhere else than where the test is defined."""
    counts = Counter(_TEST_NAME.findall(text))
    counts.subtract(_TEST_DEFINITION.findall(text))
    return frozenset(name for name, count in counts.items() if count > 0)
