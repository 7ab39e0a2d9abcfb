"""Verdict on which seconds a run logs, and when: every step logs the same phases, and each is measured by itself."""

from __future__ import annotations

import itertools
import math
from collections import defaultdict
from collections.abc import Iterator, Mapping

from seatrial.trials.run_evidence import RunEvidence
from seatrial.trials.sensors.options import options_of, steps_of, updates_of
from seatrial.trials.sensors.paths import by_step_and_name, first_step_of_command, sensor

TIMED = "timing/train/"
OF_SOME_STEPS = ("checkpointing", "prepare_for_generation/", "reward_calculation/")
"""Beginnings of phases that are due at some steps alone: saving, syncs of weights, and verifiers that are called."""
TRANSFER = "prepare_for_generation/weight_transfer/"
WHOLE = "prepare_for_generation/transfer_and_update_weights"
"""The phase that the parts of a transfer belong to."""
OF_THE_COLLECTOR = ("generation", "data_processing", "reward_calculation")
"""Phases of asynchronous rollouts, which another thread takes; those of a step's own thread follow one another."""
TOTAL = "total_step_time"
SLACK = 1e-3
"""Seconds by which the parts of a phase may exceed it, in rounding."""
LEAST = 1e-4
"""Seconds below which two phases can be equal by chance: clocks count nanoseconds, some only microseconds."""


def phases_are_measured(evidence: RunEvidence) -> tuple[list[str], str, int]:
    """Each step that takes an update logs the same phases; no two of them take as long; parts fit.

    Raises:
        NotGivenError: the target gives no rows, or does not say how the run is configured.
        BlockedError: the log is damaged: what is missing may have been there.
    """
    options = options_of(evidence)
    evidence.need_whole_log()
    taught = [step for step, rows in steps_of(evidence).items() if updates_of(rows, options)]
    seconds = by_step_and_name(evidence, TIMED)
    wrong = []
    for phase in sorted({phase for of in seconds.values() for phase in of}):
        missing = [step for step in taught if phase not in seconds.get(step, ())]
        if missing and len(missing) < len(taught) and not phase.startswith(OF_SOME_STEPS):
            wrong.append(f"{TIMED}{phase} is not logged at the steps {missing}, and at the others it is")
    first = first_step_of_command(evidence)  # it also logs the parts of the sync with which the run began
    for step, of in seconds.items():
        wrong += [f"step {step}: {what}" for what in (_exceeding(of) if step > first else ())]
        if options["grpo.async_grpo.enabled"]:
            wrong += [f"step {step}: {what}" for what in _overlapping(of)]
    wrong += _equal(seconds)
    number = sum(map(len, seconds.values()))
    return wrong[:3], f"{number} phases of {len(seconds)} steps", number


PHASES = sensor(
    "seconds: every step logs the same phases, each measured by itself",
    "no two exactly as long at several steps, parts within their whole",
    phases_are_measured,
)


def _equal(seconds: Mapping[int, Mapping[str, float]]) -> Iterator[str]:
    """Yield pairs of phases that take exactly as long as each other at two steps or more."""
    pairs: dict[tuple[str, str], list[int]] = defaultdict(list)
    for step, of in seconds.items():
        for one, other in itertools.combinations(sorted(of), 2):
            if of[one] == of[other] > LEAST:
                pairs[one, other].append(step)
    for (one, other), steps in pairs.items():
        if len(steps) > 1:
            yield f"{TIMED}{one} and {other} take exactly as long at the steps {steps}"


def _exceeding(seconds: Mapping[str, float]) -> Iterator[str]:
    """Yield that the parts of a transfer take longer than all of it."""
    parts = math.fsum(value for phase, value in seconds.items() if phase.startswith(TRANSFER))
    if WHOLE in seconds and not parts <= seconds[WHOLE] + SLACK:
        yield f"the parts of a transfer take {parts:.4g} s, {TIMED}{WHOLE} is {seconds[WHOLE]:.4g}"


def _overlapping(seconds: Mapping[str, float]) -> Iterator[str]:
    """Yield that the phases of the trainer's own thread take longer than its step."""
    left_out = (*OF_SOME_STEPS, *OF_THE_COLLECTOR, TOTAL)
    parts = math.fsum(
        value for phase, value in seconds.items() if "/" not in phase and not phase.startswith(left_out)
    )
    if TOTAL in seconds and not parts <= seconds[TOTAL] + SLACK:
        yield f"the trainer's phases take {parts:.4g} s, {TIMED}{TOTAL} is {seconds[TOTAL]:.4g}"
