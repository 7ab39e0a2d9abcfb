"""Checks of the seconds, the rates and the parts of a verifier that a step logs: they follow from one another."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from seatrial.evidence.ledger.schema import LedgerRow
from seatrial.relations.measures.rates import RATES
from seatrial.trials.run_evidence import RunEvidence
from seatrial.trials.sensors.options import steps_of, updates_of
from seatrial.trials.sensors.paths import by_step, by_step_and_name, first_step_of_command

RATE = 1e-4
"""Relative difference of a rate: of scalars logged in float32."""
SLACK = 1e-3
"""Seconds by which the phases of a step may exceed it, in rounding."""
OUTSIDE = ("total_step_time", "checkpointing", "reward_calculation/")
"""Phases, or their beginnings, that are not part of a step, or part of another phase."""
PER_GPU = "_per_gpu"
"""After the name of a rate of one device; each process of training has one."""
SYNC = "prepare_for_generation/"
"""Before the names of the phases of a sync."""
TRANSFER = "prepare_for_generation/weight_transfer/producer/"
"""Before the names of the phases of a sync that sends weights in messages."""
COLLECTED, OF_CHANGES = ("collect_tensors",), ("sparse_nonzero", "sparse_encode")
"""Phases of each such sync, and of one that sends changes."""
TIMEOUT = 0.05
"""Least seconds that a verifier takes until it is given up."""


def times_and_parts(evidence: RunEvidence, options: Mapping[str, Any]) -> Iterator[str]:
    """Yield what is wrong with the seconds, rates and parts of a verifier of every step, and the run's seconds.

    Raises:
        NotGivenError: an option or the rows are not given.
    """
    timed, rates, parts = (
        by_step_and_name(evidence, prefix) for prefix in ("timing/train/", "performance/", "train/verifier/")
    )
    has_parts = any(name.startswith("data.verifiers.") for name in options)
    yield from _too_many_seconds(evidence, timed)
    yield from _untimed_syncs(evidence, timed, options)
    first = first_step_of_command(evidence)
    for step, rows in steps_of(evidence).items():
        seconds = timed[step]
        if seconds:
            yield from _wrong_seconds(seconds, step, options)
            if step > first:  # the first step has the seconds of what starts the generator
                yield from _wrong_parts_of_sync(seconds, step)
            yield from _wrong_rates(rates[step], seconds, step, rows, options["cluster.num_processes"])
        if has_parts and not options["grpo.use_dynamic_sampling"]:
            # Rows of an asynchronous step are judged before it, with those of later steps.
            num_rows = math.inf if options["grpo.async_grpo.enabled"] else len(rows)
            yield from _wrong_parts(parts[step], seconds, step, num_rows)


def tuned_times(
    evidence: RunEvidence, options: Mapping[str, Any], steps: Mapping[int, Sequence[LedgerRow]]
) -> Iterator[str]:
    """Yield what is wrong with the seconds and rates of every step of fine-tuning, and the run's seconds.

    Raises:
        NotGivenError: an option is not given.
    """
    timed, rates = (by_step_and_name(evidence, prefix) for prefix in ("timing/train/", "performance/"))
    yield from _too_many_seconds(evidence, timed)
    for step, rows in steps.items():
        seconds = timed.get(step, {})
        yield from _wrong_seconds(seconds, step, {**options, "grpo.async_grpo.enabled": False})
        tokens = float(sum(len(row.token_ids or ()) for row in rows))
        counts = {"rows": float(len(rows)), "sampled": 0.0, "tokens": tokens}
        yield from _rates_of(rates.get(step, {}), seconds, step, counts, options["cluster.num_processes"])


def _too_many_seconds(evidence: RunEvidence, timed: Mapping[int, Mapping[str, float]]) -> Iterator[str]:
    """Yield that steps and validations took longer than the run, or that a phase of a validation did than all of it."""
    held = by_step_and_name(evidence, "timing/validation/")
    total, first = 0.0, first_step_of_command(evidence)
    for step, seconds in held.items():
        whole = seconds.get("total_validation_time", math.nan)
        for name, value in seconds.items():
            # Parts of a verifier are summed over processes. The first sync of a command, before its steps, is outside.
            is_outside = name.startswith(OUTSIDE) or (step < first and name.startswith(SYNC))
            if not (0 <= value <= whole + SLACK or (is_outside and value >= 0)):
                yield f"step {step}: timing/validation/{name} is {value:.4g}, the validation took {whole:.4g} s"
        total += whole if step >= first or first == 1 else 0.0
    for step, phases in timed.items():
        for name, value in phases.items():
            if not value >= 0:
                yield f"step {step}: timing/train/{name} is {value:.4g}"
        total += phases.get("total_step_time", 0.0) if step >= first else 0.0
    if not total <= evidence.launched.seconds + SLACK:
        yield f"steps and validations took {total:.4g} s, the run {evidence.launched.seconds:.4g} s"


def _untimed_syncs(
    evidence: RunEvidence, timed: Mapping[int, Mapping[str, float]], options: Mapping[str, Any]
) -> Iterator[str]:
    """Yield phases of syncs that are not logged: a sync is due after each step that took an update.

    A validation that follows the update syncs before the next step does.
    """
    where = "policy.generation"
    is_delta = options[f"{where}.delta_compression.enabled"]
    if (
        options[f"{where}.colocated.enabled"]
        or options["grpo.async_grpo.enabled"]
        or (options[f"{where}.placement"] == "inline" and not is_delta)
    ):
        return
    validated, full = (
        by_step_and_name(evidence, "timing/validation/"),
        by_step(evidence, "train/weight_sync/full"),
    )
    steps, first = steps_of(evidence), first_step_of_command(evidence)
    for step in sorted(steps):
        if step == first or not updates_of(steps.get(step - 1, ()), options):
            continue
        logged = {*timed[step], *validated.get(step - 1, ())}
        due = (*COLLECTED, *(OF_CHANGES if full.get(step) == 0 else ()))
        missing = [f"{TRANSFER}{phase}" for phase in due if f"{TRANSFER}{phase}" not in logged]
        if missing:
            yield f"step {step}: timing/train/{missing[0]} is not logged, and weights were sent"


def _wrong_seconds(seconds: Mapping[str, float], step: int, options: Mapping[str, Any]) -> Iterator[str]:
    parts = math.fsum(
        value
        for name, value in seconds.items()
        if not name.startswith(OUTSIDE) and (name.endswith("/total") or "/" not in name)
    )
    total = seconds.get("total_step_time", math.nan)
    if not options["grpo.async_grpo.enabled"] and not parts <= total + SLACK:  # else phases of a step overlap
        yield f"step {step}: its phases take {parts:.4g} s, and timing/train/total_step_time is {total:.4g}"
    period = options["checkpointing.save_period"]
    if options["checkpointing.enabled"] and period and step % period == 0 and "checkpointing" not in seconds:
        yield f"step {step}: a checkpoint is due, and timing/train/checkpointing is not logged"


def _wrong_parts_of_sync(seconds: Mapping[str, float], step: int) -> Iterator[str]:
    """Yield phases of a sync that take longer than all of it; nothing where the whole is not logged."""
    whole = seconds.get(f"{SYNC}total")
    for name, value in seconds.items():
        if whole is not None and name.startswith(SYNC) and not value <= whole + SLACK:
            yield f"step {step}: timing/train/{name} is {value:.4g}, the sync took {whole:.4g} s"


def _wrong_rates(
    rates: Mapping[str, float],
    seconds: Mapping[str, float],
    step: int,
    rows: Sequence[LedgerRow],
    num_processes: int,
) -> Iterator[str]:
    sampled = float(sum(sum(map(len, row.turns)) for row in rows))
    tokens = sampled + sum(row.prompt_length or 0 for row in rows)
    counts = {"rows": float(len(rows)), "sampled": sampled, "tokens": tokens}
    yield from _rates_of(rates, seconds, step, counts, num_processes)


def _rates_of(
    rates: Mapping[str, float],
    seconds: Mapping[str, float],
    step: int,
    counts: Mapping[str, float],
    num_processes: int,
) -> Iterator[str]:
    for name, (of, phase) in RATES.items():
        if not seconds.get(phase):
            continue
        whole = counts[of] / seconds[phase]
        for tag, right in ((name, whole), (f"{name}{PER_GPU}", whole / num_processes)):
            logged = rates.get(tag, math.nan)
            if not math.isclose(logged, right, rel_tol=RATE) and (tag in rates or tag == name):
                yield f"step {step}: performance/{tag} is {logged:.6g}, rows and seconds give {right:.6g}"


def _wrong_parts(
    parts: Mapping[str, float], seconds: Mapping[str, float], step: int, num_rows: float
) -> Iterator[str]:
    for name, timeouts in parts.items():
        part, _, metric = name.rpartition("/")
        if metric != "num_timeouts":
            continue
        errors = parts.get(f"{part}/num_errors", math.nan)
        taken = seconds.get(f"reward_calculation/{part}", math.inf)
        if not timeouts <= errors <= num_rows:
            yield f"step {step}: verifier {part} has {timeouts:g} time-outs and {errors:g} errors of {num_rows:g} rows"
        if timeouts * TIMEOUT > taken:
            yield f"step {step}: verifier {part} has {timeouts:g} time-outs in {taken:.3g} s"
        if errors == num_rows and f"{part}/reward" in parts:
            yield f"step {step}: verifier {part} judged no row, and has a mean reward"
