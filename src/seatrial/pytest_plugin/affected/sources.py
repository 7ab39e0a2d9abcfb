"""A Python file as a dependency: its code without comments and layout, its imports, its parts.

The parts of a test module or `conftest.py` are tests, fixtures, helpers and the rest. A test function belongs to that
test only, a fixture to the tests that use it; to both belong the helpers that they name, transitively. A *helper* is a
plain function of the file, or an import from the standard library. It runs nothing on import of the file, so adding,
removing or changing one does not affect a test that does not name it. The *rest*, which all tests of the file share, is
all other code: classes without their tests, other statements, and the helpers that they name.

The parts of any other file are its functions, on which the tests that ran them depend, and the rest, on which all
importers depend.
"""

from __future__ import annotations

import ast
import functools
import re
import sys
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Final

from seatrial.pytest_plugin.affected.keepers import Keepers, keepers
from seatrial.pytest_plugin.affected.syntax import (
    CANNOT_PARSE,
    REST,
    FunctionNode,
    Part,
    digest,
    docstrings,
    dump,
    functions,
    joined,
    may_be_compiled,
    parse,
    part_of,
    skeleton,
    walk,
)

FIXTURES: Final = "#fixtures"
"""Name of the part that lists a file's fixtures, for tests that request one by a computed name."""
_HELPERS: Final = "#helpers"
"""Name of the part with all helpers, for code that imports the file as a whole."""
_TEST_NAME = re.compile(r"\btest\w*")
_TEST_DEFINITION = re.compile(r"\bdef\s+(test\w*)")
_WORD = re.compile(r"\w+")
_AFTER_DOT = re.compile(r"\.(\w+)")
_CALLED_BY_NAME = ("pytest", "setup", "teardown", "test", "load_tests", "__")
"""Prefixes of functions that pytest, unittest or Python call."""
_LOOKS_AT_ITSELF = re.compile(
    rb"\b(globals|__dict__|__name__|getmembers|sys\.modules|import modules|(vars|dir|locals|eval|exec) ?\()"
)
"""Code that can find names of a module without naming them in its source."""


def parts_of_tests(tree: ast.Module, lines: list[str], content: bytes) -> dict[str, Part]:
    """Split a test module; extracted code is blanked in `lines`, so that line numbers stay."""
    mentioned = _mentioned_names("\n".join(lines))
    taken: dict[str, list[ast.stmt]] = {}
    rest: list[ast.stmt] = []
    for node in tree.body:
        if isinstance(node, FunctionNode) and _is_separate(node, mentioned):
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
        if isinstance(helper, FunctionNode):  # the project may configure pytest to treat it as a test
            parts.setdefault(name, part([helper], texts[helper]))
    parts[REST] = part(rest, "\n".join(lines))
    parts[_HELPERS] = part_of([*helpers.values()], "\n".join(texts[helper] for helper in helpers.values()))
    parts[FIXTURES] = Part(digest("\n".join(sorted(_fixtures(tree))).encode()), ())
    return parts


class _Texts:
    """Caches the text, words and names of each statement."""

    def __init__(self) -> None:
        self.dump = functools.cache(dump)
        """Returns the text of a syntax tree."""
        self.words = functools.cache(self._words_of)
        self.names = functools.cache(self._names_of)

    def _words_of(self, node: ast.AST) -> frozenset[str]:
        """Return all words of a statement, including those in its strings."""
        if isinstance(node, ast.ClassDef):  # its methods are also examined one by one
            return frozenset((node.name,)).union(*map(self.words, _pieces(node)))
        return frozenset(_WORD.findall(" ".join({*self.dump(node).split()})))

    def _names_of(self, node: ast.AST) -> frozenset[str]:
        """Return the names in a statement, and what follows a dot in a string.

        Attributes are excluded: `os` of `import os`, but not the one of `shutil.os`.
        """
        if isinstance(node, ast.ClassDef):
            return frozenset().union(*map(self.names, _pieces(node)))
        pieces = self.dump(node).split()
        names = {name.strip("'") for kind, name in pairwise(pieces) if kind == "Name"}
        return frozenset(names.union(*(_AFTER_DOT.findall(piece) for piece in {*pieces} if "." in piece)))


def _pieces(node: ast.ClassDef) -> list[ast.AST]:
    """Return all parts of a class."""
    return [*node.decorator_list, *node.bases, *node.keywords, *node.body]


class _Closures:
    """Finds the helpers that code names, transitively."""

    def __init__(self, helpers: Mapping[str, ast.stmt], texts: _Texts) -> None:
        self._helpers = helpers
        self._texts = texts
        self._functions = {name for name, node in helpers.items() if isinstance(node, FunctionNode)}
        self._imports = helpers.keys() - self._functions
        self._named = {name: self._names_in([node]) - {name} for name, node in helpers.items()}

    def of(self, nodes: Iterable[ast.stmt]) -> list[ast.stmt]:
        """Return the helpers that some code can reach, in file order."""
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
    """Return the statements whose only effect is to bind one function or module to a name, by that name.

    A helper that nothing in the file names is excluded: other code may use it, such as a fixture with `request.module`.
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
    """Yield the names that a statement binds in its module, also from inside its functions."""
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
    """Return whether a definition runs no code, and only the file's own code calls the function."""
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
    """Return whether a statement imports only from the standard library, which has no visible effect on a test."""
    if isinstance(node, ast.Import):
        modules = [alias.name for alias in node.names]
    elif isinstance(node, ast.ImportFrom) and node.level == 0 and node.module is not None:
        modules = [node.module]
    else:
        return False
    return all(name.partition(".")[0] in sys.stdlib_module_names and name != "__future__" for name in modules)


def _cut(lines: list[str], node: ast.stmt) -> str:
    """Cut the lines of a statement, with its decorators, out of a file."""
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
        if isinstance(child, FunctionNode) and _is_separate(child, mentioned):
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


def _is_separate(node: FunctionNode, mentioned: frozenset[str]) -> bool:
    """Return whether only pytest calls this function: a fixture, or a test that nothing else names."""
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
    """Return the names of tests that occur outside their definition."""
    counts = Counter(_TEST_NAME.findall(text))
    counts.subtract(_TEST_DEFINITION.findall(text))
    return frozenset(name for name, count in counts.items() if count > 0)


DOCS: Final = "#docstrings"
"""Name of the part with the docstrings of functions, for code that reads them."""
_DOC_READERS = re.compile(rb"\b(__doc__|getdoc|get_json_schema|docstring_parser|pydoc|doctest)\b")


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
    return Source(
        raw,
        joined(parts),
        parts,
        runs_unseen=may_be_compiled(content),
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
