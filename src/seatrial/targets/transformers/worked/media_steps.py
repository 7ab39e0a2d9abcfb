"""Worked examples of `generate` that no other table has: features of pictures before the first step, signs of texts."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from types import SimpleNamespace
from typing import Any

from seatrial.relations.contracts.worked import Refused
from seatrial.targets.common.worked_rows import Row

PLACE = "transformers.generation"


def _encoder(name: str, seen: list[Any], *arguments: str) -> Callable[..., str]:
    """Return an encoder of a modality with arguments of these names, which notes what it is given."""

    def encode(**given: Any) -> str:
        seen.append([name, sorted(given.items())])
        return f"features of {name}"

    parameters = [inspect.Parameter(one, inspect.Parameter.KEYWORD_ONLY, default=None) for one in arguments]
    encode.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    return encode


def _features(mixin: Any) -> list[Any]:
    """Return what encoders are given of arguments, and which arguments are left for the steps."""
    found = []
    for modalities, given in (
        (("image", "text"), {"pixel_values": 1, "grid": 2, "kept": 3}),
        (("image", "video"), {"pixel_values": 1, "pixel_values_videos": 4, "grid": 2}),
        (("image", "video"), {"grid": 2}), (("text",), {"pixel_values": 1}),
        (("image", "video"), {"pixel_values_videos": 4, "mm_encoder_outputs": {"image": "known"}}),
    ):  # fmt: skip
        seen: list[Any] = []
        model = SimpleNamespace(
            input_modalities=modalities,
            base_model=SimpleNamespace(
                get_image_features=_encoder("image", seen, "pixel_values", "grid"),
                get_video_features=_encoder("video", seen, "pixel_values_videos", "grid"),
            ),
        )
        left = mixin._prepare_multimodal_encoder_kwargs_for_generation(model, dict(given))
        found.append(
            [[[name, [list(one) for one in pairs]] for name, pairs in seen], dict(sorted(left.items()))]
        )
    return found


def _twice(mixin: Any) -> None:
    encode = _encoder("image", [], "pixel_values")
    model = SimpleNamespace(
        input_modalities=("image",), base_model=SimpleNamespace(get_image_features=encode)
    )
    given = {"pixel_values": 1, "mm_encoder_outputs": {"image": "known"}}
    mixin._prepare_multimodal_encoder_kwargs_for_generation(model, given)


EDGES: Sequence[tuple[int, int]] = (
    (0x4E00, 0x9FFF), (0x3400, 0x4DBF), (0x20000, 0x2A6DF), (0x2A700, 0x2B73F), (0x2B740, 0x2B81F), (0x2B820, 0x2CEAF),
    (0xF900, 0xFAFF), (0x2F800, 0x2FA1F),
)  # fmt: skip
"""The first and last signs of each block of Chinese."""


def _signs(made: Any) -> list[int]:
    """Return the signs at the edges of blocks that are taken for others than they are."""
    call, wrong = made._is_chinese_char, []
    inside = {one for edges in EDGES for one in edges}
    for first, last in EDGES:
        for one in (first - 1, first, last, last + 1):
            due = any(low <= one <= high for low, high in EDGES)
            wrong += [] if bool(call(None, one)) == due and (one not in inside or due) else [one]
    return wrong


# Sources: the documentation of GenerationMixin.generate and of TextStreamer, and the blocks of Unicode.
MEDIA_STEP_ROWS: Sequence[Row] = (
    Row("inputs", f"{PLACE}.utils:GenerationMixin", "features before the first step", _features,
        [[[["image", [["grid", 2], ["pixel_values", 1], ["return_dict", True]]]],
          {"kept": 3, "mm_encoder_outputs": {"image": "features of image"}}],
         [[["image", [["grid", 2], ["pixel_values", 1], ["return_dict", True]]],
           ["video", [["grid", 2], ["pixel_values_videos", 4], ["return_dict", True]]]],
          {"mm_encoder_outputs": {"image": "features of image", "video": "features of video"}}],
         [[], {"mm_encoder_outputs": {}}], [[], {"mm_encoder_outputs": {}, "pixel_values": 1}],
         [[["video", [["pixel_values_videos", 4], ["return_dict", True]]]],
          {"mm_encoder_outputs": {"image": "known", "video": "features of video"}}]], since="5.24"),
    Row("inputs", f"{PLACE}.utils:GenerationMixin", "features and pictures", _twice, Refused("cannot pass both"),
        since="5.24"),
    Row("inputs", f"{PLACE}.streamers:TextStreamer", "signs of Chinese", _signs, [], since="4.45"),
)  # fmt: skip
