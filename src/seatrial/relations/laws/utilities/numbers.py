"""R31.numbers: log-probabilities, entropies, deviations and odds of a stack's own functions are exact."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from seatrial.relations.cases.case import Case
from seatrial.relations.law import Measure, Relation

ROUNDINGS = 16
"""Roundings of one result: the sum of an exponential over the vocabulary, its logarithm, and a difference."""


@dataclass(frozen=True, kw_only=True)
class Numbers(Case):
    """The seed of random numbers; tidy ones have no extremes."""

    seed: int
    tidy: bool = False

    def generator(self) -> torch.Generator:
        """Return a generator that begins again."""
        return torch.Generator().manual_seed(self.seed)


def numbers(stack: Any, seed: int, tidy: bool) -> Numbers:
    """Return the case of a seed."""
    return Numbers(seed=seed, tidy=tidy)


def without(*names: str) -> Callable[[Any], str | None]:
    """Return a law's `excluded`: the declaration of a stack that has none of these functions."""
    return lambda stack: (
        None if set(names) & set(stack.utilities) else f"utilities without {', '.join(names)}"
    )


NUMBERS = Relation(
    id="R31.numbers",
    name="numerical-functions-are-exact",
    component="utilities",
    statement="Log-probabilities, entropies, deviations and odds equal float64 ones within roundings.",
    cost="CPU, milliseconds",
    cases=numbers,
)
SHAPES = ((3, 5), (1, 1), (2, 131), (7,))
"""Leading dimensions: more rows than a chunk of 128 among them, and one dimension alone."""


def _logits(case: Numbers, shape: tuple[int, ...], num_ids: int, dtype: torch.dtype) -> Tensor:
    """Return random logits; every other row is certain of its first id, by more than its type resolves."""
    made = 3 * torch.randn(*shape, num_ids, generator=case.generator(), dtype=torch.float64)
    if not case.tidy:
        flat = made.view(-1, num_ids)
        flat[::2] += 20.0  # a constant changes no probability
        flat[::2, 0] += 25.0
    return made.to(dtype)


def _resolution(dtype: torch.dtype) -> float:
    return torch.finfo(dtype).eps


@NUMBERS.law(
    "log-probabilities, float32",
    "the first id in place of the row's, a row of the batch left out",
    excluded=without("logprobs"),
)
@NUMBERS.law(
    "log-probabilities, bfloat16",
    "the sum over the vocabulary, or the difference from it, in bfloat16",
    dtype=torch.bfloat16,
    excluded=without("logprobs"),
)
def logprobs_are_exact(stack: Any, case: Numbers, dtype: torch.dtype = torch.float32) -> Measure:
    """Compare log-probabilities with float64 ones of the same logits; the error allowed is that of their type."""
    found = []
    for shape in SHAPES:
        logits = _logits(case, shape, 37, dtype)
        ids = torch.randint(37, shape, generator=case.generator())
        ids.view(-1)[::4] = 0  # what every other row is certain of, and what it is not
        right = logits.double().log_softmax(-1).gather(-1, ids[..., None])[..., 0]
        given = stack.utilities["logprobs"](logits, ids)
        found.append((_excess(given, right, _allowed(logits, right)), f"shape {shape}"))
    return Measure.largest(found, 1.0, f"log-probabilities in {dtype}, error by the one allowed")


def _allowed(logits: Tensor, right: Tensor) -> Tensor:
    """Return the error of results: roundings of float32 by the logits' size, and of their own type.

    In that a kernel may store the result and the sum of exponentials less the largest, whose logarithm then has one
    rounding's error.
    """
    largest = logits.double().abs().amax(-1)
    while largest.dim() < right.dim():
        largest = largest[..., None]
    own = _resolution(logits.dtype) * (1 + right.abs())
    return own + ROUNDINGS * _resolution(torch.float32) * (1 + largest)


def _excess(given: Tensor, right: Tensor, allowed: Tensor) -> float:
    """Return the largest error by the one allowed; infinite for another shape."""
    if given.shape != right.shape:
        return math.inf
    return float(((given.double() - right).abs() / allowed).max())


@NUMBERS.law(
    "log-probabilities of several ids",
    "the ids of another row, or the best ones",
    excluded=without("logprobs of several"),
)
def several_logprobs_are_exact(stack: Any, case: Numbers) -> Measure:
    """Compare log-probabilities of several ids of a row."""
    logits = _logits(case, (3, 5), 37, torch.float32)
    ids = torch.randint(37, (3, 5, 4), generator=case.generator())
    right = logits.double().log_softmax(-1).gather(-1, ids)
    given = stack.utilities["logprobs of several"](logits, ids)
    error = _excess(given, right, _allowed(logits, right))
    return Measure(error=error, bound=1.0, what="log-probabilities of four ids, error by the one allowed")


@NUMBERS.law(
    "gradient of log-probabilities", "a detached sum over the vocabulary", excluded=without("logprobs")
)
def gradient_of_logprobs_is_exact(stack: Any, case: Numbers) -> Measure:
    """Compare the gradient in the logits with the one of float64."""
    logits = _logits(case, (3, 5), 37, torch.float32)
    ids = torch.randint(37, (3, 5), generator=case.generator())
    right = torch.nn.functional.one_hot(ids, 37).double() - logits.double().softmax(-1)
    leaf = logits.clone().requires_grad_()
    stack.utilities["logprobs"](leaf, ids).sum().backward()
    if leaf.grad is None:
        return Measure.count(["no gradient"], "gradients of log-probabilities")
    bound = ROUNDINGS * _resolution(torch.float32) * (1 + float(logits.abs().max()))
    error = float((leaf.grad.double() - right).abs().max())
    return Measure(error=error, bound=bound, what="gradient of log-probabilities in the logits")


@NUMBERS.law(
    "entropy, float32",
    "rows of a chunk's end left out, another base of the logarithm",
    excluded=without("entropy"),
)
@NUMBERS.law(
    "entropy, bfloat16",
    "a sum over the vocabulary in bfloat16",
    dtype=torch.bfloat16,
    excluded=without("entropy"),
)
def entropies_are_exact(stack: Any, case: Numbers, dtype: torch.dtype = torch.float32) -> Measure:
    """Compare entropies with float64 ones of the same logits.

    A term p log p has an error of a few roundings and, through the exponential, of log p roundings more.
    """
    found = []
    for shape in SHAPES:
        logits = _logits(case, shape, 37, dtype)
        logprobs = logits.double().log_softmax(-1)
        terms = -logprobs.exp() * logprobs
        largest = 1 + logits.double().abs().amax(-1)
        allowed = _resolution(dtype) * (terms * (4 - logprobs)).sum(-1)
        allowed += ROUNDINGS * _resolution(torch.float32) * largest * (1 + terms.sum(-1))
        given = stack.utilities["entropy"](logits)
        found.append((_excess(given, terms.sum(-1), allowed), f"shape {shape}"))
    return Measure.largest(found, 1.0, f"entropies in {dtype}, error by the one allowed")


@NUMBERS.law(
    "deviation without NaN",
    "divisor N, NaN counted, one dimension for another",
    excluded=without("deviation"),
)
def deviation_leaves_out_nan(stack: Any, case: Numbers) -> Measure:
    """Compare deviations over all, one and two dimensions; where fewer than two values are left, NaN is due."""
    values = torch.randn(4, 5, 3, generator=case.generator()) + 3
    if not case.tidy:
        values[torch.rand(4, 5, 3, generator=case.generator()) < 0.3] = math.nan
        values[1], values[2, :, 0], values[2, 1:, 1] = math.nan, math.nan, math.nan
    found = []
    for dims in (None, 0, 1, -1, (0, 1), (1, 2)):
        axes = range(3) if dims is None else [dims] if isinstance(dims, int) else dims
        right = _deviation(values, sorted(axis % 3 for axis in axes))
        given = stack.utilities["deviation"](values, dims)
        found.append((_difference(given, right), f"dimensions {dims}"))
    bound = ROUNDINGS * _resolution(torch.float32) * (1 + float(values.nan_to_num(0.0).abs().max()))
    return Measure.largest(found, bound, "deviations, NaN left out")


def _deviation(values: Tensor, axes: list[int]) -> Tensor:
    """Return deviations one by one, in plain Python."""
    kept = [axis for axis in range(values.dim()) if axis not in axes]
    flat = values.permute(*kept, *axes).reshape(*[values.shape[axis] for axis in kept], -1)
    rows = flat.reshape(-1, flat.shape[-1]).tolist()
    found = []
    for row in rows:
        numbers_left = [value for value in row if not math.isnan(value)]
        count = len(numbers_left)
        mean = sum(numbers_left) / count if count else math.nan
        squares = sum((value - mean) ** 2 for value in numbers_left)
        found.append(math.sqrt(squares / (count - 1)) if count > 1 else math.nan)
    return torch.tensor(found, dtype=values.dtype).reshape([values.shape[axis] for axis in kept])


def _difference(given: Tensor, right: Tensor) -> float:
    """Return the largest difference; NaN equals NaN, and another shape is infinitely far."""
    if given.shape != right.shape or not torch.equal(given.isnan(), right.isnan()):
        return math.inf
    return float((given.double() - right.double()).nan_to_num(0.0).abs().max())


@NUMBERS.law("extremes without NaN", "NaN compared, zero for NaN", excluded=without("minimum", "maximum"))
def extremes_leave_out_nan(stack: Any, case: Numbers) -> Measure:
    """Compare extremes of values with NaN among them, of one value, and of NaN alone."""
    names = [name for name in ("minimum", "maximum") if name in stack.utilities]
    values = torch.randn(6, generator=case.generator()) - 2
    holed = values.clone()
    holed[[0, 3]] = math.nan
    wrong = []
    for name, row in itertools.product(names, (values, -values, holed, -holed, holed[:2], holed[:1])):
        left = [value for value in row.tolist() if not math.isnan(value)]
        right = (min if name == "minimum" else max)(left, default=math.nan)
        given = float(stack.utilities[name](row))
        if not (given == right or (math.isnan(given) and math.isnan(right))):
            wrong.append(f"{name} {given} of {row.tolist()}")
    return Measure.count(wrong, "extremes without NaN")


@NUMBERS.law(
    "odds near probabilities of one and zero",
    "log(1 - exp(x)) without care for x near 0, the odds of a sum in place of a mean",
    excluded=without("odds loss"),
)
def odds_are_exact(stack: Any, case: Numbers) -> Measure:
    """Compare -beta log sigmoid(log odds ratio) with float64, for log-probabilities from -1e-6 to -90.

    The logarithm of 1 - exp(x) has the relative error of x, so the whole has a few roundings of its terms.
    """
    levels = (-0.7, -2.0) if case.tidy else (-1e-6, -3e-5, -1e-3, -0.05, -0.7, -3.0, -20.0, -90.0)
    pairs = torch.tensor(list(itertools.product(levels, levels)), dtype=torch.float32)
    chosen, rejected = pairs.unbind(1)
    odds = [value.double() - torch.log(-torch.expm1(value.double())) for value in (chosen, rejected)]
    right = -0.3 * torch.nn.functional.logsigmoid(odds[0] - odds[1])
    given = stack.utilities["odds loss"](chosen, rejected, 0.3)
    size = 1 + odds[0].abs() + odds[1].abs()
    slope = 0.3 * torch.sigmoid(odds[1] - odds[0])
    allowed = 4 * _resolution(torch.float32) * (right.abs() + slope * size) + 1e-30
    return Measure(
        error=_excess(given, right, allowed),
        bound=ROUNDINGS,
        what="losses of odds ratios, by a rounding's error",
    )
