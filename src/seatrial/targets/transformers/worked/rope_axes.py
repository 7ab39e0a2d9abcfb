"""Worked examples of rotary embeddings with an axis of positions each for time, height and width, at real widths."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

import torch

from seatrial.relations.not_served import NotServed
from seatrial.targets.common.target import find_name
from seatrial.targets.common.worked_rows import Row

HEAD, BASE = 128, 10000.0
LAYER = "full_attention"
Places = list[tuple[int, int]]
"""Of each value of a head, the axis and the number of the frequency."""


def _blocks(sections: Sequence[int]) -> list[int]:
    """Return the axis of each frequency: a block of them for each axis."""
    return [axis for axis, length in enumerate(sections) for _ in range(length)]


def _turns(sections: Sequence[int]) -> list[int]:
    """Return the axis of each frequency: the axes in turn while the two of a picture have any left, then time."""
    found = [0] * sum(sections)
    for axis in (1, 2):
        found[axis : sections[axis] * 3 : 3] = [axis] * len(found[axis : sections[axis] * 3 : 3])
    return found


def _height_and_width(sections: Sequence[int]) -> list[int]:
    """Return the axis of each frequency: height and width in turn, and the slowest are of time."""
    height, width, time = sections
    return [1 + place % 2 for place in range(height + width)] + [0] * time


def _halves(axes: Sequence[int]) -> Places:
    return [(axis, place) for _ in range(2) for place, axis in enumerate(axes)]


def _pairs(axes: Sequence[int]) -> Places:
    return [(axis, place) for place, axis in enumerate(axes) for _ in range(2)]


def _across(axes: Sequence[int]) -> Places:
    """Return blocks of twice their length, over both halves of a head."""
    whole = [axis for axis in axes for _ in range(2)]
    return [(axis, place % len(axes)) for place, axis in enumerate(whole)]


IN_BLOCKS, IN_TURN = (16, 24, 24), (24, 20, 20)
Form = tuple[Callable[[Sequence[int]], list[int]], Callable[[Sequence[int]], Places], Sequence[int]]
QWEN2: Form = (_blocks, _halves, IN_BLOCKS)
GLM: Form = (_blocks, _pairs, IN_BLOCKS)
QWEN3: Form = (_turns, _halves, IN_TURN)
FORMS: Mapping[str, tuple[str, str, Form]] = {
    "cohere_compass": ("CohereCompass", "CohereCompassText", QWEN3),
    "cosmos3_edge": ("Cosmos3EdgeText", "Cosmos3EdgeText", QWEN3),
    "ernie4_5_vl_moe": (
        "Ernie4_5_VLMoeText",
        "Ernie4_5_VLMoeText",
        (_height_and_width, _pairs, (22, 22, 20)),
    ),
    "glm4v": ("Glm4vText", "Glm4vText", GLM),
    "glm4v_moe": ("Glm4vMoeText", "Glm4vMoeText", QWEN2),
    "glm_image": ("GlmImageText", "GlmImageText", QWEN2),
    "glm_ocr": ("GlmOcrText", "GlmOcrText", GLM),
    "hunyuan_vl": ("HunYuanVL", "HunYuanVLText", (_blocks, _across, (16, 16, 16, 16))),
    "hy_v4_vl": ("HYV4VL", "HYV4VLText", QWEN3),
    "paddleocr_vl": ("PaddleOCR", "PaddleOCRText", QWEN2),
    "qwen2_5_omni": ("Qwen2_5Omni", "Qwen2_5OmniText", QWEN2),
    "qwen2_5_vl": ("Qwen2_5_VL", "Qwen2_5_VLText", QWEN2),
    "qwen2_vl": ("Qwen2VL", "Qwen2VLText", QWEN2),
    "qwen3_5": ("Qwen3_5Text", "Qwen3_5Text", QWEN3),
    "qwen3_5_moe": ("Qwen3_5MoeText", "Qwen3_5MoeText", QWEN3),
    "qwen3_omni_moe": ("Qwen3OmniMoeThinkerText", "Qwen3OmniMoeText", QWEN3),
    "qwen3_vl": ("Qwen3VLText", "Qwen3VLText", QWEN3),
    "qwen3_vl_moe": ("Qwen3VLMoeText", "Qwen3VLMoeText", QWEN3),
    "qwen4_exp": ("Qwen4ExpText", "Qwen4ExpText", QWEN3),
}
"""By module, the beginnings of the names of the embedding and of its configuration, and how axes share a head."""


def _module(kind: str, made: Any) -> tuple[Any, dict[str, Any]]:
    """Return an embedding with heads of 128 values, and what its call takes besides."""
    _, config_name, (_, _, sections) = FORMS[kind]
    place = f"transformers.models.{kind}.configuration_{kind}:{config_name}Config"
    config_class: Any = find_name("transformers", [place])
    plain = config_class()
    if not hasattr(plain, "rope_parameters"):
        raise NotServed("rotary options of this release have another form")
    rotary: dict[str, Any] = {
        "rope_type": "default", "rope_theta": BASE, "mrope_section": [*sections], "partial_rotary_factor": 1.0
    }  # fmt: skip
    layered = kind == "cohere_compass"
    given = {"hidden_size": 2 * HEAD, "num_attention_heads": 2, "num_hidden_layers": 1}
    config = config_class(
        **given,
        **{name: HEAD for name in ("head_dim", "qk_rope_head_dim") if hasattr(plain, name)},
        **({"layer_types": [LAYER]} if layered else {}),
        rope_parameters={LAYER: rotary} if layered else rotary,
    )
    return made(config), {"layer_type": LAYER} if layered else {}


def _unlike(kind: str, made: Any) -> list[str]:
    """Return where cosines and sines are not those of the frequencies: rows of text, and places along each axis."""
    module, more = _module(kind, made)
    axes_of, places_of, sections = FORMS[kind][2]
    places = torch.tensor(places_of(axes_of(sections)))
    rates = BASE ** (-2 * places[:, 1].double() / HEAD)
    num_axes, length, wrong = max(3, len(sections)), 6, []
    text = torch.arange(length).expand(num_axes, 1, length)
    rows = {"text": text}
    for axis in range(num_axes):
        rows[f"axis {axis}"] = torch.zeros_like(text).index_copy(0, torch.tensor([axis]), text[:1])
    rows["a picture"] = text * torch.arange(1, num_axes + 1)[:, None, None]
    for what, positions in rows.items():
        found = module(torch.zeros(1, length, HEAD), positions.clone(), **more)
        angles = positions[places[:, 0], 0].T.double() * rates
        for name, values, due in (("cosines", found[0], angles.cos()), ("sines", found[1], angles.sin())):
            if values.dim() > 3:
                raise NotServed("the attention of this release shares out the axes")
            if values.shape[-1] != HEAD or not (values[0].double() - due).abs().max() <= 1e-4:
                wrong.append(f"{what}, {name}")
    return wrong


SINCE = {"ernie4_5_vl_moe": "5.8", "paddleocr_vl": "5.8", "cohere_compass": "5.21"}
"""The first releases that were seen to give these numbers; 5.4 gives others, which were not looked into."""

# Sources: section 2.1 of Qwen2-VL (M-RoPE), section 2.1 of Qwen3-VL (interleaved), and section 2.1 of ERNIE 4.5.
AXIS_ROWS: Sequence[Row] = tuple(
    Row(
        "formulas",
        f"transformers.models.{kind}.modeling_{kind}:{name}RotaryEmbedding",
        "axes of positions",
        partial(_unlike, kind),
        [],
        since="5.23"
        if form is GLM
        else SINCE.get(kind, "5"),  # earlier embeddings leave the pairs to the attention
    )
    for kind, (name, _, form) in FORMS.items()
)
