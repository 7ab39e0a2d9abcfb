"""R10.run, R24.run: clipping, learning rate and AdamW are their closed forms on the recorded gradients."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from seatrial.relations.facts import facts_of
from seatrial.relations.law import Measure, Relation
from seatrial.relations.measures.updates import adamw_weights, clip_scale, next_moments
from seatrial.relations.oracles.options import learning_rate
from seatrial.relations.oracles.runs import norm_of
from seatrial.relations.records.run import Record
from seatrial.relations.runs import RunCase, run_cases
from seatrial.relations.worst import relative_error

# AdamW in float32: a handful of roundings of 2^-23 on a step of at most the rate, and one on the weight itself.
STEP_BOUND = 1e-3
RATE_BOUND = 1e-6
NORM_BOUND = 1e-5
CLIPPED = run_cases(policy__max_grad_norm=0.02, policy__optimizer__weight_decay=0.1, grpo__max_num_steps=3)
COSINE = run_cases(
    policy__scheduler__name="cosine",
    policy__scheduler__warmup_steps=2,
    policy__scheduler__min_lr_ratio=0.2,
    grpo__max_num_steps=4,
)
LINEAR = run_cases(
    policy__scheduler__name="linear",
    policy__scheduler__warmup_steps=1,
    policy__train_global_batch_size=8,
    grpo__max_num_steps=3,
)

UPDATES = Relation(
    id="R10.run",
    name="run-updates-are-adamw",
    component="run",
    statement="Clipping and AdamW on the recorded raw gradients give the weights; nothing else moves them.",
    catalogue="SB221 SB222 SB228 SB229 SB231 SB233 SB271 SB313 SB316 SB341 SB345 SB351",
    cost="CPU, seconds",
    seeded=False,
)
ACCOUNTS = Relation(
    id="R24.run",
    name="run-accounts-for-its-updates",
    component="run",
    statement="Number of updates, learning rates and norms of a run are the closed forms; what is logged was used.",
    catalogue="SB098 SB099 SB102 SB217 SB218 SB219 SB225 SB298 SB304",
    cost="CPU, seconds",
    seeded=False,
)


@dataclass
class AdamW:
    """AdamW in float64 (arXiv 1711.05101): decay separate from the moments, both moments corrected for their start."""

    options: Mapping[str, Any]
    decays: str
    """`all`, or `matrices`: tensors of one dimension then do not decay."""
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


@UPDATES.law(
    "AdamW, clipped",
    "clipping twice, per tensor or not at all, decay in the gradient, moments reset each step",
    cases=CLIPPED,
)
@UPDATES.law(
    "AdamW, not clipped",
    "a clip that stays on, epsilon or betas not passed on",
    cases=run_cases(policy__max_grad_norm=None, policy__optimizer__eps=1e-3),
)
@UPDATES.law("AdamW under a schedule", "a rate that is logged and not used", cases=COSINE)
def updates_are_adamw(stack: Any, case: RunCase) -> Measure:
    """Compare each update with AdamW on its raw gradient."""
    return largest_step_error(case.record(stack), facts_of(stack).decays)


@dataclass
class SGD(AdamW):
    """Gradient descent without momentum in float64; decay is part of the clipped gradient."""

    def step(
        self, weights: Mapping[str, Tensor], gradients: Mapping[str, Tensor], rate: float
    ) -> dict[str, Tensor]:
        """Return the weights after one update with these raw gradients; clipped here."""
        scale = clip_scale(norm_of(gradients), self.options.get("policy.max_grad_norm"))
        result = {}
        for name, gradient in gradients.items():
            before = weights[name].double()
            decays = self.decays == "all" or gradient.ndim >= 2
            decay = self.options["policy.optimizer.weight_decay"] * before if decays else 0.0
            result[name] = before - rate * (gradient.double() * scale + decay)
        return result


def largest_step_error(
    record: Record,
    decays: str,
    rate_of: Callable[[Mapping[str, Any], int, int], float] = learning_rate,
) -> Measure:
    """Compare each update with AdamW from the recorded weights before it, so that differences do not add up.

    A run whose options name `sgd` as `policy.optimizer.name` is compared with that.
    """
    chosen = SGD if record.options.get("policy.optimizer.name") == "sgd" else AdamW
    oracle, before, updates = chosen(record.options, decays), record.initial_weights, record.updates()
    found = []
    for number, (place, update) in enumerate(updates, start=1):
        rate = rate_of(record.options, number, len(updates))
        expected = oracle.step(before, update.gradients, rate)
        for name, right in expected.items():
            rounding = 2.0**-22 * float(right.abs().max())
            error = float((update.weights_after[name].double() - right).abs().max())
            error = max(0.0, error - rounding) / max(rate, 1e-12) if math.isfinite(error) else error
            found.append((error, f"{place}, {name}"))
        before = update.weights_after
    return Measure.largest(
        found, STEP_BOUND, "weights after an update against AdamW on the raw gradients, in units of the rate"
    )


@UPDATES.law(
    "only updates move weights",
    "weights merged or rounded by a sync, frozen tensors in the optimizer",
    cases=run_cases(),
)
def only_updates_move_weights(stack: Any, case: Any) -> Measure:
    """Check that a step ends with the weights of its last update, the run with its last, and frozen tensors stay."""
    record = case.record(stack)
    wrong = []
    for step in record.steps:
        last = step.updates[-1].weights_after if step.updates else record.weights_at(step.step - 1)
        wrong += [f"step {step.step}, {name}" for name in _unequal(last, step.weights_after)]
    wrong += [f"end, {name}" for name in _unequal(record.final_weights, record.steps[-1].weights_after)]
    frozen = {name: value for name, value in record.initial_weights.items() if name not in record.trainable}
    wrong += [f"{name} is frozen and moved" for name in _unequal(frozen, record.final_weights)]
    return Measure.count(wrong, "tensors changed by something else than an update")


def _unequal(one: Mapping[str, Tensor], other: Mapping[str, Tensor]) -> list[str]:
    return [name for name, value in one.items() if not torch.equal(value, other[name])]


@ACCOUNTS.law(
    "learning rates, cosine",
    "a schedule that counts steps for updates, off by one, a floor that is left out",
    cases=COSINE,
)
@ACCOUNTS.law("learning rates, linear", "a schedule that counts steps for updates, off by one", cases=LINEAR)
def rates_follow_the_schedule(stack: Any, case: RunCase) -> Measure:
    """Compare the number of updates and their learning rates with the options."""
    record = case.record(stack)
    steps, size = record.options["grpo.max_num_steps"], record.options["policy.train_global_batch_size"]
    rows = record.options["grpo.num_prompts_per_step"] * record.options["grpo.num_generations_per_prompt"]
    return rates_error(record, due=steps * (rows // size))


def rates_error(record: Record, *, due: int) -> Measure:
    """Compare the learning rates of a run with the schedule, if it has the number of updates that is due."""
    updates, peak = record.updates(), record.options["policy.optimizer.lr"]
    if len(updates) != due:
        return Measure(error=math.inf, bound=0, what=f"{len(updates)} updates, {due} by the options")
    found = []
    for number, (place, update) in enumerate(updates, start=1):
        right = learning_rate(record.options, number, due)
        error = abs(update.learning_rate - right) / peak
        found.append((error, f"{place}: {update.learning_rate:.6g} for {right:.6g}"))
    return Measure.largest(found, RATE_BOUND, "learning rate against the schedule, relative to the peak")


@ACCOUNTS.law("norms", "the norm after clipping, of one micro-batch, of a shard", cases=CLIPPED)
def norms_are_of_the_gradients(stack: Any, case: RunCase) -> Measure:
    """Compare the gradient norm of every update with that of its gradients."""
    found = []
    for place, update in case.record(stack).updates():
        right = norm_of(update.gradients)
        error = relative_error(update.grad_norm, right, 1e-12)
        found.append((error, f"{place}: {update.grad_norm:.6g} for {right:.6g}"))
    return Measure.largest(
        found, NORM_BOUND, "gradient norm against that of the gradients, relative difference"
    )


@ACCOUNTS.law("logged rate and norm", "the rate of the next update, the norm after clipping", cases=LINEAR)
def logged_rate_and_norm_were_used(stack: Any, case: RunCase) -> Measure:
    """Compare the logged rate and norm of each step with those of its only update."""
    wrong = []
    for step in case.record(stack).steps:
        (update,) = step.updates
        pairs = {"lr": update.learning_rate, "grad_norm": norm_of(update.gradients)}
        wrong += [
            f"step {step.step}: {name} {step.metrics.get(name)} for {right:.6g}"
            for name, right in pairs.items()
            if not relative_error(step.metrics.get(name, math.nan), right, 1e-9) <= NORM_BOUND
        ]
    return Measure.count(wrong, "logged rates and norms that were not used")
