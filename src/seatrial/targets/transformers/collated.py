"""Transformers' data collators on rows of ids; see `contracts.collators`."""

from __future__ import annotations

import inspect
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch

from seatrial.relations.contracts.collators import CollatorPlan
from seatrial.relations.not_served import NotServed
from seatrial.targets.common.known import KnownFailure, KnowsFailures, before
from seatrial.targets.common.target import Gone, find_name
from seatrial.targets.common.tiny import ordinary_ids, tiny_tokenizer

CLASSES: Mapping[str, str] = {
    "padding": "DataCollatorWithPadding",
    "token classes": "DataCollatorForTokenClassification",
    "sequences": "DataCollatorForSeq2Seq",
    "language modeling": "DataCollatorForLanguageModeling",
    "choices": "DataCollatorForMultipleChoice",
    "default": "DefaultDataCollator",
    "flattening": "DataCollatorWithFlattening",
    "permutation": "DataCollatorForPermutationLanguageModeling",
}
LATER = "Transformers: small functions of later releases"
WITHOUT_TOKENIZER = ("default", "flattening")


class Collates(KnowsFailures):
    """Every collator of the release, with a tokenizer of one token a byte."""

    known_failures = (
        KnownFailure(
            "whole numbers of NumPy become others", finding=LATER, releases=before("transformers", "5.22")
        ).of(
            "R15.collated/labels of type int64",
            "R15.collated/labels of type int32, numpy",
            "R15.collated/label_ids of type int64",
        ),
        KnownFailure(
            "every column becomes whole numbers", finding=LATER, releases=before("transformers", "5.16")
        ).of("R15.collated/a weight of each row, numpy"),
    )

    def __init__(self) -> None:
        """Make the tokenizer."""
        tokenizer = tiny_tokenizer()
        tokenizer.add_special_tokens({"mask_token": "<mask>"})
        self.ordinary_ids: Sequence[int] = ordinary_ids(tokenizer)
        self.pad_id, self.mask_id = int(tokenizer.pad_token_id), int(tokenizer.mask_token_id)

    def collated(self, plan: CollatorPlan) -> Mapping[str, Any]:
        try:
            made: Any = find_name("transformers", [f"transformers:{CLASSES[plan.kind]}"])
        except Gone as gone:
            raise NotServed(str(gone)) from gone
        missing = sorted({*plan.options} - {*inspect.signature(made).parameters})
        if missing:
            raise NotServed(f"{CLASSES[plan.kind]} of this release has no {', '.join(missing)}")
        options: dict[str, Any] = {**plan.options, "return_tensors": plan.returns}
        if plan.kind not in WITHOUT_TOKENIZER:
            options["tokenizer"] = tiny_tokenizer(padding_side=plan.side)
            options["tokenizer"].add_special_tokens({"mask_token": "<mask>"})
        rows = [
            {name: list(value) if isinstance(value, list) else value for name, value in row.items()}
            for row in plan.rows
        ]
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(plan.seed)
            kept = np.random.get_state()
            np.random.seed(plan.seed)
            try:
                batch = made(**options)(rows)
            finally:
                np.random.set_state(kept)
        wrong = torch.Tensor if plan.returns == "np" else np.ndarray
        mixed = [name for name, value in batch.items() if isinstance(value, wrong)]
        assert not mixed, f"{', '.join(mixed)} of another kind of arrays than {plan.returns}"
        return {name: _plain(value) for name, value in batch.items()}


def _plain(value: Any) -> Any:
    return value.tolist() if isinstance(value, (torch.Tensor, np.ndarray)) else value


ADAPTERS: dict[str, type[Any]] = {"collators": Collates}
"""One adapter has every collator."""
