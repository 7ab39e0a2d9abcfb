"""`DataCollatorForLanguageModeling` with masking; see `contracts.masking`."""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Collection, Sequence
from typing import Any, ClassVar

import numpy as np
import torch

from seatrial.relations.contracts.masking import MaskedRow, MaskingPlan
from seatrial.relations.not_served import NotServed
from seatrial.targets.common.known import KnownFailure, KnowsFailures, before
from seatrial.targets.common.target import find_name
from seatrial.targets.common.tiny import ordinary_ids, tiny_tokenizer

IGNORED = -100
NUMPY_AND_ZERO = "Transformers: small functions of later releases"


class Masks(KnowsFailures):
    """A batch padded on the right, of rows with a start and an end."""

    returns: ClassVar[str] = "pt"
    """Kind of arrays."""
    own_seed: ClassVar[bool] = False
    """Whether the collator is given the seed; else the process's generators are."""
    word_size: ClassVar[int] = 1

    def __init__(self) -> None:
        """Find the collator."""
        self._collator: Any = find_name("transformers", ["transformers:DataCollatorForLanguageModeling"])
        self._tokenizer = tiny_tokenizer(padding_side="right")
        self._tokenizer.add_special_tokens({"mask_token": "<mask>"})
        self.ordinary_ids: Sequence[int] = ordinary_ids(self._tokenizer)
        self.special_ids: Collection[int] = frozenset(self._tokenizer.all_special_ids)
        self.mask_id = int(self._tokenizer.mask_token_id)
        self._calls = itertools.count(1)

    def masked(self, plan: MaskingPlan) -> list[MaskedRow]:
        given = {
            "mlm_probability": plan.share,
            "mask_replace_prob": plan.replaced,
            "random_replace_prob": plan.random,
        }
        more: dict[str, Any] = {"seed": plan.seed} if self.own_seed else {}
        if self.word_size > 1:
            more["whole_word_mask"] = True
            given.update(mask_replace_prob=1.0, random_replace_prob=0.0)  # words have no other
        unknown = sorted({*more} - {item.name for item in dataclasses.fields(self._collator)})
        if unknown:
            raise NotServed(f"the collator of this release has no {', '.join(unknown)}")
        missing = sorted({*given} - {item.name for item in dataclasses.fields(self._collator)})
        if missing and (plan.replaced, plan.random) != (0.8, 0.1):
            raise NotServed(f"the collator of this release has no {', '.join(missing)}")
        collator = self._collator(
            tokenizer=self._tokenizer,
            return_tensors=self.returns,
            **more,
            **{name: value for name, value in given.items() if name not in missing},
        )
        end = int(self._tokenizer.eos_token_id)
        rows = [(end, *row, end) for row in plan.rows]
        with torch.random.fork_rng(devices=[]):
            # A collator with a seed of its own does not draw from these, which differ from call to call then.
            drawn = next(self._calls) if self.own_seed else plan.seed
            torch.manual_seed(drawn)
            kept = np.random.get_state()
            np.random.seed(drawn)
            batch = collator([self._feature(row, max(map(len, rows))) for row in rows])
            np.random.set_state(kept)
        found = []
        for ids, seen, labels in zip(
            rows, batch["input_ids"].tolist(), batch["labels"].tolist(), strict=True
        ):
            if any(label != IGNORED for label in labels[len(ids) :]):
                labels[0] = labels[len(ids)]  # a label of padding, which no row may have
            own = tuple(None if label == IGNORED else label for label in labels[: len(ids)])
            found.append(MaskedRow(ids, tuple(seen[: len(ids)]), own))
        return found

    def _feature(self, row: Sequence[int], width: int) -> dict[str, Any]:
        if self.word_size == 1:
            return {"input_ids": list(row), "attention_mask": [1] * len(row)}
        # The collator does not pad places of tokens in the text. A token is a byte; a blank without one ends a word.
        gap = width - len(row)
        starts = [place + place // self.word_size for place in range(len(row) - 2)]
        return {
            "input_ids": [*row, *[int(self._tokenizer.pad_token_id)] * gap],
            "attention_mask": [1] * len(row) + [0] * gap,
            "offset_mapping": [(0, 0), *((start, start + 1) for start in starts), (0, 0), *[(0, 0)] * gap],
        }


class MasksOfNumpy(Masks):
    """The same with arrays of NumPy."""

    returns = "np"


class MasksBySeed(Masks):
    """The same with a seed of the collator's own."""

    own_seed = True
    known_failures = (
        KnownFailure(
            "a seed of 0 counts as none", finding=NUMPY_AND_ZERO, releases=before("transformers", "5.19")
        ).of("R15.masked/seeds"),
    )


class MasksOfNumpyBySeed(MasksBySeed):
    """Both."""

    returns = "np"


class MaskedWords(Masks):
    """Words of two ids, masked as one."""

    word_size = 2


class MaskedWordsOfNumpy(MaskedWords):
    """The same with arrays of NumPy."""

    returns = "np"


ADAPTERS: dict[str, type[Any]] = {
    "collator-masking": Masks,
    "collator-masking-numpy": MasksOfNumpy,
    "collator-masking-seed": MasksBySeed,
    "collator-masking-numpy-seed": MasksOfNumpyBySeed,
    "collator-masking-words": MaskedWords,
    "collator-masking-words-numpy": MaskedWordsOfNumpy,
}
