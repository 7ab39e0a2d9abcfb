"""Worked examples of arrays of any structure, and of samplers and collators, of Transformers' trainer."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import pairwise, product
from typing import Any

import numpy as np
import torch

from seatrial.targets.common.worked_rows import Row


def _joined(function: Any) -> list[Any]:
    """Return arrays one after the other, the narrower padded, of one, two and three dimensions, in any structure."""
    make: Sequence[Callable[..., Any]] = (torch.tensor, np.array)
    found = []
    for made in make:
        wide, narrow = made([[1, 2, 3]]), made([[4], [5]])
        one, scalar = made([1.0, 2.0]), made(3.0)
        deep, flat = made([[[1, 2]]]), made([[[3, 4], [5, 6]]])
        found += [
            function(wide, narrow).tolist(), function(narrow, wide, padding_index=0).tolist(), function(one,
                scalar).tolist(),
            function(deep, flat).tolist(), str(function(wide, narrow).dtype).rpartition(".")[2],
            [two.tolist() for two in function((wide, one), (narrow, one))],
            {name: two.tolist() for name, two in function({"a": wide, "b": [one]}, {"a": narrow,
                "b": [one]}).items() if name == "a"},
        ]  # fmt: skip
    return found[:7] if found[:7] == found[7:] else found


def _cpu(function: Any) -> list[Any]:
    given = {
        "a": torch.tensor([1.5], dtype=torch.bfloat16),
        "b": (torch.tensor([1, 2]), [torch.tensor([True])]),
    }
    found = function(given)
    return [
        type(found["a"]).__name__,
        str(found["a"].dtype),
        found["a"].tolist(),
        found["b"][0].tolist(),
        found["b"][1][0].tolist(),
    ]


def _detached(function: Any) -> list[bool]:
    one = torch.ones(2, requires_grad=True) * 2
    found = function({"a": one, "b": (one, [one, "word"])})
    return [
        found["a"].requires_grad,
        found["b"][0].requires_grad,
        found["b"][1][0].requires_grad,
        found["b"][1][1] == "word",
    ]


def _sized(function: Any) -> list[Any]:
    three = torch.ones(3, 2)
    return [
        function({"a": torch.tensor(1.0), "b": [None, (three,)]}), function([np.ones((4, 1)), three]), function({}),
        function(torch.tensor(1.0)), function("word"),
    ]  # fmt: skip


def _shortened(function: Any) -> Any:
    found = function({"a": np.arange(4), "b": (torch.arange(5), [np.ones((3, 2))])}, 2)
    return [found["a"].tolist(), found["b"][0].tolist(), found["b"][1][0].shape[0]]


def _expanded(function: Any) -> list[Any]:
    given = np.array([[1, 2], [3, 4]], dtype=np.int16)
    found = [function(given, 3), function(given, 4, padding_index=0), function(given[..., None], 3)]
    return [one.tolist() for one in found] + [found[0].dtype.name]


def _causal(function: Any) -> list[bool]:
    lower = torch.ones(4, 4).tril()
    added = torch.zeros(4, 4).masked_fill(lower == 0, -1e9)
    masks = (
        None, torch.ones(2, 4), lower[None], torch.ones(1, 4, 4), lower[None, None], added[None, None], torch.ones(1,
            1, 4, 4),
        torch.ones(1, 1, 1, 1), torch.ones(4), lower.T[None],
    )  # fmt: skip
    return [bool(function(mask)) for mask in masks]


def _looped(sampler: Any) -> list[list[int]]:
    """Return the rows of each of two processes, in whole batches of three, the last filled by its first rows."""
    found = []
    for number, batch in ((7, 3), (8, 3), (6, 3)):
        for rank in range(2):
            made = sampler(list(range(number)), batch, num_replicas=2, rank=rank, shuffle=False)
            found.append(list(made))
    return found


def _grouped(sampler: Any) -> list[str]:
    """Return where rows in groups of about one length are not those of their lengths, however these are given."""
    lengths, wrong = [1 + (7 * row) % 11 for row in range(24)], []
    rows: Any = [{"input_ids": [0] * length, "other": [0]} for length in lengths]
    for given in (
        {"lengths": lengths}, {"lengths": torch.tensor(lengths)}, {"dataset": rows},
        {"dataset": [{"own": row["input_ids"]} for row in rows], "model_input_name": "own"},
    ):  # fmt: skip
        made = sampler(3, **given, generator=torch.Generator().manual_seed(1))
        order = [int(one) for one in made]
        if sorted(order) != list(range(24)) or len(made) != 24:
            wrong.append(f"{sorted(given)}: {order}")
        found = [lengths[row] for row in order]
        chunks = [found[start : start + 6] for start in range(0, 24, 6)]
        unsorted = sum(one < two for chunk in chunks for one, two in pairwise(chunk))
        if found[0] != max(lengths) or unsorted > 1:
            wrong.append(f"{sorted(given)}: {found}")
    for rows in (None, [[1, 2]], [{"own": [1]}]):
        try:
            sampler(3, dataset=rows)
            wrong.append(f"{rows} is accepted")
        except ValueError:
            pass
    return wrong


def _columns(collator: Any) -> list[Any]:
    seen: list[Any] = []

    def noted(rows: Any) -> int:
        seen.append(rows)
        return len(rows)

    made = collator(noted, signature_columns=["a", "labels"])
    first = [{"a": 1, "b": 2, "labels": 3}, {"b": 1, "a": 2}]
    return [made(first), made(["word"]), seen, first[0]]


def _shards(dataset: Any) -> list[str]:
    """Return where a stream of two processes is not in the order of its seed and epoch."""

    class Stream(torch.utils.data.IterableDataset[Any]):
        def __init__(self) -> None:
            self.generator = torch.Generator()

        def __iter__(self) -> Any:
            return iter(torch.randperm(8, generator=self.generator).tolist())

    class Set(Stream):
        epoch = -1

        def set_epoch(self, epoch: int) -> None:
            self.epoch = epoch

    wrong = []
    for epoch, seed in product((0, 2), (0, 5)):
        whole = torch.randperm(8, generator=torch.Generator().manual_seed(seed + epoch)).tolist()
        for rank in range(2):
            made = dataset(Stream(), batch_size=2, num_processes=2, process_index=rank, seed=seed)
            made.set_epoch(epoch)
            due = whole[2 * rank : 2 * rank + 2] + whole[4 + 2 * rank : 6 + 2 * rank]
            wrong += [] if list(made) == due else [f"epoch {epoch}, seed {seed}, rank {rank}"]
            wrong += [] if made.num_examples == 8 else [f"{made.num_examples} rows"]
    own = Set()
    dataset(own).set_epoch(4)
    return wrong + ([] if own.epoch == 4 else ["the epoch is not passed on"])


UTILITIES, POINTS = "transformers.trainer_utils", "transformers.trainer_pt_utils"
JOINED = [
    [[1, 2, 3], [4, -100, -100], [5, -100, -100]], [[4, 0, 0], [5, 0, 0], [1, 2, 3]], [1.0, 2.0, 3.0],
    [[[1, 2], [-100, -100]], [[3, 4], [5, 6]]], "int64", [[[1, 2, 3], [4, -100, -100], [5, -100, -100]], [1.0, 2.0,
        1.0, 2.0]],
    {"a": [[1, 2, 3], [4, -100, -100], [5, -100, -100]]},
]  # fmt: skip
# Sources: the documentation of each function.
ARRAY_ROWS: Sequence[Row] = (
    Row("calls", f"{POINTS}:nested_concat", "of any structure", _joined, JOINED, since="4.46"),
    Row("calls", f"{POINTS}:nested_numpify", "of any structure", _cpu, ["ndarray", "float32", [1.5], [1, 2], [True]],
        since="4.46"),
    Row("calls", f"{POINTS}:nested_detach", "of any structure", _detached, [False, False, False, True], since="4.46"),
    Row("calls", f"{POINTS}:find_batch_size", "of any structure", _sized, [3, 4, None, None, None], since="4.46"),
    Row("calls", f"{POINTS}:nested_truncate", "of any structure", _shortened, [[0, 1], [0, 1], 2], since="4.46"),
    Row(
        "calls", f"{POINTS}:expand_like", "of arrays", _expanded,
        [[[1, 2, -100], [3, 4, -100]], [[1, 2, 0, 0], [3, 4, 0, 0]], [[[1], [2], [-100]], [[3], [4], [-100]]],
            "int16"], since="4.46",
    ),
    Row(
        "calls", f"{POINTS}:is_attention_mask_causal transformers.trainer:Trainer._is_attention_mask_causal",
            "of any shape", _causal,
        [True, True, True, False, True, True, False, True, False, False], since="5.8",
    ),
    Row(
        "batches", f"{POINTS}:DistributedSamplerWithLoop", "of two processes", _looped,
        [[0, 2, 4, 6, 2, 4], [1, 3, 5, 0, 1, 3], [0, 2, 4, 6, 0, 2], [1, 3, 5, 7, 1, 3], [0, 2, 4], [1, 3, 5]],
            since="4.46",
    ),
    Row("batches", f"{POINTS}:LengthGroupedSampler", "of lengths in any form", _grouped, [], since="4.57"),
    Row(
        "batches", f"{UTILITIES}:RemoveColumnsCollator", "of rows", _columns,
        [2, 1, [[{"a": 1, "labels": 3}, {"a": 2}], ["word"]], {"a": 1, "b": 2, "labels": 3}], since="4.46",
    ),
    Row("batches", f"{POINTS}:IterableDatasetShard", "of seeds and epochs", _shards, [], since="4.46"),
)  # fmt: skip
