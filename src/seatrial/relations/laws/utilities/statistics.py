"""R31.statistics: means, variances, group statistics and merged metrics are those of a plain loop."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from seatrial.relations.laws.utilities.numbers import Numbers
from seatrial.relations.laws.utilities.plain import FLOAT32, Arguments, Plain, add_laws, relation_of

STATISTICS = relation_of(
    "statistics",
    "statistics-are-those-of-a-loop",
    "Masked means and variances, statistics of groups and merged metrics equal those of a loop over plain numbers.",
)


def _masked(case: Numbers, *more: Sequence[Any], hidden: float = 99.0) -> Iterable[Arguments]:
    """Return values and masks with each of several further arguments; what the mask hides is large, unless tidy."""
    for place, others in enumerate(more):
        generator = torch.Generator().manual_seed(case.seed + place)
        values = torch.randn(4, 6, generator=generator) + 2
        mask = torch.rand(4, 6, generator=generator) < 0.6
        mask[:, 0] = True
        mask[0, 4:], mask[1] = False, True
        if not case.tidy:
            values[~mask] = hidden
        yield (values, mask.long(), *others)


def _with_nan(*more: Sequence[Any]) -> Callable[[Numbers], Iterable[Arguments]]:
    return lambda case: _masked(case, *more, hidden=math.nan)


def _shown(values: Tensor, mask: Tensor) -> Tensor:
    return values.double()[mask.bool()]


def masked_sum(values: Tensor, mask: Tensor, axis: int | None) -> Tensor:
    """Return the sum of what a mask shows."""
    shown = torch.where(mask.bool(), values.double(), 0.0)
    return shown.sum() if axis is None else shown.sum(axis)


def masked_mean(values: Tensor, mask: Tensor, axis: int | None) -> Tensor:
    """Return the mean of what a mask shows."""
    return masked_sum(values, mask, axis) / masked_sum(torch.ones_like(values), mask, axis)


def masked_variance(values: Tensor, mask: Tensor, unbiased: bool) -> Tensor:
    """Return the variance of what a mask shows."""
    return _shown(values, mask).var(unbiased=unbiased)


def masked_whitening(values: Tensor, mask: Tensor, shifted: bool) -> Tensor:
    """Return what a mask shows, whitened; with its mean where it is not shifted."""
    shown = _shown(values, mask)
    return (shown - shown.mean()) / shown.std() + (0.0 if shifted else shown.mean())


def group_statistics(scores: Tensor, groups: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Return mean, deviation and number of each group; 0 and 1 for a group of one."""
    rows = [scores.double()[groups == group] for group in range(int(groups.max()) + 1)]
    single = [len(row) == 1 for row in rows]
    means = [0.0 if one else float(row.mean()) for row, one in zip(rows, single, strict=True)]
    stds = [1.0 if one else float(row.std()) for row, one in zip(rows, single, strict=True)]
    return tuple(torch.tensor(one, dtype=torch.float64) for one in (means, stds, [len(row) for row in rows]))  # type: ignore[return-value]


def _groups(case: Numbers) -> Iterable[Arguments]:
    for plan in ((0, 0, 1, 1, 2, 2), (2, 0, 1, 1, 0, 2, 1), (1, 0, 0, 0), (0, 1)):
        scores = torch.randn(len(plan), generator=case.generator())
        yield scores + (0 if case.tidy else 50), torch.tensor(plan)


def equal_labels(labels: Sequence[Any]) -> list[list[bool]]:
    """Return which labels are equal."""
    return [[one == other for other in labels] for one in labels]


def _labels(case: Numbers) -> Iterable[Arguments]:
    rng = torch.randint(0, 3, (6,), generator=case.generator()).tolist()
    yield (rng,)
    yield ([f"prompt-{one}" for one in rng],)
    if not case.tidy:
        yield ([f"{10**17 + one}" for one in rng],)


def _fractions(case: Numbers) -> Iterable[Arguments]:
    yield (torch.randint(0, 5, (6,), generator=case.generator()).div(4).tolist(),)


def squared_probabilities(logits: Tensor) -> Tensor:
    """Return the sum of the squares of probabilities."""
    return logits.double().softmax(-1).square().sum(-1)


def merged_metrics(metrics: Mapping[str, Sequence[float]]) -> dict[str, float]:
    """Return the largest or smallest value where the name says so, else the mean."""
    how = {"max": max, "min": min}
    merged = {}
    for name, values in metrics.items():
        named = next((how[word] for word in how if word in name), None)
        merged[name] = float(named(values)) if named else sum(values) / len(values)
    return merged


def metric_of_ranks(how: str, ranks: Sequence[Sequence[float]]) -> float:
    """Return a metric over ranks of values of micro-batches: means of ranks, summed or averaged; or extremes of all."""
    if how in ("max", "min"):
        return float((max if how == "max" else min)(value for values in ranks for value in values))
    means = [sum(values) / len(values) for values in zip(*ranks, strict=True)]
    return float(sum(means)) / (1 if how == "sum" else len(means))


def _of_ranks(case: Numbers) -> Iterable[Arguments]:
    for how in ("mean", "sum", "max", "min"):
        for shape in ((1, 3), (2, 3), (3, 1)):
            values = torch.randn(*shape, generator=case.generator(), dtype=torch.float64)
            yield how, values.tolist()


def appended(steps: Sequence[Mapping[str, Any]], prefix: str) -> dict[str, list[Any]]:
    """Return the values of all steps by prefixed name; lists are joined."""
    made: dict[str, list[Any]] = {}
    for step in steps:
        for name, value in step.items():
            own = made.setdefault(name if name.startswith(prefix) else prefix + name, [])
            own += value if isinstance(value, list) else [value]
    return made


def columns_of(rows: Sequence[Mapping[str, Any]]) -> dict[str, list[Any]]:
    """Return the values of rows by name."""
    return {name: [row[name] for row in rows] for name in rows[0]} if rows else {}


def collated(rows: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Return columns of rows: tensors are stacked, all else becomes lists."""
    columns = columns_of(rows)
    return {
        name: torch.stack(values) if isinstance(values[0], Tensor) else values
        for name, values in columns.items()
    }


def _data_rows(case: Numbers) -> Iterable[Arguments]:
    generator = case.generator()
    for lengths in ((2, 2, 2), (1, 3, 2)):
        yield (
            [
                {
                    "input_ids": torch.randint(9, (4,), generator=generator),
                    "weight": torch.rand(2, generator=generator),
                    "raw_prompt": [{"role": "user", "content": str(row)}] * length,
                    "raw_prompt_ids": list(range(length)),
                    "index": row,
                }
                for row, length in enumerate(lengths)
            ],
        )


def _logits(case: Numbers) -> Iterable[Arguments]:
    for shape in ((3, 5, 7), (4, 11)):
        yield (4 * torch.randn(*shape, generator=case.generator()) + (0 if case.tidy else 60),)


STATISTIC_FUNCTIONS = (
    Plain(
        name="masked sum",
        law="sums under a mask",
        suspects="a mask that multiplies NaN, another dimension",
        cases=lambda case: _masked(case, (None,), (-1,), (0,)),
        right=masked_sum,
        bound=FLOAT32,
    ),
    Plain(
        name="masked mean",
        law="means under a mask",
        suspects="a mean over padding, another dimension, a divisor of the whole batch",
        cases=lambda case: _masked(case, (None,), (-1,), (0,)),
        right=masked_mean,
        bound=FLOAT32,
    ),
    Plain(
        name="masked variance",
        law="variances under a mask",
        suspects="the divisor N for N - 1, a mean over padding",
        cases=lambda case: _masked(case, (True,), (False,)),
        right=masked_variance,
        bound=FLOAT32,
    ),
    Plain(
        name="masked whitening",
        law="whitened values under a mask",
        suspects="the mean added for the wrong option, a variance in place of a deviation",
        cases=lambda case: _masked(case, (True,), (False,)),
        right=masked_whitening,
        bound=16 * FLOAT32,
    ),
    Plain(
        name="group statistics",
        law="mean and deviation of each group",
        suspects="the divisor N, E[x²] - E[x]² that cancels, groups that have to be in succession",
        cases=_groups,
        right=group_statistics,
        bound=64 * FLOAT32,
    ),
    Plain(
        name="equal labels",
        law="labels of groups",
        suspects="texts read as numbers, numbers rounded, groups of neighbours alone",
        cases=_labels,
        right=equal_labels,
    ),
    Plain(
        name="equal labels",
        law="labels of groups that are fractions",
        suspects="labels cut to whole numbers",
        cases=_fractions,
        right=equal_labels,
    ),
    *(
        Plain(
            name=f"masked {name}",
            law=f"{name} under a mask, NaN in the padding",
            suspects="a mask that multiplies",
            cases=_with_nan(*more),
            right=right,
            bound=16 * FLOAT32,
        )
        for name, right, more in (
            ("sum", masked_sum, ((None,), (-1,))),
            ("mean", masked_mean, ((None,), (-1,))),
            ("variance", masked_variance, ((True,), (False,))),
            ("whitening", masked_whitening, ((True,), (False,))),
        )
    ),
    Plain(
        name="squared probabilities",
        law="sums of squared probabilities",
        suspects="a factor 2 at one of the terms, an overflow",
        cases=_logits,
        right=squared_probabilities,
        bound=16 * FLOAT32,
    ),
    Plain(
        name="merged metrics",
        law="metrics merged by their names",
        suspects="a mean of extremes",
        cases=lambda case: [
            ({"loss": [1.0, 2.5, 4.0], "score/max": [1.0, 7.0, -2.0], "len/min": [3.0, -1.0]},)
        ],
        right=merged_metrics,
        bound=1e-12,
    ),
    Plain(
        name="metric of ranks",
        law="a metric over ranks and micro-batches",
        suspects="a sum over ranks, an extreme of means",
        cases=_of_ranks,
        right=metric_of_ranks,
        bound=1e-12,
    ),
    Plain(
        name="appended",
        law="values appended by name",
        suspects="lists in lists, a prefix twice",
        cases=lambda case: [
            ([{"loss": 1.0, "actor/kl": 2.0}, {"loss": [3.0, 4.0]}, {"actor/kl": 5.0}], prefix)
            for prefix in ("actor/", "")
        ],
        right=appended,
    ),
    Plain(
        name="collated",
        law="rows of a data set made a batch",
        suspects="lists of one length made an array of two dimensions, rows in another order",
        cases=_data_rows,
        right=collated,
    ),
    Plain(
        name="columns of rows",
        law="columns of rows",
        suspects="names of one row alone",
        cases=lambda case: [([{"a": 1, "b": "x"}, {"a": 2, "b": "y"}],), ([],)],
        right=columns_of,
    ),
)
add_laws(STATISTICS, STATISTIC_FUNCTIONS)
