"""Verdicts on the scalars of every step that follow from its rows: computed again in float64, without a model.

Before the first update of a step the policy is the old one of the rows. So where a step is one update, its loss and
all that compares the policy follow from the rows too; where it takes several, their means do not, and are left out.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np

from seatrial.evidence.ledger.laws.advantages import (
    ADVANTAGE_TOLERANCE,
    advantages_of,
    rule_named,
)
from seatrial.evidence.ledger.schema import LedgerRow
from seatrial.relations import oracles
from seatrial.relations.oracles.options import learning_rate, loss_spec
from seatrial.relations.records import LossSpec
from seatrial.trials.run_evidence import NotGivenError, RunEvidence
from seatrial.trials.sensors.options import mask_of, options_of, steps_of, updates_of, verified_reward
from seatrial.trials.sensors.paths import by_step
from seatrial.trials.sensors.times import times_and_parts

BUILT_IN = frozenset({"ppo_clip", "gspo", "cispo"})
"""Losses whose oracle takes the section `loss_fn`; another package's is not computed again."""
ROUNDING = 1e-4
"""Relative difference of what is computed from the rows alone: sums in float32, and scalars logged in float32."""
OF_POLICY = {"float32": 5e-5, "bfloat16": 0.03}
"""Absolute difference of what compares the policy at the training pass, by its precision: batches of other rows round
their log-probabilities otherwise."""


OWN_SCALES = {"grpo": "group", "dr_grpo": "none", "rloo": "none", "reinforce_plus_plus_baseline": "batch"}
"""The scale of each estimator where the options name none, as documented."""


class Expected(NamedTuple):
    """What a scalar should be."""

    value: float
    of_policy: bool = False
    """Whether it depends on log-probabilities of the training pass, which the rows do not hold."""


class Tokens(NamedTuple):
    """The training tokens of one update, by the column, row after row."""

    old: list[float]
    sampling: list[float]
    reference: list[float]
    advantages: list[float]


def scalars_follow(evidence: RunEvidence) -> tuple[list[str], str, int]:
    """Every logged scalar that follows from the rows of its step is what they give.

    Raises:
        BlockedError: the log is damaged: what is missing may have been there.
        NotGivenError: the target gives no rows, or does not say how the run is configured.
    """
    options = options_of(evidence)
    evidence.need_whole_log()
    bound = OF_POLICY[options["policy.precision"]]
    wrong, number, names, taken = [], 0, set(), 0
    for step, rows in steps_of(evidence).items():
        num_updates = len(updates_of(rows, options))
        for name, expected in expected_scalars(evidence, step, rows, options, taken):
            logged = by_step(evidence, f"train/{name}").get(step, math.nan)
            allowed = ROUNDING * abs(expected.value) + (bound if expected.of_policy else 1e-6)
            if not abs(logged - expected.value) <= allowed:
                wrong.append(
                    f"step {step}: train/{name} is logged as {logged:.7g}, the rows give {expected.value:.7g}"
                )
            number += 1
            names.add(name)
        taken += num_updates
    wrong += _wrongly_penalised(evidence, options)
    wrong += times_and_parts(evidence, options)
    return wrong[:4], f"{number} values of {len(names)} scalars", number


def expected_scalars(
    evidence: RunEvidence, step: int, rows: Sequence[LedgerRow], options: Mapping[str, Any], taken: int
) -> Iterator[tuple[str, Expected]]:
    """Yield the name of each scalar of a step with its value; `taken` counts the updates of earlier steps."""
    updates = updates_of(rows, options)
    for name, value in _of_rows(rows, options).items():
        yield name, Expected(value)
    rates = [
        learning_rate(options, taken + number + 1, _num_updates(evidence)) for number in range(len(updates))
    ]
    yield "lr", Expected(math.fsum(rates) / len(rates))
    tokens = [tokens_of(update) for update in updates]
    for name, quantity in _SAMPLER.items():
        means = [_mean(map(quantity, of.old, of.sampling)) for of in tokens]
        yield name, Expected(math.fsum(means) / len(means))
    spec = loss_spec(options) if options["loss_fn.kind"] in BUILT_IN else None
    if len(updates) != 1:
        return
    (update,), (of,) = updates, tokens
    yield "approx_entropy", Expected(_mean(map(_surprise, of.old, of.sampling)), True)
    for name in ("probs_ratio", "probs_ratio_clamped"):
        for end in ("", "_min", "_max"):
            yield f"{name}{end}", Expected(1.0, True)
    if spec is None:
        return
    if options["loss_fn.reference_policy_kl_penalty"]:
        kind = options["loss_fn.reference_policy_kl_type"]
        yield "kl_penalty", Expected(_kl(update, spec, kind), True)
    if not spec.entropy_coefficient:
        yield "loss", Expected(_loss(update, spec), True)
    elif spec.reduction == "token":
        bonus = spec.entropy_coefficient * by_step(evidence, "train/entropy").get(step, math.nan)
        yield "loss", Expected(_loss(update, spec) - bonus, True)


def tokens_of(rows: Sequence[LedgerRow]) -> Tokens:
    """Return the training tokens of rows.

    Raises:
        NotGivenError: the rows do not hold the log-probabilities of the trainer and the sampler, or advantages.
    """
    found = Tokens([], [], [], [])
    for row in rows:
        if row.prev_logprobs is None or row.generation_logprobs is None or row.advantage is None:
            raise NotGivenError("the rows hold no log-probabilities of the trainer and the sampler")
        places = [place for place, on in enumerate(mask_of(row)) if on]
        found.old.extend(row.prev_logprobs[place] for place in places)
        found.sampling.extend(row.generation_logprobs[place] for place in places)
        found.reference.extend((row.reference_logprobs or row.prev_logprobs)[place] for place in places)
        found.advantages.extend(row.advantage for _ in places)
    return found


def loss_of(
    rows: Sequence[LedgerRow],
    current: Sequence[Sequence[float]],
    entropy: Sequence[Sequence[float]],
    spec: LossSpec,
) -> oracles.LossOracle:
    """Return loss and slopes of an update at some log-probabilities and entropies of every row's completion."""
    masks = [mask_of(row) for row in rows]
    old = [row.prev_logprobs or () for row in rows]
    return oracles.policy_loss(
        current,
        old,
        [row.reference_logprobs or row.prev_logprobs or () for row in rows],
        [row.generation_logprobs or () for row in rows],
        entropy,
        [row.advantage or 0.0 for row in rows],
        masks,
        spec,
        *counts_of(rows),
    )


def counts_of(rows: Sequence[LedgerRow]) -> tuple[float, float]:
    """Return the number of training tokens, and of rows that have one."""
    lengths = [math.fsum(mask_of(row)) for row in rows]
    return math.fsum(lengths), float(sum(length > 0 for length in lengths))


def _loss(rows: Sequence[LedgerRow], spec: LossSpec) -> float:
    old = [row.prev_logprobs or () for row in rows]
    return loss_of(rows, old, [[0.0] * len(of) for of in old], spec).loss


def _kl(rows: Sequence[LedgerRow], spec: LossSpec, kind: str) -> float:
    """Return the KL to the reference, reduced like the loss."""
    total, counts = 0.0, counts_of(rows)
    for row in rows:
        of = tokens_of([row])
        if of.old:
            weight = oracles.token_weight(spec, len(of.old), *counts)
            total += weight * math.fsum(map(lambda c, r: oracles.kl_value(c, r, kind), of.old, of.reference))
    return total


def _wrongly_penalised(evidence: RunEvidence, options: Mapping[str, Any]) -> Iterator[str]:
    """Yield rows whose advantage does not follow from the reward less the KL to the reference, with `kl_in=reward`.

    The KL is the sum of the estimator over a completion's tokens (arXiv 2009.01325, section 3.4).
    """
    coefficient = options["loss_fn.reference_policy_kl_penalty"]
    estimator = options["grpo.advantage.estimator"]
    # Filters mask rows after the advantages.
    is_masked = options["grpo.overlong_filtering"] or options["grpo.zero_variance_filter"]
    if options["loss_fn.kl_in"] != "reward" or not coefficient or estimator not in OWN_SCALES or is_masked:
        return
    scale = options["grpo.advantage.scale"] or OWN_SCALES[estimator]
    rule = rule_named(estimator, scale, options["grpo.advantage.epsilon"])
    kind = options["loss_fn.reference_policy_kl_type"]
    for rows in steps_of(evidence).values():
        penalised = []
        for row in rows:
            pairs = zip(row.prev_logprobs or (), row.reference_logprobs or (), mask_of(row), strict=True)
            penalty = math.fsum(oracles.kl_value(old, reference, kind) for old, reference, on in pairs if on)
            penalised.append(replace(row, reward=(row.reward or 0.0) - coefficient * penalty))
        wanted = advantages_of(penalised, rule)
        allowed = ADVANTAGE_TOLERANCE * float(np.abs(wanted).max()) + OF_POLICY["float32"]
        for row, value in zip(rows, wanted, strict=True):
            if not abs((row.advantage or 0.0) - value) <= allowed:
                yield f"{row.where()} has the advantage {row.advantage}; reward and KL give {value:.6g}"


def _num_updates(evidence: RunEvidence) -> int:
    return evidence.job.num_steps * evidence.job.num_updates_per_step


def _mean(values: Iterator[float]) -> float:
    held = list(values)
    return math.fsum(held) / len(held)


def _k3(log_ratio: float) -> float:
    return math.expm1(log_ratio) - log_ratio


def _middle(one: float, other: float) -> float:
    """Return the logarithm of the mean of two probabilities."""
    return max(one, other) + math.log1p(math.exp(-abs(one - other))) - math.log(2)


def _surprise(current: float, sampling: float) -> float:
    return -math.exp(current - sampling) * current


_SAMPLER: Mapping[str, Callable[[float, float], float]] = {
    "token_mult_prob_error": lambda old, sampling: math.exp(abs(sampling - old)),
    "gen_kl_error": lambda old, sampling: _k3(old - sampling),
    "policy_kl_error": lambda old, sampling: _k3(sampling - old),
    "js_divergence_error": lambda old, sampling: (
        sum(_k3(one - _middle(old, sampling)) for one in (old, sampling)) / 2
    ),
}
"""Of trainer and sampler, by the scalar: NeMo RL's definitions."""


def _of_rows(rows: Sequence[LedgerRow], options: Mapping[str, Any]) -> dict[str, float]:
    """Return the scalars that count and average rows."""
    updates = updates_of(rows, options)
    counts = [counts_of(update) for update in updates]
    num = len(rows)
    prompts = [row.prompt_length or 0 for row in rows]
    sampled = [sum(map(len, row.turns)) for row in rows]
    cut = sum(row.finish_reason == "length" for row in rows)
    groups: dict[tuple[int, int], list[float]] = {}
    for row in rows:
        groups.setdefault(row.group_key, []).append(math.nan if row.reward is None else row.reward)
    means = {key: math.fsum(of) / len(of) for key, of in groups.items()}
    advantages = tokens_of(rows).advantages
    ends = {f"pct_{end}": sum(means[row.group_key] == end for row in rows) / num for end in (0, 1)}
    found = {
        "reward": math.fsum(value for of in groups.values() for value in of) / num,
        "mean_prompt_length": sum(prompts) / num,
        "mean_gen_tokens_per_sample": sum(sampled) / num,
        "max_gen_tokens_per_sample": float(max(sampled)),
        "mean_total_tokens_per_sample": (sum(prompts) + sum(sampled)) / num,
        "total_num_tokens": float(sum(prompts) + sum(sampled)),
        "truncation_rate": cut / num,
        "natural_termination_rate": 1 - cut / num,
        "advantages/mean": math.fsum(advantages) / len(advantages),
        "advantages/min": min(advantages),
        "advantages/max": max(advantages),
        "num_valid_samples": math.fsum(rows_of for _, rows_of in counts) / len(counts),
        **{f"baseline_reward/{name}": share for name, share in ends.items()},
        "baseline_reward/pct_mixed": 1 - sum(ends.values()),
    }
    if len(set(counts)) == 1:  # else they are logged as means over micro-batches
        found["global_valid_toks"], found["global_valid_seqs"] = counts[0]
    if not options["grpo.use_dynamic_sampling"]:
        found["num_verifier_errors"] = float(sum(bool(row.verifier_error) for row in rows))
    if options["grpo.reward_shaping.enabled"]:
        penalties = [row.length_penalty or 0.0 for row in rows]
        found["length_penalty/mean"] = math.fsum(penalties) / num
        found["length_penalty/pct_penalised"] = sum(value < 0 for value in penalties) / num
        found["length_penalty/reward_before"] = math.fsum(map(verified_reward, rows)) / num
    return found
