"""R31.corrections: weights, rejected tokens and metrics of the correction for another sampler, by plain loops."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from seatrial.relations.laws.utilities.numbers import Numbers
from seatrial.relations.laws.utilities.plain import Arguments, Plain, add_laws, relation_of

CORRECTIONS = relation_of(
    "corrections",
    "corrections-and-their-metrics-are-loops-over-tokens",
    "Weights, kept tokens and metrics between the sampler and the trainer are those of loops over tokens and rows.",
)
Rows = Sequence[Sequence[float]]
EXACT = 1e-6
"""verl adds 1e-8 to a number of tokens, and a deviation is the root of a difference of squares."""
LEVELS: Sequence[Mapping[str, Any]] = [
    {},
    *(
        {"weights": level, "lower": lower, "upper": upper, "mean_one": mean_one}
        for level, (lower, upper), mean_one in itertools.product(
            ("token", "row"), ((None, 1.3), (0.8, 1.3)), (False, True)
        )
    ),
]
"""The weights: their level, what they are cut to, and whether their mean is made 1."""
RULES: Sequence[Sequence[tuple[str, str, float]]] = (
    [],
    *([(over, statistic, 0.05 if over == "sum" else 0.02)] for over in ("token", "sum", "mean", "max")
      for statistic in ("k2", "k3")),
    [("token", "k3", 0.04), ("mean", "k2", 0.03)],
    [("max", "k2", 0.05), ("sum", "k3", 0.08)],
)  # fmt: skip
"""Rules that reject, each with the largest statistic that it keeps; a token is kept if all rules keep it."""


def _tensors(case: Numbers) -> tuple[Tensor, Tensor, Tensor]:
    """Return log-probabilities of the trainer and of the sampler, and a mask with gaps."""
    generator = case.generator()
    trainer = -1 - torch.rand(6, 7, generator=generator, dtype=torch.float64)
    scale = torch.tensor([0.02, 0.1, 0.3, 0.05, 0.2, 0.15], dtype=torch.float64)[:, None]
    sampler = trainer + scale * torch.randn(6, 7, generator=generator, dtype=torch.float64)
    lengths = [7, 1, 4, 6, 3, 2] if not case.tidy else [7] * 6
    mask = torch.tensor([[1.0] * length + [0.0] * (7 - length) for length in lengths], dtype=torch.float64)
    if not case.tidy:
        mask[0, 2], mask[3, 0] = 0.0, 0.0
    return trainer, sampler, mask


def _rows(values: Tensor, mask: Tensor) -> list[list[float]]:
    return [row[shown.bool()].tolist() for row, shown in zip(values, mask, strict=True)]


def _mean(values: Iterable[float]) -> float:
    given = list(values)
    return math.fsum(given) / len(given)


def _deviation(values: Sequence[float]) -> float:
    """Return the deviation with divisor N - 1."""
    middle = _mean(values)
    return math.sqrt(math.fsum((one - middle) ** 2 for one in values) / (len(values) - 1))


def gaps(trainer: Rows, sampler: Rows) -> dict[str, float]:
    """Return metrics of the gap between trainer and sampler, rows of the logarithms of each token's probability."""
    differences = [
        [theirs - ours for ours, theirs in zip(*pair, strict=True)]
        for pair in zip(trainer, sampler, strict=True)
    ]
    ratios = [-one for row in differences for one in row]
    own, other = [_mean(row) for row in trainer], [_mean(row) for row in sampler]
    between = [theirs - ours for ours, theirs in zip(own, other, strict=True)]
    return {
        "training_ppl": _mean(math.exp(-one) for one in own),
        "training_log_ppl": _mean(-one for one in own),
        "rollout_ppl": _mean(math.exp(-one) for one in other),
        "rollout_log_ppl": _mean(-one for one in other),
        "kl": _mean(-one for one in ratios),
        "k3_kl": _mean(math.exp(one) - one - 1 for one in ratios),
        "log_ppl_diff": _mean(between),
        "log_ppl_abs_diff": _mean(map(abs, between)),
        "log_ppl_diff_max": max(between),
        "log_ppl_diff_min": min(between),
        "ppl_ratio": _mean(math.exp(one) for one in between),
        "chi2_token": _mean(math.exp(2 * one) for one in ratios) - 1,
        "chi2_seq": _mean(math.exp(-2 * math.fsum(row)) for row in differences) - 1,
    }


def weights_of(ratios: Rows, options: Mapping[str, Any]) -> tuple[list[list[float]], dict[str, float]]:
    """Return the weights of tokens, and their metrics.

    Args:
        ratios: logarithms of trainer over sampler.
        options: of `LEVELS`.
    """
    level, lower, upper = options["weights"], options["lower"], options["upper"]
    sums = [math.fsum(row) for row in ratios]
    logs = ratios if level == "token" else [[own] * len(row) for own, row in zip(sums, ratios, strict=True)]
    raw = [[math.exp(one) for one in row] for row in logs]
    cut = [[_cut(one, lower, upper) for one in row] for row in raw]
    low = 1 / upper if lower is None else lower
    flat, flat_raw = [one for row in cut for one in row], [one for row in raw for one in row]
    shares = flat_raw if level == "token" else [math.exp(one) for one in sums]
    means, raw_means = [_mean(row) for row in cut], [_mean(row) for row in raw]
    extremes = flat if level == "token" else shares
    squares = _mean(one**2 for one in flat)
    metrics = {
        "rollout_is_mean": _mean(flat),
        "rollout_is_max": max(extremes),
        "rollout_is_min": min(extremes),
        "rollout_is_std": math.sqrt(max(0.0, squares - _mean(flat) ** 2)),
        "rollout_is_ratio_fraction_high": _mean(float(one > upper) for one in shares),
        "rollout_is_ratio_fraction_low": _mean(float(one < low) for one in shares),
        "rollout_is_eff_sample_size": _mean(flat) ** 2 / squares,
        "rollout_is_seq_mean": _mean(means),
        "rollout_is_seq_std": _deviation(means),
        "rollout_is_seq_max": max(means),
        "rollout_is_seq_min": min(means),
        "rollout_is_seq_max_deviation": max(abs(one - 1) for one in means),
        "rollout_is_seq_fraction_high": _mean(float(one > upper) for one in raw_means),
        "rollout_is_seq_fraction_low": _mean(float(one < low) for one in raw_means),
    }
    if lower is not None:
        metrics["rollout_is_oob_ratio"] = _mean(float(not lower <= one <= upper) for one in flat_raw)
    if options["mean_one"]:
        factor = _mean(flat if level == "token" else means)
        metrics["rollout_is_batch_norm_factor"] = factor
        cut = [[one / factor for one in row] for row in cut]
    return cut, metrics


def _cut(weight: float, lower: float | None, upper: float) -> float:
    if lower is None:
        return min(weight, upper)
    return weight if lower <= weight <= upper else 0.0


def kept_by(
    ratios: Rows, over: str, statistic: str, largest: float
) -> tuple[list[list[bool]], dict[str, float]]:
    """Return which tokens a rule keeps, and its metrics by their names without the rule's."""
    tokens = [[one**2 / 2 if statistic == "k2" else math.exp(one) - 1 - one for one in row] for row in ratios]
    if over == "max":
        rows = [max(row) for row in tokens]
    else:
        rows = [math.fsum(row) if over == "sum" else _mean(row) for row in tokens]
    judged = tokens if over == "token" else [[own] * len(row) for own, row in zip(rows, tokens, strict=True)]
    kept = [[one <= largest for one in row] for row in judged]
    flat = [one for row in judged for one in row]
    values = flat if over == "token" else rows
    capped = [min(one, largest) for one in flat]
    metrics = {
        "mean": _mean(flat),
        "max": max(values),
        "min": min(values),
        "fraction_high": _mean(float(one > largest) for one in values),
        "fraction_low": 0.0,
        "std": math.sqrt(max(0.0, _mean(one**2 for one in capped) - _mean(capped) ** 2)),
        "seq_mean": _mean(rows),
        "seq_std": _deviation(rows),
        "seq_max": max(rows),
        "seq_min": min(rows),
        "seq_max_deviation": max(rows),
        "seq_fraction_high": _mean(float(one > largest) for one in rows),
        "masked_fraction": _mean(float(not one) for row in kept for one in row),
        "seq_masked_fraction": _mean(float(not all(row)) for row in kept),
    }
    return kept, metrics


def corrected(
    trainer: Tensor, sampler: Tensor, mask: Tensor, options: Mapping[str, Any], rules: Sequence[Any]
) -> tuple[Any, list[list[float]], dict[str, float]]:
    """Return the weights of training tokens or None, the mask with rejected tokens left out, and all metrics."""
    ours, theirs = _rows(trainer, mask), _rows(sampler, mask)
    ratios = [
        [own - other for own, other in zip(*pair, strict=True)] for pair in zip(ours, theirs, strict=True)
    ]
    metrics, weights = gaps(ours, theirs), None
    if options:
        weights, own = weights_of(ratios, options)
        metrics |= own
    kept = [[True] * len(row) for row in ratios]
    for over, statistic, largest in rules:
        keeps, own = kept_by(ratios, over, statistic, largest)
        metrics |= {f"{over} {statistic} {name}": value for name, value in own.items()}
        kept = [[a and b for a, b in zip(*pair, strict=True)] for pair in zip(kept, keeps, strict=True)]
    if rules:
        metrics["masked_fraction"] = _mean(float(not one) for row in kept for one in row)
        metrics["seq_masked_fraction"] = _mean(float(not all(row)) for row in kept)
    answers = iter(float(one) for row in kept for one in row)
    left = [[next(answers) if shown else 0.0 for shown in row] for row in mask.tolist()]
    return weights, left, metrics


def _weighted(case: Numbers) -> Iterable[Arguments]:
    for options in LEVELS:
        yield *_tensors(case), options, []


def _rejected(case: Numbers) -> Iterable[Arguments]:
    for rules in RULES[1:]:
        yield *_tensors(case), {}, rules


def _both(case: Numbers) -> Iterable[Arguments]:
    for number, rules in enumerate(RULES[1:]):
        yield *_tensors(case), LEVELS[1 + number % (len(LEVELS) - 1)], rules


CORRECTION_FUNCTIONS = tuple(
    Plain(name=name, law=f"{law}{where}", suspects=suspects, cases=cases, right=corrected, bound=EXACT)
    for name, where in (
        ("sampler correction", ""),
        ("sampler correction of a step", ", as a step makes them"),
    )
    for law, suspects, cases in (
        (
            "weights and their metrics",
            "rows for tokens, a bound left out, weights after the cut",
            _weighted,
        ),
        (
            "rejected tokens and their metrics",
            "one rule for all, metrics of kept tokens alone",
            _rejected,
        ),
        ("weights and rejection together", "weights of kept tokens alone, a mask not used", _both),
    )
)
add_laws(CORRECTIONS, CORRECTION_FUNCTIONS)
