"""Pairs of options of evaluations and predictions of Transformers' trainer, computed again in float64."""

from __future__ import annotations

import copy
import random
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import Tensor

from seatrial.relations.cases.pairwise import pairwise
from seatrial.targets.common.known import KnownFailure
from seatrial.targets.common.trainers import configuration, freeze_imports
from seatrial.targets.common.worked_rows import Row, unlike
from seatrial.targets.transformers.worked.paired_models import SMOOTHING, Words, padded, summed, text_rows

Options = Mapping[str, Any]
FACTORS: Mapping[str, Sequence[Any]] = {
    "call": ("evaluate", "predict"),
    "outputs": ("dictionary", "tuple", "hidden", "cache"),
    "batch": (2, 3, 7, 1),
    "rest": (False, True),
    "accumulation": (None, 1, 2),
    "concatenated": (True, False),
    "batches of metrics": (False, True),
    "included": ((), ("inputs",), ("loss",), ("inputs", "loss")),
    "loss only": (False, True),
    "names": (None, ("labels", "other")),
    "cut": (False, True),
    "loss": ("own", "smoothed", "function"),
    "sets": ("one", "given", "named", "named and given"),
    "prefix": (None, "dev"),
    "ignored": (None, ("hidden",)),
    "metrics": (True, False),
    "workers": (0, 1),
    "trained": (False, True),
}
NUM_DRAWN = 60


class WithMore(Words):
    """Returns more outputs than scores, by its form."""

    def __init__(self, form: str) -> None:
        """Make the layers, and say what evaluations leave out."""
        super().__init__()
        self.form = form
        if form == "cache":
            self.config.keys_to_ignore_at_inference = ["cache"]

    def forward(
        self,
        input_ids: Tensor,
        attention_mask: Tensor | None = None,
        labels: Tensor | None = None,
        other: Tensor | None = None,
    ) -> Any:
        """Return the loss of labels, scores and, by the form, twice the ids or a cache."""
        logits_BTV = self.scores(input_ids)
        found: dict[str, Any] = {}
        if labels is not None:
            found["loss"] = summed(logits_BTV, labels) / labels.ne(-100).sum()
        found["logits"] = logits_BTV
        if self.form in ("hidden", "cache"):
            found[self.form] = 2.0 * input_ids
        return tuple(found.values()) if self.form == "tuple" else found


def _collate(rows: Sequence[Mapping[str, Any]]) -> dict[str, Tensor]:
    batch = padded(rows)
    if "other" in rows[0]:
        batch["other"] = torch.tensor([row["other"] for row in rows])
    return batch


def _rows(options: Options, number: int, first: int) -> list[dict[str, Any]]:
    """Return rows, with another label if it is named."""
    return [
        {**row, **({"other": [one, 2 * one]} if options["names"] else {})}
        for one, row in enumerate(text_rows(number, first))
    ]


def _joined(batches: Sequence[Any], whole: bool) -> Any:
    """Return batches of equal parts, each padded at the right with -100 to the widest; or as they are."""
    if not whole:
        return list(batches)
    if isinstance(batches[0], tuple):
        return tuple(_joined([one[place] for one in batches], whole) for place in range(len(batches[0])))
    if batches[0].ndim < 2:
        return np.concatenate(batches)
    width = max(one.shape[1] for one in batches)
    return np.concatenate(
        [np.pad(one, [(0, 0), (0, width - one.shape[1])] + [(0, 0)] * (one.ndim - 2), constant_values=-100)
         for one in batches]
    )  # fmt: skip


def _unlike(found: Any, right: Any, what: str) -> list[str]:
    """Return where results of the same form differ."""
    if right is None or found is None:
        return [] if found is None and right is None else [f"{what}: {type(found)}, {type(right)} is due"]
    if isinstance(right, (list, tuple)):
        if not isinstance(found, (list, tuple)) or len(found) != len(right):
            return [f"{what}: {type(found).__name__}, {len(right)} parts are due"]
        return [fault for at, (one, other) in enumerate(zip(found, right, strict=True))
                for fault in _unlike(one, other, f"{what}[{at}]")]  # fmt: skip
    one, other = np.asarray(found, dtype=np.float64), np.asarray(right, dtype=np.float64)
    if one.shape != other.shape:
        return [f"{what}: shape {one.shape}, {other.shape} is due"]
    return [] if np.allclose(one, other, atol=1e-4, rtol=1e-4) else [f"{what}: other values"]


class _Again:
    """What an evaluation of rows gives."""

    def __init__(self, options: Options, model: WithMore, rows: Sequence[Mapping[str, Any]]) -> None:
        """Compute it batch by batch."""
        model = copy.deepcopy(model).double().eval()
        size, smoothing = options["batch"], SMOOTHING if options["loss"] == "smoothed" else 0.0
        parts = [rows[at : at + size] for at in range(0, len(rows), size)]
        if options["rest"]:
            parts = [one for one in parts if len(one) == size]
        self.losses: list[Any] = []
        self.outputs: list[Any] = []
        self.labels: list[Any] = []
        self.inputs: list[Any] = []
        left_out = options["ignored"] or ("cache",)
        for one in parts:
            batch = _collate(one)
            with torch.no_grad():
                logits = model.scores(batch["input_ids"])
                loss = float(summed(logits, batch["labels"], smoothing) / batch["labels"].ne(-100).sum())
            self.losses.append(np.full(len(one), loss * (0.5 if options["loss"] == "function" else 1.0)))
            more = model.form if model.form in ("hidden", "cache") and model.form not in left_out else None
            first = logits.argmax(-1) if options["cut"] else logits
            second = batch["input_ids"] * 2
            self.outputs.append((first.numpy(), second.numpy()) if more else first.numpy())
            names = options["names"] or ("labels",)
            labels = tuple(batch[name].numpy() for name in names)
            self.labels.append(labels if len(labels) > 1 else labels[0])
            self.inputs.append(batch["input_ids"].numpy())
        self.number = sum(len(one) for one in self.losses)

    def loss(self) -> float:
        """Return the mean of the losses of the batches, each counted once a row."""
        return float(np.concatenate(self.losses).mean())


def _cut(logits: Any, labels: Any) -> Any:
    """Return the best token of the scores, and other outputs as they are."""
    return (logits[0].argmax(-1), *logits[1:]) if isinstance(logits, tuple) else logits.argmax(-1)


def _evaluated(options: Options, trainer_class: Any) -> list[str]:
    """Return where an evaluation is not the one that is computed again."""
    import transformers

    freeze_imports()
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        model = WithMore(options["outputs"])
    if options["trained"]:
        model.train()
    given: list[Any] = []
    ends: list[bool] = []

    def noted(found: Any, compute_result: bool = True) -> dict[str, float]:
        given.append(found)
        ends.append(compute_result)
        return {"calls": float(len(given)), "dev_own": 3.0} if compute_result else {}

    def function(outputs: Any, labels: Tensor, num_items_in_batch: Any = None) -> Tensor:
        logits = outputs["logits"] if isinstance(outputs, dict) else outputs[0]
        loss: Tensor = 0.5 * summed(logits, labels) / num_items_in_batch
        return loss

    args = configuration(
        transformers.TrainingArguments,
        {
            "per_device_eval_batch_size": options["batch"], "dataloader_drop_last": options["rest"],
            "eval_accumulation_steps": options["accumulation"], "eval_do_concat_batches": options["concatenated"],
            "batch_eval_metrics": options["batches of metrics"] and options["metrics"],
            "include_for_metrics": list(options["included"]), "prediction_loss_only": options["loss only"],
            "label_names": list(options["names"]) if options["names"] else None,
            "label_smoothing_factor": SMOOTHING if options["loss"] == "smoothed" else 0.0,
            "dataloader_num_workers": options["workers"],
        },
    )  # fmt: skip
    sets = {"one": _rows(options, 7, 0), "two": _rows(options, 5, 2)}
    held = sets if options["sets"] == "named" else sets["one"]
    trainer = trainer_class(
        model=model, args=args, data_collator=_collate, eval_dataset=held,
        compute_metrics=noted if options["metrics"] else None,
        compute_loss_func=function if options["loss"] == "function" else None,
        preprocess_logits_for_metrics=_cut if options["cut"] else None,
    )  # fmt: skip
    more: dict[str, Any] = {} if options["prefix"] is None else {"metric_key_prefix": options["prefix"]}
    if options["ignored"]:
        more["ignore_keys"] = list(options["ignored"])
    predicts = options["call"] == "predict"
    chosen = {"": sets["one"]}
    if predicts:
        found = trainer.predict(sets["one"], **more)
        metrics = found.metrics
    else:
        if options["sets"] == "given":
            more["eval_dataset"], chosen = sets["two"], {"": sets["two"]}
        elif options["sets"].startswith("named"):
            chosen = {"_one": sets["one"], "_two": sets["two"]}
            if options["sets"] == "named and given":
                more["eval_dataset"] = sets
        metrics = trainer.evaluate(**more)
    wrong = ["the model is left in training"] if model.training else []
    prefix = options["prefix"] or ("test" if predicts else "eval")
    due: dict[str, float] = {}
    at = calls = 0
    for name, rows in chosen.items():
        again = _Again(options, model, rows)
        due[f"{prefix}{name}_loss"] = again.loss()
        measured = options["metrics"] and not options["loss only"]
        whole = options["concatenated"]
        if predicts:
            returned = not options["loss only"]
            wrong += _unlike(
                found.predictions, _joined(again.outputs, whole) if returned else None, "predictions"
            )
            wrong += _unlike(found.label_ids, _joined(again.labels, whole) if returned else None, "labels")
        if not measured:
            continue
        batches = len(again.losses) if options["batches of metrics"] else 1
        its, flags = given[at : at + batches], ends[at : at + batches]
        at += batches
        if flags != [True] * len(its) and flags != [False] * (batches - 1) + [True]:
            wrong.append(f"results at {flags}")
        calls += batches
        own = f"{prefix}{name}_own" if prefix + name == "dev" else f"{prefix}{name}_dev_own"
        due |= {f"{prefix}{name}_calls": calls, own: 3.0}
        for place, one in enumerate(its):
            single = options["batches of metrics"]
            parts = {
                part: getattr(again, part)[place] if single else _joined(getattr(again, part), whole)
                for part in ("outputs", "labels", "inputs", "losses")
            }
            wrong += _unlike(one.predictions, parts["outputs"], "given outputs")
            wrong += _unlike(one.label_ids, parts["labels"], "given labels")
            inputs = one.inputs["input_ids"] if single and isinstance(one.inputs, Mapping) else one.inputs
            wrong += _unlike(
                inputs, parts["inputs"] if "inputs" in options["included"] else None, "given inputs"
            )
            wrong += _unlike(
                one.losses, parts["losses"] if "loss" in options["included"] else None, "given losses"
            )
        if len(its) != batches:
            wrong.append(f"{len(its)} calls of metrics, {batches} are due")
    kept = {name: value for name, value in metrics.items()
            if not name.endswith(("runtime", "per_second", "preparation_time")) and name != "epoch"}  # fmt: skip
    if {*kept} != {*due}:
        return [*wrong, f"metrics {sorted(kept)}, {sorted(due)} are due"]
    return [*wrong, *unlike([kept[name] for name in due], [*due.values()], f"{[*due]}", 1e-4)]


def _name(options: Options) -> str:
    return ", ".join(
        f"{name}: {value if not isinstance(value, tuple) else ' and '.join(value) or 'nothing'}"
        for name, value in options.items()
        if value != FACTORS[name][0]
    )


def _cases() -> list[dict[str, Any]]:
    """Return every pair of values, and combinations of more of them at random, always the same ones."""
    draw = random.Random(0)
    rows = pairwise({name: len(values) for name, values in FACTORS.items()}, lambda row: True)
    rows += [
        {name: draw.randrange(len(values)) for name, values in FACTORS.items()} for _ in range(NUM_DRAWN)
    ]
    cases = [{name: FACTORS[name][index] for name, index in row.items()} for row in rows]
    # No batch is whole where it is larger than a set.
    return [{**one, "rest": one["rest"] and one["batch"] < 4} for one in cases]


LOST = KnownFailure(
    "a model's first output is taken for a loss that it does not return",
    finding="Transformers: tuples of models whose loss the trainer computes",
)


def _known(options: Options) -> KnownFailure | None:
    returned = not options["loss only"] and (options["call"] == "predict" or options["metrics"])
    return LOST if options["outputs"] == "tuple" and options["loss"] != "own" and returned else None


# Sources: the documentation of Trainer.evaluate, Trainer.predict, TrainingArguments and EvalPrediction.
PAIRED_EVALUATION_ROWS: Sequence[Row] = tuple(
    Row("validations", "transformers:Trainer", f"pairs of options: {name}", partial(_evaluated, options), [],
        since="4.57", known=_known(options))
    for name, options in {_name(options) or "defaults": options for options in _cases()}.items()
)  # fmt: skip
