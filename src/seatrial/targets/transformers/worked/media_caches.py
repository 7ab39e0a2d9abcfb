"""Worked examples of `generate` of models that take pictures: every kind of cache gives what none gives."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor

from seatrial.relations.not_served import NotServed
from seatrial.targets.common.worked_rows import Row
from seatrial.targets.transformers.any_pictures import Inputs, media_of, rows_with
from seatrial.targets.transformers.small_models import PAD, fresh_model, small_config
from seatrial.targets.transformers.worked.every_class import drawn_model

NUM_NEW = 4
LARGEST = 12_000_000
"""Parameters of a model that counts as small."""
CLOSE = 1e-3
"""Largest difference of logits, of which the largest are about 1."""
CACHES = ("dynamic", "dynamic_full", "static", "sliding_window", "hybrid", "hybrid_chunked")
"""Of GenerationConfig.cache_implementation, those that need no other package and no other device."""


def _windowed(config: Any) -> None:
    """Let text see its last ids alone in every second layer; pictures take four places each."""
    config.mm_tokens_per_image = 4
    text = config.text_config
    text.sliding_window, text.layer_types = 6, ["sliding_attention", "full_attention"]


def _full(config: Any) -> None:
    config.mm_tokens_per_image = 4
    config.text_config.layer_types = ["full_attention"] * 2


def _sections(config: Any) -> None:
    """Give each direction its share of a head of eight numbers."""
    text = config.get_text_config()
    for name in ("rope_scaling", "rope_parameters"):
        if isinstance(getattr(text, name, None), dict):
            setattr(text, name, {**getattr(text, name), "mrope_section": [2, 1, 1]})


Changed = Callable[[Any], None]


def _made(model_class: Any, change: Changed | None) -> Any:
    """Return a small model with drawn weights.

    Raises:
        NotServed: no small one is made.
    """

    def make() -> Any:
        config = small_config(model_class.config_class)
        if change is not None:
            change(config)
        return fresh_model(model_class, config, LARGEST)

    return drawn_model(make)


def _inputs(model: Any) -> Inputs:
    """Return the first rows with pictures that a model takes.

    Raises:
        NotServed: it takes none.
    """
    for media in media_of(model):
        rows = rows_with(model, media)
        rows.pop("labels", None)
        try:
            with torch.no_grad():
                model(**rows)
        except Exception:  # noqa: BLE001  pictures of another form
            continue
        return rows
    raise NotServed("no pictures were found that this model takes")


def _generated(model: Any, inputs: Inputs, **options: Any) -> Tensor:
    """Return [NUM_NEW, B, V] logits."""
    # An end that no row reaches: releases of 4 need one.
    found = model.generate(
        **inputs, max_new_tokens=NUM_NEW, do_sample=False, disable_compile=True, eos_token_id=[10_000],
        pad_token_id=PAD, return_dict_in_generate=True, output_logits=True, **options,
    )  # fmt: skip
    return torch.stack(found.logits)


def _cached(change: Changed | None, model_class: Any) -> list[str]:
    """Return the caches with which rows of pictures and texts get other logits than without one."""
    model, wrong = _made(model_class, change), []
    inputs = _inputs(model)
    due = _generated(model, inputs, use_cache=False)
    for name in CACHES:
        try:
            found = _generated(model, inputs, use_cache=True, cache_implementation=name)
        except ValueError as error:
            if "cache_implementation" in str(error):  # a release that does not have it
                continue
            raise
        gaps = (found - due).abs().flatten(1).amax(1)
        if not bool((gaps <= CLOSE).all()):
            wrong.append(f"{name}: logits differ by {[f'{float(gap):.1e}' for gap in gaps]}")
    return wrong


OF_4 = ("AyaVision", "Cohere2Vision", "DeepseekVL", "InternVL", "Llava", "Mistral3")
OF_5 = (
    "Cosmos3Edge", "Exaone4_5_", "GotOcr2", "HyperCLOVAXVisionV2", "LightOnOcr", "MiniMaxM3Sparse", "Ovis2",
    "PaliGemma", "QianfanOCR", "Step3p7", "VideoLlava",
)  # fmt: skip
CHANGED: Sequence[tuple[str, str, Changed, str]] = (
    ("Gemma3", ", text that sees all", _full, "4.57"),
    ("Gemma3", ", text with windows", _windowed, "4.57"),
    ("Qwen2VL", "", _sections, "5.24"),
    ("Qwen2_5_VL", "", _sections, "5.24"),
)
"""Models whose small configurations are changed."""


def _row(name: str, what: str, change: Changed | None, since: str) -> Row:
    place = f"transformers:{name}ForConditionalGeneration"
    return Row("inputs", place, f"pictures under each cache{what}", partial(_cached, change), [], since=since)


# Source: the documentation of GenerationConfig (cache_implementation, use_cache): the cache changes no result.
MEDIA_CACHE_ROWS: Sequence[Row] = (
    *(_row(name, "", None, "4.57") for name in OF_4),
    *(_row(name, "", None, "5.24") for name in OF_5),
    *(_row(*one) for one in CHANGED),
)
