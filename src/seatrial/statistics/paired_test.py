"""An exact one-sided test of paired outcomes: did more prompts improve than chance explains?

This is McNemar's test in its exact, one-sided form: the sign test on the prompts whose outcome changed
(McNemar 1947; Conover, Practical Nonparametric Statistics, section 3.4). Under the hypothesis that training does not
help, a changed prompt is equally likely to be better or worse, so the number of better ones is at most
Binomial(changed, 1/2). There is no normal approximation and no assumption about the size of changes.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction
from functools import cache
from math import comb

EQUAL = 1e-9
"""Outcomes with a smaller difference are equal."""


@dataclass(frozen=True, kw_only=True)
class PairedTest:
    """The result of one test."""

    num_pairs: int
    num_better: int
    num_worse: int
    mean_before: float
    mean_after: float
    p_value: float
    """Probability of at least this many better prompts among the changed ones, if training does not help."""

    @property
    def rise(self) -> float:
        """Mean outcome after minus mean outcome before."""
        return self.mean_after - self.mean_before


def paired_test(before: Sequence[float], after: Sequence[float]) -> PairedTest:
    """Test whether outcomes rose; element i of both sequences belongs to prompt i.

    Raises:
        ValueError: the lengths differ, or there are no pairs.
    """
    if len(before) != len(after) or not before:
        raise ValueError(f"{len(before)} outcomes before and {len(after)} after make no pairs")
    changes = [right - left for left, right in zip(before, after, strict=True)]
    num_better = sum(change > EQUAL for change in changes)
    num_worse = sum(change < -EQUAL for change in changes)
    return PairedTest(
        num_pairs=len(changes),
        num_better=num_better,
        num_worse=num_worse,
        mean_before=sum(before) / len(before),
        mean_after=sum(after) / len(after),
        p_value=float(upper_tail(num_better + num_worse, num_better)),
    )


def upper_tail(num_changed: int, num_better: int) -> Fraction:
    """Return P(Binomial(num_changed, 1/2) >= num_better), exactly; 1 if nothing changed."""
    return Fraction(sum(comb(num_changed, k) for k in range(num_better, num_changed + 1)), 2**num_changed)


@cache
def critical_value(num_changed: int, alpha: float) -> int:
    """Return the smallest number of better prompts at which the test rejects; `num_changed + 1` if it never does."""
    tail = Fraction(0)
    for number in range(num_changed, -1, -1):
        tail += Fraction(comb(num_changed, number), 2**num_changed)
        if tail > Fraction(alpha):
            return number + 1
    return 0


def power(num_pairs: int, share_better: float, share_worse: float, alpha: float) -> float:
    """Return the probability that the test rejects if these fractions of all prompts get better and worse.

    Exact: the sum over how many change (binomial) and how many of those get better (binomial).
    """
    changed = share_better + share_worse
    if not 0 < changed <= 1:
        raise ValueError(f"shares {share_better} and {share_worse} must sum to more than 0 and at most 1")
    better = share_better / changed
    return sum(
        _binomial(num_pairs, number, changed)
        * sum(_binomial(number, k, better) for k in range(critical_value(number, alpha), number + 1))
        for number in range(num_pairs + 1)
    )


def _binomial(number: int, k: int, probability: float) -> float:
    return comb(number, k) * probability**k * (1 - probability) ** (number - k)
