"""`seatrial bisect --simulate`: cost and accuracy before any GPU hour is spent."""

from __future__ import annotations

import argparse
import os
from pathlib import Path

from seatrial.bisect.evidence_model import Observation, Question
from seatrial.bisect.git import read_history
from seatrial.bisect.journal import NAME, read_journal
from seatrial.bisect.likelihood import EITHER, MetricPrior, Noise, Settings, Worse
from seatrial.bisect.outcomes import Run, RunOutcome
from seatrial.bisect.private_repo import UserRepository
from seatrial.bisect.session import read_task
from seatrial.bisect.simulate import (
    FailureRates,
    MetricShift,
    Recorded,
    Strategy,
    World,
    measure,
    repeated_bisection,
    table,
    with_settings,
)
from seatrial.errors import UsageError

_DEFAULT_COMMITS = 128


def simulate(arguments: argparse.Namespace) -> int:
    """Print a table of what searches would cost and how often they would be right."""
    if arguments.trials < 1:
        raise UsageError(f"--trials {arguments.trials} must be at least 1")
    settings = Settings(
        noise=Noise(arguments.noise),
        metric=MetricPrior(
            sd=arguments.metric_sd,
            worse=None if arguments.worse in (None, EITHER) else Worse(arguments.worse),
        ),
        credibility=arguments.credibility or Settings.credibility,
        smallest_rate_change=arguments.smallest_change,
        max_runs=arguments.max_runs or Settings.max_runs,
    )
    commits, minutes = _commits(arguments), None
    worlds, minutes = _worlds(arguments)
    rows = [
        ["noise", "search", "runs, median", "runs, 9 in 10", "right"]
        + (["minutes, median"] if minutes else [])
    ]
    for name, world in worlds:
        for title, strategy in _strategies(world, settings):
            figures = measure(
                world, strategy, num_suspects=commits, trials=arguments.trials, seed=arguments.seed
            )
            row = [
                name,
                title,
                f"{figures.median_runs:.0f}",
                f"{figures.p90_runs:.0f}",
                f"{figures.share_right:.3f}",
            ]
            rows.append(row + ([f"{figures.median_runs * minutes:.0f}"] if minutes else []))
    print(f"{commits} commits, {arguments.trials} trials each, seed {arguments.seed}")
    print(table(rows))
    return 0


def _strategies(world: World, settings: Settings) -> list[tuple[str, Strategy]]:
    ours = [("seatrial bisect", with_settings(settings))]
    if world.question is Question.METRIC:
        return ours
    return [
        *ours,
        ("git bisect", repeated_bisection(1)),
        ("five runs a commit, majority", repeated_bisection(5)),
    ]


def _commits(arguments: argparse.Namespace) -> int:
    if arguments.commits is not None:
        if arguments.commits < 1:
            raise UsageError(f"--commits {arguments.commits} must be at least 1")
        return int(arguments.commits)
    good, bad = arguments.good or os.environ.get("GOOD"), arguments.bad or os.environ.get("BAD")
    if not good or not bad:
        return _DEFAULT_COMMITS
    user = UserRepository(arguments.repo)
    history, _ = read_history(
        user.top, user.resolve(good, "GOOD"), user.resolve(bad, "BAD"), first_parent=arguments.first_parent
    )
    return history.num_suspects


def _worlds(arguments: argparse.Namespace) -> tuple[list[tuple[str, World]], float | None]:
    """Return the worlds asked for, and the minutes of a recorded run."""
    if arguments.recorded is not None:
        return _recorded(arguments.recorded)
    if arguments.rates is not None:
        try:
            good, bad = (float(word) for word in arguments.rates.split(","))
        except ValueError:
            raise UsageError(f"--rates {arguments.rates!r} must be two numbers, such as 0.1,0.9") from None
        if not 0 <= good <= 1 or not 0 <= bad <= 1:
            raise UsageError(f"--rates {arguments.rates!r}: failure rates lie between 0 and 1")
        return [(f"fails {good:g} before, {bad:g} after", FailureRates(good, bad))], None
    if arguments.shift is not None:
        return [(f"metric shifts by {arguments.shift:g} sd", MetricShift(arguments.shift))], None
    return [
        ("fails 0.1 before, 0.9 after", FailureRates(0.1, 0.9)),
        ("fails 0.2 before, 0.8 after", FailureRates(0.2, 0.8)),
        ("metric shifts by 3 sd", MetricShift(3.0)),
        ("metric shifts by 2 sd", MetricShift(2.0)),
    ], None


def _recorded(path: Path) -> tuple[list[tuple[str, World]], float]:
    """Read the runs of both ends out of a journal.

    Raises:
        UsageError: an end has fewer than two runs.
    """
    path = path / NAME if path.is_dir() else path
    entries = read_journal(path)
    task = read_task(entries, path)
    runs = [Run.from_json(e.record) for e in entries if e.record is not None and e.record["kind"] == "result"]
    judged = [run for run in runs if run.outcome in (RunOutcome.PASS, RunOutcome.FAIL)]
    ends: list[tuple[Observation, ...]] = []
    for name, sha in (("GOOD", task.good), ("BAD", task.bad)):
        values = [
            Observation(
                position=0,
                failed=run.outcome is RunOutcome.FAIL,
                value=run.value if task.question is Question.METRIC else None,
            )
            for run in judged
            if run.commit == sha
        ]
        if len(values) < 2:
            raise UsageError(
                f"{path} holds {len(values)} runs of {name}; at least 2 are needed to draw noise from"
            )
        ends.append(tuple(values))
    seconds = [run.seconds for run in judged]
    world = Recorded(ends[0], ends[1], task.question)
    return [(f"recorded: {len(ends[0])} runs of GOOD, {len(ends[1])} of BAD", world)], sum(seconds) / len(
        seconds
    ) / 60
