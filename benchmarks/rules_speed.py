"""How long every rule takes on 1,000 series of 100,000 steps: 25 runs of 40 metrics each, on one core.

OMP_NUM_THREADS=1 python benchmarks/rules_speed.py [RUNS]
"""

from __future__ import annotations

import sys
import time

import numpy as np

from seatrial.evidence.runlog import RunLog, Series
from seatrial.rules.engine import all_rules, judge_streams
from seatrial.rules.rule import Streams

NUM_STEPS = 100_000
NUM_METRICS = 40


def made(seed: int) -> Streams:
    """Return a run that logs every metric that a rule asks for, and unknown ones up to forty."""
    random = np.random.default_rng(seed)
    names = sorted({name for rule in all_rules() for name in (*rule.needs, *rule.uses)})
    names = [*names, *(f"other/{place}" for place in range(NUM_METRICS))][:NUM_METRICS]
    steps = np.arange(NUM_STEPS)
    series = {
        name: Series(tag=name, steps=steps, values=0.5 + 0.01 * random.standard_normal(NUM_STEPS))
        for name in names
    }
    log = RunLog(sources=["made"], series=series)
    return Streams(log=log, stack=None, by_name={name: [one] for name, one in series.items()})


def main() -> int:
    """Judge run after run; the making of the runs is not counted."""
    runs = int(sys.argv[1]) if len(sys.argv) > 1 else 25
    spent = 0.0
    for seed in range(runs):
        streams = made(seed)
        began = time.process_time()
        judge_streams(streams, all_rules())
        spent += time.process_time() - began
    print(
        f"{runs * NUM_METRICS} series x {NUM_STEPS} steps, {len(all_rules())} rules: {spent:.1f} s of one core"
    )
    return 0


if __name__ == "__main__":
    sys.exit(main())
