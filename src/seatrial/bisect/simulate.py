"""Searches on made-up or recorded noise: what a bisect would cost, and how often it would be right."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Protocol

import numpy as np

from seatrial.bisect.evidence_model import Observation, Question
from seatrial.bisect.history import History
from seatrial.bisect.search import Conclusion, Probe, Search, Stop
from seatrial.bisect.settings import Settings


class World(Protocol):
    """How a command behaves."""

    @property
    def question(self) -> Question:
        """What its runs answer."""
        ...

    def run(self, affected: bool, generator: np.random.Generator) -> Observation:
        """Run it once, with or without the culprit's change; the position is filled in by the caller."""
        ...


@dataclass(frozen=True)
class FailureRates:
    """A command that fails with one probability before the culprit and another after it."""

    good: float
    bad: float

    question = Question.PASS_FAIL

    def run(self, affected: bool, generator: np.random.Generator) -> Observation:
        """Run it once."""
        return Observation(
            position=0, failed=bool(generator.random() < (self.bad if affected else self.good))
        )


@dataclass(frozen=True)
class MetricShift:
    """A metric with normal noise of standard deviation 1 whose mean shifts at the culprit."""

    shift: float

    question = Question.METRIC

    def run(self, affected: bool, generator: np.random.Generator) -> Observation:
        """Run it once."""
        return Observation(position=0, failed=False, value=float(generator.normal() + self.shift * affected))


@dataclass(frozen=True)
class SameEveryTime:
    """A deterministic command that leaves a metric: its logs agree to the last bit."""

    question = Question.METRIC

    def run(self, affected: bool, generator: np.random.Generator) -> Observation:
        """Run it once."""
        return Observation(position=0, failed=False, value=0.25 + 0.125 * affected, fingerprint=str(affected))


@dataclass(frozen=True)
class Recorded:
    """A command whose runs are drawn from those that were recorded at the two ends."""

    good: tuple[Observation, ...]
    bad: tuple[Observation, ...]
    question: Question

    def run(self, affected: bool, generator: np.random.Generator) -> Observation:
        """Draw one recorded run."""
        pool = self.bad if affected else self.good
        return pool[int(generator.integers(len(pool)))]


@dataclass(frozen=True)
class Trial:
    """How one simulated search ended."""

    runs: int
    named: int | None
    """Suspect that was named, or None."""
    no_culprit: bool
    """The search said that there is none."""


Strategy = Callable[[History, Callable[[int], Observation], Question], Trial]
"""Finds a culprit in a history by calling for runs at positions."""


def with_settings(settings: Settings) -> Strategy:
    """Return our own search as a strategy."""

    def find(history: History, run: Callable[[int], Observation], question: Question) -> Trial:
        search = Search(history, question, settings)
        while isinstance(decision := search.decide(), Probe):
            search.record(run(decision.position))
        conclusion = decision.conclusion if isinstance(decision, Stop) else None
        named = int(search.belief().suspects_H.argmax()) if conclusion is Conclusion.FOUND else None
        return Trial(len(search.observations), named, conclusion is Conclusion.NO_CULPRIT)

    return find


def repeated_bisection(repeats: int) -> Strategy:
    """Return git bisect's rule with `repeats` runs of each commit and the majority's word; ends are not run.

    With one repeat this is `git bisect run`. It cannot say that there is no culprit.
    """

    def find(history: History, run: Callable[[int], Observation], question: Question) -> Trial:
        low, high, runs = 0, history.num_suspects, 0
        while high - low > 1:
            middle = (low + high) // 2
            fails = sum(run(middle).failed for _ in range(repeats))
            runs += repeats
            low, high = (low, middle) if 2 * fails > repeats else (middle, high)
        return Trial(runs, high - 1, no_culprit=False)

    return find


@dataclass(frozen=True)
class Figures:
    """Cost and accuracy of one strategy in one world."""

    median_runs: float
    p90_runs: float
    share_right: float
    trials: int


def measure(
    world: World, strategy: Strategy, *, num_suspects: int, trials: int, seed: int, with_culprit: bool = True
) -> Figures:
    """Run a strategy on many made-up histories with the culprit anywhere (or nowhere) in them."""
    history = History.linear(num_suspects)
    generator = np.random.default_rng(seed)
    ended: list[Trial] = []
    right = 0
    for _ in range(trials):
        culprit = int(generator.integers(num_suspects)) if with_culprit else None
        trial = strategy(history, _runner(world, history, culprit, generator), world.question)
        right += trial.no_culprit if culprit is None else trial.named == culprit
        ended.append(trial)
    runs = [trial.runs for trial in ended]
    return Figures(float(np.median(runs)), float(np.quantile(runs, 0.9)), right / trials, trials)


def _runner(
    world: World, history: History, culprit: int | None, generator: np.random.Generator
) -> Callable[[int], Observation]:
    def run(position: int) -> Observation:
        affected = culprit is not None and bool(history.affected_PH[position, culprit])
        return replace(world.run(affected, generator), position=position)

    return run


def table(rows: Sequence[Sequence[str]]) -> str:
    """Return rows as a Markdown table; the first row is the head."""
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    lines = [
        "| " + " | ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)) + " |"
        for row in rows
    ]
    return "\n".join([lines[0], "|" + "|".join("-" * (width + 2) for width in widths) + "|", *lines[1:]])
