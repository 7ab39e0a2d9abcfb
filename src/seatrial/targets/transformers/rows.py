"""`transformers.Trainer` on heads that give a row one answer: numbers, labels, a choice or a span."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, ClassVar

import torch
from torch import Tensor

from seatrial.relations.contracts.supervised import SupervisedSpec
from seatrial.targets.common.known import KnownFailure, since
from seatrial.targets.transformers.heads import (
    BERT,
    CLASSES,
    COUNT_IGNORED,
    MEANS_OF_ROWS,
    NOT_DIVIDED,
    QWEN,
    DecoderRowClasses,
    RowClasses,
    example_ids,
)

NUM_CHOICES = 3
LENGTH = 6
"""Tokens of each example of heads whose logits are of places, as padding is a place too."""


class Numbers(RowClasses):
    """An encoder that gives a row one number."""

    supervised_spec = SupervisedSpec(items="rows", loss="numbers")
    options: ClassVar[Mapping[str, Any]] = {**BERT, "num_labels": 1}

    def row(self, example: int) -> dict[str, Any]:
        return {"input_ids": example_ids(example), "labels": self.answer(example)}

    def answer(self, example: int) -> Any:
        """Return the target of a row."""
        return example / 2 - 1

    def supervised_logits(self, model: Any, example: int) -> tuple[Tensor, Sequence[Any]]:
        logits_1V = model(input_ids=torch.tensor([example_ids(example)])).logits
        answer = self.answer(example)
        return logits_1V, [answer if isinstance(answer, list) else [answer]]

    def collate(self, rows: Sequence[Mapping[str, Any]]) -> dict[str, Tensor]:
        """Pad on the right; answers are numbers."""
        batch = super().collate([{**row, "labels": 0} for row in rows])
        return {**batch, "labels": torch.tensor([row["labels"] for row in rows], dtype=torch.float32)}


class SeveralNumbers(Numbers):
    """An encoder that gives a row several numbers."""

    thorough = True
    options: ClassVar[Mapping[str, Any]] = {**BERT, "problem_type": "regression"}

    def answer(self, example: int) -> list[float]:
        return [example / 2 - 1, 0.5, -example / 4]


class Labels(Numbers):
    """An encoder that gives a row several labels, each on or off."""

    thorough = True
    supervised_spec = SupervisedSpec(items="rows", loss="labels")
    options: ClassVar[Mapping[str, Any]] = {**BERT, "problem_type": "multi_label_classification"}

    def answer(self, example: int) -> list[float]:
        return [float((example >> place) & 1) for place in range(CLASSES)]


class DecoderNumbers(Numbers):
    """A decoder that gives a row one number, of its last token."""

    thorough = True
    model_name, config_name = "Qwen2ForSequenceClassification", "Qwen2Config"
    options: ClassVar[Mapping[str, Any]] = {**QWEN, "num_labels": 1}
    known_failures = DecoderRowClasses.known_failures


class DecoderLabels(Labels):
    """A decoder that gives a row several labels, of its last token."""

    thorough = True
    model_name, config_name = "Qwen2ForSequenceClassification", "Qwen2Config"
    options: ClassVar[Mapping[str, Any]] = {
        **QWEN,
        "num_labels": CLASSES,
        "problem_type": "multi_label_classification",
    }
    known_failures = DecoderRowClasses.known_failures


class Spans(RowClasses):
    """An encoder that finds the first and the last token of an answer: two items of a row."""

    thorough = True
    gives_items = False
    model_name = "BertForQuestionAnswering"
    known_failures: ClassVar[Sequence[KnownFailure]] = (
        replace(MEANS_OF_ROWS, releases=since("transformers", "4.49")),
    )
    options: ClassVar[Mapping[str, Any]] = {**BERT, "num_labels": 2}

    def row(self, example: int) -> dict[str, Any]:
        return {"input_ids": _of_length(example), **self.span(example)}

    def span(self, example: int) -> dict[str, int]:
        """Return the columns of an answer's first and last place."""
        return {"start_positions": example % 3, "end_positions": 2 + example % 4}

    def supervised_logits(self, model: Any, example: int) -> tuple[Tensor, Sequence[Any]]:
        found = model(input_ids=torch.tensor([_of_length(example)]))
        return torch.cat([found.start_logits, found.end_logits]), [*self.span(example).values()]

    def collate(self, rows: Sequence[Mapping[str, Any]]) -> dict[str, Tensor]:
        """Stack rows of one length."""
        return {name: torch.tensor([row[name] for row in rows]) for name in rows[0]}


class DecoderSpans(Spans):
    """A decoder that finds the first and the last token of an answer."""

    thorough = True
    model_name, config_name, options = "Qwen2ForQuestionAnswering", "Qwen2Config", QWEN


class Choices(Spans):
    """An encoder that chooses one of several continuations."""

    gives_items = True
    thorough = True
    known_failures = RowClasses.known_failures

    model_name, options = "BertForMultipleChoice", BERT

    def row(self, example: int) -> dict[str, Any]:
        ids = [_of_length(example + choice) for choice in range(NUM_CHOICES)]
        return {"input_ids": ids, "labels": example % NUM_CHOICES}

    def supervised_logits(self, model: Any, example: int) -> tuple[Tensor, Sequence[Any]]:
        row = self.row(example)
        return model(input_ids=torch.tensor([row["input_ids"]])).logits, [row["labels"]]


class NextSentence(Spans):
    """An encoder that says whether one sentence follows another."""

    gives_items = True
    thorough = True
    known_failures = (NOT_DIVIDED.of(*COUNT_IGNORED),)

    model_name, options = "BertForNextSentencePrediction", BERT

    def row(self, example: int) -> dict[str, Any]:
        types = [int(place >= LENGTH // 2) for place in range(LENGTH)]
        return {"input_ids": _of_length(example), "token_type_ids": types, "labels": example % 2}

    def supervised_logits(self, model: Any, example: int) -> tuple[Tensor, Sequence[Any]]:
        row = self.row(example)
        types = torch.tensor([row["token_type_ids"]])
        return model(input_ids=torch.tensor([row["input_ids"]]), token_type_ids=types).logits, [row["labels"]]


def _of_length(example: int) -> list[int]:
    ids = example_ids(example % 8)
    return [*ids, *ids, *ids][:LENGTH]


ADAPTERS: dict[str, type[Any]] = {
    "row-numbers": Numbers,
    "row-several-numbers": SeveralNumbers,
    "row-labels": Labels,
    "decoder-row-numbers": DecoderNumbers,
    "decoder-row-labels": DecoderLabels,
    "spans": Spans,
    "decoder-spans": DecoderSpans,
    "choices": Choices,
    "next-sentence": NextSentence,
}
