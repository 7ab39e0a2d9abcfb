"""Which faults at random places of another stack its adapters see.

    python benchmarks/stack_mutants.py record --target trl --output LINES.json [--adapter NAME ...] [--jobs N]
    python benchmarks/stack_mutants.py judge --target trl --lines LINES.json --output SEEN.jsonl [--number 100]
                                             [--each 6] [--seed 0] [--under PATH ...] [--jobs N] [--minutes M]
    python benchmarks/stack_mutants.py table SEEN.jsonl ...

Run it with the Python of an environment that has the stack. `record` runs each adapter once, thoroughly, and notes
which lines of the stack's package it executes and whether anything fails. `judge` changes one place among the lines
that passing adapters execute, mostly by leaving something out, as the code was before a fix: a branch, a statement, a
keyword, an operand, a condition. It then asks up to so many of the adapters that execute the place, of as many kinds as
there are. Places are drawn at random, a function first and then a place in it, so that nobody's taste chooses them.

A mutant is *seen* where a law is broken, *loud* where what executes it raises, and *silent* where neither happens. Some
silent ones change nothing that a user could notice, so that the rate is a lower bound. One line of JSON a mutant is
appended to the file, and what it holds is not measured again.
"""

from __future__ import annotations

import argparse
import ast
import importlib.util
import json
import os
import random
import re
import subprocess
import sys
import tempfile
import time
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from pathlib import Path
from typing import Any, NamedTuple

from executed_lines import RECORDER, read_lines
from mechanical_mutants import Change, Source

LIMIT_S = 300
NOT_JUDGED = re.compile(
    r"telemetry|model_card|log_completions|push_to_hub|logger|warnings?\.|deepspeed|fsdp|vllm|sglang|megatron|cuda|\bxla|npu"
    r"|is_\w+_available|__repr__|extra_repr|num_proc|tqdm|desc="
)
"""Text of a function's name or of the place's own lines that is about other engines, devices or display."""


class Place(NamedTuple):
    """Where a mutant is: a module below the package, its function, the first line, and the change."""

    module: str
    function: str
    line: int
    change: Change

    @property
    def id(self) -> str:
        """Where it is and what it becomes."""
        return f"{self.module}:{self.line}:{self.change.start}:{self.change.end}:{self.change.new}"


class Asked(NamedTuple):
    """What an adapter said: broken laws, what raised or was blocked, and whether it ended."""

    broken: list[str]
    loud: list[str]


def names_of_adapters(target: str) -> list[str]:
    """Return the names that `seatrial relations --list` gives, thorough ones too."""
    command = [sys.executable, "-m", "seatrial", "relations", "--target", target, "--list", "--thorough"]
    text = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    words = [line.split()[0] for line in text.splitlines() if line[:1].strip()]
    return [word for word in dict.fromkeys(words) if not word.endswith(":") and not word[0].isdigit()]


def ask(target: str, adapter: str, variables: Mapping[str, str]) -> Asked:
    """Run one adapter in a process of its own."""
    with tempfile.TemporaryDirectory() as folder:
        report = Path(folder) / "report.json"
        command = [sys.executable, "-m", "seatrial", "relations", "--target", target, "--adapter", adapter]
        command += ["--thorough", "--seed", "0", "--shrink-seconds", "0", "--json", str(report)]
        here = {**os.environ, **variables, "OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1"}
        try:
            ended = subprocess.run(
                command, cwd=folder, env=here, capture_output=True, text=True, timeout=LIMIT_S
            )
        except subprocess.TimeoutExpired:
            return Asked([], [f"no end in {LIMIT_S} s"])
        if not report.exists():
            return Asked([], [ended.stderr[-300:]])
        verdicts = json.loads(report.read_text())["verdicts"]
    broken, loud = [], []
    for one in verdicts:
        details = one.get("details", {})
        relation = one["name"].partition(": ")[2].split(" ")[0]
        broken += [f"{relation}: {law}" for law in details.get("laws_broken", [])]
        loud += [str(raised)[:200] for raised in details.get("raises", [])]
        if one["outcome"] == "Blocked":
            loud.append(str(one.get("reason"))[:200])
    return Asked(broken, loud)


def first(folder: Path) -> dict[str, str]:
    """Return the variable under which Python looks into a folder first."""
    return {"PYTHONPATH": os.pathsep.join(filter(None, [str(folder), os.environ.get("PYTHONPATH")]))}


def recorded(target: str, package: Path, adapter: str) -> dict[str, Any]:
    """Return the lines of the package that an adapter executes, how long it took, and what it said."""
    with tempfile.TemporaryDirectory() as folder:
        begun = time.monotonic()
        said = ask(
            target,
            adapter,
            {
                **first(RECORDER),
                "SEATRIAL_LINES_OF": str(package),
                "SEATRIAL_LINES_TO": folder,
                "SEATRIAL_LINES_NOT_BY": folder,  # nothing: adapters call the stack
            },
        )
        seconds = round(time.monotonic() - begun, 1)
        return {
            "seconds": seconds,
            "passes": not (said.broken or said.loud),
            "lines": read_lines(Path(folder)),
        }


def places(package: Path, executed: Mapping[str, Iterable[int]], under: Sequence[str]) -> Iterator[Place]:
    """Yield the changes of what functions execute; of modules whose path begins as one of `under`, if given."""
    for module, lines in sorted(executed.items()):
        if under and not module.startswith(tuple(under)):
            continue
        text = (package / module).read_text(encoding="utf-8")
        source, rows, ran, data = Source(text), text.splitlines(), set(lines), text.encode()
        functions = [
            n for n in ast.walk(source.tree) if isinstance(n, ast.FunctionDef | ast.AsyncFunctionDef)
        ]
        for change in [*source.changes(), *source.omissions()]:
            line = data.count(b"\n", 0, change.start) + 1
            last = line + data.count(b"\n", change.start, change.end)
            inside = [f for f in functions if f.body[0].lineno <= line <= (f.end_lineno or f.lineno)]
            if line not in ran or not inside:
                continue
            name = max(inside, key=lambda function: function.lineno).name
            if not NOT_JUDGED.search(" ".join([name, *rows[line - 1 : last]])):
                yield Place(module, name, line, change)


def drawn(found: Iterable[Place], seed: int, number: int) -> list[Place]:
    """Return places at random: a function first, then one of its places that none was drawn from yet."""
    by_function = defaultdict(list)
    for place in found:
        by_function[place.module, place.function].append(place)
    draw = random.Random(seed)
    for left in by_function.values():
        draw.shuffle(left)
    chosen: list[Place] = []
    while by_function and len(chosen) < number:
        key = draw.choice(list(by_function))
        chosen.append(by_function[key].pop())
        if not by_function[key]:
            del by_function[key]
    return chosen


def overlay(root: Path, package: Path, module: str, text: str) -> None:
    """Make a package of links to another's files, in which one module is replaced."""
    here, there = root / package.name, package
    for part in Path(module).parts:
        here.mkdir()
        for other in there.iterdir():
            if other.name != part:
                (here / other.name).symlink_to(other)
        here, there = here / part, there / part
    here.write_text(text, encoding="utf-8")


def judged(target: str, package: Path, place: Place, adapters: Sequence[str]) -> dict[str, Any]:
    """Return what adapters say of one mutant, in their order, up to the first whose law is broken."""
    data = (package / place.module).read_bytes()
    change = place.change
    mutated = data[: change.start] + change.new.encode() + data[change.end :]
    result: dict[str, Any] = {
        "id": place.id,
        "target": target,
        "function": place.function,
        "kind": change.kind,
        "old": data[change.start : change.end].decode()[:300],
        "new": change.new[:300],
    }
    loud, asked = 0, []
    with tempfile.TemporaryDirectory() as folder:
        overlay(Path(folder), package, place.module, mutated.decode())
        for adapter in adapters:
            said = ask(target, adapter, first(Path(folder)))
            asked.append(adapter)
            if said.broken:
                return {**result, "asked": asked, "outcome": "seen", "by": f"{adapter}: {said.broken[0]}"}
            loud += bool(said.loud)
            result["said"] = said.loud[:1]
    outcome = "loud" if 2 * loud >= len(asked) else "silent"
    return {**result, "asked": asked, "outcome": outcome, "by": ""}


def of_kinds(adapters: Sequence[str], each: int, draw: random.Random) -> list[str]:
    """Return so many adapters, of as many kinds (the first two words of their names) as there are."""
    mixed = draw.sample(adapters, len(adapters))
    kinds: dict[str, str] = {}
    for adapter in mixed:
        kinds.setdefault("-".join(adapter.split("-")[:2]), adapter)
    first = list(kinds.values())
    return [*first, *(adapter for adapter in mixed if adapter not in first)][:each]


def package_of(target: str) -> Path:
    """Return the folder of a stack's package as this Python finds it."""
    found = importlib.util.find_spec(target)
    if found is None or not found.submodule_search_locations:
        raise SystemExit(
            f"{target} is not installed in this environment: run this with the Python of one that has it"
        )
    return Path(found.submodule_search_locations[0])


def record(chosen: argparse.Namespace) -> int:
    """Record the adapters that the file does not have yet; the file is written after each."""
    package = package_of(chosen.target)
    found = json.loads(chosen.output.read_text()) if chosen.output.exists() else {}
    left = [name for name in chosen.adapter or names_of_adapters(chosen.target) if name not in found]
    with ThreadPoolExecutor(chosen.jobs) as jobs:
        begun = {jobs.submit(recorded, chosen.target, package, name): name for name in left}
        for future in as_completed(begun):
            found[begun[future]] = future.result()
            beside = chosen.output.with_suffix(".tmp")
            beside.write_text(json.dumps(found))
            beside.replace(chosen.output)
    passing = sum(one["passes"] for one in found.values())
    print(f"{len(found)} adapters recorded, of which {passing} pass")
    return 0


def judge(chosen: argparse.Namespace) -> int:
    """Judge the mutants that the file does not have yet."""
    package, end = package_of(chosen.target), time.monotonic() + 60 * chosen.minutes
    of_lines: dict[str, dict[int, list[str]]] = defaultdict(lambda: defaultdict(list))
    for adapter, one in sorted(json.loads(chosen.lines.read_text()).items()):
        for module, lines in one["lines"].items() if one["passes"] else ():
            for line in lines:
                of_lines[module.lstrip(os.sep)][line].append(adapter)
    before = chosen.output.read_text().splitlines() if chosen.output.exists() else []
    known = {json.loads(line)["id"] for line in before}
    draw = random.Random(chosen.seed)

    def one(place: Place, adapters: Sequence[str]) -> dict[str, Any] | None:
        return judged(chosen.target, package, place, adapters) if time.monotonic() < end else None

    with ThreadPoolExecutor(chosen.jobs) as jobs, chosen.output.open("a") as file:
        begun = []
        for place in drawn(places(package, of_lines, chosen.under), chosen.seed, chosen.number):
            adapters = of_kinds(of_lines[place.module][place.line], chosen.each, draw)
            if place.id not in known:
                begun.append(jobs.submit(one, place, adapters))
        for future in as_completed(begun):
            if (result := future.result()) is not None:
                print(json.dumps(result), file=file, flush=True)
    return table([chosen.output])


def table(files: Iterable[Path]) -> int:
    """Print for each target how many mutants are seen, loud and silent, and the silent ones by module."""
    results = [json.loads(line) for file in files for line in file.read_text().splitlines()]
    for target, number in Counter(one["target"] for one in results).items():
        mine = [one for one in results if one["target"] == target]
        outcome = Counter(one["outcome"] for one in mine)
        quiet = outcome["seen"] + outcome["silent"]
        print(
            f"{target}: of {number} mutants {outcome['loud']} are loud; of the other {quiet} {outcome['seen']} are "
            f"seen ({100 * outcome['seen'] / max(quiet, 1):.0f} %)"
        )
        silent = Counter(one["id"].split(":")[0] for one in mine if one["outcome"] == "silent")
        for module, count in silent.most_common():
            print(f"{count:4d} silent in {module}")
    return 0


def main(argv: Sequence[str]) -> int:
    """Record, judge, or print what was judged."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    commands = parser.add_subparsers(required=True)
    for function in (record, judge):
        command = commands.add_parser(function.__name__)
        command.set_defaults(run=function)
        command.add_argument("--target", required=True)
        command.add_argument("--output", type=Path, required=True)
        command.add_argument("--jobs", type=int, default=1)
        if function is record:
            command.add_argument("--adapter", nargs="*")
            continue
        command.add_argument("--lines", type=Path, required=True)
        command.add_argument("--number", type=int, default=100)
        command.add_argument("--each", type=int, default=6)
        command.add_argument("--seed", type=int, default=0)
        command.add_argument("--under", nargs="*", default=[])
        command.add_argument("--minutes", type=float, default=float("inf"))
    command = commands.add_parser("table")
    command.set_defaults(run=lambda chosen: table(chosen.files))
    command.add_argument("files", type=Path, nargs="+")
    chosen = parser.parse_args(argv)
    return int(chosen.run(chosen))


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
