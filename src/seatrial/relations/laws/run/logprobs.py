"""R6 and R9 of the whole run: whose log-probabilities the sampler's, the old and the reference's are."""

from __future__ import annotations

from typing import Any

import torch

from seatrial.relations.law import Law, Measure, Relation
from seatrial.relations.laws.run.logprob_errors import (
    apart,
    largest,
    old_error,
    reference_error,
    sampling_error,
)
from seatrial.relations.oracles.runs import completion_logits, configured_support
from seatrial.relations.records.run import RunRecord, RunRow
from seatrial.relations.runs import RunCase, run_cases


def _no_other_models(stack: Any) -> str | None:
    return None if getattr(stack, "other_models", ()) else "other_models is empty"


def _sampler_and_trainer_agree(stack: Any, case: RunCase) -> Measure:
    """In a first step of one update, sampler and trainer score the same tokens alike, whatever the model is."""
    found = []
    for name in stack.other_models:
        record = case.record(stack, policy__model_name=name)
        for index, row in enumerate(record.steps[0].rows):
            error = apart(row.sampling_logprobs, torch.tensor(row.old_logprobs, dtype=torch.float64))
            found.append((error, f"model {name}, row {index}"))
    return largest(found, "sampler's log-probability against the trainer's of the same weights")


def _versions(stack: Any, case: RunCase) -> Measure:
    """A synchronous step samples with the weights that the step before left; another with none that are too old."""
    record = case.record(stack)
    is_async = record.options.get("grpo.async_grpo.enabled", False)
    oldest = record.options["grpo.async_grpo.max_trajectory_age_steps"] if is_async else 0
    wrong = [
        f"step {step.step}, row {index}: version {row.weight_version}"
        for step in record.steps
        for index, row in enumerate(step.rows)
        if not 0 <= step.step - 1 - row.weight_version <= oldest
    ]
    return Measure(
        error=float(len(wrong)), bound=0, what=f"rows sampled with other weights ({(wrong or ['none'])[0]})"
    )


def tensors_at_rest(stack: Any, case: RunCase) -> Measure:
    """Between steps the log-probabilities change: an old or a sampler's that is stale would show."""
    record = case.record(stack)
    start, end = record.initial_weights, record.final_weights
    still = sum(torch.equal(start[name], end[name]) for name in record.trainable)
    return Measure(
        error=float(still) if record.trainable else 1.0,
        bound=0,
        what=f"trainable tensors that the run left as they were ({still} of {len(record.trainable)})",
    )


def _reference_rests(stack: Any, case: RunCase) -> Measure | None:
    record = case.record(stack)
    if not record.options["loss_fn.reference_policy_kl_penalty"]:
        return None
    start, end = record.reference_weights_start, record.reference_weights_end
    if start is None or end is None:
        return Measure(
            error=float("inf"), bound=0, what="a KL to a reference was asked for and there is none"
        )
    wrong = sorted(start.keys() ^ end.keys())
    wrong += [f"{name} moved" for name in start if name in end and not torch.equal(start[name], end[name])]
    wrong += [
        f"{name} is not the policy's first"
        for name, value in record.initial_weights.items()
        if name in start and not torch.equal(start[name], value)
    ]
    return Measure(
        error=float(len(wrong)),
        bound=0,
        what=f"tensors of the reference that moved, or that are not the initial policy's ({wrong[:2] or 'none'})",
    )


@torch.no_grad()
def _support(stack: Any, case: RunCase) -> Measure:
    """A filter keeps what its definition keeps, of the weights that sampled, and what was sampled is among it."""
    record = case.record(stack)
    wrong = []
    for step in record.steps:
        for index, row in enumerate(step.rows):
            place = f"step {step.step}, row {index}"
            if len(row.kept_support or ()) != len(row.ids):
                wrong.append(f"{place}: not a support for each token, or no filter at work")
                continue
            wrong += [f"{place}, token {token}: {why}" for token, why in _unlike(stack, record, row)]
    return Measure(
        error=float(len(wrong)), bound=0, what=f"tokens with another support ({(wrong or ['none'])[0]})"
    )


def _unlike(stack: Any, record: RunRecord, row: RunRow) -> list[tuple[int, str]]:
    """Return the sampled tokens whose support is not that of the weights that they name; an environment's have none."""
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


FILTERED = {
    "policy__generation__top_k": 9,
    "policy__generation__top_p": 0.8,
    "policy__generation__temperature": 1.5,
}
HOT = {"policy__generation__temperature": 1.7}

RELATIONS = (
    Relation(
        id="R6.run",
        name="run-samples-as-configured",
        component="run",
        statement="Tokens are sampled from the configured distribution of the weights that the row names.",
        catalogue=(
            "SB011", "SB038", "SB039", "SB043", "SB046", "SB119", "SB120", "SB123", "SB131", "SB237", "SB241", "SB258",
            "SB266", "SB269", "SB290",
        ),
        cost="CPU, seconds",
        laws=(
            Law(
                name="the sampler's log-probabilities",
                make=run_cases(),
                measure=sampling_error,
                seeded=False,
                suspects="temperature not applied, weights of another version, raw log-probabilities",
            ),
            Law(
                name="the sampler's log-probabilities, hot",
                make=run_cases(("policy__generation__temperature",), **HOT),
                measure=sampling_error,
                seeded=False,
                suspects="a temperature that is bounded or ignored",
            ),
            Law(
                name="the sampler's log-probabilities, filtered",
                make=run_cases(tuple(FILTERED), **FILTERED),
                measure=sampling_error,
                seeded=False,
                suspects="probabilities of the full distribution beside filtered sampling",
            ),
            Law(
                name="a filter keeps its support",
                make=run_cases(tuple(FILTERED), **FILTERED),
                measure=_support,
                seeded=False,
                suspects="top_p or top_k not handed on, applied before the temperature, in another order",
            ),
            Law(
                name="the sampler's log-probabilities, other models",
                # A model that attends over a window is refused with packing.
                make=run_cases(
                    ("grpo__max_num_steps",), grpo__max_num_steps=1, policy__sequence_packing__enabled=False
                ),
                measure=_sampler_and_trainer_agree,
                excluded=_no_other_models,
                seeded=False,
                suspects="positions that count the padding, a window or frequencies that one of the two ignores",
            ),
            Law(
                name="the weights of the step before",
                make=run_cases(("grpo__max_num_steps",), grpo__max_num_steps=3),
                measure=_versions,
                seeded=False,
                suspects="a sync that is left out, a version that is not counted",
            ),
        ),
    ),
    Relation(
        id="R9.run",
        name="run-scores-old-and-reference",
        component="run",
        statement="Old log-probabilities are those of the weights before the step; the reference rests, and scores.",
        catalogue=("SB063", "SB104", "SB125", "SB128", "SB143", "SB148", "SB278", "SB317", "SB390"),
        cost="CPU, seconds",
        laws=(
            Law(
                name="training moves every tensor",
                make=run_cases(),
                measure=tensors_at_rest,
                seeded=False,
                suspects="a learning rate of 0, an optimizer over other tensors, updates that never come",
            ),
            Law(
                name="old log-probabilities",
                make=run_cases(),
                measure=old_error,
                seeded=False,
                suspects="computed after an update, taken from the sampler or the reference, another temperature",
            ),
            Law(
                name="old log-probabilities, filtered",
                make=run_cases(tuple(FILTERED), **FILTERED),
                measure=old_error,
                seeded=False,
                suspects="sampled under a filter and scored without it",
            ),
            Law(
                name="reference log-probabilities",
                make=run_cases(("grpo__max_num_steps",), grpo__max_num_steps=3),
                measure=reference_error,
                seeded=False,
                suspects="the old ones in their place, a reference that follows the policy, another temperature",
            ),
            Law(
                name="the reference rests",
                make=run_cases(("grpo__max_num_steps",), grpo__max_num_steps=3),
                measure=_reference_rests,
                seeded=False,
                suspects="weights shared with the policy, a sync of the reference that nobody asked for",
            ),
        ),
    ),
)  # fmt: skip
