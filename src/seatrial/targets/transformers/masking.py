"""`DataCollatorForLanguageModeling` with masking; see `contracts.masking`."""

from __future__ import annotations

import dataclasses
from collections.abc import Collection, Sequence
from typing import Any

import torch

from seatrial.relations.contracts.masking import MaskedRow, MaskingPlan
from seatrial.relations.not_served import NotServed
from seatrial.targets.common.known import KnowsFailures
from seatrial.targets.common.target import find_name
from seatrial.targets.common.tiny import ordinary_ids, tiny_tokenizer

IGNORED = -100


class Masks(KnowsFailures):
    """A batch padded on the right, of rows with a start and an end."""

    def __init__(self) -> None:
        """Find the collator."""
        self._collator: Any = find_name("transformers", ["transformers:DataCollatorForLanguageModeling"])
        self._tokenizer = tiny_tokenizer(padding_side="right")
        self._tokenizer.add_special_tokens({"mask_token": "<mask>"})
        self.ordinary_ids: Sequence[int] = ordinary_ids(self._tokenizer)
        self.special_ids: Collection[int] = frozenset(self._tokenizer.all_special_ids)
        self.mask_id = int(self._tokenizer.mask_token_id)

    def masked(self, plan: MaskingPlan) -> list[MaskedRow]:
        given = {
            "mlm_probability": plan.share,
            "mask_replace_prob": plan.replaced,
            "random_replace_prob": plan.random,
        }
        missing = sorted({*given} - {item.name for item in dataclasses.fields(self._collator)})
        if missing and (plan.replaced, plan.random) != (0.8, 0.1):
            raise NotServed(f"the collator of this release has no {', '.join(missing)}")
        collator = self._collator(
            tokenizer=self._tokenizer, **{name: value for name, value in given.items() if name not in missing}
        )
        end = int(self._tokenizer.eos_token_id)
        rows = [(end, *row, end) for row in plan.rows]
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(plan.seed)
            batch = collator([{"input_ids": list(row), "attention_mask": [1] * len(row)} for row in rows])
        found = []
        for ids, seen, labels in zip(
            rows, batch["input_ids"].tolist(), batch["labels"].tolist(), strict=True
        ):
            if any(label != IGNORED for label in labels[len(ids) :]):
                labels[0] = labels[len(ids)]  # a label of padding, which no row may have
            own = tuple(None if label == IGNORED else label for label in labels[: len(ids)])
            found.append(MaskedRow(ids, tuple(seen[: len(ids)]), own))
        return found


ADAPTERS: dict[str, type[Any]] = {"collator-masking": Masks}
