"""Arrays, shares and loops of releases 4 of Transformers that later ones left out; their rows are in `earlier`."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

from seatrial.targets.common.worked_rows import unlike
from seatrial.targets.transformers.short_runs import Line
from seatrial.targets.transformers.worked.runs import arguments, numbered


def gathered(made: Any) -> list[Any]:
    """Return arrays of three processes that are brought in the order of rows: nested, wider later, and cut."""
    gatherer = made(world_size=3, num_samples=10, make_multiple_of=2)
    gatherer.add_arrays(None)
    for first in (0, 2):
        rows = np.array([first, first + 1, first + 4, first + 5, first + 8, first + 9])
        wide = np.stack([rows] * (2 + first // 2), axis=1)
        gatherer.add_arrays((rows, [wide]))
    numbers, (columns,) = gatherer.finalize()
    other = made(world_size=2, num_samples=3, padding_index=7)
    other.add_arrays(np.array([[1], [3]]))
    other.add_arrays(np.array([[2, 2], [0, 0]]))
    return [numbers.tolist(), columns.tolist(), other.finalize().tolist(), made(2, 4).finalize()]


GATHERED = [
    list(range(10)),
    [[row, row, -100 if row % 4 < 2 else row] for row in range(10)],
    [[1, 7], [2, 2], [3, 7]],
    None,
]


def shared(made: Any) -> list[Any]:
    """Return the rows of three ranks, filled up by the first ones to whole batches, or to the same number."""
    rows = range(16)
    return [
        [list(made(rows, num_replicas=3, rank=rank, batch_size=2)) for rank in range(3)],
        [list(made(range(4), num_replicas=3, rank=rank)) for rank in range(3)],
        len(made(rows, num_replicas=3, rank=0, batch_size=4)),
    ]


SHARED = [
    [[0, 1, 2, 3, 4, 5], [6, 7, 8, 9, 10, 11], [12, 13, 14, 15, 0, 1]], [[0, 1], [2, 3], [0, 1]], 8,
]  # fmt: skip


def grouped(trainer_class: Any) -> list[str]:
    """Return where rows are not in groups of about one length: those of a column, or of ids."""
    from datasets import Dataset

    class Ids:
        model_input_names = ("ids",)

    lengths = [1 + (7 * row) % 11 for row in range(40)]
    wrong = []
    for column, processing in (("width", False), ("ids", True), ("input_ids", False)):
        rows: list[dict[str, Any]] = [
            {"number": row, column: length if column == "width" else [0] * length}
            for row, length in enumerate(lengths)
        ]
        for data in (Dataset.from_list(rows), *([rows] if column != "width" else [])):
            args = arguments(
                group_by_length=True, length_column_name="width", per_device_train_batch_size=2,
                per_device_eval_batch_size=4, gradient_accumulation_steps=2, remove_unused_columns=False,
            )  # fmt: skip
            trainer = trainer_class(
                model=Line(), args=args, train_dataset=data, eval_dataset=data,
                data_collator=lambda given: {"number": torch.tensor([one["number"] for one in given])},
            )  # fmt: skip
            trainer.processing_class = Ids() if processing else None
            for kind, sampler, size in (
                ("training", trainer._get_train_sampler(), 4), ("evaluation", trainer._get_eval_sampler(data), 4)
            ):  # fmt: skip
                order = list(sampler)
                found = [lengths[row] for row in order]
                what = f"{kind} by {column}"
                wrong += [f"{what}: not every row once"] if sorted(order) != list(range(40)) else []
                wrong += [f"{what}: {found}"] if found[0] != 11 or sampler.batch_size != size else []
                # Groups of a quarter of all rows are sorted; the longest row of all is moved to the front.
                wrong += [f"{what}: {sampler.lengths}"] if list(sampler.lengths) != lengths else []
            loader = [row for one in trainer.get_train_dataloader() for row in one["number"].tolist()]
            wrong += [] if sorted(loader) == list(range(40)) else [f"{column}: batches {loader}"]
    return wrong


def predicted(trainer_class: Any) -> list[str]:
    """Return where the older loop of predictions does not give what the rows give."""
    wrong = []
    for accumulation in (None, 1, 2):
        seen: list[Any] = []

        def metrics(found: Any, seen: list[Any] = seen) -> dict[str, float]:
            seen.append([found.predictions, found.label_ids, found.inputs])
            return {"sum": float(found.predictions.sum()), "eval_own": 2.0}

        model: Any = Line()
        model.main_input_name = "number"
        args = arguments(
            use_legacy_prediction_loop=True, per_device_eval_batch_size=2, eval_accumulation_steps=accumulation,
            include_for_metrics=["inputs"],
        )  # fmt: skip
        trainer = trainer_class(model=model, args=args, eval_dataset=numbered(6), compute_metrics=metrics)
        found = trainer.evaluate()
        logits = [0.3 * row / 4 - 0.2 for row in range(1, 7)]
        labels = [row["labels"] for row in numbered(6)]
        loss = sum((one - label) ** 2 for one, label in zip(logits, labels, strict=True)) / 6
        what = f"{accumulation=}"
        wrong += unlike(
            [found["eval_loss"], found["eval_sum"], found["eval_own"]], [loss, sum(logits), 2.0], what
        )
        wrong += unlike(seen[0][0].tolist(), logits, f"{what}, predictions")
        wrong += unlike(seen[0][1].tolist(), labels, f"{what}, labels")
        wrong += unlike(seen[0][2].tolist(), list(range(1, 7)), f"{what}, inputs")
        of_test = trainer.predict(numbered(6), metric_key_prefix="own")
        wrong += unlike(of_test.predictions.tolist(), logits, f"{what}, of a test")
        wrong += (
            [] if {"own_loss", "own_sum"} <= set(of_test.metrics) else [f"{what}: {sorted(of_test.metrics)}"]
        )
        alone = trainer_class(model=model, args=args, eval_dataset=numbered(6)).evaluate()
        wrong += unlike([alone["eval_loss"]], [loss], f"{what}, without metrics")
        only = trainer.prediction_loop(trainer.get_eval_dataloader(), "losses", prediction_loss_only=True)
        wrong += (
            []
            if (only.predictions, only.label_ids, only.num_samples) == (None, None, 6)
            else [f"{what}: {only}"]
        )
    return wrong
