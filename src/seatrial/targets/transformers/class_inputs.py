"""Inputs and further arguments of every class of a model's module; see `class_records`."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import torch
from torch import Tensor

from seatrial.targets.transformers.any_inputs import LENGTH, ROWS, candidates
from seatrial.targets.transformers.any_inputs import options_of as values_of
from seatrial.targets.transformers.any_pictures import IDS, films_of, media_of, rows_with
from seatrial.targets.transformers.class_configs import parts_of
from seatrial.targets.transformers.class_parts import inputs_of_parts
from seatrial.targets.transformers.small_models import END, VOCABULARY

Inputs = dict[str, Any]
BINS = ("num_mel_bins", "feature_size", "input_feat_size", "input_dim", "num_mels")
"""Names of the number of features of a moment of a sound."""
T_DECODER = 6
LABELS_OF = (
    "labels", "start_positions", "end_positions", "next_sentence_label", "sentence_order_label", "mc_labels",
)  # fmt: skip


def drawn(seed: int, *shape: int) -> Tensor:
    """Return normal numbers of a seed."""
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


def whole_numbers(seed: int, top: int, *shape: int) -> Tensor:
    """Return whole numbers below a bound."""
    return torch.randint(0, top, shape, generator=torch.Generator().manual_seed(seed))


def _ids(seed: int, *shape: int) -> Tensor:
    return 3 + whole_numbers(seed, 45, *shape)


def takes(function: Any) -> Mapping[str, inspect.Parameter]:
    """Return the parameters of a function by name."""
    return inspect.signature(function).parameters


def inputs_of(model: Any) -> Iterator[Inputs]:
    """Yield inputs that a class may take, the likely ones first."""
    names = takes(model.forward)
    for inputs in filter(None, _likely(model)):
        rows = len(next(iter(inputs.values())))
        size = inputs["input_ids"].shape[-1] if "input_ids" in inputs else LENGTH
        given = {
            "qformer_input_ids": _ids(8, rows, 5),
            "image_embeds_position_mask": ((torch.arange(size) > 0) & (torch.arange(size) < 5))
            .long()
            .expand(rows, size),
            "image_attention_mask": torch.ones(rows, size, 4, dtype=torch.long),
            "backbone_last_hidden_state": drawn(8, rows, width_of(model.config)),
            "codebook_idx": 2,
            "query_embeds": drawn(8, rows, 4, width_of(model.config)),
        }
        more = {name: value for name, value in given.items() if name in names and name not in inputs}
        if more:
            yield {**inputs, **more}
        yield inputs
    yield from inputs_of_parts(model)


def _likely(model: Any) -> Iterator[Inputs]:
    names = takes(model.forward)
    if (
        "pixel_values" in names
        and "input_ids" in names
        and next(values_of(model.config, IDS), None) is not None
    ):
        for media in media_of(model):
            try:
                inputs = rows_with(model, media)
            except Exception:  # noqa: BLE001  no id of pictures
                break
            yield {name: value for name, value in inputs.items() if name not in LABELS_OF}
    if type(model).__name__.endswith("MultipleChoice"):
        yield {"input_ids": _ids(5, ROWS, 2, LENGTH)}
    if type(model).__name__.endswith("DoubleHeadsModel"):
        yield {"input_ids": _ids(5, ROWS, 2, LENGTH), "mc_token_ids": torch.tensor([[2, 8], [8, 3], [4, 4]])}
    yield from _with_sounds(model)
    yield from _with_media(model)
    yield from candidates(model)
    if "codebook_idx" in names:
        yield {"input_ids": whole_numbers(5, 14, ROWS, LENGTH, 8)}
    if "encoder_hidden_states" in names and "input_ids" in names:
        states = drawn(8, ROWS, 5, width_of(model.config))
        yield {"input_ids": _ids(5, ROWS, LENGTH), "encoder_hidden_states": states}
        yield {"input_ids": whole_numbers(5, 14, ROWS, LENGTH, 3), "encoder_hidden_states": states}
    if "decoder_input_ids" in names:
        yield {
            "input_ids": _ids(5, ROWS, LENGTH),
            "decoder_input_ids": whole_numbers(5, 14, ROWS, T_DECODER, 3),
        }
    if "input_ids" in names:  # rows that are judged by the place of their end
        yield {"input_ids": torch.cat([_ids(1, ROWS, LENGTH - 1), torch.full((ROWS, 1), END)], 1)}
    if "encoder_outputs" in names and "decoder_input_ids" in names:
        states = drawn(8, ROWS, LENGTH, width_of(model.config))
        yield {"encoder_outputs": (states,), "decoder_input_ids": _ids(2, ROWS, T_DECODER)}
    for known in (
        "hidden_states",
        "inputs_embeds",
        "encoder_hidden_states",
        "input_features",
        "query_embeds",
    ):
        if known in names:
            states = drawn(8, ROWS, LENGTH, width_of(model.config))
            yield {known: states}
            yield {known: states, "attention_mask": torch.ones(ROWS, LENGTH, dtype=torch.long)}
    if "input_ids" in names:
        books = next(values_of(model.config, ["num_codebooks", "n_codes_total"]), 3)
        yield {"input_ids": whole_numbers(5, 14, ROWS, LENGTH, books)}
        yield {"input_ids": whole_numbers(5, 14, ROWS, books, LENGTH)}
        yield {"input_ids": whole_numbers(5, 14, ROWS * books, LENGTH)}
    if "input_values" in names and "input_ids" in names:
        yield {"input_ids": _ids(5, ROWS, LENGTH), "input_values": drawn(4, ROWS, 1600)}
    if "input_features" in names and "input_ids" in names:
        for shape in ((ROWS, 8, 64), (ROWS, 64, 8), (ROWS, 1, 64, 8), (ROWS, 1, 64, 64)):
            yield {"input_ids": _ids(5, ROWS, LENGTH), "input_features": drawn(4, *shape)}


def _sounds(model: Any) -> Iterator[Tensor]:
    """Yield features of sounds of each size that a part of the configuration names."""
    known = [vars(part) for part in parts_of(model.config).values()]
    bins = [value for one in known for name, value in one.items() if name in BINS and isinstance(value, int)]
    lengths = [2 * value for one in known for name, value in one.items() if name == "max_source_positions"]
    for size in dict.fromkeys((*bins, 8)):
        for length in (*lengths, 64, 48):
            yield drawn(4, ROWS, size, length)
            yield drawn(4, ROWS, length, size)


def _with_sounds(model: Any) -> Iterator[Inputs]:
    """Yield rows of ids with as many marks as their sounds have features."""
    names = takes(model.forward)
    mark = next(values_of(model.config, ["audio_token_id", "audio_token_index"]), None)
    method = getattr(model, "get_audio_features", None)
    if mark is None or method is None or not {"input_ids", "input_features"} <= {*names}:
        return
    for features in _sounds(model):
        given = {"input_features": features}
        if "input_features_mask" in names:
            given["input_features_mask"] = torch.ones(ROWS, max(features.shape[1:]), dtype=torch.long)
        try:
            with torch.no_grad():
                found = method(**{name: value for name, value in given.items() if name in takes(method)})
        except Exception:  # noqa: BLE001  sounds of another form
            continue
        found = getattr(found, "pooler_output", found)
        found = torch.cat(list(found)) if isinstance(found, (list, tuple)) else found
        total = len(found) if found.dim() == 2 else found.shape[0] * found.shape[1]
        count = total // ROWS
        marks = torch.full((ROWS, count), mark)
        yield {"input_ids": torch.cat([_ids(5, ROWS, 3), marks, _ids(6, ROWS, 4)], 1), **given}


def _with_media(model: Any) -> Iterator[Inputs]:
    """Yield ids with pictures or sounds, of each size that a part of the configuration names."""
    names = takes(model.forward)
    known = [vars(part) for part in parts_of(model.config).values()]
    ids = {"input_ids": _ids(5, ROWS, LENGTH)} if "input_ids" in names else {}
    if "decoder_input_ids" in names:
        ids = {"decoder_input_ids": _ids(2, ROWS, T_DECODER), **ids}
    if "pixel_values" in names:
        sizes = [value for one in known for name, value in one.items() if name in ("image_size", "img_size")]
        for size in dict.fromkeys(value for value in (*sizes, 16, 32) if isinstance(value, int)):
            yield {**ids, "pixel_values": drawn(4, ROWS, 3, size, size)}
    if "input_features" in names:
        yield from ({**ids, "input_features": features} for features in _sounds(model))
    if "input_values" in names:
        yield {**ids, "input_values": drawn(4, ROWS, 1600)}
        yield {**ids, "input_values": drawn(4, ROWS, 1, 3200)}


def film_inputs(model: Any) -> Iterator[Inputs]:
    """Yield inputs with films."""
    for media in films_of(model):
        yield {name: value for name, value in rows_with(model, media).items() if name not in LABELS_OF}


def width_of(config: Any) -> int:
    """Return the width of the states of a model's text."""
    text = config.get_text_config()
    for one in (text, config):
        for name in ("hidden_size", "d_model", "n_embd", "dim", "emb_dim"):
            if isinstance(getattr(one, name, None), int):
                return int(getattr(one, name))
    return 32


def _length(inputs: Inputs, name: str = "input_ids") -> int:
    return int(inputs[name].shape[-1])


def _mask(inputs: Inputs, name: str, *, left: bool = False) -> Tensor:
    size = _length(inputs, name)
    gaps = torch.tensor([0, 3, 1])
    places = torch.arange(size)
    mask = places >= gaps[:, None] if left else places < size - gaps[:, None]
    return mask.long() if inputs[name].dim() == 2 else mask.long()[:, None].expand(inputs[name].shape)


def _states(model: Any, length: int) -> Tensor:
    return drawn(9, ROWS, length, width_of(model.config))


def _embedded(model: Any, inputs: Inputs) -> Inputs:
    ids = inputs["input_ids"]
    given = {name: value for name, value in inputs.items() if name != "input_ids"}
    if len(inputs) > 1 and "decoder_input_ids" not in inputs:  # marks are found by their embeddings
        with torch.no_grad():
            return {**given, "inputs_embeds": model.get_input_embeddings()(ids)}
    return {**given, "inputs_embeds": drawn(6, *ids.shape, width_of(model.config))}


def _heads(config: Any, layers: str = "num_hidden_layers") -> Tensor:
    text = config.get_text_config()
    num = getattr(text, "encoder_layers", None) or getattr(text, layers)
    return (whole_numbers(3, 3, num, text.num_attention_heads) > 0).float()


def _with(name: str, value: Any) -> Callable[[Any, Inputs], Inputs]:
    return lambda model, inputs: {**inputs, name: value(model, inputs) if callable(value) else value}


def _places(model: Any, inputs: Inputs) -> Tensor:
    return (torch.arange(_length(inputs)) + torch.tensor([[0], [2], [5]])).contiguous()


def _sized(name: str) -> Callable[[Any, Inputs], Tensor]:
    """Return the maker of zeros and ones of the shape of an input."""
    return lambda model, inputs: (whole_numbers(7, 2, *inputs[name].shape)).long()


ARGUMENTS: Mapping[str, tuple[str, Callable[[Any, Inputs], Inputs]]] = {
    "padded": ("attention_mask", _with("attention_mask", lambda m, i: _mask(i, "input_ids"))),
    "padded left": ("attention_mask", _with("attention_mask", lambda m, i: _mask(i, "input_ids", left=True))),
    "types": ("token_type_ids", _with("token_type_ids", _sized("input_ids"))),
    "positions": ("position_ids", _with("position_ids", _places)),
    "embedded": ("inputs_embeds", _embedded),
    "decoder padded": (
        "decoder_attention_mask",
        _with("decoder_attention_mask", lambda m, i: _mask(i, "decoder_input_ids")),
    ),
    "decoder positions": (
        "decoder_position_ids",
        _with(
            "decoder_position_ids", lambda m, i: torch.arange(2, 2 + _length(i, "decoder_input_ids"))[None]
        ),
    ),
    "decoder embedded": (
        "decoder_inputs_embeds",
        lambda m, i: {
            **{name: value for name, value in i.items() if name != "decoder_input_ids"},
            "decoder_inputs_embeds": drawn(6, ROWS, T_DECODER, width_of(m.config)),
        },
    ),
    "encoder states": ("encoder_hidden_states", _with("encoder_hidden_states", lambda m, i: _states(m, 5))),
    "encoder padded": (
        "encoder_attention_mask",
        lambda m, i: {
            **i,
            "encoder_hidden_states": _states(m, 5),
            "encoder_attention_mask": torch.tensor([[1] * 5, [1] * 3 + [0] * 2, [0] + [1] * 4]),
        },
    ),
    "heads": ("head_mask", _with("head_mask", lambda m, i: _heads(m.config))),
    "decoder heads": ("decoder_head_mask", _with("decoder_head_mask", lambda m, i: _heads(m.config))),
    "cross heads": ("cross_attn_head_mask", _with("cross_attn_head_mask", lambda m, i: _heads(m.config))),
    "languages": ("langs", _with("langs", _sized("input_ids"))),
    "lengths": ("lengths", _with("lengths", torch.tensor([9, 6, 8]))),
    "boxes": (
        "bbox",
        _with("bbox", lambda m, i: whole_numbers(4, 40, *i["input_ids"].shape, 4).cumsum(-1).clamp(max=60)),
    ),
    "task types": ("task_type_ids", _with("task_type_ids", _sized("input_ids"))),
    "return loss": ("return_loss", _with("return_loss", True)),
    "last": ("logits_to_keep", _with("logits_to_keep", 3)),
    "some": ("logits_to_keep", _with("logits_to_keep", torch.tensor([1, 4]))),
    "interpolated": ("interpolate_pos_encoding", _with("interpolate_pos_encoding", True)),
    "earlier features": ("vision_feature_layer", _with("vision_feature_layer", -1)),
    "features of layers": ("vision_feature_layer", _with("vision_feature_layer", [-2, -1])),
    "full features": ("vision_feature_select_strategy", _with("vision_feature_select_strategy", "full")),
    "default features": (
        "vision_feature_select_strategy",
        _with("vision_feature_select_strategy", "default"),
    ),
    "routers": ("output_router_logits", _with("output_router_logits", True)),
    "uncached": ("use_cache", _with("use_cache", False)),
    "cached": ("use_cache", _with("use_cache", True)),
    "masked pictures": (
        "pixel_mask",
        lambda m, i: {**i, "pixel_mask": _pixel_mask(i["pixel_values"])},
    ),
    "marked": ("mm_token_type_ids", _with("mm_token_type_ids", _sized("input_ids"))),
    "masked sounds": (
        "attention_mask",
        lambda m, i: {**i, "attention_mask": _sound_mask(next(iter(i.values())), m.main_input_name)},
    ),
    "masked features": (
        "input_features_mask",
        lambda m, i: {**i, "input_features_mask": _sound_mask(i["input_features"], "input_features")},
    ),
    "padded sounds": (
        "padding_mask",
        lambda m, i: {**i, "padding_mask": _sound_mask(i["input_values"], "input_values")},
    ),
    "as a tuple": ("return_dict", _with("return_dict", False)),
}
"""By what is recorded: the parameter that a class must have, and the inputs with more."""


def _pixel_mask(pictures: Tensor) -> Tensor:
    mask = torch.ones(len(pictures), *pictures.shape[-2:], dtype=torch.long)
    mask[1, :, mask.shape[2] // 2 :] = 0
    return mask


def _sound_mask(value: Tensor, name: str) -> Tensor:
    if name == "input_ids":
        raise ValueError("no sounds")
    size = max(value.shape[1:])
    mask = torch.ones(len(value), size, dtype=torch.long)
    mask[1, size // 2 :] = 0
    mask[2, 3 * size // 4 :] = 0
    return mask


def labels_of(model: Any, inputs: Inputs) -> Iterator[Inputs]:
    """Yield labels that a class may take, the likely ones first."""
    names, kind = takes(model.forward), type(model).__name__
    num = int(getattr(model.config, "num_labels", 3) or 3)
    ids: Any = inputs.get("decoder_input_ids", inputs.get("input_ids"))
    rows = len(next(iter(inputs.values())))
    classes = torch.arange(rows) % max(num, 1)
    if "start_positions" in names:
        yield {"start_positions": torch.tensor([2, 1, 0]), "end_positions": torch.tensor([4, 1, 90])}
    if "next_sentence_label" in names or "sentence_order_label" in names:
        other = "next_sentence_label" if "next_sentence_label" in names else "sentence_order_label"
        yield {"labels": _left_out(ids), other: torch.tensor([0, 1, 1])}
    if "mc_labels" in names:
        yield {"labels": ids.clone(), "mc_labels": torch.tensor([0, 1, 1])}
    if "labels" not in names:
        return
    found: list[Any] = []
    if ids is not None and ids.dim() == 2:
        tokens = (ids % max(num, 1)).index_fill(1, torch.tensor([0]), -100)
        found = [tokens] if "Token" in kind else [_left_out(ids)]
        if "ForPreTraining" in kind:
            found.append(ids % 2)
    rowwise = [
        classes,
        classes % 2,
        drawn(3, rows),
        torch.nn.functional.one_hot(classes, max(num, 1)).float(),
    ]
    whole = any(
        part in kind for part in ("Sequence", "Choice", "Audio", "NextSentence", "ImageClass", "XVector")
    )
    spoken = [_left_out(_ids(12, rows, 4)), _ids(12, rows, 4) % 12]
    for value in [*rowwise, *found] if whole else [*found, *spoken, *rowwise]:
        yield {"labels": value}


def further_labels(model: Any) -> Iterator[tuple[str, str, Tensor]]:
    """Yield names, problems and labels of rows of other kinds than classes."""
    if "SequenceClassification" not in type(model).__name__:
        return
    num = int(model.config.num_labels)
    yield "numbers", "regression", drawn(3, ROWS, num)
    yield "several", "multi_label_classification", whole_numbers(3, 2, ROWS, num).float()


def _left_out(ids: Tensor) -> Tensor:
    return ids.masked_fill(torch.arange(ids.shape[1]) % 3 == 2, -100).clamp(max=VOCABULARY - 1)
