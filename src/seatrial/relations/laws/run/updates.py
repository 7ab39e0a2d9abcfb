"""R10 and R24 of the whole run: clipping, learning rate and AdamW are their closed forms on the recorded gradients."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from seatrial.relations.facts import facts_of
from seatrial.relations.law import Law, Measure, Relation
from seatrial.relations.measures.updates import adamw_weights, clip_scale, next_moments
from seatrial.relations.oracles.runs import learning_rate, norm_of
from seatrial.relations.records.run import RunRecord, UpdateRecord
from seatrial.relations.records.tuning import TuningRecord
from seatrial.relations.runs import RunCase, run_cases
from seatrial.relations.worst import is_worse

Record = RunRecord | TuningRecord

# AdamW in float32: a handful of roundings of 2^-23 on a step of at most the rate, and one on the weight itself.
STEP_BOUND = 1e-3
RATE_BOUND = 1e-6
NORM_BOUND = 1e-5


@dataclass
class AdamW:
    """AdamW in float64 (arXiv 1711.05101): decay apart from the moments, both moments corrected for their start."""

    options: Mapping[str, Any]
    decays: str
    """`all`, or `matrices`: tensors of one dimension then keep their size."""
    first: dict[str, Tensor] = field(default_factory=dict)
    second: dict[str, Tensor] = field(default_factory=dict)
    steps: int = 0

    def step(
        self, weights: Mapping[str, Tensor], gradients: Mapping[str, Tensor], rate: float
    ) -> dict[str, Tensor]:
        """Return the weights after one update with these raw gradients; clipped here."""
        self.steps += 1
        betas, result = self.options["policy.optimizer.betas"], {}
        scale = clip_scale(norm_of(gradients), self.options.get("policy.max_grad_norm"))
        for name, gradient in gradients.items():
            clipped = gradient.double() * scale
            zero = torch.zeros_like(clipped)
            moments = next_moments(self.first.get(name, zero), self.second.get(name, zero), clipped, betas)
            self.first[name], self.second[name] = moments
            result[name] = adamw_weights(
                weights[name].double(),
                moments,
                self.options,
                update=self.steps,
                rate=rate,
                decays=self.decays == "all" or gradient.ndim >= 2,
            )
        return result


def _updates(record: Record) -> list[tuple[str, UpdateRecord]]:
    return [
        (f"step {step.step}, update {number + 1}", update)
        for step in record.steps
        for number, update in enumerate(step.updates)
    ]


def _closed_form(stack: Any, case: RunCase) -> Measure:
    return largest_step_error(case.record(stack), facts_of(stack).decays)


def largest_step_error(record: Record, decays: str) -> Measure:
    """Measure each update from the recorded weights before it, so that a difference is not carried on."""
    oracle, before = AdamW(record.options, decays), record.initial_weights
    updates = _updates(record)
    worst, place = (0.0, "nowhere") if updates else (math.inf, "no update")
    for number, (where, update) in enumerate(updates, start=1):
        rate = learning_rate(record.options, number, len(updates))
        expected = oracle.step(before, update.gradients, rate)
        for name, right in expected.items():
            rounding = 2.0**-22 * float(right.abs().max())
            error = float((update.weights_after[name].double() - right).abs().max())
            error = max(0.0, error - rounding) / max(rate, 1e-12) if math.isfinite(error) else float(error)
            if is_worse(error, worst):
                worst, place = error, f"{where}, {name}"
        before = update.weights_after
    return Measure(
        error=worst,
        bound=STEP_BOUND,
        what=f"weights after an update against AdamW on the raw gradients, {place}, in units of the rate",
    )


def _steps_end_with_their_updates(stack: Any, case: RunCase) -> Measure:
    return only_updates_moved(case.record(stack))


def only_updates_moved(record: Record) -> Measure:
    """Nothing but updates changes weights: a step ends with the weights of its last update, the run with its last."""
    wrong = []
    for step in record.steps:
        last = step.updates[-1].weights_after if step.updates else record.weights_at(step.step - 1)
        wrong += [
            f"step {step.step}, {name}"
            for name in last
            if not torch.equal(last[name], step.weights_after[name])
        ]
    wrong += [
        f"end, {name}"
        for name, value in record.final_weights.items()
        if not torch.equal(value, record.steps[-1].weights_after[name])
    ]
    frozen = record.initial_weights.keys() - record.trainable
    wrong += [
        f"{name} is frozen and moved"
        for name in frozen
        if not torch.equal(record.initial_weights[name], record.final_weights[name])
    ]
    return Measure(
        error=float(len(wrong)),
        bound=0,
        what=f"tensors changed by something else than an update ({(wrong or ['none'])[0]})",
    )


def _rates(stack: Any, case: RunCase) -> Measure:
    record = case.record(stack)
    steps, size = record.options["grpo.max_num_steps"], record.options["policy.train_global_batch_size"]
    rows = record.options["grpo.num_prompts_per_step"] * record.options["grpo.num_generations_per_prompt"]
    return rates_error(record, due=steps * (rows // size), bound=RATE_BOUND)


def rates_error(record: Record, *, due: int, bound: float) -> Measure:
    """Measure the learning rates of a run that owes so many updates against the schedule."""
    updates, peak = _updates(record), record.options["policy.optimizer.lr"]
    if len(updates) != due:
        return Measure(error=math.inf, bound=0, what=f"{len(updates)} updates where the options make {due}")
    worst, place = 0.0, "nowhere"
    for number, (where, update) in enumerate(updates, start=1):
        right = learning_rate(record.options, number, due)
        error = abs(update.learning_rate - right) / peak
        if is_worse(error, worst):
            worst, place = error, f"{where}: {update.learning_rate:.6g} for {right:.6g}"
    return Measure(error=worst, bound=bound, what=f"learning rate against the schedule, {place}, of the peak")


def _norms(stack: Any, case: RunCase) -> Measure:
    worst, place = 0.0, "nowhere"
    for where, update in _updates(case.record(stack)):
        right = norm_of(update.gradients)
        error = abs(update.grad_norm - right) / max(right, 1e-12)
        if is_worse(error, worst):
            worst, place = error, f"{where}: {update.grad_norm:.6g} for {right:.6g}"
    return Measure(
        error=worst,
        bound=NORM_BOUND,
        what=f"gradient norm against that of the gradients, {place}, relative difference",
    )


def _logged(stack: Any, case: RunCase) -> Measure:
    """With one update a step, what is logged of it is what it used."""
    record = case.record(stack)
    wrong = []
    for step in record.steps:
        (update,) = step.updates
        pairs = {"lr": update.learning_rate, "grad_norm": norm_of(update.gradients)}
        wrong += [
            f"step {step.step}: {name} {step.metrics.get(name)} for {right:.6g}"
            for name, right in pairs.items()
            if not abs(step.metrics.get(name, math.nan) - right) <= NORM_BOUND * max(abs(right), 1e-9)
        ]
    return Measure(
        error=float(len(wrong)),
        bound=0,
        what=f"logged rates and norms that were not used ({(wrong or ['none'])[0]})",
    )


CLIPPED = {"policy__max_grad_norm": 0.02, "policy__optimizer__weight_decay": 0.1, "grpo__max_num_steps": 3}
UNCLIPPED = {"policy__max_grad_norm": None, "policy__optimizer__eps": 1e-3}
COSINE = {
    "policy__scheduler__name": "cosine",
    "policy__scheduler__warmup_steps": 2,
    "policy__scheduler__min_lr_ratio": 0.2,
    "grpo__max_num_steps": 4,
}
LINEAR = {
    "policy__scheduler__name": "linear",
    "policy__scheduler__warmup_steps": 1,
    "policy__train_global_batch_size": 8,
    "grpo__max_num_steps": 3,
}

RELATIONS = (
    Relation(
        id="R10.run",
        name="run-updates-are-adamw",
        component="run",
        statement="Clipping and AdamW on the recorded raw gradients give the weights; nothing else moves them.",
        catalogue=(
            "SB221", "SB222", "SB228", "SB229", "SB231", "SB233", "SB271", "SB313", "SB316", "SB341", "SB345", "SB351",
        ),
        cost="CPU, seconds",
        laws=(
            Law(
                name="AdamW, clipped",
                make=run_cases(("policy__max_grad_norm",), **CLIPPED),
                measure=_closed_form,
                seeded=False,
                suspects="clipping twice, per tensor or not at all, decay in the gradient, moments reset each step",
            ),
            Law(
                name="AdamW, not clipped",
                make=run_cases(tuple(UNCLIPPED), **UNCLIPPED),
                measure=_closed_form,
                seeded=False,
                suspects="a clip that stays on, epsilon or betas not handed on",
            ),
            Law(
                name="AdamW under a schedule",
                make=run_cases(tuple(COSINE), **COSINE),
                measure=_closed_form,
                seeded=False,
                suspects="a rate that is logged and not used",
            ),
            Law(
                name="only updates move weights",
                make=run_cases(),
                measure=_steps_end_with_their_updates,
                seeded=False,
                suspects="weights merged or rounded by a sync, frozen tensors in the optimizer",
            ),
        ),
    ),
    Relation(
        id="R24.run",
        name="run-accounts-for-its-updates",
        component="run",
        statement="Number of updates, learning rates and norms of a run are the closed forms; what is logged was used.",
        catalogue=("SB098", "SB099", "SB102", "SB217", "SB218", "SB219", "SB225", "SB298", "SB304"),
        cost="CPU, seconds",
        laws=(
            Law(
                name="learning rates, cosine",
                make=run_cases(tuple(COSINE), **COSINE),
                measure=_rates,
                seeded=False,
                suspects="a schedule that counts steps for updates, off by one, a floor that is left out",
            ),
            Law(
                name="learning rates, linear",
                make=run_cases(tuple(LINEAR), **LINEAR),
                measure=_rates,
                seeded=False,
                suspects="a schedule that counts steps for updates, off by one",
            ),
            Law(
                name="norms",
                make=run_cases(tuple(CLIPPED), **CLIPPED),
                measure=_norms,
                seeded=False,
                suspects="the norm after clipping, of one micro-batch, of a shard",
            ),
            Law(
                name="logged rate and norm",
                make=run_cases(tuple(LINEAR), **LINEAR),
                measure=_logged,
                seeded=False,
                suspects="the rate of the next update, the norm after clipping",
            ),
        ),
    ),
)  # fmt: skip
