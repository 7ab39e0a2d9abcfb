"""R22: every logged scalar equals its definition on the raw numbers, for any split of the batch."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

from seatrial.relations.cases import Rollout, make_rollout, rollout_for, square_rollout
from seatrial.relations.law import Measure, Relation
from seatrial.relations.laws.loss.micro_batches import splits
from seatrial.relations.not_served import NotServed
from seatrial.relations.oracles import kl_value
from seatrial.relations.records import LossInputs
from seatrial.relations.tensors import counts_of, inputs_of
from seatrial.relations.worst import relative_error

BOUND = 1e-6


def _k3(log_ratio: float) -> float:
    return math.exp(log_ratio) - 1 - log_ratio


Token = dict[str, float]
FORMULAS: dict[str, Callable[[Sequence[Token], Any], float]] = {
    "token_mult_prob_error": lambda tokens, spec: _mean(math.exp(abs(t["g"] - t["p"])) for t in tokens),
    "gen_kl_error": lambda tokens, spec: _mean(_k3(t["p"] - t["g"]) for t in tokens),
    "policy_kl_error": lambda tokens, spec: _mean(_k3(t["g"] - t["p"]) for t in tokens),
    "probs_ratio": lambda tokens, spec: _mean(math.exp(t["c"] - t["p"]) for t in tokens),
    "probs_ratio_min": lambda tokens, spec: min(math.exp(t["c"] - t["p"]) for t in tokens),
    "probs_ratio_max": lambda tokens, spec: max(math.exp(t["c"] - t["p"]) for t in tokens),
    "approx_entropy": lambda tokens, spec: -_mean(math.exp(t["c"] - t["g"]) * t["c"] for t in tokens),
}
"""NeMo RL's definitions (its loss functions): c current, p old, g sampler, over the valid tokens."""
PER_SEQUENCE = ("gspo",)
"""Kinds of loss whose ratio is that of a sequence, so that ratio metrics have another meaning."""


def _mean(values: Any) -> float:
    collected = list(values)
    return math.fsum(collected) / len(collected)


def _logs_no_mean_kl(stack: Any) -> str | None:
    spec = stack.loss_spec
    if not spec.kl_penalty:
        return "loss_spec.kl_penalty=0"
    return None if spec.reduction == "token" else f"loss_spec.reduction={spec.reduction!r}"


METRICS = Relation(
    id="R22.metrics",
    name="metrics-equal-their-definitions",
    component="metrics",
    statement="Each logged scalar equals its definition on the raw numbers, over any split, and can move.",
    catalogue="SB058 SB059 SB214 SB278 SB362 SB364 SB367 SB368 SB369 SB371 SB374",
    cost="CPU, milliseconds",
    cases=rollout_for,
)


@METRICS.law(
    "recomputed from the raw numbers",
    "padding counted, a mean of means, minima and maxima summed, the last micro-batch only",
)
@METRICS.law(
    "recomputed, as many rows as tokens",
    "a mean over the wrong dimension, a mask transposed",
    cases=square_rollout,
)
def metrics_equal_definitions(stack: Any, case: Rollout) -> Measure:
    """Compare logged metrics with their definitions on the raw numbers, over several splits of the batch."""
    whole = inputs_of(case)
    tokens = _tokens(whole)
    spec = stack.loss_spec
    skipped = ("probs_ratio",) if spec.kind in PER_SEQUENCE else ()
    expected = {name: formula(tokens, spec) for name, formula in FORMULAS.items()}
    found = []
    for split in [[list(range(len(case.rows)))], *splits(len(case.rows), tidy=case.tidy)]:
        counts = counts_of(case.rows)
        parts = [inputs_of(case, [case.rows[row] for row in part], counts=counts) for part in split]
        logged = stack.metrics(parts)
        for name, right in expected.items():
            if name not in logged or name.startswith(skipped or ("\0",)):
                continue
            place = f"{name} {logged[name]:.8g}, from the raw numbers {right:.8g}, {len(split)} parts"
            found.append((name, relative_error(logged[name], right), place))
    if not found:
        raise NotServed("none of the metrics that have a definition here is logged")
    return Measure.largest_of_each(found, BOUND, "logged metrics, relative difference")


def _tokens(inputs: LossInputs) -> list[Token]:
    columns = {
        "c": inputs.logprobs_BT.detach(),
        "p": inputs.old_logprobs_BT,
        "g": inputs.sampling_logprobs_BT,
        "r": inputs.ref_logprobs_BT,
    }
    valid = inputs.mask_BT.bool()
    lists = {name: values[valid].tolist() for name, values in columns.items()}
    return [dict(zip(lists, row, strict=True)) for row in zip(*lists.values(), strict=True)]


@METRICS.law(
    "KL to the reference",
    "the coefficient in or out, the log-ratio inverted, masked tokens counted",
    excluded=_logs_no_mean_kl,
)
def kl_penalty_equals_definition(stack: Any, case: Rollout) -> Measure:
    """Compare the logged KL to the reference with its definition on the raw numbers."""
    spec = stack.loss_spec
    whole = inputs_of(case)
    expected = _mean(kl_value(t["c"], t["r"], spec.kl_type) for t in _tokens(whole))
    given = stack.metrics([whole])["kl_penalty"]
    return Measure(
        error=abs(given - expected) / max(1.0, abs(expected)),
        bound=BOUND,
        what=f"kl_penalty {given:.8g}, from the raw numbers {expected:.8g}, relative difference",
    )


@METRICS.law("not constant", "a placeholder, a tensor compared with itself")
def metrics_are_not_constant(stack: Any, case: Rollout) -> Measure:
    """Check that no metric is the same on two very different batches."""
    first = stack.metrics([inputs_of(case)])
    second = stack.metrics([inputs_of(make_rollout(case.seed + 50, tidy=case.tidy))])
    constant = {name: [name] * (first[name] == second.get(name)) for name in FORMULAS if name in first}
    return Measure.count_of_each(constant, "metrics that never move")
