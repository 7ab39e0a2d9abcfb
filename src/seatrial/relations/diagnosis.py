"""Names the cause of a broken policy loss or of broken advantages.

The oracle computes what the stack declares. Where the stack gives something else, the oracle computes the declaration
with one change (no upper clip, another reduction, the opposite sign), then with two. A change that gives exactly what
the stack gives is the cause. Where none does, the tokens that differ say which term is wrong.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import combinations
from typing import Any

import torch
from torch import Tensor

from seatrial.relations import oracles
from seatrial.relations.cases import rollout_for
from seatrial.relations.facts import bound_of
from seatrial.relations.records import AdvantageSpec, LossInputs, LossSpec
from seatrial.relations.tensors import (
    counts_of,
    gradient_of,
    inputs_of,
    largest_difference,
    loss_difference,
    loss_oracle,
)

BOUND = 1e-9
FLOAT32_BOUND = 1e-5
SEEDS = (0, 1, 2)
EXACT = "{} (the declaration with this change gives exactly these numbers)"


def cause_of(component: str, stack: Any) -> str | None:
    """Return the cause of a broken component of a stack; None if it is not known.

    Only policy losses and advantages have oracles with changes. A stack that raises here raised in a law as well,
    which reports it.
    """
    diagnose = {"policy_loss": _cause_of_loss, "advantages": _cause_of_advantages}.get(component)
    if diagnose is None:
        return None
    try:
        return diagnose(stack)
    except Exception:  # noqa: BLE001  the laws report what the stack raises; there is no cause to add
        return None


@dataclass(frozen=True)
class _Change:
    """A change of a declared loss."""

    family: str
    """At most one change of a family is made at a time."""
    cause: str
    apply: Callable[[LossInputs, LossSpec], tuple[LossInputs, LossSpec]]
    factor: float = 1.0
    """What the loss is multiplied by."""


@dataclass(frozen=True)
class _Found:
    """The inputs of a case, and the loss and gradient that the stack gives for them."""

    inputs: LossInputs
    loss: float
    gradient_BT: Tensor

    def equals(self, changes: Sequence[_Change], spec: LossSpec, bound: float) -> bool:
        """Return whether the declaration with these changes gives this loss and gradient."""
        inputs, factor = self.inputs, 1.0
        for change in changes:
            inputs, spec = change.apply(inputs, spec)
            factor *= change.factor
        oracle = loss_oracle(inputs, spec)
        expected_BT = torch.tensor(oracle.gradient_BT, dtype=torch.float64)
        return (
            loss_difference(self.loss, factor * oracle.loss, self.gradient_BT, factor * expected_BT) <= bound
        )


def _cause_of_loss(stack: Any) -> str | None:
    spec, bound = stack.loss_spec, bound_of(stack, BOUND)
    found = []
    for seed in SEEDS:
        case = rollout_for(stack, seed, False, masked_row=False)
        tokens, rows = counts_of(case.rows)
        inputs = inputs_of(case, counts=(tokens + 13, rows + 2))
        loss = stack.policy_loss(inputs)
        if not loss.requires_grad:
            return "the loss has no gradient: it is detached from the log-probabilities"
        found.append(_Found(inputs, float(loss.detach()), gradient_of(loss, inputs).double()))
    if all(one.equals((), spec, bound) for one in found):
        return None
    known = list(_changes(spec, found[0].inputs.logprobs_BT.shape[1]))
    singles: list[tuple[_Change, ...]] = [(one,) for one in known]
    pairs = [pair for pair in combinations(known, 2) if pair[0].family != pair[1].family]
    for changes in [*singles, *pairs]:
        if all(one.equals(changes, spec, bound) for one in found):
            return EXACT.format(", and ".join(change.cause for change in changes))
    return _place_of_difference(found, spec, bound)


def _changes(spec: LossSpec, num_columns: int) -> Iterator[_Change]:
    """Yield the changes that a declaration allows, the usual mistakes first."""
    yield from _clips(spec)
    yield from _reductions(spec, num_columns)
    yield _Change("sign", "the sign of the loss is inverted", _same, factor=-1.0)
    yield _Change(
        "sign",
        "the sign of the advantages is inverted",
        _with_inputs(lambda inputs: replace(inputs, advantages_B=-inputs.advantages_B)),
    )
    if spec.kl_penalty:
        yield _Change("kl", "the KL term is missing", _with_spec(kl_penalty=0.0))
        yield _Change("kl", "the sign of the KL term is inverted", _with_spec(kl_penalty=-spec.kl_penalty))
        yield _Change(
            "kl",
            "the KL term compares with the old policy instead of the reference",
            _with_inputs(lambda inputs: replace(inputs, ref_logprobs_BT=inputs.old_logprobs_BT)),
        )
        for kind in ("k1", "k2", "k3"):
            if kind != spec.kl_type:
                yield _Change(
                    "kl", f"the KL estimator is {kind}, not {spec.kl_type}", _with_spec(kl_type=kind)
                )
        for gradient in ("estimator", "k2"):
            if gradient != spec.kl_gradient:
                words = f"the gradient of the KL term is that of {gradient}, not of {spec.kl_gradient}"
                yield _Change("kl", words, _with_spec(kl_gradient=gradient))
        yield _Change(
            "kl weight",
            f"the KL term is {'not ' if spec.kl_importance_sampling else ''}multiplied by the ratio",
            _with_spec(kl_importance_sampling=not spec.kl_importance_sampling),
        )
    yield from _old_logprobs()
    if spec.entropy_coefficient:
        yield _Change("entropy", "the entropy bonus is missing", _with_spec(entropy_coefficient=0.0))
        yield _Change(
            "entropy",
            "the sign of the entropy bonus is inverted",
            _with_spec(entropy_coefficient=-spec.entropy_coefficient),
        )
    for correction in ("none", "truncated", "masked"):
        if correction != spec.importance_sampling:
            words = f"the correction for the sampler is {correction!r}, not {spec.importance_sampling!r}"
            yield _Change("correction", words, _with_spec(importance_sampling=correction))
    yield _Change(
        "mask",
        "the mask is not applied: tokens of tools or padding train",
        _with_inputs(lambda inputs: replace(inputs, mask_BT=torch.ones_like(inputs.mask_BT))),
    )
    for kind in ("ppo_clip", "gspo", "cispo", "policy_gradient"):
        if kind != spec.kind:
            yield _Change("kind", f"the loss is {kind}, not {spec.kind}", _with_spec(kind=kind))


def _clips(spec: LossSpec) -> Iterator[_Change]:
    low, high = spec.ratio_clip_min, spec.ratio_clip_max
    yield _Change("clip", "the upper clip is missing", _with_spec(ratio_clip_max=math.inf))
    yield _Change("clip", "the lower clip is missing", _with_spec(ratio_clip_min=math.inf))
    yield _Change(
        "clip", "both clips are missing", _with_spec(ratio_clip_min=math.inf, ratio_clip_max=math.inf)
    )
    if low != high:
        swapped = _with_spec(ratio_clip_min=high, ratio_clip_max=low)
        yield _Change("clip", "the lower and the upper clip are swapped", swapped)
        yield _Change("clip", "the upper clip has the lower clip's width", _with_spec(ratio_clip_max=low))
        yield _Change("clip", "the lower clip has the upper clip's width", _with_spec(ratio_clip_min=high))
    if spec.ratio_clip_c is not None:
        yield _Change("dual clip", "the dual clip is missing", _with_spec(ratio_clip_c=None))


def _reductions(spec: LossSpec, num_columns: int) -> Iterator[_Change]:
    yield _Change(
        "counts",
        "the loss is divided by the counts of the micro-batch instead of those of the whole batch",
        _with_inputs(_of_these_rows),
    )
    padded = _with_spec(reduction="fixed_length", fixed_length=num_columns)
    yield _Change(
        "counts",
        "the reduction is a mean over all positions of the micro-batch, masked ones included",
        _then(padded, _of_all_rows),
    )
    means = {
        "token": "a mean over tokens",
        "sequence": "a mean over rows of each row's mean",
        "fixed_length": "a mean over rows of each row's sum divided by a fixed length",
        "sum": "a sum over tokens",
    }
    length = spec.fixed_length or num_columns
    for reduction, words in means.items():
        if reduction == spec.reduction:
            continue
        wrong = f"the reduction is {words}, not {means[spec.reduction]}"
        to = _with_spec(reduction=reduction, fixed_length=length)
        yield _Change("counts", wrong, to)
        yield _Change("counts", f"{wrong}, with the counts of the micro-batch", _then(to, _of_these_rows))


def _old_logprobs() -> Iterator[_Change]:
    taken = {
        "sampling_logprobs_BT": "the ratio compares with the sampler's log-probabilities instead of the old policy's",
        "ref_logprobs_BT": "the ratio compares with the reference's log-probabilities instead of the old policy's",
        "logprobs_BT": "the ratio compares the current policy with itself: the old log-probabilities are ignored",
    }
    for name, cause in taken.items():

        def change(inputs: LossInputs, name: str = name) -> LossInputs:
            return replace(inputs, old_logprobs_BT=getattr(inputs, name).detach())

        yield _Change("old", cause, _with_inputs(change))


def _same(inputs: LossInputs, spec: LossSpec) -> tuple[LossInputs, LossSpec]:
    return inputs, spec


def _with_spec(**changed: Any) -> Callable[[LossInputs, LossSpec], tuple[LossInputs, LossSpec]]:
    return lambda inputs, spec: (inputs, replace(spec, **changed))


def _with_inputs(
    change: Callable[[LossInputs], LossInputs],
) -> Callable[[LossInputs, LossSpec], tuple[LossInputs, LossSpec]]:
    return lambda inputs, spec: (change(inputs), spec)


def _then(
    first: Callable[[LossInputs, LossSpec], tuple[LossInputs, LossSpec]],
    change: Callable[[LossInputs], LossInputs],
) -> Callable[[LossInputs, LossSpec], tuple[LossInputs, LossSpec]]:
    def both(inputs: LossInputs, spec: LossSpec) -> tuple[LossInputs, LossSpec]:
        inputs, spec = first(inputs, spec)
        return change(inputs), spec

    return both


def _of_these_rows(inputs: LossInputs) -> LossInputs:
    lengths_B = inputs.mask_BT.sum(1)
    return replace(
        inputs,
        global_valid_tokens=float(lengths_B.sum()),
        global_valid_seqs=float((lengths_B > 0).sum()),
    )


def _of_all_rows(inputs: LossInputs) -> LossInputs:
    return replace(inputs, global_valid_seqs=float(len(inputs.mask_BT)))


def _place_of_difference(found: Sequence[_Found], spec: LossSpec, bound: float) -> str | None:
    """Return the term that is wrong, by the tokens whose gradient differs from the declared one; None if unknown."""
    columns: list[tuple[Tensor, ...]] = []
    for one in found:
        expected_BT = torch.tensor(loss_oracle(one.inputs, spec).gradient_BT, dtype=torch.float64)
        scale = max(float(expected_BT.abs().max()), float(one.gradient_BT.abs().max()), 1e-30)
        wrong_BT = ~((one.gradient_BT - expected_BT).abs() <= bound * scale)
        ratio_BT = (one.inputs.logprobs_BT.detach() - one.inputs.old_logprobs_BT).exp()
        good_BT = (one.inputs.advantages_B > 0)[:, None].expand_as(wrong_BT)
        columns.append((wrong_BT, ratio_BT, good_BT, one.inputs.mask_BT.bool()))
    wrong, ratio, good, valid = (
        torch.cat([tensor.flatten() for tensor in tensors]) for tensors in zip(*columns, strict=True)
    )
    if not wrong.any():
        return "the gradient is right and the value is not: a term without a gradient, or a value of something else"
    if not (wrong & valid).any():
        return "the mask: only masked tokens have a wrong gradient"
    if spec.kind in ("ppo_clip", "cispo", "clip_cov"):
        sides = {
            "the upper clip: only tokens above ratio 1 in rows with a positive advantage are wrong": good
            & (ratio > 1),
            "the lower clip: only tokens below ratio 1 in rows with a negative advantage are wrong": ~good
            & (ratio < 1),
            "the clip: only tokens that moved against their advantage are wrong; only a dual clip may change them": (
                good ^ (ratio > 1)
            ),
        }
        for cause, side in sides.items():
            if not (wrong & ~side).any():
                return cause
    factors = {_factor(one, spec, bound) for one in found}
    if None not in factors:
        shown = " or ".join(f"{factor:.4g}" for factor in factors if factor is not None)
        return f"the loss and its gradient are {shown} times the declared ones: a count or a coefficient"
    return None


def _factor(found: _Found, spec: LossSpec, bound: float) -> float | None:
    """Return what the declared loss must be multiplied by to give the stack's, if it is one number."""
    declared = loss_oracle(found.inputs, spec).loss
    factor = round(found.loss / declared, 9) if declared else math.nan
    scaled = _Change("scale", "", _same, factor=factor)
    return factor if found.equals((scaled,), spec, max(bound, 1e-6)) else None


def _cause_of_advantages(stack: Any) -> str | None:
    spec: AdvantageSpec = stack.advantage_spec
    cases = []
    for seed in SEEDS:
        rows = rollout_for(stack, seed, False).rows
        rewards, prompts = [row.reward for row in rows], [row.prompt_id for row in rows]
        given_B = stack.advantages(torch.tensor(rewards, dtype=torch.float64), torch.tensor(prompts))
        cases.append((rewards, prompts, given_B))

    def explains(change: _AdvantageChange) -> bool:
        for rewards, prompts, given_B in cases:
            expected_B = torch.tensor(change(rewards, prompts), dtype=torch.float64)
            bound = BOUND if given_B.dtype == torch.float64 else FLOAT32_BOUND
            if not largest_difference(given_B.double(), expected_B) <= bound:
                return False
        return True

    if explains(partial(oracles.advantages, spec=spec)):
        return None
    for cause, change in _advantage_changes(spec):
        if explains(change):
            return EXACT.format(cause)
    return None


_AdvantageChange = Callable[[list[float], list[int]], list[float]]


def _advantage_changes(spec: AdvantageSpec) -> Iterator[tuple[str, _AdvantageChange]]:
    """Yield the changes of declared advantages, the usual mistakes first."""

    def of(**changed: Any) -> _AdvantageChange:
        return partial(oracles.advantages, spec=replace(spec, **changed))

    declared = of()
    divisors = {
        "none": "nothing",
        "group": "the standard deviation of the group",
        "batch": "the standard deviation of the batch",
    }
    for scale, words in divisors.items():
        if scale != spec.scale:
            missing = "the normalisation is missing: " if scale == "none" else ""
            yield (
                f"{missing}advantages are divided by {words}, not by {divisors[spec.scale]}",
                of(scale=scale),
            )
    yield (
        "the sign of the advantages is inverted",
        lambda rewards, prompts: [-value for value in declared(rewards, prompts)],
    )
    deviation = "n" if spec.unbiased else "n - 1"
    yield f"the standard deviation of the advantages divides by {deviation}", of(unbiased=not spec.unbiased)
    yield "the baseline is missing: advantages are the rewards", lambda rewards, prompts: rewards
    one_group = "advantages ignore groups: baseline and spread are those of the batch"
    yield one_group, lambda rewards, prompts: declared(rewards, [0] * len(prompts))
    for size in (2, 3, 4):
        by_position = (
            f"groups of the advantages are formed by position, {size} rows each, instead of by prompt"
        )
        yield by_position, partial(_by_position, declared, size)
    for estimator in ("grpo", "dr_grpo", "rloo", "reinforce_plus_plus_baseline"):
        if estimator != spec.estimator:
            yield f"the estimator of advantages is {estimator}, not {spec.estimator}", of(estimator=estimator)
    for epsilon in (0.0, 1e-8, 1e-6, 1e-4, 1e-3):
        if epsilon != spec.epsilon:
            yield (
                f"the epsilon of the advantages' divisor is {epsilon:g}, not {spec.epsilon:g}",
                of(epsilon=epsilon),
            )


def _by_position(
    declared: _AdvantageChange, size: int, rewards: list[float], prompts: list[int]
) -> list[float]:
    return declared(rewards, [row // size for row in range(len(prompts))])
