"""Inputs of a public model class, found by trying: ids, pictures, films, sounds, and the labels of its loss."""

from __future__ import annotations

import inspect
from collections.abc import Iterator, Mapping
from itertools import chain
from typing import Any

import torch
from torch import Tensor

from seatrial.relations.not_served import NotServed
from seatrial.targets.transformers.any_inputs import ROWS, candidates, options_of
from seatrial.targets.transformers.any_pictures import GRIDS, _in_grids, films_of, media_of, rows_with
from seatrial.targets.transformers.small_models import END, PAD

Inputs = dict[str, Any]
CLASSES = 3
IGNORED = -100
LENGTHS = (9, 6, 8)
"""Ids of each row of a padded batch."""
OF_ROWS = ("SequenceClassification", "MultipleChoice", "NextSentence", "ImageClassification", "AudioClassification",
           "SequenceClassifier", "VideoClassification")  # fmt: skip
"""Parts of the names of classes that have a label a row."""
BY_THE_END = ("SequenceClassification", "QuestionAnswering")
OF_SOUNDS = ("input_features", "input_values", "audio_values")


def takes(function: Any) -> Mapping[str, inspect.Parameter]:
    """Return the parameters of a function by name."""
    return inspect.signature(function).parameters


def _generator(seed: int) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def _extras(model: Any, inputs: Inputs) -> Inputs:
    """Return more inputs of texts that a model has: types of tokens, boxes, and languages."""
    known, ids = takes(model.forward), inputs.get("input_ids")
    if ids is None:
        return {}
    found: Inputs = {}
    if "token_type_ids" in known and "token_type_ids" not in inputs:
        kinds = next(options_of(model.config, ["type_vocab_size"]), 0)
        if isinstance(kinds, int) and kinds > 1:
            places = torch.arange(ids.shape[-1]).expand(ids.shape)
            found["token_type_ids"] = (places > 3).long()
    if "bbox" in known:
        first = torch.randint(0, 20, (*ids.shape, 2), generator=_generator(5))
        found["bbox"] = torch.cat(
            [first, first + torch.randint(1, 20, first.shape, generator=_generator(6))], -1
        )
    if "langs" in known and getattr(model.config, "n_langs", 1) > 1:
        found["langs"] = torch.ones_like(ids)
    return found


def _sounds(model: Any) -> Iterator[Inputs]:
    """Yield rows of ids with places of sounds and the sounds' features."""
    known = takes(model.forward)
    mark = next(options_of(model.config, ["audio_token_id", "audio_token_index"]), None)
    if mark is None or "input_ids" not in known:
        return
    for one in candidates(model):
        sounds = {name: value for name, value in one.items() if name in OF_SOUNDS}
        if not sounds:
            continue
        length = max(next(iter(sounds.values())).shape[1:])
        for count in dict.fromkeys((length // 4, length // 8, length // 2, length, 1, 2)):
            ids = torch.tensor([[7, 9, *[mark] * count, 11 + row, 8] for row in range(ROWS)])
            mask = {
                name: torch.ones(ROWS, length, dtype=torch.long) for name in known if name in FEATURE_MASKS
            }
            yield {"input_ids": ids, "attention_mask": torch.ones_like(ids), **sounds, **mask}
            yield {"input_ids": ids, "attention_mask": torch.ones_like(ids), **sounds}


FEATURE_MASKS = ("feature_attention_mask", "input_features_mask", "audio_attention_mask")


def every_candidate(model: Any) -> Iterator[Inputs]:
    """Yield inputs that a model class may take, with pictures and sounds first."""
    known = takes(model.forward)
    if "input_ids" in known and ("pixel_values" in known or "pixel_values_videos" in known):
        for media in chain(media_of(model), films_of(model)):
            try:
                inputs = rows_with(model, media)
            except NotServed:
                continue
            inputs.pop("labels", None)
            yield inputs
    if "grid_thw" in known:
        patches = _in_grids(model.config, GRIDS, ("pixel_values", "grid_thw")).given
        yield {next(iter(known)): patches["pixel_values"], "grid_thw": patches["grid_thw"]}
    yield from _sounds(model)
    for inputs in candidates(model):
        if getattr(model.config, "is_encoder_decoder", False) and type(model).__name__.endswith(BY_THE_END):
            ids = inputs["input_ids"].clone()
            ids[:, -1] = END  # of which the state is classified; a padded row loses it
            yield {"input_ids": ids}
        more = _extras(model, inputs)
        if more:
            yield {**inputs, **more}
        yield dict(inputs)
        if "MultipleChoice" in type(model).__name__:
            yield {name: torch.stack([value, value.flip(1)], 1) for name, value in {**inputs, **more}.items()}


def padded_to(inputs: Inputs, side: str) -> Inputs:
    """Return rows of ids of unequal lengths, padded on a side.

    Raises:
        NotServed: the input is not of ids alone.
    """
    ids = inputs.get("input_ids")
    if ids is None or ids.dim() != 2 or ids.shape[1] != LENGTHS[0] or "attention_mask" in inputs:
        raise NotServed("no rows of ids alone")
    places = torch.arange(ids.shape[1])
    gaps = torch.tensor([LENGTHS[0] - one for one in LENGTHS])[:, None]
    shown = places >= gaps if side == "left" else places < LENGTHS[0] - gaps
    found = {**inputs, "input_ids": ids.masked_fill(~shown, PAD), "attention_mask": shown.long()}
    if bool((ids[:, -1] == END).all()):
        last = torch.where(shown, places, 0).argmax(1)
        found["input_ids"][torch.arange(ROWS), last] = END
    if "token_type_ids" in found:
        found["token_type_ids"] = found["token_type_ids"] * shown
    return found


def labels_of(model: Any, inputs: Inputs) -> Iterator[Inputs]:
    """Yield labels that the loss of a model class may take, the likely ones first."""
    known, name = takes(model.forward), type(model).__name__
    classes = torch.tensor([1, 0, 2])
    if "start_positions" in known:
        yield {"start_positions": torch.tensor([2, 1, 0]), "end_positions": torch.tensor([4, 1, 3])}
    if "next_sentence_label" in known and "labels" in known:
        yield {"labels": inputs["input_ids"], "next_sentence_label": torch.tensor([1, 0, 1])}
    if "future_values" in known:
        for shape in ((ROWS, 8, 1), (ROWS, 8)):
            yield {"future_values": torch.randn(shape, generator=_generator(7))}
    if "labels" not in known:
        return
    ids = inputs.get("decoder_input_ids", inputs.get("input_ids"))
    if any(part in name for part in OF_ROWS):
        yield {"labels": torch.tensor([1, 0, 1]) if "Choice" in name or "NextSentence" in name else classes}
    if ids is not None and ids.dim() == 2:
        places = torch.arange(ids.shape[1]).expand(ids.shape)
        hidden = (places % 4 == 1) | (ids == PAD)
        if "TokenClassification" in name or "AudioFrame" in name:
            yield {"labels": (ids % CLASSES).masked_fill(hidden, IGNORED)}
        yield {"labels": ids.masked_fill(hidden, IGNORED)}
    yield {"labels": classes}
    yield {"labels": torch.tensor([[5, 9, 7], [4, 6, IGNORED], [8, 5, 5]])}
    yield {"labels": classes.float()}


def shown_part(value: Tensor, inputs: Inputs) -> Tensor:
    """Return the numbers of an output at places that are no padding."""
    for name in ("attention_mask", "decoder_attention_mask"):
        mask = inputs.get(name)
        if not isinstance(mask, Tensor) or mask.dim() != 2 or bool(mask.all()):
            continue
        if value.dim() >= 2 and value.shape[:2] == mask.shape:
            return value[mask.bool()]
        if value.dim() == 4 and value.shape[0] == len(mask) and value.shape[2:] == (mask.shape[1],) * 2:
            return value.transpose(1, 2)[mask.bool()]
    return value


def tensors_in(found: Any, before: str = "") -> dict[str, list[Tensor]]:
    """Return the tensors of an output by the names of its fields; those in parts behind a dot, no caches."""
    if isinstance(found, Tensor):
        return {before or "output": [found]}
    named: dict[str, list[Tensor]] = {}
    if hasattr(found, "items"):
        for name, value in found.items():
            if "past_key" not in name and "cache" not in name:
                named |= tensors_in(value, f"{before}.{name}" if before else name)
        return named
    if isinstance(found, (list, tuple)):
        every = [one for part in found for group in tensors_in(part).values() for one in group]
        return {before or "output": every} if every else {}
    return {}
