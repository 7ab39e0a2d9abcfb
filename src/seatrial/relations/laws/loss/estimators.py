"""R3, R5, R12 and R27 of advantages of tokens: equal to their oracle for any padding and order of rows."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import Tensor

from seatrial.relations.cases.case import Case
from seatrial.relations.contracts.estimators import OWN_RETURNS, EstimatorInputs
from seatrial.relations.law import Measure, Relation
from seatrial.relations.oracles import estimators as oracles
from seatrial.relations.tensors import largest_difference

BOUNDS = {"float64": 1e-6, "float32": 1e-4}
"""An epsilon of 1e-8 in the variance that whitens, and in the sum of weights, moves results by less than the first."""
CLOSE_BOUNDS = {"float64": 1e-6, "float32": 1e-2}
"""Of rewards that differ by ten-thousandths, which float32 rounds by thousandths of that."""
GROUPS = (2, 4, 3)
COMPONENTS = ("format", "accuracy")


@dataclass(frozen=True, kw_only=True)
class TokenRowCase:
    """A row: per-token fields have the length of the mask."""

    prompt_id: int
    mask: tuple[int, ...]
    rewards: tuple[float, ...]
    values: tuple[float, ...]
    logprobs: tuple[float, ...]
    squares: tuple[float, ...]
    baseline: float
    components: tuple[float, ...]


@dataclass(frozen=True, kw_only=True)
class EstimatorCase(Case):
    """The rows of a batch."""

    rows: tuple[TokenRowCase, ...]
    seed: int

    def smaller(self) -> Iterator[EstimatorCase]:
        """Yield cases of one group fewer."""
        for prompt in sorted({row.prompt_id for row in self.rows}):
            rest = tuple(row for row in self.rows if row.prompt_id != prompt)
            if rest:
                yield replace(self, rows=rest)

    def describe(self) -> Mapping[str, Any]:
        """Return the rows as JSON values."""
        return {"seed": self.seed, "rows": [vars(row) for row in self.rows]}


def _make(
    stack: Any, seed: int, tidy: bool, *, equal_group: bool = False, alone: bool = False
) -> EstimatorCase:
    """Return groups of unequal sizes, if the stack takes such, of rows of unequal lengths that are not adjacent.

    Sizes and lengths are equal when tidy.
    """
    rng = np.random.default_rng([seed, 17])
    sizes = [3, 3, 3] if tidy or not stack.estimator_spec.unequal_groups else [*GROUPS]
    sizes += [1, 1] if alone else []
    inner = stack.estimator_spec.inner_masks and not tidy
    rows = [
        _row(rng, 40 + 3 * prompt, 6 if tidy else int(rng.integers(2, 10)), inner)
        for prompt, size in enumerate(sizes)
        for _ in range(size)
    ]
    if equal_group:
        rows = [_with_outcome(row, (0.25, 0.5)) if row.prompt_id == 40 else row for row in rows]
    order = range(len(rows)) if tidy else rng.permutation(len(rows))
    return EstimatorCase(rows=tuple(rows[int(place)] for place in order), seed=seed)


def _row(rng: np.random.Generator, prompt_id: int, length: int, inner: bool) -> TokenRowCase:
    mask = [1] * length
    if inner and length > 4:
        mask[1:3] = [0, 0]
    values, logprobs = rng.normal(size=length), -np.abs(rng.normal(1.0, 0.5, size=length)) - 0.05
    row = TokenRowCase(
        prompt_id=prompt_id,
        mask=tuple(mask),
        rewards=(0.0,) * length,
        values=tuple(map(float, values)),
        logprobs=tuple(map(float, logprobs)),
        squares=tuple(map(float, rng.uniform(0.2, 0.9, size=length))),
        baseline=float(rng.normal()),
        components=(),
    )
    return _with_outcome(row, (round(float(rng.normal()), 2), round(float(rng.normal()), 2)))


def _with_outcome(row: TokenRowCase, components: tuple[float, float]) -> TokenRowCase:
    """Return the row with the sum of its rewards at its last token."""
    return replace(row, components=components, rewards=(*row.rewards[:-1], sum(components)))


def _close_rewards(stack: Any, seed: int, tidy: bool) -> EstimatorCase:
    """Return groups whose rewards differ by ten-thousandths."""
    case = _make(stack, seed, tidy)
    rows = [
        _with_outcome(row, (0.5 + 1e-4 * row.components[0], 0.25 + 1e-4 * row.components[1]))
        for row in case.rows
    ]
    return replace(case, rows=tuple(rows))


def _token_rewards(stack: Any, seed: int, tidy: bool) -> EstimatorCase:
    """Return rows with a reward at every trained token."""
    case = _make(stack, seed, tidy)
    rng = np.random.default_rng([seed, 18])
    rows = [
        replace(row, rewards=tuple(on * round(float(rng.normal()), 2) for on in row.mask))
        for row in case.rows
    ]
    return replace(case, rows=tuple(rows))


def _takes_outcomes(stack: Any) -> str | None:
    kind = stack.estimator_spec.kind
    return None if kind in OWN_RETURNS else f"estimator_spec.kind={kind!r} takes a reward of the row"


def _takes_groups_only(stack: Any) -> str | None:
    return None if stack.estimator_spec.alone else "estimator_spec.alone=None"


def _has_epsilon(stack: Any) -> str | None:
    """Return the declaration by which an epsilon blurs rewards that are close together, or None."""
    return "estimator_spec.whitened=True" if stack.estimator_spec.whitened else None


def _has_no_returns(stack: Any) -> str | None:
    kind = stack.estimator_spec.kind
    return None if kind in OWN_RETURNS else f"estimator_spec.kind={kind!r} has no returns of its own"


COMMON: Mapping[str, Any] = {"component": "token_advantages", "cost": "CPU, milliseconds", "cases": _make}
CATALOGUE = "SB082 SB083 SB084 SB087 SB088 SB091 SB093"

FORMULA = Relation(
    id="R12.estimator",
    name="token-advantages-equal-oracle",
    statement="Advantages and returns of tokens equal plain loops over rows and tokens.",
    catalogue=CATALOGUE,
    **COMMON,
)
ORDER = Relation(
    id="R5.estimator",
    name="token-advantages-follow-their-rows",
    statement="Reordering rows reorders advantages and returns in the same manner.",
    catalogue=CATALOGUE,
    **COMMON,
)
PADDING = Relation(
    id="R3.estimator",
    name="token-advantages-ignore-padding",
    statement="Neither more padding nor what critic and policy say of masked tokens changes an advantage.",
    catalogue="SB080 SB081 SB151",
    **COMMON,
)
INPUTS = Relation(
    id="R27.estimator",
    name="token-advantages-leave-their-inputs",
    statement="Computing advantages changes no input.",
    catalogue="SB085 SB280",
    **COMMON,
)


@FORMULA.law(
    "advantages of outcomes",
    "groups by position, a deviation over n, an option that nothing reads, rows of a mask",
)
@FORMULA.law(
    "advantages of outcomes, a group of equal rewards",
    "a deviation of 0 as the divisor, a group without a gradient counted as one with",
    cases=partial(_make, equal_group=True),
)
@FORMULA.law(
    "advantages of outcomes, rewards close together",
    "a floor under the variance, a variance as a difference of squares",
    cases=_close_rewards,
    excluded=_has_epsilon,
    bounds=CLOSE_BOUNDS,
)
@FORMULA.law(
    "advantages of outcomes, rows that are alone in their group",
    "a deviation of one number, the score itself as the mean of its group",
    cases=partial(_make, alone=True),
    excluded=_takes_groups_only,
)
@FORMULA.law(
    "advantages of rewards of tokens",
    "the discount counted over tokens that do not train, a value of the wrong token",
    cases=_token_rewards,
    excluded=_takes_outcomes,
)
def advantages_equal_oracle(stack: Any, case: EstimatorCase, bounds: Mapping[str, float] = BOUNDS) -> Measure:
    """Compare advantages with the oracle."""
    given_BT, _ = stack.token_advantages(inputs_of(case))
    right = oracles.advantages(_oracle_rows(case), stack.estimator_spec)
    measure = _compare(stack, case, given_BT, right, "advantages")
    return replace(measure, bound=bounds[stack.estimator_spec.dtype])


@FORMULA.law(
    "returns of rewards of tokens",
    "returns that are whitened, the advantage without the value",
    cases=_token_rewards,
    excluded=_has_no_returns,
)
def returns_equal_oracle(stack: Any, case: EstimatorCase) -> Measure:
    """Compare returns with the oracle."""
    _, given_BT = stack.token_advantages(inputs_of(case))
    right = oracles.returns(_oracle_rows(case), stack.estimator_spec)
    return _compare(stack, case, given_BT, right, "returns")


@ORDER.law("reordered rows", "groups formed by position")
def advantages_follow_rows(stack: Any, case: EstimatorCase) -> Measure:
    """Compare the advantages of rows moved by one place with the moved advantages."""
    plain = stack.token_advantages(inputs_of(case))
    moved = stack.token_advantages(inputs_of(replace(case, rows=(*case.rows[1:], case.rows[0]))))
    mask_BT = inputs_of(case).mask_BT.bool()
    return _distance(
        stack,
        [(other.roll(1, 0)[mask_BT], one[mask_BT]) for one, other in zip(plain, moved, strict=True)],
        "advantages or returns of moved rows",
    )


@PADDING.law("padded columns", "statistics over the padded width", extra_columns=3)
@PADDING.law(
    "values and log-probabilities of masked tokens", "a value of a token that does not train", poison=50.0
)
def padding_is_ignored(stack: Any, case: EstimatorCase, **change: Any) -> Measure:
    """Compare advantages and returns with changed padding with those of plain padding."""
    inputs = inputs_of(case)
    plain, other = stack.token_advantages(inputs), stack.token_advantages(inputs_of(case, **change))
    mask_BT, T = inputs.mask_BT.bool(), inputs.mask_BT.shape[1]
    return _distance(
        stack,
        [(changed[:, :T][mask_BT], one[mask_BT]) for one, changed in zip(plain, other, strict=True)],
        f"advantages or returns with {change}",
    )


@INPUTS.law("inputs unchanged", "an operation in place on a shared tensor")
def inputs_are_kept(stack: Any, case: EstimatorCase) -> Measure:
    """Check that no tensor of the inputs changes."""
    inputs = inputs_of(case)
    tensors = {
        item.name: value for item in fields(inputs) if isinstance(value := getattr(inputs, item.name), Tensor)
    }
    before = {name: value.clone() for name, value in tensors.items()}
    stack.token_advantages(inputs)
    changed = [name for name, value in tensors.items() if not torch.equal(value, before[name])]
    return Measure.count(changed, "inputs changed by the call")


def inputs_of(case: EstimatorCase, *, extra_columns: int = 0, poison: float = 0.0) -> EstimatorInputs:
    """Return rows as tensors, padded on the right; masked places of what models say hold `poison`."""
    T = max(len(row.mask) for row in case.rows) + extra_columns

    def padded(name: str, fill: float) -> Tensor:
        lists = [
            [
                *(value if on else fill for value, on in zip(getattr(row, name), row.mask, strict=True)),
                *[fill] * (T - len(row.mask)),
            ]
            for row in case.rows
        ]
        return torch.tensor(lists, dtype=torch.float64)

    mask = [[*row.mask, *[0] * (T - len(row.mask))] for row in case.rows]
    return EstimatorInputs(
        rewards_BT=padded("rewards", 0.0),
        mask_BT=torch.tensor(mask, dtype=torch.float64),
        prompt_ids_B=torch.tensor([row.prompt_id for row in case.rows]),
        values_BT=padded("values", poison),
        # Log-probabilities and sums of squares are what they can be, also of a masked token.
        logprobs_BT=padded("logprobs", -poison / 10),
        squared_probabilities_BT=padded("squares", min(poison, 1.0)),
        baselines_B=torch.tensor([row.baseline for row in case.rows], dtype=torch.float64),
        components={
            name: torch.tensor([row.components[place] for row in case.rows], dtype=torch.float64)
            for place, name in enumerate(COMPONENTS)
        },
    )


def _oracle_rows(case: EstimatorCase) -> list[oracles.TokenRow]:
    """Return the trained tokens of each row."""

    def kept(row: TokenRowCase, values: Sequence[float]) -> tuple[float, ...]:
        return tuple(value for value, on in zip(values, row.mask, strict=True) if on)

    return [
        oracles.TokenRow(
            prompt_id=row.prompt_id,
            rewards=kept(row, row.rewards),
            values=kept(row, row.values),
            variances=kept(
                row,
                [
                    1 - 2 * float(np.exp(p)) + square
                    for p, square in zip(row.logprobs, row.squares, strict=True)
                ],
            ),
            baseline=row.baseline,
            components=row.components,
        )
        for row in case.rows
    ]


def _compare(
    stack: Any, case: EstimatorCase, given_BT: Tensor, right: Sequence[Sequence[float]], what: str
) -> Measure:
    mask_BT = inputs_of(case).mask_BT.bool()
    wanted = torch.tensor([value for row in right for value in row], dtype=torch.float64)
    return _distance(
        stack, [(given_BT[mask_BT], wanted)], f"{what} against the oracle for {stack.estimator_spec}"
    )


def _distance(stack: Any, pairs: Sequence[tuple[Tensor, Tensor]], what: str) -> Measure:
    error = max(largest_difference(one.double(), other.double()) for one, other in pairs)
    return Measure(error=error, bound=BOUNDS[stack.estimator_spec.dtype], what=f"{what}, relative difference")
