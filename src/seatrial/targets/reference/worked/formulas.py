"""Worked examples over random inputs: advantages, losses and their gradients against formulas over single numbers."""

from __future__ import annotations

import math
import operator
import random
import statistics
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import torch

from refrl.algorithms.advantages import compute_advantages
from refrl.algorithms.chunked import compute_logprobs_chunked
from refrl.algorithms.kl import penalise_rewards
from refrl.algorithms.losses.policy import policy_loss
from refrl.algorithms.metrics import mismatch_metrics
from refrl.algorithms.ops import compute_logprobs
from refrl.config import AdvantageConfig, LossConfig
from seatrial.relations.contracts.worked import WorkedExample
from seatrial.targets.reference.worked.kernels import of_kernels
from seatrial.targets.reference.worked.made import batch, for_all

KINDS = ("ppo_clip", "gspo", "cispo")
NO_KL = {"reference_policy_kl_penalty": 0.0}
STEP = 1e-6
"""Half of the difference of two log-probabilities from which a gradient is taken, in float64."""


def examples() -> Iterator[WorkedExample]:
    """Yield an example of each property: the seeds of the random inputs for which it does not hold are none."""
    yield from for_all(PROPERTIES)
    yield from of_kernels()


def _close(found: Sequence[float], right: Sequence[float], tolerance: float = 1e-6) -> bool:
    return len(found) == len(right) and all(
        math.isclose(one, other, rel_tol=tolerance, abs_tol=tolerance)
        for one, other in zip(found, right, strict=True)
    )


def _advantages(stream: random.Random) -> bool:
    """Groups of one row, and of equal rewards that no binary number is, have no advantage at all."""
    estimator = stream.choice(("grpo", "dr_grpo", "rloo", "reinforce_plus_plus_baseline"))
    scale = stream.choice((None, "group", "batch", "none")) if estimator in ("grpo", "rloo") else None
    config = AdvantageConfig.model_validate({"estimator": estimator, "scale": scale})
    groups = [stream.choice((7, 3, 900)) for _ in range(stream.randint(2, 9))]
    rewards = [0.1 if group == 3 else stream.choice((0.1, 0.7, -2.0)) for group in groups]
    own = [[one for one, other in zip(rewards, groups, strict=True) if other == group] for group in groups]
    centred = []
    for reward, members in zip(rewards, own, strict=True):
        baseline = sum(members) / len(members)
        if estimator == "rloo" and len(members) > 1:
            baseline = (sum(members) - reward) / (len(members) - 1)
        centred.append(reward - baseline if len(set(members)) > 1 else 0.0)
    by_default = {"grpo": "group", "reinforce_plus_plus_baseline": "batch"}.get(estimator, "none")
    spread = centred if estimator == "reinforce_plus_plus_baseline" else rewards
    right = []
    for value, members in zip(centred, own, strict=True):
        of = {"group": members, "batch": spread, "none": []}[scale or by_default]
        std = statistics.stdev(of) if len(of) > 1 else 0.0
        right.append(value if (scale or by_default) == "none" else value / (std + 1e-6))
    found = compute_advantages(torch.tensor(rewards, dtype=torch.float64), torch.tensor(groups), config)
    silent = [one == 0.0 for one, members in zip(found.tolist(), own, strict=True) if len(set(members)) == 1]
    return _close(found.tolist(), right) and all(silent)


def _kl(kind: str, here: float, there: float) -> float:
    ratio = there - here
    return {"k1": -ratio, "k2": ratio * ratio / 2, "k3": math.exp(ratio) - 1 - ratio}[kind]


def _loss_of_row(
    rows: Mapping[str, Sequence[float]], at: Sequence[float], advantage: float, config: LossConfig
) -> list[float]:
    """Return the loss of each token of a row with the log-probabilities `at`; parts without gradient stay."""
    base, olds, samples = rows["current"], rows["old"], rows["sampled"]
    low, high = 1 - config.ratio_clip_min, 1 + config.ratio_clip_max
    losses = []
    for place, now in enumerate(at):
        old = olds[place]
        ratio = math.exp(now - old)
        if config.kind == "gspo":
            ratio = math.exp(sum(one - other for one, other in zip(at, olds, strict=True)) / len(at))
        if config.kind == "cispo":
            loss = -min(max(math.exp(base[place] - old), low), high) * advantage * now
        else:
            loss = -min(ratio * advantage, min(max(ratio, low), high) * advantage)
            if config.ratio_clip_c is not None and advantage < 0:
                loss = min(loss, -config.ratio_clip_c * advantage)
        weight = math.exp(old - samples[place])
        if config.importance_sampling == "truncated":
            loss *= min(weight, config.importance_sampling_max)
        elif config.importance_sampling == "masked":
            loss *= (
                weight if config.importance_sampling_min <= weight <= config.importance_sampling_max else 0.0
            )
        if config.entropy_coefficient:
            loss -= config.entropy_coefficient * rows["entropy"][place]
        if config.kl_in == "loss":
            reference, kind = rows["reference"][place], config.reference_policy_kl_type
            kl = _kl(kind, now, reference)
            if config.reference_policy_kl_gradient == "k2":
                kl = _kl(kind, base[place], reference) + (
                    _kl("k2", now, reference) - _kl("k2", base[place], reference)
                )
            if config.reference_policy_kl_importance_sampling:
                kl *= math.exp(now - old)
            loss += config.reference_policy_kl_penalty * kl
        losses.append(loss)
    return losses


def _losses(kind: str, stream: random.Random) -> bool:
    """The share of a loss and its gradient at every token; 0 where nothing was sampled, also next to NaN."""
    reduction = "sequence" if kind == "gspo" else stream.choice(("token", "sequence", "fixed_length"))
    sampling, gradient = stream.choice(("none", "truncated", "masked")), stream.choice(("estimator", "k2"))
    in_reward, coefficient = stream.random() < 0.25, stream.choice((0.0, 0.25))
    options: dict[str, Any] = {
        "kind": kind,
        "reduction": reduction,
        "fixed_length": 5 if reduction == "fixed_length" else None,
        "ratio_clip_min": 0.1,
        "ratio_clip_max": 0.3,
        "ratio_clip_c": None if kind == "cispo" else stream.choice((None, 1.2)),
        "importance_sampling": sampling,
        **({} if sampling == "none" else {"importance_sampling_max": 1.5}),
        **({"importance_sampling_min": 0.75} if sampling == "masked" else {}),
        "reference_policy_kl_penalty": 0.5,
        "reference_policy_kl_type": stream.choice(("k1", "k2", "k3")),
        "kl_in": "reward" if in_reward else "loss",
        "entropy_coefficient": coefficient,
    }
    if not in_reward:
        options["reference_policy_kl_gradient"] = gradient
        options["reference_policy_kl_importance_sampling"] = gradient == "estimator" and stream.random() < 0.5
    config = LossConfig.model_validate(options)
    made = batch()
    mask = made.mask_BT.bool()
    values = {
        name: torch.tensor(
            [[-2 * stream.random() for _ in row] for row in mask.tolist()], dtype=torch.float64
        )
        for name in ("current", "old", "sampled", "reference", "entropy")
    }
    for tensor in values.values():
        tensor[~mask] = math.nan
    advantages = [stream.choice((-1.5, 0.5, 2.0)) for _ in range(made.num_rows)]
    made = replace(
        made,
        advantages_B=torch.tensor(advantages, dtype=torch.float64),
        old_logprobs_BT=values["old"],
        ref_logprobs_BT=values["reference"],
        sampling_logprobs_BT=values["sampled"],
    )
    tokens, seqs = 11.0, 4.0  # of the whole step: more than this micro-batch has

    def share(
        row: int, rows: Mapping[str, Sequence[float]], at: Sequence[float], of: LossConfig = config
    ) -> float:
        losses = _loss_of_row(rows, at, advantages[row], of)
        divisor = {"token": tokens, "sequence": len(at) * seqs, "fixed_length": 5 * seqs}[config.reduction]
        return sum(losses) / divisor

    current = values["current"].clone().requires_grad_()
    given = values["entropy"].clone().requires_grad_() if coefficient or stream.random() < 0.5 else None
    counts: dict[str, Any] = {"global_valid_tokens": tokens, "global_valid_seqs": seqs}
    loss, metrics = policy_loss(current, made, config, **counts, entropy_BT=given)
    loss.backward()  # type: ignore[no-untyped-call]
    assert current.grad is not None
    right, slope, kl = 0.0, torch.zeros_like(values["current"]), 0.0
    plain = LossConfig.model_validate({**options, "kl_in": "loss"})
    for row in range(made.num_rows):
        places = mask[row].nonzero().flatten().tolist()
        rows = {name: [float(tensor[row, place]) for place in places] for name, tensor in values.items()}
        here = rows["current"]
        right += share(row, rows, here)
        kl += share(row, rows, here, plain) - share(row, rows, here, plain.model_copy(update=NO_KL))
        for number, place in enumerate(places):
            up, down = list(here), list(here)
            up[number] += STEP
            down[number] -= STEP
            slope[row, place] = (share(row, rows, up) - share(row, rows, down)) / (2 * STEP)
    return (
        _close([float(loss.detach()), float(metrics["loss"])], [right, right])
        and _close(current.grad.flatten().tolist(), slope.flatten().tolist(), 1e-5)
        and float(metrics["num_valid_samples"]) == float(mask.any(1).sum())
        and _close([float(metrics["kl_penalty"]) * 0.5], [kl])
        and ("entropy" in metrics) == (given is not None)
        and _entropy_is_right(metrics, given, mask, coefficient, tokens, reduction, seqs)
    )


def _entropy_is_right(
    metrics: Mapping[str, Any],
    given: torch.Tensor | None,
    mask: torch.Tensor,
    coefficient: float,
    tokens: float,
    reduction: str,
    seqs: float,
) -> bool:
    """Return whether the mean entropy of tokens is logged, and each token's is weighed in the loss as others are."""
    if given is None:
        return True
    weights: Mapping[str, Any] = {
        "token": 1 / tokens,
        "sequence": 1 / (mask.sum(1, keepdim=True) * seqs),
        "fixed_length": 1 / (5 * seqs),
    }
    due = torch.where(
        mask, -coefficient * weights[reduction] * torch.ones(mask.shape, dtype=torch.float64), 0.0
    )
    slopes = torch.zeros_like(due) if given.grad is None else given.grad
    mean = float(given.detach()[mask].sum()) / tokens
    return _close([float(metrics["entropy"])], [mean]) and _close(
        slopes.flatten().tolist(), due.flatten().tolist()
    )


def _penalties(stream: random.Random) -> bool:
    kind: Any = stream.choice(("k1", "k2", "k3"))
    mask = [[stream.randrange(2) for _ in range(4)] for _ in range(3)]
    here, there = ([[-2 * stream.random() for _ in range(4)] for _ in range(3)] for _ in range(2))
    found = penalise_rewards(
        torch.tensor([1.0, 2.0, 3.0], dtype=torch.float64),
        torch.tensor(here, dtype=torch.float64),
        torch.tensor(there, dtype=torch.float64),
        torch.tensor(mask),
        coefficient=0.25,
        kind=kind,
    )
    right = [
        row
        + 1
        - 0.25 * sum(_kl(kind, here[row][place], there[row][place]) for place in range(4) if mask[row][place])
        for row in range(3)
    ]
    return _close(found.tolist(), right)


def _mismatches(stream: random.Random) -> bool:
    mask = [[stream.randrange(2) for _ in range(4)] for _ in range(3)]
    olds, samples = ([[-2 * stream.random() for _ in range(4)] for _ in range(3)] for _ in range(2))
    old_BT, sampled_BT = (torch.tensor(values, dtype=torch.float64) for values in (olds, samples))
    found = mismatch_metrics(old_BT, sampled_BT, torch.tensor(mask), 9.0)
    right = dict.fromkeys(
        ("token_mult_prob_error", "gen_kl_error", "policy_kl_error", "js_divergence_error"), 0.0
    )
    for row in range(3):
        for place in range(4):
            if not mask[row][place]:
                continue
            p, g = olds[row][place], samples[row][place]
            m = math.log((math.exp(p) + math.exp(g)) / 2)
            right["token_mult_prob_error"] += math.exp(abs(g - p)) / 9
            right["gen_kl_error"] += _kl("k3", g, p) / 9
            right["policy_kl_error"] += _kl("k3", p, g) / 9
            right["js_divergence_error"] += (_kl("k3", m, p) + _kl("k3", m, g)) / 18
    return all(math.isclose(float(found[name]), value, rel_tol=1e-6) for name, value in right.items())


def _chunked(dtype: torch.dtype, stream: random.Random) -> bool:
    """Logits that every type holds are divided by the temperature, and scored, in float32 or wider."""
    # Rounding of float32 at logits up to 26 is 2e-6 each; that of bfloat16 would be 0.05.
    tolerance = 1e-12 if dtype == torch.float64 else 1e-4
    temperature, chunk = stream.choice((0.7, 1.0, 1.3)), stream.randint(1, 8)
    hidden = [[[stream.randint(-3, 3) for _ in range(3)] for _ in range(5)] for _ in range(2)]
    head = [[stream.randint(-8, 8) / 4 for _ in range(3)] for _ in range(7)]
    ids, lens = [[stream.randrange(7) for _ in range(2)] for _ in range(2)], [1, 3]
    states_BSD, head_VD = (torch.tensor(values, dtype=dtype) for values in (hidden, head))
    given = (torch.tensor(ids), torch.tensor(lens))
    right: list[list[float]] = [[], []]
    for row, place in ((row, place) for row in range(2) for place in range(2)):
        state = hidden[row][lens[row] - 1 + place]
        logits = [sum(map(operator.mul, state, entry)) / temperature for entry in head]
        total = math.log(sum(map(math.exp, logits)))
        right[0].append(logits[ids[row][place]] - total)
        right[1].append(total - sum(one * math.exp(one - total) for one in logits))
    return all(
        found.dtype == (torch.float64 if dtype == torch.float64 else torch.float32)
        and _close(found.flatten().tolist(), due, tolerance)
        for scored in (
            compute_logprobs_chunked(
                states_BSD, head_VD, *given, temperature=temperature, vocab_chunk=chunk, row_chunk=2
            ),
            compute_logprobs(states_BSD @ head_VD.T, *given, temperature=temperature),
        )
        for found, due in zip(scored, right, strict=True)
    )


PROPERTIES: Mapping[str, tuple[Callable[[random.Random], bool], int]] = {
    "advantages are those of their groups": (_advantages, 40),
    **{f"{kind} and its gradient are those of the tokens": (partial(_losses, kind), 15) for kind in KINDS},
    "penalties are sums over what was sampled": (_penalties, 6),
    "mismatches of sampler and trainer": (_mismatches, 3),
    **{
        f"logits of {dtype} are scored in float32 or wider": (partial(_chunked, dtype), 8)
        for dtype in (torch.bfloat16, torch.float16, torch.float32, torch.float64)
    },
}
"""By name: whether a property holds for the random inputs of a stream, and how many streams are tried."""
