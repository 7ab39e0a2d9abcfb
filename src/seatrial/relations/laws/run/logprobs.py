"""R6.run, R9.run: the sampler's, the old and the reference log-probabilities are those of their weights."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from seatrial.relations.law import Measure, Relation
from seatrial.relations.oracles.runs import completion_logits, configured_support, token_logprobs
from seatrial.relations.records.run import RunRecord, RunRow
from seatrial.relations.runs import SEVERAL_TURNS, RunCase, run_cases

# Two float32 forward passes, 1e-5 each on logits up to 30, divided by a temperature of 0.5 and less.
BOUND = 2e-4
THREE_STEPS = run_cases(grpo__max_num_steps=3)
FILTERED = run_cases(
    policy__generation__top_k=9, policy__generation__top_p=0.8, policy__generation__temperature=1.5
)

SAMPLED = Relation(
    id="R6.run",
    name="run-samples-as-configured",
    component="run",
    statement="Tokens are sampled from the configured distribution of the weights that the row names.",
    catalogue="SB011 SB038 SB039 SB043 SB046 SB119 SB120 SB123 SB131 SB237 SB241 SB258 SB266 SB269 SB290",
    cost="CPU, seconds",
    cases=run_cases(),
    seeded=False,
)
SCORED = Relation(
    id="R9.run",
    name="run-scores-old-and-reference",
    component="run",
    statement="Old log-probabilities are those of the weights before the step; the reference is fixed, and scores.",
    catalogue="SB063 SB104 SB125 SB128 SB143 SB148 SB278 SB317 SB390",
    cost="CPU, seconds",
    cases=run_cases(),
    seeded=False,
)


def _largest_difference(given: Sequence[float], expected: Tensor) -> float:
    """Return the largest difference; infinite if the numbers of values differ."""
    if len(given) != len(expected):
        return math.inf
    return float((torch.tensor(given, dtype=torch.float64) - expected).abs().max())


@SAMPLED.law(
    "the sampler's log-probabilities",
    "temperature not applied, weights of another version, raw log-probabilities",
)
@SAMPLED.law(
    "the sampler's log-probabilities, hot",
    "a temperature that is bounded or ignored",
    cases=run_cases(policy__generation__temperature=1.7),
)
@SAMPLED.law(
    "the sampler's log-probabilities, filtered",
    "probabilities of the full distribution with filtered sampling",
    cases=FILTERED,
)
@SAMPLED.law(
    "the sampler's log-probabilities, of several turns",
    "a cache that a turn continues from the wrong token",
    cases=run_cases(**SEVERAL_TURNS),
    seeded=False,
)
@torch.no_grad()
def sampling_error(stack: Any, case: RunCase, record: RunRecord | None = None) -> Measure:
    """Compare the sampler's log-probabilities with those of the weights that each token names.

    Args:
        stack: gives the plain model.
        case: the run.
        record: is checked instead of the case's run, for example with the weights in the sampler's own form.
    """
    record = record or case.record(stack)
    found = []
    for place, _, row in record.rows():
        for first, end, version in row.segments:
            expected = token_logprobs(stack, record.weights_at(version), row, record.options)
            own = row.sampled_between(first, end)
            error = _largest_difference([row.sampling_logprobs[token] for token in own], expected[own])
            found.append((error, f"{place}, tokens {first} to {end - 1}"))
    return Measure.largest(
        found, BOUND, "sampler's log-probability against that of its weights, as configured"
    )


@SAMPLED.law(
    "a filter keeps its support",
    "top_p or top_k not passed on, applied before the temperature, in another order",
    cases=FILTERED,
)
@torch.no_grad()
def filter_keeps_its_support(stack: Any, case: RunCase) -> Measure:
    """Compare the ids that a filter kept with its definition; the sampled id must be among them."""
    record = case.record(stack)
    wrong = []
    for place, _, row in record.rows():
        if len(row.kept_support or ()) != len(row.ids):
            wrong.append(f"{place}: not a support for each token, or no filter at work")
            continue
        wrong += [f"{place}, token {token}: {why}" for token, why in _support_errors(stack, record, row)]
    return Measure.count(wrong, "tokens with another support")


def _support_errors(stack: Any, record: RunRecord, row: RunRow) -> list[tuple[int, str]]:
    """Return the sampled tokens whose support is not that of their weights; an environment's tokens have none."""
    options, found = record.options, []
    supports = row.kept_support or ()
    for first, end, version in row.segments:
        expected = configured_support(
            completion_logits(stack, record.weights_at(version), row),
            options["policy.generation.temperature"],
            options.get("policy.generation.top_k"),
            options.get("policy.generation.top_p", 1.0),
        )
        for token in row.sampled_between(first, end):
            kept, (must, may) = supports[token], expected[token]
            if row.ids[token] not in kept:
                found.append((token, f"sampled {row.ids[token]}, kept {sorted(kept)[:8]}"))
            if not must <= set(kept) <= may:
                found.append((token, f"kept {len(set(kept))} ids, the definition {len(must)} to {len(may)}"))
    return found


def _needs_other_models(stack: Any) -> str | None:
    return None if getattr(stack, "other_models", ()) else "other_models is empty"


@SAMPLED.law(
    "the sampler's log-probabilities, other models",
    "positions that count the padding, a window or frequencies that one of the two ignores",
    # A model that attends over a window is refused with packing.
    cases=run_cases(grpo__max_num_steps=1, policy__sequence_packing__enabled=False),
    excluded=_needs_other_models,
)
def sampler_and_trainer_agree(stack: Any, case: RunCase) -> Measure:
    """Compare the sampler's and the trainer's log-probabilities in the first step, for each model of the stack."""
    found = []
    for name in stack.other_models:
        record = case.record(stack, policy__model_name=name)
        for index, row in enumerate(record.steps[0].rows):
            old_T = torch.tensor(row.old_logprobs, dtype=torch.float64)
            error = _largest_difference(row.sampling_logprobs, old_T)
            found.append((error, f"model {name}, row {index}"))
    return Measure.largest(
        found, BOUND, "sampler's log-probability against the trainer's of the same weights"
    )


@SAMPLED.law(
    "the weights of the step before",
    "a sync that is left out, a version that is not counted",
    cases=THREE_STEPS,
)
def ages_within_bound(stack: Any, case: RunCase) -> Measure:
    """Check that a synchronous step samples with the weights before it, an asynchronous one with none too old."""
    record = case.record(stack)
    wrong = [
        f"{place}: weights of step {row.weight_version}"
        for place, step, row in record.rows()
        if not 0 <= step.step - 1 - row.weight_version <= age_limit(record)
    ]
    return Measure.count(wrong, "rows sampled with weights that are too old, or that do not exist yet")


def age_limit(record: RunRecord) -> int:
    """Return the largest allowed age of a row in steps; 0 for a synchronous run."""
    is_async = record.options.get("grpo.async_grpo.enabled", False)
    return int(record.options["grpo.async_grpo.max_trajectory_age_steps"]) if is_async else 0


@SCORED.law(
    "training moves every tensor",
    "a learning rate of 0, an optimizer over other tensors, updates that never come",
)
def training_moves_every_tensor(stack: Any, case: RunCase) -> Measure:
    """Check that every trainable tensor changed: only then do stale log-probabilities show."""
    record = case.record(stack)
    start, end = record.initial_weights, record.final_weights
    still = [name for name in record.trainable if torch.equal(start[name], end[name])]
    return Measure.count(
        still if record.trainable else ["there are none"],
        f"trainable tensors that the run left as they were, of {len(record.trainable)}",
    )


@SCORED.law(
    "old log-probabilities",
    "computed after an update, taken from the sampler or the reference, another temperature",
)
@SCORED.law("old log-probabilities, filtered", "sampled under a filter and scored without it", cases=FILTERED)
@torch.no_grad()
def old_error(stack: Any, case: RunCase) -> Measure:
    """Compare old log-probabilities with those of the weights before the step."""
    record = case.record(stack)
    found = []
    for place, step, row in record.rows():
        expected = token_logprobs(stack, record.weights_at(step.step - 1), row, record.options)
        found.append((_largest_difference(row.old_logprobs, expected), place))
    return Measure.largest(found, BOUND, "old log-probability against that of the weights before the step")


NO_REFERENCE = Measure(error=math.inf, bound=0, what="a KL penalty is configured, and there is no reference")


@SCORED.law(
    "reference log-probabilities",
    "the old ones in their place, a reference that follows the policy, another temperature",
    cases=THREE_STEPS,
)
@torch.no_grad()
def reference_error(stack: Any, case: RunCase) -> Measure | None:
    """Compare the reference's log-probabilities with those of its weights; None without a reference."""
    record = case.record(stack)
    if not record.options["loss_fn.reference_policy_kl_penalty"]:
        return None
    if record.reference_weights_start is None:
        return NO_REFERENCE
    found = []
    for place, _, row in record.rows():
        if row.ref_logprobs is None:
            found.append((math.inf, f"{place}: there are none"))
            continue
        expected = token_logprobs(stack, record.reference_weights_start, row, record.options)
        found.append((_largest_difference(row.ref_logprobs, expected), place))
    return Measure.largest(found, BOUND, "reference log-probability against that of the reference's weights")


@SCORED.law(
    "the reference does not change",
    "weights shared with the policy, an unrequested sync of the reference",
    cases=THREE_STEPS,
)
def reference_does_not_change(stack: Any, case: RunCase) -> Measure | None:
    """Check that the reference keeps its weights, which are the policy's initial ones."""
    record = case.record(stack)
    if not record.options["loss_fn.reference_policy_kl_penalty"]:
        return None
    start, end = record.reference_weights_start, record.reference_weights_end
    if start is None or end is None:
        return NO_REFERENCE
    wrong = sorted(start.keys() ^ end.keys())
    wrong += [f"{name} moved" for name in start if name in end and not torch.equal(start[name], end[name])]
    wrong += [
        f"{name} is not the policy's first"
        for name, value in record.initial_weights.items()
        if name in start and not torch.equal(start[name], value)
    ]
    return Measure.count(wrong, "reference tensors that moved, or that are not the initial policy's")
