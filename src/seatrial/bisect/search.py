"""The search: chooses the next run, or the answer, from the results so far. Pure and replayable."""

from __future__ import annotations

import enum
import math
from collections import Counter
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from seatrial.bisect.evidence_model import (
    Observation,
    Question,
    broken_positions,
    likelihoods_of,
)
from seatrial.bisect.history import BoolArray, FloatArray, History, suspect_weights
from seatrial.bisect.likelihood import (
    Likelihoods,
    Noise,
    Settings,
    drift_probability,
    expected_information,
    posterior,
)

_LEAST_INFORMATION = 1e-6
"""Nats below which a run gives no information."""
_ENTROPY_OF_AN_ANSWER, _SLOWEST_RATE = 0.2, 0.02
"""For the estimate of remaining runs: nats left when a search ends, and the least information per run."""
_RUNS_WITHOUT_VALUE = 2
"""Runs of GOOD without a metric after which the search stops: a single one may be a crash of the machine."""


class Conclusion(enum.StrEnum):
    """Why a search stopped."""

    FOUND = "found"
    """One commit, or several that no run can distinguish, reached the credibility."""
    NO_CULPRIT = "no culprit"
    """GOOD and BAD differ by less than a culprit would cause: the command is flaky, or never failed."""
    DRIFT = "drift"
    """The metric changes gradually, with the commits or with time: no single commit is the cause."""
    CANNOT_NARROW = "cannot narrow"
    """Every commit whose run would distinguish the remaining suspects is untestable."""
    OUT_OF_BUDGET = "out of budget"
    """The runs or the minutes are used up."""
    END_UNTESTABLE = "end untestable"
    """GOOD or BAD itself could not be judged, or GOOD leaves no metric."""


@dataclass(frozen=True)
class Probe:
    """Run the command at this position."""

    position: int
    information: float
    """Expected loss of entropy in nats (0 for the first run of an end)."""


@dataclass(frozen=True)
class Stop:
    """Start no further run."""

    conclusion: Conclusion


@dataclass(frozen=True)
class Wait:
    """Start nothing until an active run has finished."""


@dataclass(frozen=True)
class Belief:
    """The posterior after the results so far."""

    suspects_H: FloatArray
    """Probability that each suspect is the culprit."""
    no_culprit: float
    drift: float
    """Probability that the metric changes gradually, so that no commit is the cause."""
    likelihoods: Likelihoods = field(repr=False)
    exact: bool
    """The command is deterministic, as declared or detected, and the results agree with that."""
    once_each: bool
    """Running a commit again would repeat its result bit by bit."""


class Search:
    """The observations of one search and the decisions that follow from them."""

    def __init__(
        self,
        history: History,
        question: Question,
        settings: Settings | None = None,
        weights_H: FloatArray | None = None,
    ) -> None:
        """Start without results.

        Args:
            history: GOOD and the suspects.
            question: whether runs pass and fail, or leave a number.
            settings: credibility, priors and limits.
            weights_H: prior weights of the suspects; None: equal, except for suspects that equal trees exclude.
        """
        self.history = history
        self.question = question
        self.settings = settings or Settings()
        weights = suspect_weights(history) if weights_H is None else weights_H
        none = self.settings.prior_no_culprit
        self._prior_H1 = np.append((1 - none) * weights, none)
        self._affected = history.affected_PH.astype(np.float32)
        self.observations: list[Observation] = []
        self._aside: set[int] = set()
        self._broken: set[int] = set()
        self._belief: Belief | None = None

    def record(self, observation: Observation) -> None:
        """Add the result of one run."""
        if self.question is Question.METRIC and observation.value is None:
            observation = replace(observation, lost=True)
        self.observations.append(observation)
        self._broken = broken_positions(self.history, self.observations)
        self._belief = None

    def set_aside(self, position: int) -> None:
        """Run this position, and all of equal content, no more."""
        self._aside.update(self.history.twins(position))

    @property
    def untestable(self) -> set[int]:
        """Return the positions that are no longer run: closed positions and broken commits."""
        return self._aside | self._broken

    def belief(self) -> Belief:
        """Return the posterior that decides how long to search."""
        if self._belief is None:
            model = likelihoods_of(self.history, self.observations, self.question, self.settings)
            self._belief = self._believed(model.likelihoods, model.exact, model.once_each)
        return self._belief

    def stated(self) -> Belief:
        """Return the posterior that the answer states; `belief` uses a more cautious prior (see the `shift` model)."""
        belief = self.belief()
        return self._believed(belief.likelihoods.stated(), belief.exact, belief.once_each)

    def _believed(self, likelihoods: Likelihoods, exact: bool, once_each: bool) -> Belief:
        drift = drift_probability(likelihoods, self._prior_H1, self.settings.prior_drift)
        weights = posterior(likelihoods, self._prior_H1) * (1 - drift)
        return Belief(weights[:-1], float(weights[-1]), drift, likelihoods, exact, once_each)

    def classes(self) -> list[tuple[float, tuple[int, ...]]]:
        """Return groups of suspects that no run can distinguish, most probable first, with their probability."""
        belief = self.belief()
        suspects = np.flatnonzero(belief.suspects_H > 0)
        if not self.untestable:
            ordered = suspects[np.argsort(-belief.suspects_H[suspects], kind="stable")]
            return [(float(belief.suspects_H[suspect]), (int(suspect),)) for suspect in ordered]
        possible = np.setdiff1d(np.arange(self.history.num_suspects + 1), sorted(self.untestable))
        packed = np.packbits(self.history.affected_PH[possible], axis=0)
        groups: dict[bytes, list[int]] = {}
        for suspect in suspects.tolist():
            groups.setdefault(packed[:, suspect].tobytes(), []).append(suspect)
        weighed = [(float(belief.suspects_H[group].sum()), tuple(group)) for group in groups.values()]
        return sorted(weighed, key=lambda item: (-item[0], item[1]))

    def credible_set(self) -> list[tuple[int, float]]:
        """Return the smallest set of suspects that reaches the credibility, most probable first, with probabilities."""
        chosen: list[tuple[int, float]] = []
        mass, belief = 0.0, self.belief()
        wanted = self.settings.credibility * (1 - belief.no_culprit)
        for probability, group in self.classes():
            if mass >= wanted - 1e-12:
                break
            chosen += [(suspect, float(belief.suspects_H[suspect])) for suspect in group]
            mass += probability
        return sorted(chosen, key=lambda item: (-item[1], item[0]))

    def decide(self, pending: Sequence[int] = (), out_of_budget: bool = False) -> Probe | Stop | Wait:
        """Return the next run, or why there is none.

        Args:
            pending: positions of active runs.
            out_of_budget: no further run may start.
        """
        counts = Counter(item.position for item in self.observations)
        verified = True
        for end in (0, self.history.bad_position):
            if not any(counts[p] for p in self.history.twins(end)):
                if end in self.untestable:
                    return Stop(Conclusion.END_UNTESTABLE)
                if end not in pending:
                    return Stop(Conclusion.OUT_OF_BUDGET) if out_of_budget else Probe(end, 0.0)
                verified = False
        if not verified:
            return Wait()
        if lost := self._lost_at_good():
            if lost >= (1 if self.settings.noise is Noise.NONE else _RUNS_WITHOUT_VALUE):
                return Stop(Conclusion.END_UNTESTABLE)
            if 0 not in pending and 0 not in self.untestable and not out_of_budget:
                return Probe(0, 0.0)
        if (answer := self._answer()) is not None:
            return Stop(answer)
        if out_of_budget or len(self.observations) + len(pending) >= self.settings.max_runs:
            return Stop(Conclusion.OUT_OF_BUDGET)
        information = self.information(pending)
        position = _central_maximum(information)
        if information[position] < _LEAST_INFORMATION:
            again = self._end_against_drift(pending)
            return Stop(Conclusion.CANNOT_NARROW) if again is None else Probe(again, 0.0)
        return Probe(position, float(information[position]))

    def _end_against_drift(self, pending: Collection[int]) -> int | None:
        """Return the end to run again if only a drift is left to exclude, or None."""
        belief = self.belief()
        if belief.drift < _LEAST_INFORMATION or belief.once_each:
            return None
        counts = Counter(item.position for item in self.observations)
        both = (0, self.history.bad_position)
        ends = [end for end in both if end not in self.untestable and end not in pending]
        return min(ends, key=lambda end: counts[end], default=None)

    def _lost_at_good(self) -> int:
        """Return how many runs of GOOD left no metric; 0 if any left one, or no metric is searched."""
        at_good = [item for item in self.observations if item.position in self.history.twins(0)]
        if self.question is not Question.METRIC or any(item.value is not None for item in at_good):
            return 0
        return len(at_good)

    def _answer(self) -> Conclusion | None:
        belief = self.belief()
        if belief.no_culprit >= self.settings.credibility and not self._may_have_begun_to_drift(belief):
            return Conclusion.NO_CULPRIT
        if belief.drift >= self.settings.credibility:
            return Conclusion.DRIFT
        classes = self.classes()
        # If results are exact, one more run decides what priors only suggest.
        needed = 1 - 1e-9 if belief.exact else self.settings.credibility
        sure = classes and classes[0][0] >= needed
        settings = self.settings
        of_metric = self.question is Question.METRIC
        largest = settings.largest_no_culprit_metric if of_metric else settings.largest_no_culprit
        excluded = belief.no_culprit <= largest and belief.drift <= settings.largest_drift
        return Conclusion.FOUND if sure and excluded else None

    def _may_have_begun_to_drift(self, belief: Belief) -> bool:
        noisy = self.question is Question.METRIC and not belief.exact
        return noisy and len(self.observations) < self.settings.least_runs_to_clear

    def information(self, pending: Collection[int] = ()) -> FloatArray:
        """Return the expected information of one more run at each position in nats; -1 where no run is possible.

        Active runs are assumed to distinguish their two sides for certain, so that parallel runs spread out.
        """
        held = self.belief()
        belief = self._believed(held.likelihoods.expected(), held.exact, held.once_each)
        weights = np.append(belief.suspects_H, belief.no_culprit)
        information = np.zeros(self.history.num_suspects + 1)
        for cell in self._cells(pending):
            mass = float(weights[cell].sum())
            if mass > 1e-9:
                inside = np.where(cell, weights, 0.0) / mass
                information += mass * expected_information(self._affected, inside, belief.likelihoods)
        closed = set(self.untestable) | set(pending)
        if belief.once_each:
            closed.update(p for item in self.observations for p in self.history.twins(item.position))
        information[sorted(closed)] = -1.0
        return information

    def expected_runs(self) -> int:
        """Return a rough estimate of the remaining runs: the entropy to lose over the best next run's information."""
        unverified = sum(
            all(item.position not in self.history.twins(end) for item in self.observations)
            for end in (0, self.history.bad_position)
        )
        belief = self.belief()
        masses = np.array([*(mass for mass, _ in self.classes()), belief.no_culprit, belief.drift])
        masses = masses[masses > 0]
        entropy = float(-(masses * np.log(masses)).sum())
        rate = max(float(self.information().max()), _SLOWEST_RATE)
        return unverified + math.ceil(max(entropy - _ENTROPY_OF_AN_ANSWER, 0.0) / rate)

    def _cells(self, pending: Collection[int]) -> list[BoolArray]:
        """Group the hypotheses by the results that they predict for active runs; "no culprit" joins the likeliest."""
        labels = np.zeros(self.history.num_suspects + 1, dtype=np.int64)
        for number, position in enumerate(sorted(set(pending))):
            labels[:-1] += self.history.affected_PH[position].astype(np.int64) << number
        labels[-1] = labels[:-1][int(np.argmax(self.belief().suspects_H))]
        return [labels == label for label in np.unique(labels)]


def _central_maximum(values: FloatArray) -> int:
    """Return the index of the largest value; of equal ones the one nearest to the middle, as git does."""
    best = np.flatnonzero(values >= values.max() - 1e-9)
    return int(best[np.argmin(np.abs(best - len(values) / 2))])
