"""R12 of the correction for another sampler: weights and rejected tokens equal plain loops over tokens."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from seatrial.relations.cases.case import Case
from seatrial.relations.contracts.corrections import RejectionRule, WeightRule
from seatrial.relations.law import Measure, Relation
from seatrial.relations.not_served import NotServed
from seatrial.relations.worst import Worst

BOUND = 1e-6
"""An epsilon of 1e-8 in the mean that weights are divided by, and float32 thresholds."""


@dataclass(frozen=True, kw_only=True)
class RatioCase(Case):
    """Logarithms of the ratios of the training tokens of each row; None for a token that does not train."""

    rows: tuple[tuple[float | None, ...], ...]
    seed: int

    def smaller(self) -> Iterator[RatioCase]:
        """Yield cases of one row fewer."""
        for drop in range(len(self.rows) if len(self.rows) > 1 else 0):
            yield replace(self, rows=self.rows[:drop] + self.rows[drop + 1 :])

    def describe(self) -> Mapping[str, Any]:
        """Return the rows as JSON values."""
        return {"seed": self.seed, "log_ratios": [list(row) for row in self.rows]}


def _make(stack: Any, seed: int, tidy: bool) -> RatioCase:
    """Return rows of unequal lengths around 1, above it and below it; near 1 when tidy."""
    rng = np.random.default_rng([seed, 21])
    lengths = [4] * 8 if tidy else [1, 2, 3, 9, 5, 2, 7, 4]
    centres = [0.0] * 8 if tidy else [0.0, 0.3, -0.3, 0.05, -0.05, 0.5, -0.6, 0.12]
    rows: list[tuple[float | None, ...]] = []
    for length, centre in zip(lengths, centres, strict=True):
        row: list[float | None] = [round(centre + 0.1 * float(rng.normal()), 3) for _ in range(length)]
        if length > 4 and not tidy:
            row[2] = None
        rows.append(tuple(row))
    return RatioCase(rows=tuple(rows), seed=seed)


WEIGHTS = Relation(
    id="R12.weights",
    name="correction-weights-equal-oracle",
    component="sampler_correction",
    statement="Importance weights between trainer and sampler equal plain loops over tokens.",
    catalogue="SB143 SB148",
    cost="CPU, milliseconds",
    cases=_make,
)
REJECTION = Relation(
    id="R12.rejection",
    name="rejected-tokens-equal-oracle",
    component="sampler_correction",
    statement="The tokens and rows that a sampler's correction rejects are those whose statistic is out of bounds.",
    catalogue="SB143 SB148",
    cost="CPU, milliseconds",
    cases=_make,
)


def _weights(case: RatioCase, rule: WeightRule) -> list[list[float]]:
    """Return the weights of the training tokens of each row."""
    found = []
    for row in case.rows:
        trained = [value for value in row if value is not None]
        own = trained if rule.level == "token" else [math.fsum(trained)] * len(trained)
        found.append([_bounded(math.exp(value), rule) for value in own])
    if rule.mean_one:
        values = [weight for row in found for weight in (row if rule.level == "token" else row[:1])]
        mean = math.fsum(values) / len(values)
        found = [[weight / mean for weight in row] for row in found]
    return found


def _bounded(weight: float, rule: WeightRule) -> float:
    if rule.lower is None:
        return min(weight, rule.upper)
    return weight if rule.lower <= weight <= rule.upper else 0.0


def _kept(case: RatioCase, rule: RejectionRule) -> list[list[bool]]:
    """Return for each training token of each row whether it is kept."""
    found = []
    for row in case.rows:
        trained = [value for value in row if value is not None]
        if rule.over == "token":
            found.append([_within(_statistic(value, rule), rule) for value in trained])
            continue
        if rule.statistic == "ratio":
            total = math.fsum(trained)
            own = math.exp(total if rule.over == "sum" else total / len(trained))
        else:
            values = [_statistic(value, rule) for value in trained]
            own = {"sum": math.fsum(values), "mean": math.fsum(values) / len(values), "max": max(values)}[
                rule.over
            ]
        found.append([_within(own, rule)] * len(trained))
    return found


def _statistic(log_ratio: float, rule: RejectionRule) -> float:
    if rule.statistic == "ratio":
        return math.exp(log_ratio)
    return log_ratio**2 / 2 if rule.statistic == "k2" else math.exp(log_ratio) - 1 - log_ratio


def _within(value: float, rule: RejectionRule) -> bool:
    return rule.lower <= value <= rule.upper


@WEIGHTS.law("weights of tokens", "the ratio inverted, a bound that is not applied", level="token")
@WEIGHTS.law("weights of rows", "a mean for a sum, masked tokens in the product", level="row")
@WEIGHTS.law(
    "weights with mean one", "the mean over padding, or over tokens where rows are meant", mean_one=True
)
def weights_equal_oracle(stack: Any, case: RatioCase, level: str = "", mean_one: bool = False) -> Measure:
    """Compare the weights of every rule of a level, or of every one whose weights have mean one."""
    rules = {
        name: rule
        for name, rule in stack.weight_rules.items()
        if rule.mean_one == mean_one and (mean_one or rule.level == level)
    }
    if not rules:
        raise NotServed("no weight rule of this kind")
    worst = Worst(place="every rule")
    for name, rule in rules.items():
        log_ratio_BT, mask_BT = _tensors(case)
        given_BT = stack.correction_weights(log_ratio_BT, mask_BT, name)
        right = [weight for row in _weights(case, rule) for weight in row]
        error = (given_BT[mask_BT.bool()].double() - torch.tensor(right, dtype=torch.float64)).abs().max()
        worst.add(float(error), name)
    return Measure(error=worst.error, bound=BOUND, what=f"weights by {worst.place} against the oracle")


@REJECTION.law(
    "rejected by the ratio",
    "bounds of the inverse ratio, bounds compared with a logarithm",
    statistics=("ratio",),
)
@REJECTION.law(
    "rejected by divergence", "a sum for a mean, masked tokens in a maximum", statistics=("k2", "k3")
)
def rejected_tokens_equal_oracle(stack: Any, case: RatioCase, statistics: Sequence[str]) -> Measure:
    """Compare the tokens that every rule of a statistic keeps with plain loops."""
    rules = {name: rule for name, rule in stack.rejection_rules.items() if rule.statistic in statistics}
    if not rules:
        raise NotServed(f"no rejection rule by {' or '.join(statistics)}")
    wrong = []
    for name, rule in rules.items():
        log_ratio_BT, mask_BT = _tensors(case)
        given_BT = stack.kept_tokens(log_ratio_BT, mask_BT, name).bool()
        right = iter([kept for row in _kept(case, rule) for kept in row])
        for row, token in mask_BT.nonzero().tolist():
            kept = next(right)
            if bool(given_BT[row, token]) != kept:
                wrong.append(f"{name}: row {row}, token {token} is {'rejected' if kept else 'kept'}")
        wrong += [f"{name}: a masked token is kept"] * bool((given_BT & ~mask_BT.bool()).any())
    return Measure.count(wrong, "tokens whose rejection differs from the oracle")


def _tensors(case: RatioCase) -> tuple[Tensor, Tensor]:
    """Return log-ratios and mask; masked places hold a log-ratio that every bound rejects."""
    T = max(len(row) for row in case.rows) + 1
    ratios = [
        [*(5.0 if value is None else value for value in row), *[5.0] * (T - len(row))] for row in case.rows
    ]
    mask = [[*(float(value is not None) for value in row), *[0.0] * (T - len(row))] for row in case.rows]
    return torch.tensor(ratios, dtype=torch.float64), torch.tensor(mask, dtype=torch.float64)
