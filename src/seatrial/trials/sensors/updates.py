"""Verdict on the updates of a step, computed again from its rows: loss, entropy, gradient and ratios.

The objective is that of `seatrial.relations.oracles`, at the model before the step. Where step 1 takes several updates,
each starts where AdamW (arXiv 1711.05101) took the one before, so that ratios are off 1 and are clipped. Nothing of the
stack is used.

Shapes: S positions of a row, T tokens of its completion, V vocabulary.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from seatrial.evidence.ledger.schema import LedgerRow
from seatrial.relations import oracles
from seatrial.relations.oracles.options import learning_rate, loss_spec
from seatrial.trials.run_evidence import NotGivenError, RunEvidence
from seatrial.trials.sensors.draws import is_filtered
from seatrial.trials.sensors.first_step import (
    initial_model,
    logprobs_of,
    scaled_logits,
    step_1,
    temperature_of,
)
from seatrial.trials.sensors.model import Model
from seatrial.trials.sensors.options import updates_of
from seatrial.trials.sensors.paths import by_step
from seatrial.trials.sensors.scalars import BUILT_IN, counts_of, loss_of

Array = npt.NDArray[np.float64]
GRADIENT = {"float32": 3e-4, "bfloat16": 0.05}
"""Relative difference of a gradient's norm, by the policy's precision.

In float32 1.2e-4 was measured, of adapters after small steps: rows whose advantages cancel leave a small sum.
"""
LEAST_GRADIENT = {"float32": 1e-7, "bfloat16": 1e-3}
"""Norm below which a gradient is rounding, by the policy's precision: that of advantages of zero."""
LOSS = {"float32": 2e-5, "bfloat16": 0.03}
"""Difference of a loss or an entropy, by the policy's precision: absolute, and relative above 1."""
OF_ENTROPY, LEAST_ENTROPY = 4.0, 1e-3
"""By which a mean entropy may differ: so many times the mean gap of the tokens' log-probabilities, and nats besides.

Of small differences d of log-probabilities, an entropy's is the mean of d times how far a token's surprise is from the
entropy, which is below 4 nats where a token has any weight. In bfloat16, over seven steps of `grpo-refit-delta`, it was
at most 0.06 times the gap, and 2.8e-4 nats, of which the addition is more than three times.
"""
OF_RATIO = 5e-4
"""Difference of a ratio after an update: that of a weight that AdamW moves by its rate, with a gradient of rounding."""
ROUTED = {"float32": 2.0, "bfloat16": math.inf}
"""Tokens of an expert that may differ, by the policy's precision: those between two experts within rounding."""


def first_update(evidence: RunEvidence) -> tuple[list[str], str, int]:
    """The loss, the entropy and the gradient's norm that step 1 logs are those of its rows under the initial model.

    Raises:
        NotGivenError: the evidence does not say what is needed, or an option is not computed again.
        BlockedError: the model cannot be read.
    """
    options, rows = step_1(evidence)
    has_gradient = not options["policy.lora_cfg.enabled"]  # the first adapters are not saved
    wrong, seen = compare_update(
        evidence, initial_model(evidence, options), rows, options, has_gradient=has_gradient
    )
    return wrong[:3], seen, len(rows)


def compare_update(
    evidence: RunEvidence,
    model: Model,
    rows: Sequence[LedgerRow],
    options: Mapping[str, Any],
    *,
    has_gradient: bool,
) -> tuple[list[str], str]:
    """Return what is wrong with the loss, entropy and gradient's norm of a step under the model before it, and them.

    Args:
        evidence: of the run.
        model: before the step.
        rows: of the step.
        options: of the run.
        has_gradient: whether the model gives the gradient of what trains: not that of adapters that it does not have.

    Raises:
        NotGivenError: an option is not computed again, or the weights between the updates of the step are not known.
    """
    _check_options(options)
    step, updates = rows[0].step if rows else 1, updates_of(rows, options)
    precision = options["policy.precision"]
    if not updates:
        raise NotGivenError(f"no row of step {step} has a token to train on")
    if len(updates) == 1:
        found, gap = recompute(model, updates[0], options, with_gradient=has_gradient)
    elif step == 1 and has_gradient and precision == "float32" and not is_filtered(options):
        found, gap = _over_updates(model, updates, options, evidence)
    else:  # which tokens top-k and top-p left is the choice of the weights before the step
        raise NotGivenError(f"the weights between the {len(updates)} updates of step {step} are not known")
    wrong = []
    for name, value in found.items():
        series = by_step(evidence, f"train/{name}")
        if name.startswith("moe/") and not series:
            continue  # packed rows and Megatron-core log no routers
        logged = series.get(step, math.nan)
        allowed = LOSS[precision] * max(1.0, abs(value))
        if name == "grad_norm":
            allowed = max(GRADIENT[precision] * value, LEAST_GRADIENT[precision])
        elif name.startswith("probs_ratio"):
            allowed = OF_RATIO
        elif name == "entropy":
            allowed = min(allowed, OF_ENTROPY * gap + LEAST_ENTROPY)
        elif name.startswith("moe/tokens"):
            allowed = ROUTED[precision]
        if not abs(logged - value) <= allowed:
            wrong.append(f"step {step}: train/{name} is logged as {logged:.7g}, the rows give {value:.7g}")
    return wrong, ", ".join(
        f"{name} {value:.6g}" for name, value in found.items() if not name.startswith("moe/tokens")
    )


def _over_updates(
    model: Model, updates: Sequence[Sequence[LedgerRow]], options: Mapping[str, Any], evidence: RunEvidence
) -> tuple[dict[str, float], float]:
    """Return the means over the updates of step 1, the extremes of its ratios, and the tokens' largest mean gap."""
    found: list[dict[str, float]] = []
    gaps, ratios = [], []
    moments: dict[str, tuple[Array, Array]] = {}
    num_updates = evidence.job.num_steps * evidence.job.num_updates_per_step
    for number, rows in enumerate(updates, start=1):
        current = _ratios(model, rows, options)
        values, gap = recompute(model, rows, options, with_gradient=True)
        found.append({"probs_ratio": math.fsum(current) / len(current), **values})
        ratios += current
        gaps.append(gap)
        if number < len(updates):
            rate = learning_rate(options, number, num_updates)
            _take(model, moments, options, rate, number, values["grad_norm"])
    names = [name for name in found[0] if not name.startswith("moe/")]
    means = {name: math.fsum(values[name] for values in found) / len(found) for name in names}
    if options["loss_fn.kind"] == "gspo":  # whose ratio is a sequence's
        del means["probs_ratio"]
        return means, max(gaps)
    low, high = 1 - options["loss_fn.ratio_clip_min"], 1 + options["loss_fn.ratio_clip_max"]
    ends = {"min": min(ratios), "max": max(ratios)}
    means |= {f"probs_ratio_{end}": ratio for end, ratio in ends.items()}
    if options["loss_fn.kind"] == "ppo_clip":
        means |= {f"probs_ratio_clamped_{end}": min(max(ratio, low), high) for end, ratio in ends.items()}
    return means, max(gaps)


def _ratios(model: Model, rows: Sequence[LedgerRow], options: Mapping[str, Any]) -> list[float]:
    """Return the ratio of a model's probability to the old one of every training token."""
    return [
        math.exp(float(logprobs_of(scaled_V, row, place)[row.sampled_ids[place]]) - old[place])
        for row in rows
        for old in (row.prev_logprobs or (),)
        for place, scaled_V in scaled_logits(model, row, options)
    ]


def _take(
    model: Model,
    moments: dict[str, tuple[Array, Array]],
    options: Mapping[str, Any],
    rate: float,
    number: int,
    norm: float,
) -> None:
    """Move a model's weights as update `number` of AdamW does, from its gradient of a norm and the moments before."""
    beta_1, beta_2 = options["policy.optimizer.betas"]
    limit = options["policy.max_grad_norm"]
    scale = 1.0 if limit is None else min(1.0, limit / (norm + 1e-6))
    moved = {}
    for name, (weight, gradient) in model.trained().items():
        first, second = moments.get(name, (np.zeros_like(weight), np.zeros_like(weight)))
        first = beta_1 * first + (1 - beta_1) * scale * gradient
        second = beta_2 * second + (1 - beta_2) * (scale * gradient) ** 2
        moments[name] = first, second
        root = np.sqrt(second / (1 - beta_2**number)) + options["policy.optimizer.eps"]
        decay = rate * options["policy.optimizer.weight_decay"] if weight.ndim >= 2 else 0.0
        moved[name] = weight * (1 - decay) - rate * first / (1 - beta_1**number) / root
    model.move(moved)


def recompute(
    model: Model, rows: Sequence[LedgerRow], options: Mapping[str, Any], *, with_gradient: bool
) -> tuple[dict[str, float], float]:
    """Return loss, entropy, the gradient's norm and what routers did by their logged names, and the tokens' mean gap.

    The gap is that of the rows' log-probabilities from the model's, without sign.
    """
    spec = loss_spec(options)
    logprobs, entropies, distributions = [], [], []
    for row in rows:
        kept = {
            place: logprobs_of(scaled, row, place) for place, scaled in scaled_logits(model, row, options)
        }
        length = len(row.sampled_ids)
        distributions.append(kept)
        old = row.prev_logprobs or ()
        logprobs.append([float(kept[t][row.sampled_ids[t]]) if t in kept else old[t] for t in range(length)])
        entropies.append([entropy_of(kept[t]) if t in kept else 0.0 for t in range(length)])
    oracle = loss_of(rows, logprobs, entropies, spec)
    tokens, sequences = counts_of(rows)
    trained = [entropies[number][place] for number, kept in enumerate(distributions) for place in kept]
    found = {"loss": oracle.loss, "entropy": math.fsum(trained) / tokens}
    gaps = [
        abs(one - other)
        for ours, row in zip(logprobs, rows, strict=True)
        for one, other in zip(ours, row.prev_logprobs or (), strict=True)
    ]
    gap = math.fsum(gaps) / tokens
    if not with_gradient:
        return found, gap
    balance = float(options["policy.router_aux_loss_coef"]) / sequences
    for row, kept, slopes in zip(rows, distributions, oracle.gradient_BT, strict=True):
        if not kept:
            continue
        gradient_SV = np.zeros_like(model.logits(row))
        share = spec.entropy_coefficient * oracles.token_weight(spec, len(kept), tokens, sequences)
        for place, logprobs_V in kept.items():
            probs_V = np.exp(logprobs_V)
            finite_V = np.where(probs_V > 0, logprobs_V, 0.0)
            slope_V = -slopes[place] * probs_V + share * probs_V * (finite_V + entropy_of(logprobs_V))
            slope_V[row.sampled_ids[place]] += slopes[place]
            gradient_SV[(row.prompt_length or 0) + place - 1] = slope_V / temperature_of(options)
        model.backward(gradient_SV, balance)
    norm = math.sqrt(math.fsum(norm**2 for norm in model.norms().values()))
    return {**found, "grad_norm": norm, **model.routed()}, gap


def _check_options(options: Mapping[str, Any]) -> None:
    """Raise NotGivenError for a loss that the oracle does not know."""
    if options["loss_fn.kind"] not in BUILT_IN:
        raise NotGivenError(f"no oracle knows the loss loss_fn.kind={options['loss_fn.kind']}")


def entropy_of(logprobs_V: Array) -> float:
    """Return the entropy, in nats, of a distribution over V tokens; those left out have -inf."""
    probs_V = np.exp(logprobs_V)
    return float(-(probs_V * np.where(probs_V > 0, logprobs_V, 0.0)).sum())
