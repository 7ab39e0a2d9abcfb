"""Simulates searches on made-up or recorded noise: what a bisect would cost, and how often it would be right."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple, Protocol

import numpy as np

from seatrial.bisect.evidence_model import Observation, Question
from seatrial.bisect.history import History
from seatrial.bisect.likelihood import Settings
from seatrial.bisect.search import Conclusion, Probe, Search, Stop


class Moment(NamedTuple):
    """What is run, and when."""

    affected: bool
    """Whether the run contains the culprit."""
    share: float
    """Fraction of the suspects' changes in the run, from 0 (GOOD) to 1 (BAD)."""
    number: int
    """Number of earlier runs."""


class World(Protocol):
    """Behaviour of a simulated command."""

    @property
    def question(self) -> Question:
        """What its runs answer."""
        ...

    def run(self, moment: Moment, generator: np.random.Generator) -> Observation:
        """Run it once; the caller fills in the position."""
        ...


@dataclass(frozen=True)
class FailureRates:
    """A command that fails with one probability before the culprit and another one after it."""

    good: float
    bad: float

    question = Question.PASS_FAIL

    def run(self, moment: Moment, generator: np.random.Generator) -> Observation:
        """Run it once."""
        return Observation(
            position=0, failed=bool(generator.random() < (self.bad if moment.affected else self.good))
        )


@dataclass(frozen=True)
class MetricShift:
    """A metric with normal noise of standard deviation 1 whose mean shifts at the culprit, or drifts."""

    shift: float
    """At the culprit."""
    with_commits: float = 0.0
    """Sum of many small changes from GOOD to BAD."""
    with_time: float = 0.0
    """Change over twenty runs, at any commit."""
    noise_after: float = 1.0
    """Standard deviation after the culprit."""
    outliers: float = 0.0
    """Share of runs whose noise is multiplied by `outlier_noise`."""
    outlier_noise: float = 5.0

    question = Question.METRIC

    def run(self, moment: Moment, generator: np.random.Generator) -> Observation:
        """Run it once."""
        mean = self.shift * moment.affected + self.with_commits * moment.share
        mean += self.with_time * moment.number / 20
        noise = generator.normal() * (self.noise_after if moment.affected else 1.0)
        if self.outliers and generator.random() < self.outliers:
            noise *= self.outlier_noise
        return Observation(position=0, failed=False, value=float(noise + mean))


@dataclass(frozen=True)
class Recorded:
    """A command whose runs are drawn from those recorded at the two ends."""

    good: tuple[Observation, ...]
    bad: tuple[Observation, ...]
    question: Question

    def run(self, moment: Moment, generator: np.random.Generator) -> Observation:
        """Draw one recorded run."""
        pool = self.bad if moment.affected else self.good
        return pool[int(generator.integers(len(pool)))]


@dataclass(frozen=True)
class Trial:
    """The end of one simulated search."""

    runs: int
    named: tuple[int, ...] = ()
    """Suspects that were named: one, or several that no run can distinguish."""
    conclusion: Conclusion = Conclusion.FOUND
    stated: float | None = None
    """Probability that the search stated for its answer; None if it gave none."""


Strategy = Callable[[History, Callable[[int], Observation], Question], Trial]
"""Finds a culprit in a history by requesting runs at positions."""


def with_settings(settings: Settings) -> Strategy:
    """Return our search as a strategy."""

    def find(history: History, run: Callable[[int], Observation], question: Question) -> Trial:
        search = Search(history, question, settings)
        while isinstance(decision := search.decide(), Probe):
            search.record(run(decision.position))
        assert isinstance(decision, Stop)
        belief, runs = search.stated(), len(search.observations)
        if decision.conclusion is Conclusion.FOUND:
            _, named = search.classes()[0]
            return Trial(runs, named, stated=float(belief.suspects_H[list(named)].sum()))
        stated = {Conclusion.NO_CULPRIT: belief.no_culprit, Conclusion.DRIFT: belief.drift}
        return Trial(runs, (), decision.conclusion, stated.get(decision.conclusion))

    return find


def repeated_bisection(repeats: int) -> Strategy:
    """Return git bisect's rule with `repeats` runs per commit and a majority vote; the ends are not run.

    With one repeat this is `git bisect run`. It cannot conclude that there is no culprit.
    """

    def find(history: History, run: Callable[[int], Observation], question: Question) -> Trial:
        low, high, runs = 0, history.num_suspects, 0
        while high - low > 1:
            middle = (low + high) // 2
            fails = sum(run(middle).failed for _ in range(repeats))
            runs += repeats
            low, high = (low, middle) if 2 * fails > repeats else (middle, high)
        return Trial(runs, (high - 1,))

    return find


@dataclass(frozen=True)
class Figures:
    """Cost and accuracy of one strategy in one world."""

    median_runs: float
    p90_runs: float
    share_right: float
    """Fraction of all trials."""
    trials: int
    stated: float | None = None
    """Mean stated probability of the answers; None if there were none."""
    right_of_answers: float | None = None
    """Fraction of the answers that were right."""
    named: float = 1.0
    """Mean number of commits that were named."""


def measure(
    world: World,
    strategy: Strategy,
    *,
    num_suspects: int,
    trials: int,
    seed: int,
    wanted: Conclusion = Conclusion.FOUND,
    broken: int = 0,
) -> Figures:
    """Run a strategy on many made-up histories.

    Args:
        world: behaviour of the command.
        strategy: finds the culprit.
        num_suspects: number of commits.
        trials: number of histories, each with a random culprit.
        seed: of all randomness.
        wanted: the right answer; there is a culprit only if it is FOUND.
        broken: number of commits around the culprit whose runs leave nothing.
    """
    history = History.linear(num_suspects)
    generator = np.random.default_rng(seed)
    ended: list[tuple[Trial, bool]] = []
    for _ in range(trials):
        culprit = int(generator.integers(num_suspects)) if wanted is Conclusion.FOUND else None
        gone: range = range(0)
        if broken and culprit is not None:
            first = culprit + 1 - int(generator.integers(broken + 1))
            gone = range(max(first, 1), min(first + broken, num_suspects))
        trial = strategy(history, _runner(world, history, culprit, gone, generator), world.question)
        right = culprit in trial.named if culprit is not None else trial.conclusion is wanted
        ended.append((trial, right))
    runs = [trial.runs for trial, _ in ended]
    answers = [(trial.stated, right) for trial, right in ended if trial.stated is not None]
    named = [len(trial.named) for trial, _ in ended if trial.named]
    return Figures(
        float(np.median(runs)),
        float(np.quantile(runs, 0.9)),
        sum(right for _, right in ended) / trials,
        trials,
        stated=float(np.mean([stated for stated, _ in answers])) if answers else None,
        right_of_answers=float(np.mean([right for _, right in answers])) if answers else None,
        named=float(np.mean(named)) if named else 0.0,
    )


def _runner(
    world: World, history: History, culprit: int | None, gone: range, generator: np.random.Generator
) -> Callable[[int], Observation]:
    number = 0

    def run(position: int) -> Observation:
        nonlocal number
        affected = culprit is not None and bool(history.affected_PH[position, culprit])
        moment = Moment(affected, position / history.num_suspects, number)
        number += 1
        if position in gone:
            return Observation(position=position, failed=True, lost=True)
        return replace(world.run(moment, generator), position=position)

    return run


def table(rows: Sequence[Sequence[str]]) -> str:
    """Return rows as a Markdown table; the first row is the header."""
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    lines = [
        "| " + " | ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)) + " |"
        for row in rows
    ]
    return "\n".join([lines[0], "|" + "|".join("-" * (width + 2) for width in widths) + "|", *lines[1:]])
