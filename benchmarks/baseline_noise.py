"""False alarms and power of learned baselines by kind of noise and number of new runs, with 8 repeats.

    python benchmarks/baseline_noise.py [--trials 2000] [--power-trials 400]

One process, fixed seeds. Runs have 40 steps, a falling curve and noise; the last step of each lies up to five steps
earlier, at random. A trial learns from 8 runs and judges 1, 3 or 6 more with the defaults of `seatrial baseline
compare`: once unchanged, and once with a constant added to every step, in standard deviations between runs of the
metric's mean (of the noise kind, from 20,000 made runs).
"""

from __future__ import annotations

import argparse
from collections import Counter
from collections.abc import Callable

import numpy as np

from seatrial.comparisons.baseline_compare import Wanted, compare, sample_of
from seatrial.comparisons.baselines import Provenance, learn
from seatrial.evidence.runlog import RunLog, Series
from seatrial.verdict import Outcome, combine

TAG = "train/loss"
NUM_STEPS, REPEATS = 40, 8
NEW_RUNS = (1, 3, 6)
SHIFTS = (5.0, 10.0, 15.0)
CURVE = 1 + 3 * np.exp(-np.arange(NUM_STEPS) / 5)
ORIGIN = Provenance(commit=None, dirty=True, packages={}, host={})
Make = Callable[[np.random.Generator, int], np.ndarray]


def autocorrelated(random: np.random.Generator, number: int) -> np.ndarray:
    """Return a stationary autoregression with coefficient 0.9, shape [number, steps]."""
    values = random.normal(size=(number, NUM_STEPS))
    for step in range(1, NUM_STEPS):
        values[:, step] = 0.9 * values[:, step - 1] + np.sqrt(1 - 0.81) * values[:, step]
    return values


def of_runs(offsets: Make) -> Make:
    """Return a kind whose runs are off as a whole, with a tenth of normal noise at each step."""
    return lambda random, number: offsets(random, number) + 0.1 * random.normal(size=(number, NUM_STEPS))


KINDS: dict[str, Make] = {
    "white": lambda random, number: random.normal(size=(number, NUM_STEPS)),
    "autocorrelated (0.9)": autocorrelated,
    "heavy-tailed (t, 3)": lambda random, number: random.standard_t(3, size=(number, NUM_STEPS)),
    "lognormal (1)": lambda random, number: random.lognormal(size=(number, NUM_STEPS)),
    "drifting (random walk)": lambda random, number: np.cumsum(
        random.normal(size=(number, NUM_STEPS)), axis=1
    ),
    "runs off, normal": of_runs(lambda random, number: random.normal(size=(number, 1))),
    "runs off, t, 3": of_runs(lambda random, number: random.standard_t(3, size=(number, 1))),
    "runs off, lognormal (0.5)": of_runs(lambda random, number: random.lognormal(0, 0.5, size=(number, 1))),
}


def log_of(values: np.ndarray, length: int) -> RunLog:
    """Return a run of that many steps as the readers would."""
    steps = np.arange(1, length + 1)
    return RunLog(
        sources=["made"], series={TAG: Series(tag=TAG, steps=steps, values=CURVE[:length] + values[:length])}
    )


def judge(random: np.random.Generator, make: Make, num_new: int, shift: float) -> Outcome:
    """Return how one comparison ends."""
    values = make(random, REPEATS + num_new)
    values[REPEATS:] += shift
    lengths = NUM_STEPS - random.integers(6, size=REPEATS + num_new)
    lengths[REPEATS:] = np.maximum(lengths[REPEATS:], lengths[:REPEATS].min())
    logs = {str(place): log_of(run, int(lengths[place])) for place, run in enumerate(values)}
    names = list(logs)
    baseline, faults = learn(
        {name: logs[name] for name in names[:REPEATS]}, [TAG], window=10, provenance=ORIGIN
    )
    assert baseline is not None, faults
    return combine(compare(baseline, {name: logs[name] for name in names[REPEATS:]}))


def visible_shift(num_new: int) -> float:
    """Return the smallest shift that a comparison says it sees."""
    runs = {str(place): log_of(CURVE * place, NUM_STEPS) for place in range(REPEATS)}
    baseline, _ = learn(runs, [TAG], window=10, provenance=ORIGIN)
    assert baseline is not None
    return sample_of(baseline, num_new, Wanted(), []).visible


def main() -> None:
    """Measure and print the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--trials", type=int, default=2000)
    parser.add_argument("--power-trials", type=int, default=400)
    arguments = parser.parse_args()
    shifts = " | ".join(f"{shift:g} sd found" for shift in SHIFTS)
    print(f"| noise | new runs | states | false alarms | Blocked | {shifts} | stated shift found |")
    print("|---|---|---|---|---|" + "---|" * (len(SHIFTS) + 1))
    for place, (name, make) in enumerate(KINDS.items()):
        spread = float(make(np.random.default_rng(99), 20_000).mean(axis=1).std())
        for num_new in NEW_RUNS:
            random = np.random.default_rng([place, num_new])
            unchanged = Counter(judge(random, make, num_new, 0.0) for _ in range(arguments.trials))
            stated = visible_shift(num_new)
            found = []
            for shift in (*SHIFTS, stated):
                ends = [judge(random, make, num_new, shift * spread) for _ in range(arguments.power_trials)]
                found.append(f"{ends.count(Outcome.FAIL) / arguments.power_trials:.0%}")
            alarms, blocked = (unchanged[kind] / arguments.trials for kind in (Outcome.FAIL, Outcome.BLOCKED))
            print(
                f"| {name} | {num_new} | {stated:.1f} sd | {alarms:.2%} | {blocked:.0%} | {' | '.join(found)} |",
                flush=True,
            )


if __name__ == "__main__":
    main()
