"""Which mechanical mutants of refrl the fast relations and the nearest ones detect.

    python benchmarks/mechanical_mutants.py --output SEEN.jsonl [--number 600] [--each 12] [--seed 0] [--jobs N]
                                            [--minutes M] [--module NAME ...]

A mutant changes one place of a module that runs import: a comparison, an operator, a constant, a condition, a call or a
statement. Mutants are drawn at random from every place where one of these changes applies, so that nobody's taste
chooses them. Some change nothing that a caller could notice, so that the rate is a lower bound; survivors show the
places that nothing judges. One line of JSON a mutant is appended to the file, and what it holds is not measured again.

Relations are asked as `seatrial.faults.sweep` asks for plants: `R34.worked`, those of small parts, and the nearest to
the module. Runs of level 0 are not.
"""

from __future__ import annotations

import argparse
import ast
import json
import random
import sys
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple

import refrl
from seatrial.faults.plant import Plant, modules_without_plants
from seatrial.faults.planting import PlantingError
from seatrial.faults.sweep import DATA_PLANE, PARTS, look_with, missing_package, nearest_relations

FAST = ("R34.worked", *PARTS, "R18.defaults", "R18.own", "R18.names", "R18.written")
SYMBOLS: dict[type[ast.AST], tuple[str, str]] = {
    ast.Lt: ("<", "<="),
    ast.LtE: ("<=", "<"),
    ast.Gt: (">", ">="),
    ast.GtE: (">=", ">"),
    ast.Eq: ("==", "!="),
    ast.NotEq: ("!=", "=="),
    ast.Is: ("is", "is not"),
    ast.IsNot: ("is not", "is"),
    ast.In: ("in", "not in"),
    ast.NotIn: ("not in", "in"),
    ast.Add: ("+", "-"),
    ast.Sub: ("-", "+"),
    ast.Mult: ("*", "/"),
    ast.Div: ("/", "*"),
    ast.FloorDiv: ("//", "/"),
    ast.And: ("and", "or"),
    ast.Or: ("or", "and"),
}
"""Operators, and what replaces each in its mutant."""
CALLS = {
    "min": "max",
    "max": "min",
    "any": "all",
    "all": "any",
    "floor": "ceil",
    "ceil": "floor",
    "sum": "mean",
}
"""Functions and methods, and what is called in a mutant."""
DROPPED = (
    "clone",
    "detach",
    "abs",
    "contiguous",
    "sorted",
    "reversed",
    "set",
    "float",
    "copy",
    "deepcopy",
    "strip",
)
"""Functions and methods of one argument that a mutant leaves out."""
NOT_JUDGED = ("print", "warn", "info", "debug", "warning", "cast", "TypeVar", "field")
"""Calls whose words and types are no numbers of a run."""


class Change(NamedTuple):
    """Replaces characters of a source: from, to, what, and the kind of mutant."""

    start: int
    end: int
    new: str
    kind: str


class Source:
    """The source of a module, by the places of its parts."""

    def __init__(self, text: str) -> None:
        """Find where each line begins."""
        self.tree, self._data = ast.parse(text), text.encode()
        self._lines = [0]
        for line in text.splitlines(keepends=True):
            self._lines.append(self._lines[-1] + len(line.encode()))

    def changes(self) -> list[Change]:
        """Return every change of the module, in the order of their places."""
        return sorted(self._changes(self.tree), key=lambda change: (change.start, change.end, change.new))

    def omissions(self) -> list[Change]:
        """Return every change that leaves something out: a keyword, an operand, one of several conditions, a bound."""
        found = (change for node in ast.walk(self.tree) for change in self._omissions(node))
        return sorted(found, key=lambda change: (change.start, change.end, change.new))

    def _omissions(self, node: ast.AST) -> Iterator[Change]:
        match node:
            case ast.Call(args=args, keywords=keywords) if _called(node) not in NOT_JUDGED:
                given = [self._text(one) for one in args]
                named = [(one.arg, self._text(one.value)) for one in keywords]
                for left_out in keywords:
                    rest = [f"{n}={v}" if n else f"**{v}" for n, v in named if n != left_out.arg]
                    if left_out.arg:
                        new = f"{self._text(node.func)}({', '.join([*given, *rest])})"
                        yield self._change(node, new, "keyword left out")
            case ast.BoolOp(op=op, values=values):
                between = " and " if isinstance(op, ast.And) else " or "
                for left_out in values:
                    rest = [f"({self._text(one)})" for one in values if one is not left_out]
                    yield self._change(node, f"({between.join(rest)})", "condition left out")
            case ast.BinOp(left=left, op=ast.Mult() | ast.Div() | ast.Add() | ast.Sub()) if not isinstance(
                left, ast.Constant | ast.JoinedStr
            ):
                yield self._change(node, f"({self._text(left)})", "operand left out")
            case ast.Subscript(slice=ast.Slice(lower=lower, upper=upper, step=None)) if lower or upper:
                yield self._change(node, self._text(node.value) + "[:]", "bounds left out")
            case ast.Assign(targets=[ast.Subscript()]):
                yield self._change(node, "pass", "statement left out")

    def _start(self, node: ast.expr | ast.stmt) -> int:
        return self._lines[node.lineno - 1] + node.col_offset

    def _end(self, node: ast.expr | ast.stmt) -> int:
        assert node.end_lineno is not None and node.end_col_offset is not None
        return self._lines[node.end_lineno - 1] + node.end_col_offset

    def _text(self, node: ast.expr) -> str:
        return self._data[self._start(node) : self._end(node)].decode()

    def _change(self, node: ast.expr | ast.stmt, new: str, kind: str) -> Change:
        return Change(self._start(node), self._end(node), new, kind)

    def _between(self, left: ast.expr, right: ast.expr, operator: ast.AST, kind: str) -> Iterator[Change]:
        """Yield the change of the operator between two operands."""
        old, new = SYMBOLS[type(operator)]
        at = self._data.find(old.encode(), self._end(left), self._start(right))
        if at >= 0:
            yield Change(at, at + len(old), new, kind)

    def _changes(self, node: ast.AST) -> Iterator[Change]:
        """Yield the changes below a node; messages, types, documentation and the text of errors have none."""
        for child in _children(node):
            yield from self._changes(child)
        match node:
            case ast.Compare(left=left, ops=ops, comparators=comparators):
                for operator, one, other in zip(ops, [left, *comparators], comparators, strict=False):
                    yield from self._between(one, other, operator, "comparison")
            case ast.BinOp(left=left, op=op, right=right) if type(op) in SYMBOLS:
                yield from self._between(left, right, op, "operator")
            case ast.BoolOp(op=op, values=values):
                for one, other in pairwise(values):
                    yield from self._between(one, other, op, "and, or")
            case ast.UnaryOp(op=ast.Not(), operand=operand):
                yield self._change(node, f"({self._text(operand)})", "not")
            case ast.Constant(value=bool() as value):
                yield self._change(node, str(not value), "constant")
            case ast.Constant(value=int() as value):
                yield self._change(node, str(value + 1), "constant")
            case ast.Constant(value=float() as value):
                yield self._change(node, repr(value * 2 + (value == 0)), "constant")
            case ast.IfExp(body=body, orelse=orelse):
                yield self._change(node, f"({self._text(body)})", "condition")
                yield self._change(node, f"({self._text(orelse)})", "condition")
            case ast.comprehension(ifs=[first, *_]):
                yield self._change(first, "True", "condition")
            case ast.If(test=test):
                yield self._change(test, "False", "condition")
            case ast.Expr(value=ast.Call()) | ast.AugAssign() | ast.Continue():
                yield self._change(node, "pass", "statement")
            case ast.Call():
                yield from self._changes_of_call(node)

    def _changes_of_call(self, node: ast.Call) -> Iterator[Change]:
        name, args = _called(node), node.args
        if name in CALLS:
            end = self._end(node.func)
            yield Change(end - len(name), end, CALLS[name], "call")
        if name in DROPPED and not node.keywords:
            if isinstance(node.func, ast.Attribute) and not args:
                yield self._change(node, self._text(node.func.value), "call")
            if isinstance(node.func, ast.Name) and len(args) == 1:
                yield self._change(node, f"({self._text(args[0])})", "call")
        if len(args) > 1 and all(isinstance(arg, ast.Name | ast.Attribute) for arg in args[:2]):
            new = f"{self._text(args[1])}, {self._text(args[0])}"
            yield Change(self._start(args[0]), self._end(args[1]), new, "arguments")


def _called(node: ast.Call) -> str:
    """Return the name of the function or method that a call names, if any."""
    return node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", "")


def _children(node: ast.AST) -> Iterator[ast.AST]:
    """Yield the parts of a node that a run computes with."""
    if isinstance(node, ast.Raise | ast.Assert | ast.JoinedStr | ast.Import | ast.ImportFrom):
        return
    if isinstance(node, ast.Call) and _called(node) in NOT_JUDGED:
        return
    if isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING":
        return
    for name, value in ast.iter_fields(node):
        if name in ("annotation", "returns", "decorator_list", "bases", "type_params"):
            continue
        for one in value if isinstance(value, list) else [value]:
            is_text = isinstance(one, ast.Expr) and isinstance(one.value, ast.Constant)
            if isinstance(one, ast.AST) and not is_text:
                yield one


def mutant(module: str, source: str, change: Change) -> Plant | None:
    """Return a change as a plant, with as many whole lines around it as make its text unique; None if none compile."""
    data = source.encode()
    mutated = data[: change.start] + change.new.encode() + data[change.end :]
    try:
        compile(mutated, module, "exec")
    except SyntaxError:
        return None
    start = data.rfind(b"\n", 0, change.start) + 1
    end = data.find(b"\n", change.end) + 1 or len(data)
    while data.count(data[start:end]) != 1:
        start = data.rfind(b"\n", 0, start - 1) + 1
        end = data.find(b"\n", end) + 1 or len(data)
    line = data.count(b"\n", 0, change.start) + 1
    new = data[start : change.start] + change.new.encode() + data[change.end : end]
    return Plant(
        id=f"{module}:{line}:{change.start}:{change.end}:{change.new}",
        what=change.kind,
        module=module,
        old=data[start:end].decode(),
        new=new.decode(),
        catalogue=(),
    )


def drawn(seed: int, number: int, each: int, modules: Sequence[str]) -> list[Plant]:
    """Return mutants drawn at random, at most so many of a module; modules whose package is missing have none."""
    root = Path(refrl.__file__).parent
    places = []
    for path in sorted(root.rglob("*.py")):
        module = ".".join(["refrl", *path.relative_to(root).with_suffix("").parts]).removesuffix(".__init__")
        if module in modules_without_plants() or (modules and module not in modules):
            continue
        source = path.read_text(encoding="utf-8")
        places += [(module, source, change) for change in Source(source).changes()]
    random.Random(seed).shuffle(places)
    chosen: list[Plant] = []
    taken: Counter[str] = Counter()
    for module, source, change in places:
        if len(chosen) == number:
            break
        if taken[module] < each and (plant := mutant(module, source, change)) and not missing_package(plant):
            taken[module] += 1
            chosen.append(plant)
    return chosen


def measured(plant: Plant) -> dict[str, Any]:
    """Return what detects a mutant; `by` is empty where nothing does."""
    start = time.monotonic()
    asked = [*FAST, *nearest_relations(plant)]
    if plant.module.startswith("refrl.data_plane"):
        asked += [relation for relation in DATA_PLANE if relation.startswith("DP")]
    try:
        seen = look_with(plant, list(dict.fromkeys(asked)))
        by, said = (seen.by, seen.said) if seen else ("", "")
    except PlantingError as error:
        by, said = "crash", str(error)
    return {
        "id": plant.id,
        "kind": plant.what,
        "module": plant.module,
        "old": plant.old,
        "new": plant.new,
        "by": by,
        "said": said[:200],
        "seconds": round(time.monotonic() - start, 1),
    }


def main(argv: Sequence[str]) -> int:
    """Measure what is missing in the file, and print the share that is seen."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--output", type=Path, required=True)
    parser.add_argument("--number", type=int, default=600)
    parser.add_argument("--each", type=int, default=12)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--jobs", type=int, default=1)
    parser.add_argument("--minutes", type=float, default=float("inf"))
    parser.add_argument("--module", nargs="*", default=[])
    chosen = parser.parse_args(argv)
    end = time.monotonic() + 60 * chosen.minutes
    lines = chosen.output.read_text().splitlines() if chosen.output.exists() else []
    found = {one["id"]: one for one in map(json.loads, lines)}
    left = [p for p in drawn(chosen.seed, chosen.number, chosen.each, chosen.module) if p.id not in found]
    with ProcessPoolExecutor(chosen.jobs) as jobs, chosen.output.open("a") as file:
        begun = [jobs.submit(_measured_before, end, plant) for plant in left]
        for future in as_completed(begun):
            if (one := future.result()) is not None:
                found[one["id"]] = one
                print(json.dumps(one), file=file, flush=True)
    seen = sum(bool(one["by"]) for one in found.values())
    print(f"{seen} of {len(found)} mutants seen ({100 * seen / max(len(found), 1):.0f} %)")
    for module, number in Counter(one["module"] for one in found.values() if not one["by"]).most_common():
        print(f"{number:4d} not seen in {module}")
    return 0


def _measured_before(end: float, plant: Plant) -> dict[str, Any] | None:
    return measured(plant) if time.monotonic() < end else None


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
