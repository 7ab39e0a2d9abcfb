"""Accuracy and cost of bisecting under noise: Seatrial, git bisect, five-fold majority and git_bayesect.

    python benchmarks/bisect_simulation.py [--trials 200] [--seed 31000] [--write docs/evidence/bisect.md]
        [--bayesect-python PATH | --no-bayesect] [--rows REGEX]

All strategies meet the same worlds in one run. Runs at the ends and of calibration are counted. git_bayesect gets an
environment of its own, made for the run and removed after it (or PATH, an interpreter that has it); it is told the
true order of commits and nothing of the rates, as our search. Settings were tuned on seeds below 1000; the table's
seed must be above. Where a metric is searched, the others search "the value is beyond the true midpoint", which
nobody knows beforehand; to them the run of a broken commit is a failure, as its exit status says.
"Stated" is the mean probability that the answers were given with; "error" is the standard error of the share.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import platform
import re
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from datetime import UTC, datetime
from itertools import repeat
from pathlib import Path
from typing import NamedTuple

import numpy as np

from seatrial.bisect.evidence_model import Observation, Question
from seatrial.bisect.history import History
from seatrial.bisect.likelihood import MetricPrior, Noise, Settings, Worse
from seatrial.bisect.search import Conclusion, Search
from seatrial.bisect.simulate import (
    FailureRates,
    Figures,
    MetricShift,
    Moment,
    Strategy,
    Trial,
    World,
    measure,
    repeated_bisection,
    table,
    with_settings,
)

OURS = "seatrial"
HEAD = [
    "world (128 commits)", "search", "runs, median", "runs, 9 in 10", "right ± error", "stated", "named", "wanted",
]  # fmt: skip
FIRST_SEED_OF_TABLES = 1000
BAYESECT = "git_bayesect==1.2"
_FOUND, _NONE, _DRIFT = Conclusion.FOUND, Conclusion.NO_CULPRIT, Conclusion.DRIFT


@dataclass(frozen=True)
class SameEveryTime:
    """A deterministic command with a metric: its logs agree to the last bit."""

    question = Question.METRIC

    def run(self, moment: Moment, generator: np.random.Generator) -> Observation:
        """Run it once."""
        return Observation(
            position=0, failed=False, value=0.25 + 0.125 * moment.affected, fingerprint=str(moment.affected)
        )


class Row(NamedTuple):
    """One world of the table."""

    name: str
    world: World
    right: Conclusion = _FOUND
    """What is right to say; where it is FOUND the culprit must be among the commits named."""
    broken: int = 0
    """Commits beside the culprit whose runs leave nothing."""
    wanted: str = ""


WORLDS: Sequence[Row] = (
    Row("fails .1 / .9", FailureRates(0.1, 0.9), wanted="<= 22, >= .99"),
    Row("fails .2 / .8", FailureRates(0.2, 0.8), wanted="<= 44, >= .97"),
    Row("fails 0 / .5", FailureRates(0.0, 0.5)),
    Row("fails .05 / .6", FailureRates(0.05, 0.6)),
    Row("fails .4 / .95", FailureRates(0.4, 0.95)),
    Row("fails .5 / 1", FailureRates(0.5, 1.0)),
    Row("fails .1 / .9, 2 broken commits", FailureRates(0.1, 0.9), broken=2),
    Row("metric shifts by 5 sd", MetricShift(5.0)),
    Row("metric shifts by 3 sd", MetricShift(3.0), wanted="<= 15, >= .98"),
    Row("metric shifts by 2 sd", MetricShift(2.0), wanted="<= 25, >= .95"),
    *(
        Row(f"metric shifts by 3 sd, {n} broken commit{'s' if n > 1 else ''}", MetricShift(3.0), broken=n)
        for n in (1, 2, 4)
    ),
    Row("metric drifts by 6 sd with the commits", MetricShift(0.0, with_commits=6.0), _DRIFT),
    Row("metric drifts by 6 sd in 20 runs", MetricShift(0.0, with_time=6.0), _DRIFT),
    *(
        Row(
            f"no culprit, fails {rate:g}".replace("0.", "."), FailureRates(rate, rate), _NONE, wanted=">= .97"
        )
        for rate in (0.1, 0.2, 0.5, 0.8, 0.9)
    ),
    Row("no culprit, metric", MetricShift(0.0), _NONE, wanted=">= .97"),
    Row("metric shifts by 3 sd, twice the noise after", MetricShift(3.0, noise_after=2.0)),
    Row("metric shifts by 3 sd, half the noise after", MetricShift(3.0, noise_after=0.5)),
    Row("metric shifts by 3 sd, 5 % outliers", MetricShift(3.0, outliers=0.05)),
    Row("no culprit, metric, 5 % outliers", MetricShift(0.0, outliers=0.05), _NONE),
    Row("metric drifts by 3 sd with the commits", MetricShift(0.0, with_commits=3.0), _DRIFT),
)

_BAYESECT = """
import json, sys
import numpy as np
from git_bayesect import Bisector
good, bad, commits, trials, seed, broken = json.loads(sys.argv[1])
rng = np.random.default_rng(seed)
runs, right, stated = [], 0, []
for _ in range(trials):
    culprit = int(rng.integers(commits))          # index 0 is the newest commit
    first = culprit + int(rng.integers(broken + 1)) if broken else culprit
    gone = range(max(first - broken + 1, 1), min(first + 1, commits)) if broken else ()
    search = Bisector(np.ones(commits))
    count = 0
    while search.distribution.max() < 0.95 and count < 400:
        index = search.select()
        fails = index in gone or rng.random() < (bad if index <= culprit else good)
        search.record(index, bool(fails))
        count += 1
    runs.append(count)
    right += int(np.argmax(search.distribution)) == culprit
    stated.append(float(search.distribution.max()))
figures = [np.median(runs), np.quantile(runs, 0.9), right / trials, np.mean(stated)]
print(json.dumps([float(figure) for figure in figures]))
"""


def main() -> None:
    """Measure, print, and if asked write the table into the documentation."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--trials", type=int, default=200)
    parser.add_argument("--seed", type=int, default=31000)
    parser.add_argument("--bayesect-python", help="interpreter that has git_bayesect")
    parser.add_argument("--no-bayesect", action="store_true", help="leave git_bayesect out")
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1, help="processes")
    parser.add_argument("--write", type=Path, help="document whose table is replaced")
    parser.add_argument("--rows", default="", help="only rows whose 'world | search' matches this expression")
    arguments = parser.parse_args()
    if arguments.seed < FIRST_SEED_OF_TABLES:
        parser.error(f"seeds below {FIRST_SEED_OF_TABLES} are for tuning")
    with tempfile.TemporaryDirectory(prefix="bayesect-") as folder:
        python = arguments.bayesect_python or ""
        if not python and not arguments.no_bayesect:
            python = _environment_with_bayesect(Path(folder))
        text = report(arguments.trials, arguments.seed, python, arguments.jobs, arguments.rows)
    print(text)
    if arguments.write is not None:
        replace_table(arguments.write, text)


def _environment_with_bayesect(folder: Path) -> str:
    """Make an environment with git_bayesect and return its interpreter."""
    subprocess.run([sys.executable, "-m", "venv", str(folder)], check=True)
    python = str(folder / "bin" / "python")
    subprocess.run([python, "-m", "pip", "install", "--quiet", BAYESECT], check=True)
    return python


def report(trials: int, seed: int, bayesect_python: str, jobs: int = 1, rows_wanted: str = "") -> str:
    """Return the tables as Markdown; its rows are measured in as many processes as `jobs`."""
    cells = [
        cell
        for cell in [*_noisy_cells(seed), *_exact_cells(seed)]
        if (bayesect_python or not cell.bayesect) and re.search(rows_wanted, f"{cell.name} | {cell.title}")
    ]
    with ProcessPoolExecutor(jobs) as pool:
        measured = pool.map(_measured, cells, repeat(trials), repeat(bayesect_python))
        rows = [HEAD, *measured]
    lines = [
        f"Measured {datetime.now(UTC):%Y-%m-%d} by `python benchmarks/bisect_simulation.py --trials {trials} "
        f"--seed {seed} --write docs/evidence/bisect.md` (Python {platform.python_version()}, numpy {np.__version__}, "
        f"{BAYESECT}). {trials} trials a row; runs at both ends are counted.",
        "",
        table(rows),
        "",
        *_decision_times(),
    ]
    if not bayesect_python:
        lines.append("git_bayesect was not measured in this run (--no-bayesect).")
    return "\n".join(lines)


class Cell(NamedTuple):
    """One row of the table: a world and who searches in it."""

    name: str
    title: str
    world: World
    seed: int
    right: Conclusion = _FOUND
    broken: int = 0
    wanted: str = ""

    @property
    def bayesect(self) -> bool:
        """Whether git_bayesect searches."""
        return self.title == BAYESECT_TITLE


SD_KNOWN, BAYESECT_TITLE, ENDS_NOT_RUN = (
    f"{OURS}, sd known (--metric-sd)", "git_bayesect", "git bisect (ends not run)",
)  # fmt: skip
NUM_HEALTHY = 8
WORSE, HEALTHY, BOTH = (
    f"{OURS}, worse known",
    f"{OURS} --baseline, {NUM_HEALTHY} logs",
    f"{OURS} --baseline, {NUM_HEALTHY} logs, worse known",
)
DECLARED = f"{OURS} --noise none"


def _with_healthy_runs(worse: Worse | None = None) -> Strategy:
    """Return our search, told of healthy runs that were made before; new ones for each search."""

    def find(history: History, run: Callable[[int], Observation], question: Question) -> Trial:
        # Runs are drawn in the world itself, whose own generator this search goes on to use.
        healthy = tuple(float(run(0).value or 0.0) for _ in range(NUM_HEALTHY))
        known = MetricPrior(healthy=healthy, worse=worse)
        return with_settings(Settings(metric=known))(history, run, question)

    return find


STRATEGIES: Mapping[str, Strategy] = {
    OURS: with_settings(Settings()),
    SD_KNOWN: with_settings(Settings(metric=MetricPrior(sd=1.0))),
    WORSE: with_settings(Settings(metric=MetricPrior(worse=Worse.HIGHER))),
    HEALTHY: _with_healthy_runs(),
    BOTH: _with_healthy_runs(Worse.HIGHER),
    DECLARED: with_settings(Settings(noise=Noise.NONE)),
    "git bisect": repeated_bisection(1),
    ENDS_NOT_RUN: repeated_bisection(1),
    "majority of five": repeated_bisection(5),
}


def _noisy_cells(first_seed: int) -> Iterator[Cell]:
    for number, row in enumerate(WORLDS):
        seed, others = first_seed + number, row.world
        yield Cell(row.name, OURS, row.world, seed, row.right, row.broken, row.wanted)
        if isinstance(row.world, MetricShift):
            for title in (WORSE, HEALTHY, BOTH, SD_KNOWN) if row.wanted else (WORSE,):
                yield Cell(row.name, title, row.world, seed, row.right, row.broken, row.wanted)
            crossing = statistics.NormalDist().cdf(row.world.shift / 2)
            others = FailureRates(1 - crossing, crossing)
        if row.right is _FOUND and not _has_uneven_noise(row.world):
            for title in ("git bisect", "majority of five", BAYESECT_TITLE):
                yield Cell(row.name, title, others, seed, broken=row.broken)


def _has_uneven_noise(world: World) -> bool:
    """Return whether the noise is not the same normal one on both sides, as a midpoint needs it."""
    return isinstance(world, MetricShift) and (world.noise_after != 1.0 or world.outliers > 0)


def _exact_cells(seed: int) -> Iterator[Cell]:
    exact = FailureRates(0.0, 1.0)
    yield Cell("deterministic, pass/fail, declared", DECLARED, exact, seed, wanted="9")
    yield Cell("deterministic, logs agree to the bit", OURS, SameEveryTime(), seed, wanted="9")
    yield Cell("deterministic, pass/fail, not declared", OURS, exact, seed)
    yield Cell("deterministic, pass/fail", ENDS_NOT_RUN, exact, seed)


def _measured(cell: Cell, trials: int, bayesect_python: str) -> list[str]:
    """Return a row of the table."""
    if cell.bayesect:
        assert isinstance(cell.world, FailureRates)
        return _row(cell, _bayesect(bayesect_python, cell.world, trials, cell.seed, cell.broken))
    figures = measure(
        cell.world,
        STRATEGIES[cell.title],
        num_suspects=128,
        trials=trials,
        seed=cell.seed,
        wanted=cell.right,
        broken=cell.broken,
    )
    return _row(cell, figures)


def _bayesect(python: str, world: FailureRates, trials: int, seed: int, broken: int) -> Figures:
    asked = json.dumps([world.good, world.bad, 128, trials, seed, broken])
    done = subprocess.run([python, "-c", _BAYESECT, asked], capture_output=True, text=True, check=True)
    median, p90, right, stated = json.loads(done.stdout)
    return Figures(median, p90, right, trials, stated, right)


def _row(cell: Cell, figures: Figures) -> list[str]:
    runs = [f"{figures.median_runs:.1f}".removesuffix(".0"), f"{figures.p90_runs:.0f}"]
    stated = "" if figures.stated is None else f"{figures.stated:.3f}"
    if (
        figures.right_of_answers is not None
        and f"{figures.right_of_answers:.3f}" != f"{figures.share_right:.3f}"
    ):
        stated += f" ({figures.right_of_answers:.3f} of the answers right)"
    named = f"{figures.named:.1f}".removesuffix(".0") if figures.named else ""
    right = with_error(figures.share_right, figures.trials)
    row = [cell.name, cell.title, *runs, right, stated, named, cell.wanted]
    print(*row, sep=" | ", file=sys.stderr, flush=True)
    return row


def with_error(share: float, trials: int) -> str:
    """Return a share with its standard error; one success and one failure more keep that of 1 above zero."""
    near = (share * trials + 1) / (trials + 2)
    return f"{share:.3f} ± {math.sqrt(near * (1 - near) / trials):.3f}"


def _decision_times() -> list[str]:
    """Time one decision among 1,024 commits after ten results, belief included."""
    lines = []
    for question in Question:
        search = Search(History.linear(1024), question)
        generator = np.random.default_rng(1)
        for position in (0, 1024, 512, 256, 384, 448, 416, 400, 408, 404):
            after = position > 402
            value = float(generator.normal() + 3 * after) if question is Question.METRIC else None
            search.record(Observation(position=position, failed=after and value is None, value=value))
        seconds = []
        for _ in range(20):
            search._belief = None
            started = time.perf_counter()
            search.decide()
            seconds.append(time.perf_counter() - started)
        lines.append(
            f"Choosing the next probe among 1,024 commits ({question.value}): "
            f"median {1000 * np.median(seconds):.1f} ms, fastest {1000 * min(seconds):.1f} ms "
            "(wanted: under 50 ms).\n"
        )
    return lines


BEGIN, END = "<!-- table made by benchmarks/bisect_simulation.py -->", "<!-- end of table -->"


def replace_table(path: Path, text: str) -> None:
    """Put the table between its marks in a document."""
    whole = path.read_text(encoding="utf-8")
    before, rest = whole.split(BEGIN)
    _, after = rest.split(END)
    temporary = path.with_name(path.name + ".new")
    temporary.write_text(f"{before}{BEGIN}\n{text}\n{END}{after}", encoding="utf-8")
    os.replace(temporary, path)  # noqa: PTH105


if __name__ == "__main__":
    sys.exit(main())
