"""How far the log-probabilities of a run are from those of the plain model with the same weights."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch

from seatrial.relations.law import Measure
from seatrial.relations.oracles.runs import token_logprobs
from seatrial.relations.records.run import RunRecord
from seatrial.relations.runs import RunCase
from seatrial.relations.worst import is_worse

BOUND = (
    2e-4  # two float32 forward passes, 1e-5 each on logits up to 30, divided by a temperature of 0.5 and less
)


def largest(found: Sequence[tuple[float, str]], what: str, bound: float = BOUND) -> Measure:
    """Return the measure of the worst of (error, where it was found); where nothing was compared, it is infinite."""
    worst, place = (0.0, "nowhere") if found else (math.inf, "nothing to compare")
    for error, where in found:
        if is_worse(error, worst):
            worst, place = error, where
    return Measure(error=worst, bound=bound, what=f"{what}, at {place}")


def apart(given: Sequence[float], expected: torch.Tensor) -> float:
    """Return the largest difference; infinite where there are not as many."""
    if len(given) != len(expected):
        return float("inf")
    return float((torch.tensor(given, dtype=torch.float64) - expected).abs().max())


@torch.no_grad()
def sampling_error(stack: Any, case: RunCase, record: RunRecord | None = None) -> Measure:
    """Measure the sampler's log-probabilities against those of the weights that each token names.

    Args:
        stack: gives the plain model.
        case: the run.
        record: what is judged in place of what the run left, as where the sampler's weights are another form of its.
    """
    record = record or case.record(stack)
    found = []
    for step in record.steps:
        for index, row in enumerate(step.rows):
            for first, end, version in row.segments:
                weights = record.weights_at(version)
                expected = token_logprobs(stack, weights, row, record.options)
                place = f"step {step.step}, row {index}, tokens {first} to {end - 1}"
                own = row.sampled_between(first, end)
                found.append((apart([row.sampling_logprobs[token] for token in own], expected[own]), place))
    return largest(found, "sampler's log-probability against that of its weights, as configured")


@torch.no_grad()
def old_error(stack: Any, case: RunCase) -> Measure:
    """Measure old log-probabilities against those of the weights before the step."""
    record = case.record(stack)
    found = []
    for step in record.steps:
        weights = record.weights_at(step.step - 1)
        for index, row in enumerate(step.rows):
            error = apart(row.old_logprobs, token_logprobs(stack, weights, row, record.options))
            found.append((error, f"step {step.step}, row {index}"))
    return largest(found, "old log-probability against that of the weights before the step")


@torch.no_grad()
def reference_error(stack: Any, case: RunCase) -> Measure | None:
    """Measure the reference's log-probabilities against those of its weights; None without one."""
    record = case.record(stack)
    if not record.options["loss_fn.reference_policy_kl_penalty"]:
        return None
    if record.reference_weights_start is None:
        return Measure(
            error=float("inf"), bound=0, what="a KL to a reference was asked for and there is none"
        )
    found = []
    for step in record.steps:
        for index, row in enumerate(step.rows):
            place = f"step {step.step}, row {index}"
            if row.ref_logprobs is None:
                found.append((float("inf"), f"{place}: there are none"))
                continue
            expected = token_logprobs(stack, record.reference_weights_start, row, record.options)
            found.append((apart(row.ref_logprobs, expected), place))
    return largest(found, "reference log-probability against that of the reference's weights")
