"""Inputs of text models with padding in ids and masks; see `class_rich`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from seatrial.relations.not_served import NotServed
from seatrial.targets.transformers.any_inputs import ROWS
from seatrial.targets.transformers.class_inputs import Inputs, labels_of, takes, whole_numbers
from seatrial.targets.transformers.class_outputs import called
from seatrial.targets.transformers.rich_configs import PADDING
from seatrial.targets.transformers.small_models import END

LENGTH, T_DECODER = 14, 9
AT_END = 6
"""Place of the end of a row that is classified."""
GAPS = (0, 4, 1)
"""Padded places of each row."""


def mask_of(size: int, *, left: bool = False, shape: Sequence[int] = ()) -> Tensor:
    """Return the mask of rows with `GAPS` at their ends, or starts; of several texts a row, by its shape."""
    places, gaps = torch.arange(size), torch.tensor(GAPS)[:, None]
    mask = (places >= gaps if left else places < size - gaps).long()
    return mask[:, None].repeat(1, shape[1], 1) if len(shape) == 3 else mask


def padded(model: Any, inputs: Inputs, *, left: bool = False, masked: bool = True) -> Inputs:
    """Return rows of ids whose ends, or starts, are the id of padding; `masked`: with their mask."""
    ids = inputs["input_ids"]
    mask = mask_of(ids.shape[-1], left=left, shape=ids.shape)
    given = {**inputs, "input_ids": ids.masked_fill(mask == 0, PADDING)}
    if masked and "attention_mask" in takes(model.forward):
        given["attention_mask"] = mask
    if "decoder_input_ids" in given:
        kept = mask_of(T_DECODER, shape=given["decoder_input_ids"].shape)
        given["decoder_input_ids"] = given["decoder_input_ids"].masked_fill(kept == 0, PADDING)
        if masked and "decoder_attention_mask" in takes(model.forward):
            given["decoder_attention_mask"] = kept
    return given


def rich_inputs(model: Any) -> Inputs:
    """Return rows of ids, of texts and continuations, and those of a decoder.

    Raises:
        NotServed: the class takes no ids.
    """
    names = takes(model.forward)
    if "input_ids" not in names:
        raise NotServed("no ids are taken")
    several = type(model).__name__.endswith(("MultipleChoice", "DoubleHeadsModel"))
    shape = (ROWS, 2, LENGTH) if several else (ROWS, LENGTH)
    found: Inputs = {"input_ids": 4 + whole_numbers(15, 43, *shape)}
    if type(model).__name__.endswith("DoubleHeadsModel"):
        found["mc_token_ids"] = torch.tensor([[2, 8], [8, 3], [4, 4]])
    if "decoder_input_ids" in names and type(model).__name__.endswith("SequenceClassification"):
        found["input_ids"][:, AT_END] = END  # whose state is classified; the decoder reads the same ids
    elif "decoder_input_ids" in names:
        found["decoder_input_ids"] = 4 + whole_numbers(16, 43, ROWS, T_DECODER)
    return found


def labelled(model: Any, inputs: Inputs) -> Inputs:
    """Return inputs with the first labels that a class takes.

    Raises:
        NotServed: it takes none.
    """
    for labels in labels_of(model, inputs):
        if "labels" in labels and labels["labels"].shape == inputs["input_ids"].shape:
            labels = {**labels, "labels": labels["labels"].masked_fill(inputs["input_ids"] == PADDING, -100)}
        try:
            loss = called(model, {**inputs, **labels}).loss
            if loss is not None and bool(torch.isfinite(loss).all()):
                return {**inputs, **labels}
        except Exception:  # noqa: BLE001  the class takes other labels, which are tried next
            continue
    raise NotServed("no labels that it takes were found")


def with_labels(model: Any, inputs: Inputs) -> Inputs:
    """Return inputs with labels, without any where the class takes none."""
    try:
        return labelled(model, inputs)
    except NotServed:
        return inputs
