"""verl's positions of images and videos, of the models for which it has its own."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from types import SimpleNamespace
from typing import Any

import torch
from torch import Tensor

from seatrial.relations.laws.utilities.media import Piece, Segment, pieces_of
from seatrial.relations.not_served import NotServed
from seatrial.targets.common.target import Gone, find_name, release

MODELS = {"seconds": "qwen2_vl", "stamps": "qwen3_vl", "groups": "glm4v"}
"""By the way in which they write videos."""
MERGED = 2
"""Patches that become one, along height and along width."""
IDS = {"word": 5, "start": 10, "end": 11, "video start": 12, "video end": 13, "image": 20, "video": 21}
NAMES = {
    "<|image_pad|>": "image",
    "<|image|>": "image",
    "<|video_pad|>": "video",
    "<|vision_start|>": "start",
    "<|vision_end|>": "end",
    "<|begin_of_video|>": "video start",
    "<|end_of_video|>": "video end",
}
"""Tokens of the models, as the contract names them."""
PAD = 0
PROCESSOR = SimpleNamespace(
    image_processor=SimpleNamespace(merge_size=MERGED),
    tokenizer=SimpleNamespace(convert_tokens_to_ids=lambda name: IDS[NAMES[name]]),
    image_token_id=IDS["image"],
    video_token_id=IDS["video"],
    vision_start_token_id=IDS["start"],
)


class VerlMedia:
    """`get_rope_index` of each model."""

    def __init__(self) -> None:
        """Find those that the installed release has.

        Raises:
            Gone: there are none.
        """
        self.functions: dict[str, Callable[..., Any]] = {}
        for kind, model in MODELS.items():
            try:
                self.functions[kind] = find_name("verl", [f"verl.models.transformers.{model}:get_rope_index"])
            except Gone:
                continue
        if not self.functions:
            raise Gone(f"verl {release('verl')} has no positions of media of its own")
        self.utilities: Mapping[str, Callable[..., Any]] = {"positions of media": self.positions}

    def positions(self, kind: str, segments: Sequence[Segment], left: int, right: int) -> Tensor:
        """Return positions [3, S] of a row with padding."""
        if kind not in self.functions:
            raise NotServed(f"verl {release('verl')} has no positions of {MODELS[kind]}")
        pieces: list[Piece] = pieces_of(kind, segments)
        ids = [IDS[piece.token] for piece in pieces for _ in range(piece.length)]
        grids: dict[str, list[list[int]]] = {
            name: [
                [one.frames, one.rows * MERGED, one.columns * MERGED] for one in segments if one.kind == name
            ]
            for name in ("image", "video")
        }
        given = {f"{name}_grid_thw": torch.tensor(grid) if grid else None for name, grid in grids.items()}
        if kind == "seconds" and grids["video"]:
            seconds = [one.seconds for one in segments if one.kind == "video"]
            given["second_per_grid_ts"] = torch.tensor(seconds)
        found: Tensor = self.functions[kind](
            PROCESSOR,
            input_ids=torch.tensor([PAD] * left + ids + [PAD] * right),
            attention_mask=torch.tensor([0] * left + [1] * len(ids) + [0] * right),
            **given,
        )
        return found


ADAPTERS: dict[str, type[Any]] = {"media": VerlMedia}
