"""Worked examples of pairs of options of Transformers' data collators."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

from seatrial.targets.common.worked_rows import Row
from seatrial.targets.transformers.worked.paired_batches import (
    COMMON,
    MASKS,
    PADDED,
    Due,
    Options,
    each,
    end_to_end,
    modelled,
    of_choices,
    of_sequences,
    of_tokens,
    with_padding,
)

LABELS = (None, "label", "labels")
TABLE: Sequence[tuple[str, Mapping[str, Sequence[Any]], Callable[[Any, Options], Sequence[tuple[Any, Due]]]]] = (
    ("DataCollatorWithPadding", {**PADDED, "label": (None, "label", "labels", "label_ids")}, with_padding),
    ("DataCollatorForTokenClassification", {**PADDED, "label": LABELS, "fill": (-100, -1)}, of_tokens),
    (
        "DataCollatorForSeq2Seq",
        {**PADDED, "label": LABELS, "fill": (-100, 3), "lengths": ("long", "short", "none"), "decoder": (False, True)},
        of_sequences,
    ),
    (
        "DataCollatorForMultipleChoice",
        {**{name: values for name, values in PADDED.items() if name not in ("form", "extra")}, "returns": ("pt",),
         "label": ("label", "labels"), "choices": (2, 3)},
        of_choices,
    ),
    (
        "DataCollatorForLanguageModeling",
        {**COMMON, "masks": tuple(MASKS), "pad": ("own", "end of the text"), "seed": (None, 0, 3),
         "specials": (False, True), "plain": (False, True)},
        modelled,
    ),
    (
        "DataCollatorWithFlattening",
        {"form": COMMON["form"], "returns": COMMON["returns"], "extra": (False, True), "rows": (3, 1),
         "labels": (False, True), "empty": (False, True), "places": (True, False), "bounds": (False, True),
         "numbers": (False, True), "separator": (-100, 5), "of call": (None, 6), "first": (0, 2)},
        end_to_end,
    ),
)  # fmt: skip
# Sources: the documentation of the collators.
PAIRED_BATCH_ROWS: Sequence[Row] = tuple(
    Row("batches", f"transformers:{name}", "pairs of options", partial(each, factors, pair), [], since="4.57")
    for name, factors, pair in TABLE
)
