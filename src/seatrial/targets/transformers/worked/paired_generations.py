"""Pairs of options of generation by Transformers' trainer of sequences: what a model is given, and what is returned."""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from functools import partial
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from seatrial.relations.cases.pairwise import pairwise
from seatrial.targets.common.trainers import configuration, freeze_imports
from seatrial.targets.common.worked_rows import Row, unlike

PAD, OF_TOKENIZER, VOCABULARY, SMOOTHING = 0, 9, 10, 0.2
LENGTHS = (3, 5, 2, 4, 6)
Options = Mapping[str, Any]
FACTORS: Mapping[str, Sequence[Any]] = {
    "call": ("predict", "evaluate"),
    "longest": (None, 14, 4),
    "beams": (None, 3),
    "given": (
        {},
        {"max_length": 16},
        {"max_new_tokens": 4},
        {"num_beams": 2},
        {"top_k": 5, "num_beams": None},
        {"max_length": None},
    ),
    "of the model": ({}, {"max_length": 12}, {"max_new_tokens": 15, "max_length": 3}),
    "of the arguments": (None, {"max_length": 11, "num_beams": 4}, {"max_length": 2, "max_new_tokens": 9}),
    "batch": (2, 3),
    "labels": (True, False),
    "decoder": (None, "of labels", "prompts"),
    "smoothing": (False, True),
    "tokenizer": (False, True),
    "generates": (True, False),
    "loss only": (False, True),
    "before": ({}, {"max_length": 19, "num_beams": 5}),
}
NUM_DRAWN = 60


class Repeating(nn.Module):
    """Generates a start and the ids of its inputs, and notes what it is given."""

    main_input_name = "input_ids"

    def __init__(self, options: Mapping[str, Any]) -> None:
        """Have a weight, and options of generation."""
        super().__init__()
        import transformers

        self.scale = nn.Parameter(torch.tensor(0.5))
        self.config = SimpleNamespace(pad_token_id=PAD)
        made: Any = transformers.GenerationConfig
        self.generation_config = made(**options)
        self.given: list[dict[str, Any]] = []

    def forward(
        self,
        input_ids: Tensor,
        labels: Tensor | None = None,
        decoder_input_ids: Tensor | None = None,
    ) -> dict[str, Tensor]:
        """Return scores of the width of the labels, and the mean of their losses."""
        width = input_ids if labels is None else labels
        scores = self.scale * torch.arange(VOCABULARY).float().expand(*width.shape, VOCABULARY)
        if labels is None:
            return {"logits": scores}
        return {"loss": nn.functional.cross_entropy(scores.transpose(1, 2), labels), "logits": scores}

    def generate(self, input_ids: Tensor, **given: Any) -> Tensor:
        """Return a start and the ids of each row."""
        self.given.append(
            {name: value.tolist() if isinstance(value, Tensor) else value for name, value in given.items()}
        )
        return torch.cat([torch.full_like(input_ids[:, :1], 1), input_ids], dim=1)


def _rows(options: Options) -> list[dict[str, Any]]:
    rows = []
    for row, length in enumerate(LENGTHS):
        one: dict[str, Any] = {"input_ids": [2 + (row + place) % 7 for place in range(length)]}
        if options["labels"]:
            one["labels"] = [3 + (row * place) % 5 for place in range(length)]
        if options["decoder"] == "prompts" or (options["decoder"] and not options["labels"]):
            one["decoder_input_ids"] = [1, 2 + row]
        elif options["decoder"]:
            one["decoder_input_ids"] = [1, *one["labels"][:-1]]
        rows.append(one)
    return rows


def _collate(rows: Sequence[Mapping[str, Any]]) -> dict[str, Tensor]:
    def column(name: str) -> Tensor:
        width = max(len(row[name]) for row in rows)
        fill = -100 if name == "labels" else PAD
        return torch.tensor([[*row[name], *[fill] * (width - len(row[name]))] for row in rows])

    return {name: column(name) for name in rows[0]}


def _filled(values: Any, width: int, fill: int) -> Any:
    return np.pad(values, [(0, 0), (0, max(0, width - values.shape[1]))], constant_values=fill)


def _joined(batches: Sequence[Any]) -> list[Any]:
    width = max(one.shape[1] for one in batches)
    found: list[Any] = np.concatenate([_filled(one, width, -100) for one in batches]).tolist()
    return found


def _mean(options: Options, labels: Any) -> float:
    """Return the mean loss of labels that count: scores rise by half from token to token."""
    logprobs = np.arange(VOCABULARY) * 0.5
    logprobs = logprobs - np.log(np.exp(logprobs).sum())
    counted = labels[labels != -100]
    right = -logprobs[counted].mean()
    return float((1 - SMOOTHING) * right - SMOOTHING * logprobs.mean() if options["smoothing"] else right)


def _generated(options: Options, trainer_class: Any) -> list[str]:
    """Return where a model is given other options of generation than are due, or results are others."""
    import transformers

    freeze_imports()
    own = options["of the arguments"]
    made: Any = transformers.GenerationConfig
    args = configuration(
        transformers.Seq2SeqTrainingArguments,
        {
            "predict_with_generate": options["generates"], "generation_max_length": options["longest"],
            "generation_num_beams": options["beams"], "per_device_eval_batch_size": options["batch"],
            "prediction_loss_only": options["loss only"],
            "label_smoothing_factor": SMOOTHING if options["smoothing"] else 0.0,
            "generation_config": None if own is None else made(**own),
        },
    )  # fmt: skip
    model, rows = Repeating(options["of the model"]), _rows(options)
    noted: list[Any] = []

    def metrics_of(found: Any) -> dict[str, float]:
        noted.append(found)
        return {}

    trainer = trainer_class(
        model=model, args=args, data_collator=_collate, eval_dataset=rows,
        compute_metrics=metrics_of,
    )  # fmt: skip
    if options["tokenizer"]:
        trainer.processing_class = SimpleNamespace(pad_token_id=OF_TOKENIZER)
    if options["before"]:
        trainer.predict(rows[:1], **options["before"])
        model.given.clear()
        noted.clear()
    given = dict(options["given"])
    if options["call"] == "predict":
        found = trainer.predict(rows, **given)
        outputs, labels, metrics, prefix = found.predictions, found.label_ids, found.metrics, "test"
    else:
        metrics, prefix = trainer.evaluate(**given), "eval"
        outputs, labels = (noted[0].predictions, noted[0].label_ids) if noted else (None, None)
    if given != options["given"]:
        return [f"the options of the call become {given}"]
    wrong = []
    batches = [_collate(rows[at : at + options["batch"]]) for at in range(0, len(rows), options["batch"])]
    generates = options["generates"] and not options["loss only"]
    due = {name: value for name, value in given.items() if value is not None}
    if "max_length" not in due and "max_new_tokens" not in due and options["longest"] is not None:
        due["max_length"] = options["longest"]
    if "num_beams" not in due and options["beams"] is not None:
        due["num_beams"] = options["beams"]
    for call, batch in zip(model.given, batches, strict=False):
        inputs = {name: value.tolist() for name, value in batch.items() if name != "input_ids"}
        same = options["labels"] and options["decoder"] and (
            batch["labels"].shape == batch["decoder_input_ids"].shape
        )  # fmt: skip
        if same:
            inputs.pop("decoder_input_ids")
        if call != {**inputs, **due, "synced_gpus": False}:
            wrong.append(f"given {call}, {due} and {inputs} are due")
    if len(model.given) != (len(batches) if generates else 0):
        wrong.append(f"{len(model.given)} generations")
    settings = options["of the model"] if own is None else own
    longest, more = settings.get("max_length", 20), settings.get("max_new_tokens")
    fill = OF_TOKENIZER if options["tokenizer"] else PAD

    def padded(values: Any) -> Any:
        if values.shape[1] < longest:
            return _filled(values, longest, fill)
        return _filled(values, more + 1, fill) if more is not None else values

    seen = options["call"] == "predict" or options["labels"]
    if generates and seen:
        right = [np.pad(one["input_ids"].numpy(), [(0, 0), (1, 0)], constant_values=1) for one in batches]
        right_outputs = _joined([padded(one) for one in right])
        if outputs is None or np.asarray(outputs).tolist() != right_outputs:
            wrong.append(
                f"outputs {None if outputs is None else np.asarray(outputs).tolist()}, {right_outputs} due"
            )
        right_labels = (
            _joined([padded(one["labels"].numpy()) for one in batches]) if options["labels"] else None
        )
        if (None if labels is None else np.asarray(labels).tolist()) != right_labels:
            wrong.append(f"labels {labels}, {right_labels} are due")
    if options["labels"]:
        losses = [_mean(options, one["labels"].numpy()) for one in batches for _ in one["labels"]]
        # The last batch counts as a whole one does where sequences are generated or not.
        missing = options["batch"] - len(batches[-1]["labels"])
        losses += losses[-1:] * missing
        wrong += unlike([metrics.get(f"{prefix}_loss", -1.0)], [sum(losses) / len(losses)], "the loss", 1e-4)
    return wrong[:4]


def _cases() -> list[dict[str, Any]]:
    """Return every pair of values, and combinations of more of them at random, always the same ones."""
    draw = random.Random(0)
    rows = pairwise({name: len(values) for name, values in FACTORS.items()}, lambda row: True)
    rows += [
        {name: draw.randrange(len(values)) for name, values in FACTORS.items()} for _ in range(NUM_DRAWN)
    ]
    return [{name: FACTORS[name][index] for name, index in row.items()} for row in rows]


def _all_generated(options: Sequence[Options], trainer_class: Any) -> list[str]:
    return [f"{one}: {fault}" for one in options for fault in _generated(one, trainer_class)][:4]


CASES = _cases()
# Sources: the documentation of Seq2SeqTrainer and Seq2SeqTrainingArguments.
PAIRED_GENERATION_ROWS: Sequence[Row] = tuple(
    Row("validations", "transformers:Seq2SeqTrainer", f"pairs of options of generation, part {part + 1}",
        partial(_all_generated, CASES[part::8]), [], since="4.57")
    for part in range(8)
)  # fmt: skip
