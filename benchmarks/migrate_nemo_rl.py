"""Carries over every script of a checkout that calls NeMo RL's checker, and judges made-up runs by each suite.

    git clone https://github.com/NVIDIA-NeMo/RL
    python benchmarks/migrate_nemo_rl.py RL

For each suite a healthy run is made: series on which all of its checks hold, found by trying values around the
bounds that the checks name, and written as NeMo RL's dump writes them. The run must pass, and must not pass when it
is cut after step 1, or one step before its end. Exits 1 where one of these does not hold.
"""

from __future__ import annotations

import itertools
import json
import re
import sys
import tempfile
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path

import numpy as np

from seatrial.checks.judge import Questions, judge_log, judge_logs
from seatrial.checks.language.nodes import Check
from seatrial.checks.suites import Suite, load_suite
from seatrial.evidence.runlog import RunLog, Series
from seatrial.migrate.suite_files import suite_texts
from seatrial.migrate.suites import Migration, find_scripts, migrate_script
from seatrial.verdict import Outcome, combine

Points = dict[int, float]
"""One series: value by step."""
Run = Mapping[str, Points | float]
"""What a run logged: series, and bare numbers, by tag."""
_NUMBER = re.compile(r"(?<![\w\"'.])-?\d+(?:\.\d+)?(?:e-?\d+)?")
_STEP = re.compile(r"\[[\"'](\d+)[\"']\]|^'?\"(\d+)\" in ")
_LENGTH = re.compile(r"len\(data\[.*?\]\)\s*==\s*(\d+)")


def healthy_run(suite: Suite) -> Run | None:
    """Return series, and bare numbers, on which every check of a suite holds; None when none were found."""
    checks = [item.read() for item in suite.checks]
    run: dict[str, Points | float] = {} if suite.steps_of is None else {suite.steps_of: _level(suite, 1.0)}
    for tags, asked in _groups(checks):
        found = next((made for made in _candidates(suite, tags, asked) if _holds(made, asked)), None)
        if found is None:
            return None
        run |= found
    return run or {"train/loss": _level(suite, 1.0)}


def _groups(checks: Sequence[Check]) -> Iterator[tuple[tuple[str, ...], list[Check]]]:
    """Yield tags that checks read together, with these checks."""
    groups: list[set[str]] = []
    for tags in (set(check.tags()) for check in checks):
        met = [group for group in groups if group & tags]
        groups = [group for group in groups if group not in met] + [tags.union(*met)]
    for group in groups:
        yield tuple(sorted(group)), [check for check in checks if set(check.tags()) <= group]


def _candidates(suite: Suite, tags: tuple[str, ...], checks: Sequence[Check]) -> Iterator[Run]:
    texts = [check.text for check in checks]
    bounds = sorted({float(number) for text in texts for number in _NUMBER.findall(text)} | {0.0, 1.0})
    apart = [(low + high) / 2 for low, high in itertools.pairwise(bounds)]
    values = [*apart, *bounds, bounds[-1] + 1, bounds[0] - 1]
    if len(tags) == 1 and not any("(" in text or _STEP.search(text) for text in texts):
        yield from ({tags[0]: value} for value in values)
    steps = _steps(suite, texts)
    for chosen in itertools.product(values, repeat=len(tags)):
        yield {tag: dict.fromkeys(steps, value) for tag, value in zip(tags, chosen, strict=True)}
    for ends in itertools.product(itertools.product(values, repeat=2), repeat=len(tags)):
        yield {
            tag: dict(zip(steps, np.linspace(first, last, len(steps)).tolist(), strict=True))
            for tag, (first, last) in zip(tags, ends, strict=True)
        }


def _steps(suite: Suite, texts: Sequence[str]) -> list[int]:
    """Return the steps of a series: those that checks name, and as many as a check counts."""
    named = {int(a or b) for text in texts for a, b in _STEP.findall(text)}
    last = max({suite.steps or 20} | named)
    counted = next((int(match[1]) for text in texts if (match := _LENGTH.search(text))), None)
    every = sorted({*range(1, last + 1)} | named)
    return (
        every
        if counted is None
        else sorted([*named, *(step for step in every if step not in named)][:counted])
    )


def _level(suite: Suite, value: float) -> Points:
    return dict.fromkeys(range(1, (suite.steps or 20) + 1), value)


def _holds(run: Run, checks: Sequence[Check]) -> bool:
    series = {
        tag: Series(tag=tag, steps=np.array([*points]), values=np.array([*points.values()]))
        for tag, points in run.items()
        if isinstance(points, dict)
    }
    scalars = {tag: value for tag, value in run.items() if isinstance(value, float)}
    verdicts = judge_log(RunLog(sources=[], series=series, scalars=scalars), Questions(checks=checks))
    return all(verdict.outcome in (Outcome.PASS, Outcome.SKIPPED) for verdict in verdicts)


def outcome(suite: Suite, run: Run, up_to: int | None, folder: Path) -> Outcome:
    """Judge a run, or its first steps, from a file as NeMo RL's dump writes it."""
    kept: dict[str, Points | float] = {
        tag: {step: value for step, value in points.items() if up_to is None or step <= up_to}
        if isinstance(points, dict)
        else points
        for tag, points in run.items()
    }
    path = folder / "metrics.json"
    path.write_text(json.dumps({tag: points for tag, points in kept.items() if points != {}}))
    return combine(verdict.outcome for verdict in judge_logs(path, Questions(suites=[suite])))


def main() -> int:
    """Print what was carried over and how the made runs were judged; return 1 where one was judged wrongly."""
    migrations = [migrate_script(path) for path in find_scripts([Path(sys.argv[1])])]
    migrations = [migration for migration in migrations if migration.calls or migration.left_behind]
    judged: dict[str, Counter[str]] = {
        "healthy": Counter(),
        "after step 1": Counter(),
        "one step short": Counter(),
    }
    wrong: list[str] = []
    num_suites = with_steps = one_step = 0
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        for suite in _suites(migrations, folder):
            num_suites += 1
            with_steps += suite.steps is not None
            one_step += suite.steps == 1
            run = healthy_run(suite)
            if run is None:
                wrong.append(f"{suite.name}: no healthy run was found")
                continue
            is_evaluation = not any(isinstance(points, dict) for points in run.values())
            cuts: list[tuple[str, int | None, Callable[[Outcome], bool]]] = [("healthy", None, _passes)]
            if not is_evaluation:
                cuts.append(("after step 1", 1, _passes if suite.steps == 1 else _does_not_pass))
            if suite.steps is not None:
                cuts.append(("one step short", suite.steps - 1, _does_not_pass))
            for what, up_to, is_right in cuts:
                found = outcome(suite, run, up_to, folder)
                judged[what][found.value] += 1
                if not is_right(found):
                    wrong.append(f"{suite.name}: {what}: {found.value}, steps {suite.steps}")
    _report(migrations, num_suites, with_steps, one_step, judged)
    for line in wrong:
        print(f"WRONG: {line}")
    return 1 if wrong else 0


def _passes(found: Outcome) -> bool:
    return found is Outcome.PASS


def _does_not_pass(found: Outcome) -> bool:
    return found is not Outcome.PASS


def _suites(migrations: Sequence[Migration], folder: Path) -> Iterator[Suite]:
    for migration in migrations:
        for name, text in suite_texts(migration).items():
            (folder / name).write_text(text)
            yield load_suite(folder / name)


def _report(
    migrations: Sequence[Migration],
    num_suites: int,
    with_steps: int,
    one_step: int,
    judged: dict[str, Counter[str]],
) -> None:
    guarded = sum(any(call.guards for call in migration.calls) for migration in migrations)
    carried = sum(len(migration.carried) for migration in migrations)
    left = [item for migration in migrations for item in migration.left_behind]
    print(
        f"{len(migrations)} scripts, {guarded} with a guard; {carried} checks carried over, {len(left)} left behind"
    )
    print(f"{num_suites} suites: {with_steps} ask for steps, {one_step} of them for one")
    for what, found in judged.items():
        print(f"{what}: " + ", ".join(f"{count} {name}" for name, count in found.most_common()))


if __name__ == "__main__":
    sys.exit(main())
