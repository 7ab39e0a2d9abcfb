"""Power and false alarms of learned baselines, measured, against a fixed 5 % tolerance on one golden value.

    python benchmarks/baseline_power.py [--trials 400] [--svg docs/evidence/images/baseline_power.svg]

Runs are made: a falling loss of 20 steps that ends near 1, off by a normal number of its own (sd as the table says,
in per cent of the final value) and by a tenth of that at each step. A regression adds a constant in units of that sd.
Ours: 12 repeats, 6 new runs, the whole comparison (final window, mean, drift, worst step) at 1 % false alarms.
The 5 % rule, as golden-value tests of public projects use it: one golden run, one new run, final values within 5 %.
"""

from __future__ import annotations

import argparse
import math
from pathlib import Path

import numpy as np

from seatrial.comparisons.baseline_compare import compare
from seatrial.comparisons.baselines import Provenance, learn
from seatrial.evidence.runlog import RunLog, Series
from seatrial.report.svg import Line, line_chart
from seatrial.statistics.baselines import power_of
from seatrial.verdict import Outcome, combine

TAG = "train/loss"
NUM_STEPS = 20
REPEATS, NEW_RUNS = 12, 6
SHIFTS = (0.0, 1.0, 2.0, 3.0, 4.0, 5.0)
NOISE_LEVELS = (0.01, 0.03, 0.1)
TOLERANCE = 0.05
CURVE = 1 + 3 * np.exp(-np.arange(NUM_STEPS) / 3)
ORIGIN = Provenance(commit=None, dirty=True, packages={}, host={})


def make_runs(random: np.random.Generator, number: int, noise: float, shift: float) -> np.ndarray:
    """Return runs of shape [number, steps]."""
    offsets = noise * (random.normal(size=(number, 1)) + shift)
    return CURVE + offsets + 0.1 * noise * random.normal(size=(number, NUM_STEPS))


def log_of(values: np.ndarray) -> RunLog:
    """Return a run as the readers would."""
    steps = np.arange(1, len(values) + 1)
    return RunLog(sources=["made"], series={TAG: Series(tag=TAG, steps=steps, values=values)})


def ours_fails(old: np.ndarray, new: np.ndarray) -> bool:
    """Whether the whole comparison fails."""
    logs = {str(place): log_of(run) for place, run in enumerate(old)}
    baseline, faults = learn(logs, [TAG], window=10, provenance=ORIGIN)
    assert baseline is not None, faults
    verdicts = compare(baseline, {str(place): log_of(run) for place, run in enumerate(new)})
    return combine(verdicts) is Outcome.FAIL


def fixed_rule_fails(golden: np.ndarray, new: np.ndarray) -> bool:
    """Whether the final values differ by more than the tolerance."""
    return not abs(new[-1] / golden[-1] - 1) <= TOLERANCE


def rates(noise: float, shift: float, trials: int, seed: int) -> tuple[float, float]:
    """Return how often ours and the fixed rule fail."""
    random = np.random.default_rng(seed)
    ours = fixed = 0
    for _ in range(trials):
        old = make_runs(random, REPEATS, noise, 0.0)
        new = make_runs(random, NEW_RUNS, noise, shift)
        ours += ours_fails(old, new)
        fixed += fixed_rule_fails(old[0], new[0])
    return ours / trials, fixed / trials


def main() -> None:
    """Measure, print the table, write the chart."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--trials", type=int, default=400)
    parser.add_argument("--svg", type=Path)
    arguments = parser.parse_args()
    table: dict[float, list[tuple[float, float]]] = {}
    print(f"fails, of {arguments.trials} trials each; shift 0 is false alarms")
    print(f"{'sd':>6} {'shift':>6} {'ours':>8} {'5 % rule':>9}")
    for noise in NOISE_LEVELS:
        table[noise] = [
            rates(noise, shift, arguments.trials, seed=int(1000 * noise) * 100 + int(shift))
            for shift in SHIFTS
        ]
        for shift, (ours, fixed) in zip(SHIFTS, table[noise], strict=True):
            print(f"{noise:>6.0%} {shift:>4g} sd {ours:>8.1%} {fixed:>9.1%}")
    alpha = 0.01 / 4
    print(f"computed power of one summary at 3 sd: {power_of(REPEATS, NEW_RUNS, 3.0, alpha):.1%}")
    error = math.sqrt(0.01 * 0.99 / arguments.trials)
    print(f"standard error of a rate of 1 %: {error:.2%}")
    if arguments.svg:
        lines = [
            Line(
                name=f"learned from {REPEATS} repeats, {NEW_RUNS} new runs, any noise",
                xs=SHIFTS,
                ys=[
                    float(np.mean([table[noise][place][0] for noise in NOISE_LEVELS]))
                    for place in range(len(SHIFTS))
                ],
            )
        ]
        lines += [
            Line(
                name=f"fixed 5 % on one golden value, noise {noise:.0%}",
                xs=SHIFTS,
                ys=[fixed for _, fixed in table[noise]],
                dashed=True,
            )
            for noise in NOISE_LEVELS
        ]
        text = line_chart(
            lines,
            title="How often a regression is found; at 0, false alarms",
            x_label="regression, in standard deviations between runs",
            y_label="share of comparisons that fail",
            y_range=(0.0, 1.0),
        )
        arguments.svg.write_text(text)


if __name__ == "__main__":
    main()
