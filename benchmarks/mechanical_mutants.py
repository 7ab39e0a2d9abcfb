"""Which mechanical mutants of refrl the fast relations and the nearest ones detect.

    python benchmarks/mechanical_mutants.py --output SEEN.jsonl [--number 600] [--each 12] [--seed 0] [--jobs N]
                                            [--minutes M] [--module NAME ...]

A mutant changes one place of a module that runs import: a comparison, an operator, a constant, a condition, a call or a
statement. Mutants are drawn at random from every place where one of these changes applies, so that nobody's taste
chooses them. Some change nothing that a caller can tell, so that the rate is a lower bound; what the survivors are worth
is the list of places that nothing judges. One line of JSON a mutant is appended to the file; those that it holds
already are not measured again.

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
from pathlib import Path
from typing import Any, NamedTuple

import refrl
from seatrial.faults.plant import Plant, modules_without_plants
from seatrial.faults.planting import PlantingError
from seatrial.faults.sweep import DATA_PLANE, PARTS, look_with, missing_package, nearest_relations

FAST = ("R34.worked", *PARTS, "R18.defaults", "R18.own", "R18.names", "R18.written")
OPERATORS: dict[type[ast.AST], str] = {
    **{ast.Lt: "<=", ast.LtE: "<", ast.Gt: ">=", ast.GtE: ">", ast.Eq: "!=", ast.NotEq: "=="},
    **{ast.Is: "is not", ast.IsNot: "is", ast.In: "not in", ast.NotIn: "in"},
    **{
        ast.Add: "-",
        ast.Sub: "+",
        ast.Mult: "/",
        ast.Div: "*",
        ast.FloorDiv: "/",
        ast.And: "or",
        ast.Or: "and",
    },
}
"""What stands for an operator in its mutant."""
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


def changes_of(source: str) -> list[Change]:
    """Return every change of a module's source, in the order of their places."""
    tree = ast.parse(source)
    lines = [0]
    for line in source.splitlines(keepends=True):
        lines.append(lines[-1] + len(line.encode()))
    return sorted(
        _changes(tree, source.encode(), lines), key=lambda change: (change.start, change.end, change.new)
    )


def _changes(node: ast.AST, source: bytes, lines: Sequence[int]) -> Iterator[Change]:
    """Yield the changes below a node; messages, types, documentation and the text of errors have none."""

    def place(of: ast.AST) -> tuple[int, int]:
        start = lines[of.lineno - 1] + of.col_offset  # type: ignore[attr-defined]
        return start, lines[of.end_lineno - 1] + of.end_col_offset  # type: ignore[attr-defined]

    def text(of: ast.AST) -> str:
        start, end = place(of)
        return source[start:end].decode()

    def between(left: ast.AST, right: ast.AST, old: str, new: str, kind: str) -> Iterator[Change]:
        start, end = place(left)[1], place(right)[0]
        at = source[start:end].decode().find(old)
        if at >= 0 and source[start:end].isascii():
            yield Change(start + at, start + at + len(old), new, kind)

    for child in _children(node):
        yield from _changes(child, source, lines)
    match node:
        case ast.Compare(left=left, ops=ops, comparators=comparators):
            for operator, one, other in zip(ops, [left, *comparators], comparators, strict=False):
                if type(operator) in OPERATORS:
                    yield from between(one, other, _symbol(operator), OPERATORS[type(operator)], "comparison")
        case ast.BinOp(left=left, op=op, right=right) if type(op) in OPERATORS:
            yield from between(left, right, _symbol(op), OPERATORS[type(op)], "operator")
        case ast.BoolOp(op=op, values=values):
            for one, other in zip(values, values[1:], strict=False):
                yield from between(one, other, _symbol(op), OPERATORS[type(op)], "and, or")
        case ast.UnaryOp(op=ast.Not(), operand=operand):
            yield Change(*place(node), f"({text(operand)})", "not")
        case ast.Constant(value=bool() as value):
            yield Change(*place(node), str(not value), "constant")
        case ast.Constant(value=int() as value):
            yield Change(*place(node), str(value + 1), "constant")
        case ast.Constant(value=float() as value):
            yield Change(*place(node), repr(value * 2 + (value == 0)), "constant")
        case ast.IfExp(test=_, body=body, orelse=orelse):
            yield Change(*place(node), f"({text(body)})", "condition")
            yield Change(*place(node), f"({text(orelse)})", "condition")
        case ast.comprehension(ifs=[first, *_]):
            yield Change(*place(first), "True", "condition")
        case ast.If(test=test):
            yield Change(*place(test), "False", "condition")
        case ast.Expr(value=ast.Call()) | ast.AugAssign() | ast.Continue():
            yield Change(*place(node), "pass", "statement")
        case ast.Call(func=func, args=args, keywords=keywords):
            yield from _calls(node, func, args, keywords, place, text)


def _calls(
    node: ast.Call, func: ast.expr, args: list[ast.expr], keywords: list[ast.keyword], place: Any, text: Any
) -> Iterator[Change]:
    name = func.attr if isinstance(func, ast.Attribute) else getattr(func, "id", "")
    if name in CALLS:
        start, end = place(func)
        yield Change(end - len(name), end, CALLS[name], "call")
    if name in DROPPED and not keywords:
        if isinstance(func, ast.Attribute) and not args:
            yield Change(*place(node), text(func.value), "call")
        if isinstance(func, ast.Name) and len(args) == 1:
            yield Change(*place(node), f"({text(args[0])})", "call")
    if len(args) > 1 and all(isinstance(arg, ast.Name | ast.Attribute) for arg in args[:2]):
        yield Change(place(args[0])[0], place(args[1])[1], f"{text(args[1])}, {text(args[0])}", "arguments")


def _symbol(operator: ast.AST) -> str:
    symbols = {type(op).__name__: symbol for op, symbol in _SYMBOLS}
    return symbols[type(operator).__name__]


_SYMBOLS: tuple[tuple[ast.AST, str], ...] = (
    *(
        (ast.Lt(), "<"),
        (ast.LtE(), "<="),
        (ast.Gt(), ">"),
        (ast.GtE(), ">="),
        (ast.Eq(), "=="),
        (ast.NotEq(), "!="),
    ),
    *((ast.Is(), "is"), (ast.IsNot(), "is not"), (ast.In(), "in"), (ast.NotIn(), "not in")),
    *((ast.Add(), "+"), (ast.Sub(), "-"), (ast.Mult(), "*"), (ast.Div(), "/"), (ast.FloorDiv(), "//")),
    *((ast.And(), "and"), (ast.Or(), "or")),
)


def _children(node: ast.AST) -> Iterator[ast.AST]:
    """Yield the parts of a node that a run computes with."""
    if isinstance(node, ast.Raise | ast.Assert | ast.JoinedStr | ast.Import | ast.ImportFrom):
        return
    if isinstance(node, ast.Call):
        name = node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", "")
        if name in NOT_JUDGED:
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
        places += [(module, source, change) for change in changes_of(source)]
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
        **{"id": plant.id, "kind": plant.what, "module": plant.module, "old": plant.old, "new": plant.new},
        **{"by": by, "said": said[:200], "seconds": round(time.monotonic() - start, 1)},
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
