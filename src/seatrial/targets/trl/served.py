"""The sequences of a batch as it goes into a trainer's loss, in each form that TRL's collators have had."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from seatrial.relations.contracts.trainers import ServedSequence

IGNORED = -100
Places = tuple[Tensor, Tensor, Tensor | None, Tensor | None]
"""Of a row of ids: the ids, whether each is shown, the targets and the positions."""


def sequences_of(
    inputs: Mapping[str, Any], pad_id: int, known: Sequence[Sequence[int]]
) -> tuple[list[ServedSequence], int]:
    """Return the sequences of a batch, and how many places of padding are targets; none of an unknown form.

    Args:
        inputs: the batch.
        pad_id: the id of padding.
        known: sequences by which a packed row without positions is divided.
    """
    found: list[ServedSequence] = []
    num_padded = 0
    for ids, shown, targets, positions in _rows(inputs):
        if targets is not None:
            num_padded += int((targets & ~shown).sum())
        for first, last in _spans(ids, shown, positions, known):
            kept = shown[first:last]
            own = ids[first:last][kept]
            if positions is not None and bool((own == pad_id).all()):
                num_padded += 0 if targets is None else int(targets[first:last].sum())
                continue
            found.append(
                ServedSequence(
                    ids=tuple(own.tolist()),
                    targets=None if targets is None else tuple(targets[first:last][kept].tolist()),
                    positions=None if positions is None else tuple(positions[first:last][kept].tolist()),
                    follows=bool(shown[:first].any()),
                )
            )
    return found, num_padded


CUT_IN_STEPS = ("input_ids", "attention_mask", "completion_mask")
"""What DPO of 0.29 cuts to its maximum length within a step, and not in its batches."""


def as_trained(inputs: Mapping[str, Any], trainer: Any) -> Mapping[str, Any]:
    """Return a batch as it goes into the model of a trainer that cuts its rows within a step."""
    cut = getattr(trainer, "_truncate_inputs", None)
    if cut is None or any(name not in inputs for name in CUT_IN_STEPS):
        return inputs
    return {**inputs, **dict(zip(CUT_IN_STEPS, cut(*(inputs[name] for name in CUT_IN_STEPS)), strict=True))}


def _spans(
    ids: Tensor, shown: Tensor, positions: Tensor | None, known: Sequence[Sequence[int]]
) -> Iterator[tuple[int, int]]:
    """Yield where each sequence of a row of ids begins and ends: where positions begin again."""
    if positions is not None:
        starts = [place for place, one in enumerate(positions.tolist()) if one == 0 and shown[place]]
        yield from zip(starts, [*starts[1:], len(shown)], strict=True)
        return
    given, place = ids.tolist(), 0
    spans: list[tuple[int, int]] = []
    while bool(shown.all()) and place < len(given):
        length = next((len(one) for one in known if given[place : place + len(one)] == list(one)), len(given))
        spans.append((place, min(place + length, len(given))))
        place += length
    yield from spans or [(0, len(given))]


def _rows(inputs: Mapping[str, Any]) -> Iterator[Places]:
    """Yield the rows of ids of a batch."""
    for name, mask, target in _names(inputs):
        ids = inputs[name]
        shown = inputs.get(mask)
        shown = torch.ones_like(ids, dtype=torch.bool) if shown is None else shown.bool()
        if shown.ndim != ids.ndim:
            return
        targets = _targets(inputs, target)
        positions = inputs.get("position_ids") if name == "input_ids" else None
        if positions is None and mask not in inputs:
            return  # packed rows without known borders
        for row in range(len(ids)):
            yield (
                ids[row],
                shown[row],
                None if targets is None else targets[row],
                None if positions is None else positions[row],
            )


def _targets(inputs: Mapping[str, Any], name: str) -> Tensor | None:
    given = inputs.get(name)
    if given is None:
        return None
    found: Tensor = given != IGNORED if "labels" in name else given.bool()
    return found


def _names(inputs: Mapping[str, Any]) -> Sequence[tuple[str, str, str]]:
    """Return the names of ids, of their mask and of their targets."""
    if "input_ids" in inputs:
        target = "labels" if "labels" in inputs else "completion_mask"
        return [("input_ids", "attention_mask", target)]
    if "completion_input_ids" in inputs:  # KTO before 1.7: prompt and completion
        return [("completion_input_ids", "completion_attention_mask", "completion_labels")]
    sides = ("chosen", "rejected")
    if "chosen_labels" in inputs:  # without labels prompts are apart, and joined and truncated later
        return [(f"{side}_input_ids", f"{side}_attention_mask", f"{side}_labels") for side in sides]
    if "input_ids_chosen" in inputs:
        return [(f"input_ids_{side}", f"attention_mask_{side}", "") for side in sides]
    return []
