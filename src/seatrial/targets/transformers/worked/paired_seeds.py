"""Worked examples of data collators that draw, for pairs of seeds and options: which batches are the same."""

from __future__ import annotations

import inspect
import random
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np
import torch

from seatrial.relations.not_served import NotServed
from seatrial.targets.common.known import KnownFailure, before
from seatrial.targets.common.worked_rows import Row
from seatrial.targets.transformers.worked.answered_pairs import Table, cases_of_pairs
from seatrial.targets.transformers.worked.calls_collators import tokenizer as bytes_tokenizer
from seatrial.targets.transformers.worked.weights import LATER

LENGTH, NUM_BATCHES = 40, 3
"""Tokens of a row: enough that two draws are never alike; and how many batches are made of the same rows."""
SEEDS: Sequence[int] = (0, 1, 3)
STATES = (101, 102)
"""Seeds of the shared generators; none of them is a collator's."""
TABLE: Table = {
    "seed": {"no seed": None, **{f"seed {seed}": seed for seed in SEEDS}},
    "returns": {"tensors": "pt", "arrays": "np"},
    "masks": {"masks": {}, "masks alone": {"mask_replace_prob": 1.0, "random_replace_prob": 0.0},
              "drawn ids": {"mask_replace_prob": 0.0, "random_replace_prob": 1.0},
              "a mixture": {"mask_replace_prob": 0.3, "random_replace_prob": 0.3},
              "whole words": {"whole_word_mask": True, "mask_replace_prob": 1.0, "random_replace_prob": 0.0}},
    "rows": {"three rows": 3, "a row": 1},
    "multiple": {"": None, "multiple of 16": 16},
}  # fmt: skip
PERMUTED: Table = {
    "seed": {"no seed": None},
    "returns": {"tensors": "pt", "arrays": "np"},
    "masks": {"a sixth": {}, "a half": {"plm_probability": 0.5}, "short spans": {"max_span_length": 2}},
    "rows": {"three rows": 3, "a row": 1},
}


def _draw(state: int) -> None:
    torch.manual_seed(state)
    np.random.seed(state)
    random.seed(state)


def _batches(made: Any, case: Mapping[str, Any], seed: int | None, state: int) -> list[list[Any]]:
    """Return what batches of one collator hold, made from this state of the shared generators."""
    own = {**case["masks"], "return_tensors": case["returns"]}
    known = inspect.signature(made).parameters
    if "mlm_probability" in known:
        own |= {"mlm_probability": 0.5, "pad_to_multiple_of": case["multiple"]}
    own |= {} if seed is None else {"seed": seed}
    if missing := {*own} - {*known}:
        raise NotServed(f"it has no {', '.join(sorted(missing))}")
    rows: list[dict[str, Any]] = [
        {"input_ids": [40 + (row * 5 + place * 3) % 30 for place in range(LENGTH)]}
        for row in range(case["rows"])
    ]
    if "whole_word_mask" in own:
        gaps = [(place + place // 2, place + place // 2 + 1) for place in range(LENGTH)]
        rows = [{**row, "offset_mapping": gaps, "special_tokens_mask": [0] * LENGTH} for row in rows]
        own.pop("pad_to_multiple_of")
    collator = made(bytes_tokenizer("right"), **own)
    _draw(state)
    batches = [collator([dict(row) for row in rows]) for _ in range(NUM_BATCHES)]
    names = [name for name in ("input_ids", "labels", "perm_mask", "target_mapping") if name in batches[0]]
    return [[batch[name].tolist() for name in names] for batch in batches]


def _faults(case: Mapping[str, Any], made: Any) -> list[str]:
    """Return which batches are the same, or others, that should not be."""
    seed = case["seed"]
    kept = torch.get_rng_state(), np.random.get_state(), random.getstate()
    try:
        first, again, elsewhere = (
            _batches(made, case, seed, state) for state in (*STATES[:1] * 2, STATES[1])
        )
        others = (
            []
            if seed is None
            else [_batches(made, case, one, STATES[0]) for one in (*SEEDS, None) if one != seed]
        )
    finally:
        torch.set_rng_state(kept[0])
        np.random.set_state(kept[1])
        random.setstate(kept[2])
    wrong = [] if again == first else ["made again from the same state: other batches"]
    if seed is None and elsewhere == first:
        wrong.append("from another state of the shared generators: the same batches")
    if seed is not None and elsewhere != first:
        wrong.append("the seed is the same, and the batches follow the shared generators")
    if first in others:
        wrong.append("another seed gives the same batches")
    if any(one == other for one, other in zip(first[1:], first, strict=False)):
        wrong.append("two batches in a row are masked alike")
    return wrong


ZERO = KnownFailure(
    "a seed of zero is taken for none", finding=LATER, releases=before("transformers", "5.19")
)


def _rows() -> Iterator[Row]:
    for name, table in (
        ("DataCollatorForLanguageModeling", TABLE), ("DataCollatorForPermutationLanguageModeling", PERMUTED),
    ):  # fmt: skip
        for what, case in cases_of_pairs(table):
            yield Row(
                "batches", f"transformers:{name}", f"draws: {what}", partial(_faults, case), [], since="4.57",
                known=ZERO if case["seed"] == 0 else None,
            )  # fmt: skip


# Source: the documentation of the collators: without a seed the shared generators are drawn from.
PAIRED_SEED_ROWS: Sequence[Row] = tuple(_rows())
