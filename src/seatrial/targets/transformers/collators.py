"""Transformers' data collators, each in a step of `transformers.Trainer` and by the tokens of its batches."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import Any, ClassVar, Literal

import torch
from torch import Tensor

from seatrial.relations.cases.examples import Example, ObjectiveSpec
from seatrial.targets.common.known import KnownFailure, before
from seatrial.targets.common.target import find_name
from seatrial.targets.common.tiny import tiny_tokenizer
from seatrial.targets.common.trainers import target_rows
from seatrial.targets.transformers.causal import (
    FIRST_LABEL,
    LOGGED,
    OF_LENGTHS,
    CausalLM,
    need_packed_masks,
)
from seatrial.targets.transformers.heads import DecoderRowClasses, EncoderDecoder, Head, TokenClasses

MULTIPLE = 8
"""What the widths of a collator that rounds up are a multiple of."""
END_IS_PAD = KnownFailure(
    "labels are compared with the pad id, which is the end token too",
    finding="Transformers: end tokens of a collator whose pad token they are",
)


CACHED_ROWS = KnownFailure(
    "training makes a cache, and with one rows that are laid end to end see each other",
    finding="Transformers: flattened rows and the cache of training",
    releases=before("transformers", "5"),
).of(
    *(
        f"R1.objective/gradients add up, lengths {lengths}, in micro-batches of {number}"
        for lengths in ("equal", "unequal")
        for number in ("one example", "two examples")
    ),
    "R1.objective/logged losses add up, lengths unequal, in micro-batches of one example",
    *OF_LENGTHS,
    LOGGED,
)


class Collated(CausalLM):
    """`DataCollatorForSeq2Seq` on ids with labels of their own, padded on the right."""

    collator_name: ClassVar[str] = "DataCollatorForSeq2Seq"
    collator_options: ClassVar[Mapping[str, Any]] = {}
    objective_spec = ObjectiveSpec(kind="sft", trains="completion")
    known_failures: ClassVar[Sequence[KnownFailure]] = ()
    padding_side = "right"

    def __init__(self) -> None:
        """Find the collator in the installed release."""
        self.collator_class = find_name("transformers", [f"transformers:{self.collator_name}"])

    @property
    def tokens_train(self) -> Literal["completion", "all"]:
        return "all" if self.objective_spec.trains == "all" else "completion"

    def _collate(self, rows: Sequence[Mapping[str, list[int]]]) -> dict[str, Tensor]:
        given = [{name: list(value) for name, value in row.items()} for row in rows]
        return dict(self.collator_class(tokenizer=self.tokenizer, **self.collator_options)(given))

    def trained_tokens(self, examples: Sequence[Example]) -> list[tuple[list[int], list[int]]]:
        batch = self._collate([self._row(example) for example in examples])
        multiple = self.collator_options.get("pad_to_multiple_of", 1)
        assert batch["input_ids"].shape[1] % multiple == 0, batch["input_ids"].shape
        return target_rows(batch)


class CollatedLeft(Collated):
    """`DataCollatorForSeq2Seq` that pads on the left, to a multiple of a width."""

    padding_side = "left"
    collator_options: ClassVar[Mapping[str, Any]] = {"pad_to_multiple_of": MULTIPLE}


class CollatedWhole(Collated):
    """`DataCollatorForLanguageModeling` without masking, which makes labels of all ids but padding."""

    collator_name = "DataCollatorForLanguageModeling"
    collator_options: ClassVar[Mapping[str, Any]] = {"mlm": False}
    objective_spec = ObjectiveSpec(kind="sft", trains="all")
    known_failures = CausalLM.known_failures

    def _row(self, example: Example) -> dict[str, list[int]]:
        return {"input_ids": [*example.prompt_ids, *example.completion_ids]}


class CollatedEndIsPad(CollatedWhole):
    """`DataCollatorForLanguageModeling` of a tokenizer whose pad token is its end token."""

    pad_is_end = True
    known_failures: ClassVar[Sequence[KnownFailure]] = (
        END_IS_PAD.of("R15.trained/end token", *OF_LENGTHS),
        FIRST_LABEL.of(LOGGED),
    )


class Flattened(Collated):
    """`DataCollatorWithFlattening`, which lays rows end to end; their positions begin again."""

    collator_name = "DataCollatorWithFlattening"
    known_failures: ClassVar[Sequence[KnownFailure]] = (CACHED_ROWS,)

    def __init__(self) -> None:
        """Find the collator, and whether models keep the rows apart without a kernel of their own.

        Raises:
            Gone: they do not.
        """
        super().__init__()
        need_packed_masks()

    def _collate(self, rows: Sequence[Mapping[str, list[int]]]) -> dict[str, Tensor]:
        return dict(self.collator_class(**self.collator_options)([dict(row) for row in rows]))

    def trained_tokens(self, examples: Sequence[Example]) -> list[tuple[list[int], list[int]]]:
        batch = self._collate([self._row(example) for example in examples])
        ids, labels = batch["input_ids"][0].tolist(), batch["labels"][0].tolist()
        borders = [*self.starts(batch), len(ids)]
        return [
            (ids[first:end], [int(label != -100) for label in labels[first:end]])
            for first, end in pairwise(borders)
        ]

    def starts(self, batch: Mapping[str, Tensor]) -> list[int]:
        """Return the places at which rows begin."""
        return [place for place, position in enumerate(batch["position_ids"][0].tolist()) if position == 0]


class FlattenedWithLengths(Flattened):
    """`DataCollatorWithFlattening` with the cumulative lengths that kernels read."""

    collator_options: ClassVar[Mapping[str, Any]] = {"return_flash_attn_kwargs": True}

    def starts(self, batch: Mapping[str, Tensor]) -> list[int]:
        lengths = batch["cu_seq_lens_q"].diff()
        assert torch.equal(batch["cu_seq_lens_q"], batch["cu_seq_lens_k"]), (
            "lengths of queries and keys differ"
        )
        assert int(batch["max_length_q"]) == int(lengths.max()), (
            f"{batch['max_length_q']} is not the longest row"
        )
        return batch["cu_seq_lens_q"][:-1].tolist()


class FlattenedWithNumbers(Flattened):
    """`DataCollatorWithFlattening` with the number of each token's row."""

    collator_options: ClassVar[Mapping[str, Any]] = {"return_seq_idx": True}

    def starts(self, batch: Mapping[str, Tensor]) -> list[int]:
        rows = batch["seq_idx"][0].tolist()
        return [place for place, row in enumerate(rows) if place == 0 or row != rows[place - 1]]


class FlattenedWithLabels(Flattened):
    """`DataCollatorWithFlattening` on rows with labels of their own, every one of which is an id."""

    thorough = True
    objective_spec = ObjectiveSpec(kind="sft", trains="all")


class CollatedHead(Head):
    """A head whose rows a collator of Transformers pads."""

    collator_name: ClassVar[str]
    side: ClassVar[str] = "right"

    def __init__(self) -> None:
        """Find the model and the collator."""
        super().__init__()
        self.collator_class = find_name("transformers", [f"transformers:{self.collator_name}"])

    def collate(self, rows: Sequence[Mapping[str, Any]]) -> dict[str, Tensor]:
        collator = self.collator_class(tokenizer=tiny_tokenizer(padding_side=self.side))
        return dict(collator([dict(row) for row in rows]))


class CollatedTokenClasses(CollatedHead, TokenClasses):
    """`DataCollatorForTokenClassification`, padded on the right."""

    collator_name = "DataCollatorForTokenClassification"


class CollatedTranslations(CollatedHead, EncoderDecoder):
    """`DataCollatorForSeq2Seq` with labels of other lengths than the ids."""

    collator_name = "DataCollatorForSeq2Seq"


class CollatedRowClasses(CollatedHead, DecoderRowClasses):
    """`DataCollatorWithPadding` on the left, of a decoder that classifies rows by their last token."""

    collator_name = "DataCollatorWithPadding"
    side = "left"


ADAPTERS: dict[str, type[Any]] = {
    "collator-seq2seq": Collated,
    "collator-seq2seq-left": CollatedLeft,
    "collator-language-modeling": CollatedWhole,
    "collator-language-modeling-pad-is-end": CollatedEndIsPad,
    "collator-flattening": Flattened,
    "collator-flattening-lengths": FlattenedWithLengths,
    "collator-flattening-numbers": FlattenedWithNumbers,
    "collator-flattening-labels": FlattenedWithLabels,
    "collator-token-classes": CollatedTokenClasses,
    "collator-translations": CollatedTranslations,
    "collator-row-classes-left": CollatedRowClasses,
}
