"""What the search by a metric would cost if it were content with less, and what naming a culprit costs at the least.

    python benchmarks/bisect_trade_off.py [--trials 400] [--seed 91000]

The noise is learned in the search. Each row is a rule: the probability at which a commit is named, and the largest
probability of "no culprit" beside it. All rules judge the same searches, since the runs that are made do not depend on
them. The last lines are a bound: naming one of N commits against "no culprit" at odds B takes evidence of `ln(N B)`
nats, since one commit holds 1/N of the prior, and a run whose deviation is learned yields at most
`ln(1 + d^2 / 4) / 2` nats, where half of the runs lie behind a shift of d standard deviations.
"""

from __future__ import annotations

import argparse
import math
from itertools import count
from typing import NamedTuple

import numpy as np

from seatrial.bisect.evidence_model import Observation, Question
from seatrial.bisect.history import History
from seatrial.bisect.likelihood import Settings
from seatrial.bisect.search import Probe, Search
from seatrial.bisect.simulate import table

COMMITS = 128
SHIFTS = (3.0, 2.0)


class Rule(NamedTuple):
    """When a commit is named."""

    credibility: float
    no_culprit: float


RULES = (Rule(0.95, 0.02), Rule(0.95, 0.03), Rule(0.9, 0.02), Rule(0.9, 0.03))
_STRICTEST = Settings(credibility=0.95, largest_no_culprit_metric=0.02)


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--trials", type=int, default=400)
    parser.add_argument("--seed", type=int, default=91000)
    arguments = parser.parse_args()
    columns, seeds = [], count(arguments.seed)
    for shift in (*SHIFTS, 0.0):
        generator = np.random.default_rng(next(seeds))
        searches = [_searched(shift, generator) for _ in range(arguments.trials)]
        columns.append([_cell([search[rule] for search in searches]) for rule in RULES])
    head = ["named at", '"no culprit" below', *(f"shift of {shift:g} sd" for shift in SHIFTS), "no culprit"]
    rows = [
        [f"{rule.credibility:g}", f"{rule.no_culprit:g}", *cells]
        for rule, *cells in zip(RULES, *columns, strict=True)
    ]
    print(f"{arguments.trials} searches a world, seed {arguments.seed}")
    print(table([head, *rows]))
    for shift in SHIFTS:
        print(f"bound at {shift:g} sd: {_least_runs(shift):.1f} runs")


def _searched(shift: float, generator: np.random.Generator) -> dict[Rule, tuple[int, bool]]:
    """Search once, and return for each rule after how many runs it would have ended, and whether rightly."""
    search, culprit = (
        Search(History.linear(COMMITS), Question.METRIC, _STRICTEST),
        int(generator.integers(COMMITS)),
    )
    ended: dict[Rule, tuple[int, bool]] = {}
    while isinstance(decision := search.decide(), Probe):
        value = float(generator.normal() + shift * (decision.position > culprit))
        search.record(Observation(position=decision.position, failed=False, value=value))
        belief, num_runs = search.belief(), len(search.observations)
        (probability, (likeliest, *_)), *_ = search.classes()
        for rule in RULES:
            sure = probability >= rule.credibility and belief.drift <= _STRICTEST.largest_drift
            if rule not in ended and sure and belief.no_culprit <= rule.no_culprit:
                ended[rule] = num_runs, shift != 0.0 and likeliest == culprit
    otherwise = (
        len(search.observations),
        shift == 0.0 and search.belief().no_culprit >= _STRICTEST.credibility,
    )
    return {rule: ended.get(rule, otherwise) for rule in RULES}


def _cell(searches: list[tuple[int, bool]]) -> str:
    runs, right = zip(*searches, strict=True)
    return f"{np.median(runs):g} runs, {np.mean(right):.3f} right"


def _least_runs(shift: float) -> float:
    """Return the runs that evidence against "no culprit" takes, were each as good as a run can be."""
    largest, prior = _STRICTEST.largest_no_culprit_metric, _STRICTEST.prior_no_culprit
    odds = (1 - largest) / largest * prior / (1 - prior)
    return math.log(COMMITS * odds) / (0.5 * math.log1p(shift**2 / 4))


if __name__ == "__main__":
    main()
