"""R20.run: weights are loaded as stored, rounded as configured, and updated in float32."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from seatrial.relations.facts import facts_of
from seatrial.relations.law import Measure, Relation
from seatrial.relations.laws.run.updates import AdamW
from seatrial.relations.oracles.options import learning_rate
from seatrial.relations.oracles.runs import token_logprobs
from seatrial.relations.runs import RunCase, run_cases

ROUNDED_APART = 0.01
"""Share of weights that may round to a neighbour: the oracle is float64, and float32 is 2^-16 of a unit from it."""
ROUNDED_SUMS = 0.5
"""Share of sums of four terms that eight bits may hold exactly by chance; about an eighth for equal sizes."""
EXACT_INTEGERS = 256
"""Largest number up to which bfloat16 holds every whole number."""
SCORES_APART = 0.06
"""Nats, mean of a row: two forward passes of bfloat16, on logits of up to 30; the largest seen is 0.02."""
# A rate whose updates are far smaller than what bfloat16 can represent.
BFLOAT16 = run_cases(policy__precision="bfloat16", policy__optimizer__lr=1e-4, grpo__max_num_steps=3)

PRECISION = Relation(
    id="R20.run",
    name="run-keeps-its-precision",
    component="precision",
    statement="Weights begin as stored, the optimizer keeps float32, and the sampler has the policy's precision.",
    catalogue="SB134 SB222 SB357 SB359",
    cost="CPU, seconds",
    seeded=False,
)


@PRECISION.law(
    "loaded as stored",
    "a type named where the file is read",
    cases=run_cases(policy__precision="float32"),
    dtype=torch.float32,
)
@PRECISION.law(
    "rounded once", "a cast to another type, or of other weights", cases=BFLOAT16, dtype=torch.bfloat16
)
def weights_begin_as_stored(stack: Any, case: RunCase, dtype: torch.dtype) -> Measure:
    """Compare the initial weights with the stored ones, cast to a type."""
    first, stored = case.record(stack).initial_weights, stack.stored_weights()
    wrong = sorted(stored.keys() - first.keys())
    wrong += [
        f"{name}: {first[name].dtype}"
        for name, value in stored.items()
        if name in first and (first[name].dtype != dtype or not torch.equal(first[name], value.to(dtype)))
    ]
    return Measure.count(
        wrong if stored else ["nothing is stored"], f"tensors that do not begin as stored, as {dtype}"
    )


@PRECISION.law(
    "updated in float32",
    "master weights taken after the cast, moments or sums of gradients in bfloat16",
    cases=BFLOAT16,
)
def updated_in_float32(stack: Any, case: RunCase) -> Measure:
    """Compare the model's weights with the rounding of float32 weights that began as stored."""
    record = case.record(stack)
    oracle = AdamW(record.options, facts_of(stack).decays)
    weights: dict[str, Tensor] = {
        name: value.double() for name, value in stack.stored_weights().items() if name in record.trainable
    }
    updates = record.updates()
    differing = total = 0
    for number, (_, update) in enumerate(updates, start=1):
        rate = learning_rate(record.options, number, len(updates))
        weights = oracle.step(weights, update.gradients, rate)
        for name, value in weights.items():
            # A backend may report the float32 weights themselves: the model has their rounding.
            right = value.float().to(torch.bfloat16)
            differing += int((update.weights_after[name].to(torch.bfloat16) != right).sum())
            total += right.numel()
    return _share(
        differing, total, ROUNDED_APART, "weights that are not the rounding of a float32 optimizer's"
    )


@PRECISION.law(
    "summed in float32",
    "gradients of micro-batches added up in the precision of the weights",
    cases=run_cases(policy__precision="bfloat16", policy__train_micro_batch_size=1),
)
def summed_in_float32(stack: Any, case: RunCase) -> Measure:
    """Check that sums of bfloat16 gradients have bits that bfloat16 does not have."""
    rounded = total = 0
    for _, update in case.record(stack).updates():
        for gradient in update.gradients.values():
            some = gradient[gradient != 0].float()
            rounded += int((some.to(torch.bfloat16).float() == some).sum())
            total += some.numel()
    return _share(rounded, total, ROUNDED_SUMS, "summed gradients that bfloat16 holds exactly")


LONG_PACKS = run_cases(
    policy__precision="bfloat16",
    policy__sequence_packing__enabled=True,
    policy__sequence_packing__train_mb_tokens=640,
    policy__sequence_packing__logprob_mb_tokens=640,
    policy__train_global_batch_size=32,
    grpo__num_prompts_per_step=4,
    grpo__num_generations_per_prompt=8,
    grpo__max_num_steps=2,
    data__num_train=8,
)
"""Packs of more than 256 tokens: bfloat16 holds whole numbers up to 256."""


@PRECISION.law(
    "scores of long packs",
    "positions, boundaries or masks in bfloat16: those beyond 256 are rounded",
    cases=LONG_PACKS,
)
@torch.no_grad()
def long_packs_score_as_rows_alone(stack: Any, case: RunCase) -> Measure | None:
    """Compare old and reference log-probabilities of packed rows with the plain model's of bfloat16 weights.

    The largest mean over a row is compared: a row that sees others, or other positions, is off in all its tokens.
    """
    record = case.record(stack)
    packed = max(sum(len(row.prompt_ids) + len(row.ids) for row in step.rows) for step in record.steps)
    if packed <= EXACT_INTEGERS:
        return None
    found = []
    for place, step, row in record.rows():
        scored = {"old": (row.old_logprobs, record.weights_at(step.step - 1))}
        if row.ref_logprobs is not None and record.reference_weights_start is not None:
            scored["reference"] = (row.ref_logprobs, record.reference_weights_start)
        for which, (given, weights) in scored.items():
            right_T = token_logprobs(stack, weights, row, record.options)
            error = float((torch.tensor(given, dtype=torch.float64) - right_T).abs().mean())
            found.append((error, f"{place}, {which}"))
    return Measure.largest(found, SCORES_APART, "mean log-probability error of a row in a pack, in bfloat16")


@PRECISION.law(
    "a reference in bfloat16",
    "a reference that keeps the type of the file, or that is rounded twice",
    cases=BFLOAT16,
)
def reference_has_the_policys_precision(stack: Any, case: RunCase) -> Measure | None:
    """Check that the reference has the bits and the type of the policy's initial weights, to the end."""
    record = case.record(stack)
    if not record.options["loss_fn.reference_policy_kl_penalty"]:
        return None
    found = (record.reference_weights_start or {}, record.reference_weights_end or {})
    wrong = [
        name
        for name, first in record.initial_weights.items()
        for one in found
        if name not in one or one[name].dtype != first.dtype or not torch.equal(one[name], first)
    ]
    return Measure.count(wrong, "tensors of the reference that are not the policy's first ones")


def _share(part: int, total: int, bound: float, what: str) -> Measure:
    error = part / total if total else 1.0
    return Measure(error=error, bound=bound, what=f"share of {what} ({part} of {total})")


@PRECISION.law("the sampler's precision", "a copy of the weights in the type of the file", cases=run_cases())
def sampler_has_the_policys_precision(stack: Any, case: RunCase) -> Measure:
    """Check that the sampler's weights have the policy's precision, for each precision."""
    wrong = []
    for precision in ("float32", "bfloat16"):
        found = stack.sampler_dtypes({"policy.precision": precision})
        wrong += [f"{name} is {dtype} for {precision}" for name, dtype in found.items() if dtype != precision]
        wrong += [] if found else [f"no weights for {precision}"]
    return Measure.count(wrong, "weights of the sampler in another precision than the policy's")
