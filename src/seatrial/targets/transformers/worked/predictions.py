"""Worked examples of what Transformers' trainer predicts, counts, and makes of data sets."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from seatrial.targets.common.worked_rows import Row, unlike
from seatrial.targets.transformers.worked.runs import arguments

NUM_ROWS = 5
WIDTHS = (3, 1, 2, 4, 2)
"""Tokens of each row."""


class Shaped(nn.Module):
    """Outputs that follow from numbers of a row: a pair, its tokens and a cache; dropout would change them."""

    main_input_name = "number"

    def __init__(self, form: str) -> None:
        """Give a dictionary, a tuple, or no loss at all."""
        super().__init__()
        self.one, self.form, self.dropout = nn.Parameter(torch.ones(())), form, nn.Dropout(0.5)
        self.config = SimpleNamespace(keys_to_ignore_at_inference=["past"], to_dict=dict, to_json_string=str)

    def forward(
        self, number: Tensor, ids: Tensor, first: Tensor | None = None, labels: Tensor | None = None
    ) -> Any:
        """Return the loss of labels, where there are any, and the outputs."""
        kept = self.dropout(torch.ones(())) * self.one
        found = {
            "logits": torch.stack([number, 10 * number], dim=1) * kept,
            "tokens": ids * kept,
            "past": ids,
        }
        if labels is not None:
            found = {"loss": ((number - labels) * kept).abs().mean(), **found}
        return tuple(found.values()) if self.form == "tuple" else found


def labelled_rows(labelled: bool = True) -> list[dict[str, Any]]:
    return [
        {"number": float(row + 1), "ids": list(range(10 * row, 10 * row + width)), "first": float(row)}
        | ({"labels": float(row % 3)} if labelled else {})
        for row, width in enumerate(WIDTHS)
    ]


def collate(rows: Sequence[Mapping[str, Any]]) -> dict[str, Tensor]:
    width = max(len(row["ids"]) for row in rows)
    batch = {
        name: torch.tensor([row[name] for row in rows]) for name in rows[0] if name not in ("ids", "extra")
    }
    return {**batch, "ids": torch.tensor([row["ids"] + [-1] * (width - len(row["ids"])) for row in rows])}


def _predicting(trainer_class: Any, form: str = "dictionary", compute: Any = None, **options: Any) -> Any:
    return trainer_class(
        model=Shaped(form),
        args=arguments(**{"per_device_eval_batch_size": 2, "remove_unused_columns": False, **options}),
        data_collator=collate,
        compute_metrics=compute,
        eval_dataset=labelled_rows(),
    )


def _padded(size: int) -> list[list[float]]:
    """Return the tokens of all rows: -1 up to the width of their batch, -100 beyond."""
    widest, found = max(WIDTHS), []
    for start in range(0, NUM_ROWS, size):
        width = max(WIDTHS[start : start + size])
        for row in range(start, min(start + size, NUM_ROWS)):
            ids = list(range(10 * row, 10 * row + WIDTHS[row]))
            found.append([float(one) for one in ids + [-1] * (width - len(ids)) + [-100] * (widest - width)])
    return found


PAIRS = [[float(row + 1), 10.0 * (row + 1)] for row in range(NUM_ROWS)]
LABELS = [float(row % 3) for row in range(NUM_ROWS)]
LOSS = sum(abs(row + 1 - row % 3) for row in range(NUM_ROWS)) / NUM_ROWS


def _predictions(trainer_class: Any) -> list[str]:
    """Return where predictions are not the outputs of each row, padded at the right with -100."""
    wrong = []
    table: Sequence[tuple[str, Mapping[str, Any], Mapping[str, Any], Sequence[Any]]] = (
        ("dictionary", {}, {}, (PAIRS, "tokens")),
        ("dictionary", {"per_device_eval_batch_size": 8}, {}, (PAIRS, "tokens")),
        ("dictionary", {"eval_accumulation_steps": 1}, {}, (PAIRS, "tokens")),
        ("dictionary", {"eval_accumulation_steps": 2}, {}, (PAIRS, "tokens")),
        ("dictionary", {"per_device_eval_batch_size": 1}, {}, (PAIRS, "tokens")),
        ("dictionary", {}, {"ignore_keys": ["tokens", "past"]}, (PAIRS,)),
        ("dictionary", {}, {"ignore_keys": ["logits", "past"], "metric_key_prefix": "one"}, ("tokens",)),
        ("tuple", {}, {"ignore_keys": ["tokens"]}, (PAIRS, "tokens", "tokens")),
        ("dictionary", {"prediction_loss_only": True}, {}, ()),
    )
    for form, options, called, outputs in table:
        trainer = _predicting(trainer_class, form, **options)
        found = trainer.predict(labelled_rows(), **called)
        what, size = f"{form}, {dict(options)}, {dict(called)}", options.get("per_device_eval_batch_size", 2)
        given = found.predictions if isinstance(found.predictions, tuple) else (found.predictions,)
        due = [_padded(size) if one == "tokens" else one for one in outputs] or [None]
        same = [None if one is None else one.tolist() for one in given]
        wrong += [] if same == due else [f"{what}: {same}, {due} is due"]
        labels = None if found.label_ids is None else found.label_ids.tolist()
        wrong += [] if labels == (LABELS if outputs else None) else [f"{what}: labels {labels}"]
        prefix = called.get("metric_key_prefix", "test")
        names = {f"{prefix}_{one}" for one in ("loss", "runtime", "samples_per_second", "steps_per_second")}
        others = {*found.metrics} - names - {f"{prefix}_model_preparation_time"}
        wrong += [f"{what}: metrics {sorted(found.metrics)}"] if others or names - {*found.metrics} else []
        wrong += unlike([found.metrics[f"{prefix}_loss"]], [LOSS], what)
        rate = found.metrics[f"{prefix}_samples_per_second"] / found.metrics[f"{prefix}_steps_per_second"]
        steps = math.ceil(NUM_ROWS / size)
        wrong += [] if abs(rate - NUM_ROWS / steps) < 0.02 else [f"{what}: {rate} rows a step"]
    return wrong


def _unlabelled(trainer_class: Any) -> list[Any]:
    """Return the names of metrics and the outputs of rows without labels, of two names, and of none."""
    found = []
    for names, labelled in ((None, False), (["labels", "first"], True), ([], True)):
        given: dict[str, Any] = {} if names is None else {"label_names": names}
        trainer = _predicting(trainer_class, **given)
        one = trainer.predict(
            labelled_rows(labelled), ignore_keys=["tokens", "past", *([] if names != [] else ["loss"])]
        )
        labels = one.label_ids
        if labels is not None:
            labels = [value.tolist() for value in (labels if isinstance(labels, tuple) else (labels,))]
        found.append([one.predictions.tolist(), labels, "test_loss" in one.metrics])
    return found


class Returning(Shaped):
    """A model that returns its loss without labels, unless it is switched off."""

    def forward(self, number: Tensor, ids: Tensor, first: Tensor, return_loss: bool = True) -> Any:  # type: ignore[override]
        """Return the mean of the first numbers as loss, and the outputs."""
        found = super().forward(number, ids)
        return {"loss": first.mean(), **found} if return_loss else found


def _returning(trainer_class: Any) -> list[Any]:
    """Return outputs and losses of rows without labels, of a model that returns a loss unless that is switched off."""
    found = []
    for said in ({}, {"return_loss": False}):
        trainer = trainer_class(
            model=Returning("dictionary"),
            args=arguments(per_device_eval_batch_size=2, remove_unused_columns=False, label_names=[]),
            data_collator=lambda rows, said=said: {**collate(rows), **said},
        )
        one = trainer.predict(labelled_rows(False), ignore_keys=["tokens", "past"])
        found.append([one.predictions.tolist(), round(one.metrics.get("test_loss", -1.0), 5)])
    return found


def _sets(trainer_class: Any) -> list[Any]:
    """Return what metrics are given of several sets, one by one and in whole, under their names."""

    def compute(found: Any) -> dict[str, float]:
        return {"sum": float(found.predictions[0].sum()), "rows": len(found.label_ids)}

    trainer = _predicting(trainer_class, compute=compute)
    sets = {"two": labelled_rows()[:2], "three": labelled_rows()[2:]}
    both, one = trainer.evaluate(sets, metric_key_prefix="all"), trainer.evaluate(labelled_rows()[1:3])
    trainer.eval_dataset = sets
    own = trainer.evaluate()
    names = (
        "all_two_sum",
        "all_three_sum",
        "all_two_loss",
        "all_three_loss",
        "all_two_rows",
        "all_three_rows",
    )
    return [
        [both[name] for name in names],
        [one["eval_sum"], one["eval_rows"], one["eval_loss"]],
        [own["eval_two_sum"], own["eval_three_sum"]],
        [entry["step"] for entry in trainer.state.log_history],
        trainer.model.training,
    ]


def _streamed(trainer_class: Any) -> list[Any]:
    """Return the loss, and rows a step, of rows that come as a stream, in lists and with a loss that is NaN."""

    class Stream(torch.utils.data.IterableDataset[Any]):
        def __iter__(self) -> Iterator[Any]:
            return iter(labelled_rows())

    found = []
    one = _predicting(trainer_class).predict(Stream(), ignore_keys=["tokens", "past"])
    found.append([one.predictions.tolist() == PAIRS, round(one.metrics["test_loss"], 5)])
    apart = _predicting(trainer_class, eval_do_concat_batches=False).predict(
        labelled_rows(), ignore_keys=["tokens", "past"]
    )
    found.append([[batch.tolist() for batch in apart.predictions], round(apart.metrics["test_loss"], 5)])
    for kept in (True, False):
        rows = [*labelled_rows()[:4], {**labelled_rows()[4], "labels": float("nan")}]
        trainer = _predicting(trainer_class, logging_nan_inf_filter=kept)
        loss = trainer.predict(rows).metrics["test_loss"]
        found.append([bool(np.isfinite(loss)), round(float(np.nan_to_num(loss)), 5)])
    return found


PLACE = "transformers:Trainer"
# Sources: the documentation of Trainer.predict, evaluate and compute_loss, and of TrainingArguments.
PREDICTION_ROWS: Sequence[Row] = (
    Row("validations", PLACE, "predictions, labels and metrics", _predictions, [], since="4.46"),
    Row(
        "validations",
        PLACE,
        "rows without labels, and with two",
        _unlabelled,
        [[PAIRS, None, False], [PAIRS, [LABELS, [float(row) for row in range(NUM_ROWS)]], True], [PAIRS, None, False]],
        since="4.46",
    ),
    Row(
        "validations",
        PLACE,
        "losses without labels",
        _returning,
        [[PAIRS, 2.0], [PAIRS, -1.0]],
        since="4.57",
    ),
    Row(
        "validations",
        PLACE,
        "several sets",
        _sets,
        [[33.0, 132.0, 1.0, 3.0, 2, 3], [55.0, 2, 1.0], [33.0, 132.0], [0] * 5, False],
        since="4.46",
    ),
    Row(
        "validations",
        PLACE,
        "streams, batches in lists, and losses that are not finite",
        _streamed,
        [
            [True, round(LOSS, 5)],
            [[PAIRS[:2], PAIRS[2:4], PAIRS[4:]], round(LOSS, 5)],
            [True, 1.75],
            [False, 0.0],
        ],
        since="5.23",
    ),
)  # fmt: skip
