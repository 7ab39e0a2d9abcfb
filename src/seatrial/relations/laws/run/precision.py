"""R20 of the whole run: weights are loaded as they are stored, rounded where configured, and updated in float32."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from seatrial.relations.facts import facts_of
from seatrial.relations.law import Law, Measure, Relation
from seatrial.relations.laws.run.updates import AdamW
from seatrial.relations.oracles.runs import learning_rate
from seatrial.relations.runs import RunCase, run_cases

PRECISIONS = ("float32", "bfloat16")
ROUNDED_APART = 0.01
"""Share of weights that may round to the neighbour: the oracle is float64, and float32 is a 2^-16 of a unit from it."""


ROUNDED_SUMS = 0.5
"""Share of sums of four that eight bits may hold exactly by chance: of terms of one size it is about an eighth."""


def _loaded(stack: Any, case: RunCase) -> Measure:
    return _against_stored(stack, case, torch.float32)


def _rounded_once(stack: Any, case: RunCase) -> Measure:
    return _against_stored(stack, case, torch.bfloat16)


def _against_stored(stack: Any, case: RunCase, dtype: torch.dtype) -> Measure:
    first, stored = case.record(stack).initial_weights, stack.stored_weights()
    wrong = sorted(stored.keys() - first.keys())
    wrong += [
        f"{name}: {first[name].dtype}"
        for name, value in stored.items()
        if name in first and (first[name].dtype != dtype or not torch.equal(first[name], value.to(dtype)))
    ]
    return Measure(
        error=float(len(wrong)) if stored else 1.0,
        bound=0,
        what=f"tensors that a run begins with otherwise than stored, as {dtype} ({(wrong or ['none'])[0]})",
    )


def _updated_in_float32(stack: Any, case: RunCase) -> Measure:
    """Each update adds to float32 weights that began as stored; what the model holds is their rounding."""
    record = case.record(stack)
    oracle = AdamW(record.options, facts_of(stack).decays)
    weights: dict[str, Tensor] = {
        name: value.double() for name, value in stack.stored_weights().items() if name in record.trainable
    }
    updates = [update for step in record.steps for update in step.updates]
    apart = total = 0
    for number, update in enumerate(updates, start=1):
        rate = learning_rate(record.options, number, len(updates))
        weights = oracle.step(weights, update.gradients, rate)
        for name, value in weights.items():
            # A backend may report the float32 weights themselves: what the model holds is their rounding.
            right = value.float().to(torch.bfloat16)
            apart += int((update.weights_after[name].to(torch.bfloat16) != right).sum())
            total += right.numel()
    share = apart / total if total else 1.0
    return Measure(
        error=share,
        bound=ROUNDED_APART,
        what=f"share of weights that are not the rounding of a float32 optimizer's ({apart} of {total})",
    )


def _summed_in_float32(stack: Any, case: RunCase) -> Measure:
    """A sum of gradients in bfloat16 has bits that bfloat16 has not, unless it was rounded on its way."""
    rounded = total = 0
    for step in case.record(stack).steps:
        for update in step.updates:
            for gradient in update.gradients.values():
                some = gradient[gradient != 0].float()
                rounded += int((some.to(torch.bfloat16).float() == some).sum())
                total += some.numel()
    return Measure(
        error=rounded / total if total else 1.0,
        bound=ROUNDED_SUMS,
        what=f"share of summed gradients that bfloat16 holds exactly ({rounded} of {total})",
    )


def _sampler(stack: Any, case: RunCase) -> Measure:
    wrong = []
    for precision in PRECISIONS:
        found = stack.sampler_dtypes({"policy.precision": precision})
        wrong += [f"{name} is {dtype} for {precision}" for name, dtype in found.items() if dtype != precision]
        wrong += [] if found else [f"no weights for {precision}"]
    return Measure(
        error=float(len(wrong)),
        bound=0,
        what=f"weights of the sampler in another precision than the policy's ({(wrong or ['none'])[0]})",
    )


BFLOAT16 = {
    "policy__precision": "bfloat16",
    "policy__optimizer__lr": 1e-4,
    "grpo__max_num_steps": 3,
}
"""A rate whose updates are far smaller than what bfloat16 tells apart."""


SUMS = {"policy__precision": "bfloat16", "policy__train_micro_batch_size": 1}


def _law(name: str, measure: Any, suspects: str, options: dict[str, Any]) -> Law:
    return Law(
        name=name, make=run_cases(tuple(options), **options), measure=measure, suspects=suspects, seeded=False
    )


RELATIONS = (
    Relation(
        id="R20.run",
        name="run-keeps-its-precision",
        component="precision",
        statement="Weights begin as stored, the optimizer keeps float32, and the sampler has the policy's precision.",
        catalogue=("SB134", "SB222", "SB357", "SB359"),
        cost="CPU, seconds",
        laws=(
            _law(
                "loaded as stored",
                _loaded,
                "a type named where the file is read",
                {"policy__precision": "float32"},
            ),
            _law("rounded once", _rounded_once, "a cast to another type, or of other weights", BFLOAT16),
            _law(
                "updated in float32",
                _updated_in_float32,
                "master weights taken after the cast, moments or sums of gradients in bfloat16",
                BFLOAT16,
            ),
            _law(
                "summed in float32",
                _summed_in_float32,
                "gradients of micro-batches added up in the precision of the weights",
                SUMS,
            ),
            _law("the sampler's precision", _sampler, "a copy of the weights in the type of the file", {}),
        ),
    ),
)
