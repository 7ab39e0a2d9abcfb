"""Worked examples of the batches of asynchronous GRPO: samples planned by process, their trees and their figures."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Sequence
from functools import partial
from importlib import import_module
from typing import Any

from seatrial.targets.trl.worked.rows import Row

GRPO = "trl.experimental.async_grpo.async_grpo_trainer"
PACKS = "trl.experimental.async_grpo.packing"


def _sample(ids: Sequence[int], mask: Sequence[int], group: int, **metrics: float) -> dict[str, Any]:
    import numpy as np

    return {
        "input_ids": np.array(ids),
        "completion_mask": np.array(mask),
        "old_log_probs": np.array([-float(one) for one in ids], dtype=np.float32),
        "advantage": 0.5 * group,
        "group_id": group,
        "metrics": metrics,
    }


SAMPLES = (
    ([1, 2, 3, 4], [0, 0, 1, 1], 1, {"reward": 1.0}),
    ([5, 6], [0, 1], 2, {"reward": math.nan, "own": 3.0}),
    ([1, 2, 9], [0, 0, 1], 1, {"reward": 2.0, "own": 4.0}),
)


def _rows_of(parts: Sequence[Sequence[int]]) -> list[Any]:
    row_class: Any = import_module(PACKS).TreeRow
    rows = []
    for part in parts:
        rows.append(row_class())
        for place in part:
            ids, mask, group, metrics = SAMPLES[place]
            rows[-1].add(_sample(ids, mask, group, **metrics))
    return rows


def _collated(collator_class: Any) -> list[Any]:
    """Return the batch of two processes, the groups that train, and the figures."""
    logged: defaultdict[str, list[Any]] = defaultdict(list)
    collate = collator_class(pad_token_id=7, num_processes=2, metrics=logged, token_budget=8)
    batch = collate.torch_call([_rows_of([[0, 2], [1]])])
    names = ("input_ids", "attention_mask", "position_ids", "shift_labels", "token_index")
    counts = [batch[name].tolist() for name in ("global_n_tokens", "global_n_forward_tokens")]
    return [
        [batch[name].tolist() for name in names],
        counts,
        [round(one, 4) for one in batch["mean_seq_len"].tolist()],
        sorted(collate.groups_trained),
        {name: _mean(value) for name, value in sorted(logged.items())},
    ]


def _mean(values: Sequence[Any]) -> float:
    (value,) = values
    return round(value[0] / value[1], 4) if isinstance(value, tuple) else round(float(value), 4)


COLLATED = [
    [
        [[1, 2, 3, 4, 2, 9], [5, 6, 7, 7, 7, 7]],
        [[1] * 6, [1, 1, 0, 0, 0, 0]],
        [[0, 1, 2, 3, 1, 2], [0, 1, 0, 0, 0, 0]],
        [[-100, 3, 4, -100, 9, -100], [6, *[-100] * 5]],
        [[1, 2, 4], [0, -1, -1]],
    ],
    [[4.0, 4.0], [8.0, 8.0]],
    [round(8 / 3, 4)] * 2,
    [1, 2],
    {
        "batch/masked_token_frac": round(5 / 9, 4),
        "batch/packing_ratio": round(9 / 8, 4),
        "batch/pad_frac": round(4 / 12, 4),
        "batch/row_fill_frac": 0.5,
        "batch/row_imbalance": 1.6667,
        "batch/row_tokens_max": 6.0,
        "batch/row_tokens_mean": 4.0,
        "batch/samples_per_row": 1.5,
        "own": 3.5,
        "reward": 1.5,
        "sample/forwarded_tokens_max": 4.0,
        "sample/forwarded_tokens_mean": 3.0,
        "sample/trained_tokens_mean": round(4 / 3, 4),
    },
]
"""The tree of the first row is 1 2 3 4 with a second 2 9 after the 1; its load is the sum of its depths."""


def _planned(
    kind: str, lengths: Sequence[tuple[int, int]], options: Sequence[Any], planner_class: Any
) -> list[Any]:
    """Return by batch and process the places of samples of these lengths and groups, and how many are dropped."""
    samples = [
        _sample([100 * group, *range(10 * place, 10 * place + length - 1)], [0] + [1] * (length - 1), group)
        for place, (length, group) in enumerate(lengths)
    ]
    logged: defaultdict[str, list[Any]] = defaultdict(list)
    more = [logged] if kind == "limited" else []
    places = {id(one): place for place, one in enumerate(samples)}
    batches = planner_class(samples, *options, *more)
    found = [[[places[id(one)] for one in row.samples] for row in batch] for batch in batches]
    return [found, float(sum(logged["batch/dropped_oversize_total"]))]


PLANNED: Sequence[tuple[str, Sequence[tuple[int, int]], Sequence[Any], list[Any]]] = (
    ("fixed", [(2, 1), (5, 2), (3, 3), (2, 1)], (2, 4), [[[[1], [0, 3, 2]]], 0.0]),
    ("fixed", [(2, 1), (3, 1), (2, 2), (2, 2), (9, 3)], (2, 2), [[[[1], [0]], [[2], [3]]], 0.0]),
    ("limited", [(4, 1), (4, 2), (3, 1), (12, 3), (5, 4), (6, 5)], (2, 8), [[[[0, 2], [1]]], 1.0]),
)
"""The planner, samples by length and group, the numbers of processes and of samples or tokens, and what is due.

The last batch of a stream that ends is not complete, and not there.
"""


BATCH_ROWS: Sequence[Row] = (
    Row("batches", f"{GRPO}:DataCollatorForRollout", "rows that share a prompt", _collated, COLLATED),
    *(
        Row(
            "batches",
            f"{GRPO}:{'FixedCountBatcher' if kind == 'fixed' else 'TokenBudgetBatcher'}",
            f"samples of {lengths}",
            partial(_planned, kind, lengths, options),
            right,
        )
        for kind, lengths, options, right in PLANNED
    ),
)
