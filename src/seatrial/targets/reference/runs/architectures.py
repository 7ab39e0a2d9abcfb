"""refrl's models with a path that only they have, and what Transformers' own classes compute with their weights.

The adapter's part of `seatrial.relations.contracts.architectures`. Images and sounds are read here
from the text that a run carries, and given to the class under the names that Transformers documents for it.
"""

from __future__ import annotations

import base64
import json
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.func import functional_call
from torch.nn import functional
from transformers import AutoConfig

from refrl.models.loading import load_model
from refrl.models.tiny import TinyModelSpec, make_model
from seatrial.targets.reference.configuration import MODEL, model_directory, new_directory

SPECS: Mapping[str, TinyModelSpec] = {
    "experts": replace(MODEL, family="qwen3_moe"),
    "image": replace(MODEL, family="llava"),
    "audio": replace(MODEL, family="qwen2_audio"),
    "drafts": replace(MODEL, draft_head=True),
    "experts and drafts": replace(MODEL, family="qwen3_moe", draft_head=True),
}
"""What the relations call them."""
OWN_DATA: Mapping[str, Mapping[str, Any]] = {
    "image": {"data.task": "colour"},
    "audio": {"data.task": "pitch"},
}
"""The tasks that have an image or a sound in every prompt."""
EPSILON = 1e-6
"""Of a draft head's norms."""


@cache
def architecture_directory(name: str) -> Path:
    """Return the directory of one of `SPECS`; it goes with the process."""
    folder = new_directory(name)
    make_model(SPECS[name], folder)
    return folder


def media_of(text: str | None) -> Tensor | None:
    """Return the image or the sound of `3x16x16:` and its float32 values, little-endian and row by row, in base64."""
    if text is None:
        return None
    shape, _, values = text.partition(":")
    array = np.frombuffer(base64.b64decode(values), dtype="<f4").astype(np.float32)
    return torch.from_numpy(array.reshape(tuple(int(size) for size in shape.split("x"))))


def plain_logits(weights: Mapping[str, Tensor], ids: Sequence[int], media: Tensor | None) -> Tensor:
    """Return logits_SV of the class that such weights belong to; the token of an image or sound is never next."""
    name = _architecture_of(weights)
    logits_SV: Tensor = _forward(name, weights, ids, media).logits[0]
    return (
        logits_SV
        if media is None
        else logits_SV.index_fill(1, torch.tensor([_media_token(name)]), -torch.inf)
    )


class ReferenceArchitectures:
    """See `seatrial.relations.contracts.architectures`."""

    options: Mapping[str, Any]

    @property
    def architectures(self) -> Sequence[str]:
        """Other layouts of rows, engines and backends refuse some of them by name."""
        return tuple(SPECS) if self._is_plain else ()

    @property
    def quantizations(self) -> Sequence[str]:
        """Other engines than refrl's own refuse them."""
        return ("int8",) if self._is_plain else ()

    @property
    def _is_plain(self) -> bool:
        return not set(self.options) - {"policy.dtensor_cfg.enabled"}

    def trained_by_class(self, name: str) -> Collection[str]:
        """Read this from a model that is made, not loaded: `from_pretrained` unfreezes what the class freezes."""
        kind = type(_plain(name))
        with torch.device("meta"):
            made: nn.Module = kind(AutoConfig.from_pretrained(architecture_directory(name)))
        return {one for one, weight in made.named_parameters() if weight.requires_grad}

    def answer_in(self, prompt: str, media: Tensor) -> str:
        """Return the colour of the quarter, or the band of the tone, that the letter names; empty for several."""
        asked = "abcd".index(prompt.removesuffix("=")[-1])
        if media.ndim == 2:
            frames = media.shape[1] // 4
            shown = media[:, asked * frames : (asked + 1) * frames].argmax(0)
            names: Sequence[str] = "012345678"
        else:
            rows, columns = media.shape[1] // 2, media.shape[2] // 2
            row, column = asked // 2 * rows, asked % 2 * columns
            shown = media[:, row : row + rows, column : column + columns].argmax(0)
            names = ("red", "green", "blue")
        kinds = sorted(set(shown.flatten().tolist()))
        return names[kinds[0]] if len(kinds) == 1 else ""

    def routing(self, weights: Mapping[str, Tensor], ids: Sequence[int]) -> Sequence[tuple[Tensor, Tensor]]:
        """Return (probabilities [S, E], ids of the chosen experts [S, k]) of every layer."""
        model, seen = _plain("experts"), []

        def see(router: nn.Module, inputs: tuple[Tensor, ...]) -> None:
            probs_SE = functional.linear(inputs[0].reshape(len(ids), -1), router.weight).softmax(-1)  # type: ignore[arg-type]
            seen.append((probs_SE, probs_SE.topk(SPECS["experts"].experts_per_token).indices))

        hooks = [
            module.register_forward_pre_hook(see)
            for path, module in model.named_modules()
            if path.endswith(".mlp.gate")
        ]
        try:
            _forward("experts", weights, ids, None)
        finally:
            for hook in hooks:
                hook.remove()
        return seen

    def draft_logits(
        self, weights: Mapping[str, Tensor], draft: Mapping[str, Tensor], ids: Sequence[int]
    ) -> Tensor:
        """Return raw logits [S - 2, V] of a draft head: row s is about the token after `ids[: s + 2]`."""
        output = _forward(_architecture_of(weights), weights, ids, None, output_hidden_states=True)
        part = {name.removeprefix("draft."): value for name, value in draft.items()}
        embedding_VD = next(value for name, value in weights.items() if name.endswith("embed_tokens.weight"))
        states_SD = output.hidden_states[-1][0].detach()
        following_SD = embedding_VD.detach()[list(ids[1:])]
        joined_SD = states_SD[:-1] @ part["hidden_proj.weight"].T + following_SD @ part["embed_proj.weight"].T
        inner_SD = _normed(joined_SD, part["norm.weight"]) @ part["up_proj.weight"].T
        joined_SD = joined_SD + (inner_SD * inner_SD.sigmoid()) @ part["down_proj.weight"].T
        head_VD = weights.get("lm_head.weight", embedding_VD).detach()
        return (_normed(joined_SD, part["final_norm.weight"]) @ head_VD.T)[:-1]


def _normed(values_SD: Tensor, scale_D: Tensor) -> Tensor:
    return values_SD / (values_SD.square().mean(-1, keepdim=True) + EPSILON).sqrt() * scale_D


def _architecture_of(weights: Mapping[str, Tensor]) -> str:
    """Return which model such weights belong to; empty for the adapter's own."""
    marks = {"vision_tower.": "image", "audio_tower.": "audio", ".mlp.experts.": "experts"}
    return next((name for mark, name in marks.items() if any(mark in one for one in weights)), "")


@cache
def _plain(name: str) -> nn.Module:
    model: nn.Module = load_model(architecture_directory(name) if name else model_directory())
    return model


def _forward(
    name: str, weights: Mapping[str, Tensor], ids: Sequence[int], media: Tensor | None, **more: Any
) -> Any:
    seen: dict[str, Tensor] = {}
    if media is not None and media.ndim == 3:
        seen = {"pixel_values": media[None]}
    elif media is not None:
        whole = torch.ones((1, media.shape[1]), dtype=torch.long)
        seen = {"input_features": media[None], "feature_attention_mask": whole}
    return functional_call(_plain(name), dict(weights), (torch.tensor([list(ids)]),), {**seen, **more})


@cache
def _media_token(name: str) -> int:
    config = json.loads((architecture_directory(name) / "config.json").read_text(encoding="utf-8"))
    known = ("image_token_id", "image_token_index", "audio_token_id", "audio_token_index")
    return next(int(config[key]) for key in known if key in config)
