"""Worked examples of zero-shot pipelines of pictures with each kind of model: scores are those of plain calls.

Kinds whose scores are sigmoids have texts of one length; those of the others are softmaxes of texts of any length.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

import torch

from seatrial.targets.common.worked_rows import Row, unlike
from seatrial.targets.transformers.small_models import model_class as of_name
from seatrial.targets.transformers.worked.pipes import ASKED, SIZES, of_config, tokens, words
from seatrial.targets.transformers.worked.pipes_media import PIXELS, VISION, picture

LABELS = ("cat", "new york", "my name")
LENGTH = 64
"""Tokens of a text of the kinds that score by sigmoids."""
TEXT: Mapping[str, Any] = {**SIZES, "vocab_size": len(tokens()), "bos_token_id": 2, "eos_token_id": 3}
WHOLE: Mapping[str, Any] = {"size": {"shortest_edge": 16}, "crop_size": {"height": 16, "width": 16}}


def _pixels(name: str, **options: Any) -> Any:
    """Return an image processor that works without torchvision, where a release has one of that name."""
    import transformers

    found = getattr(transformers, f"{name}ImageProcessorPil", None) or of_name(f"{name}ImageProcessor")
    return found(**options)


def _clip(name: str) -> Any:
    vision = {**VISION, "projection_dim": 8}
    config = of_name(f"{name}Config")(text_config=dict(TEXT), vision_config=vision, projection_dim=8)
    return of_config(f"{name}Model", config), _pixels("CLIP", **WHOLE)


def _siglip(name: str) -> Any:
    vision, text = dict(VISION), {**TEXT, "projection_size": 16}
    pixels = _pixels("Siglip", **PIXELS)
    if name == "Siglip2":
        vision = {**VISION, "num_patches": 16, "patch_size": 4}
        pixels = _pixels("Siglip2", patch_size=4, max_num_patches=16)
    config = of_name(f"{name}Config")(text_config=text, vision_config=vision)
    return of_config(f"{name}Model", config), pixels


KINDS: Mapping[str, tuple[Callable[[str], Any], bool]] = {
    "CLIP": (_clip, False), "ChineseCLIP": (_clip, False), "Siglip": (_siglip, True), "Siglip2": (_siglip, True),
}  # fmt: skip
"""How a kind is made, and whether it scores by sigmoids."""


def _due(kind: str, model: Any, pixels: Any, shown: Any, texts: Sequence[str]) -> list[float]:
    """Return the scores of labels by a plain call."""
    sigmoid = KINDS[kind][1]
    padding = {"padding": "max_length", "max_length": LENGTH} if sigmoid else {"padding": True}
    text = _tokenizer()(list(texts), return_tensors="pt", **padding)
    with torch.no_grad():
        logits = model(**pixels(images=[shown], return_tensors="pt"), **text).logits_per_image[0].double()
    return list((torch.sigmoid(logits) if sigmoid else torch.softmax(logits, -1)).tolist())


def _tokenizer() -> Any:
    found = words()
    found.model_input_names = ["input_ids", "attention_mask"]
    return found


def _labelled(kind: str, made: Any) -> list[str]:
    """Return where scores of labels are not those of plain calls: one picture, several, batches, other templates."""
    model, pixels = KINDS[kind][0](kind)
    pipe = made(model=model, tokenizer=_tokenizer(), image_processor=pixels, **ASKED)
    shown, wrong = [picture(), picture(1, (20, 12))], []
    for template in ("This is a photo of {}.", "the {}"):
        for labels in (LABELS, LABELS[:1]):
            given = {"candidate_labels": list(labels), "hypothesis_template": template}
            found = [pipe(shown[0], **given), *pipe(shown, **given), *pipe(shown, batch_size=2, **given)]
            for rows, one in zip(found, (shown[0], *shown, *shown), strict=True):
                scores = {row["label"]: row["score"] for row in rows}
                due = _due(kind, model, pixels, one, [template.format(label) for label in labels])
                said = f"{template}, {len(labels)} labels"
                wrong += unlike([scores[label] for label in labels], due, said, 1e-4)
                if [row["score"] for row in rows] != sorted(scores.values(), reverse=True):
                    wrong.append(f"{said}: the order of scores")
    return wrong[:4]


PIPE_KIND_ROWS: Sequence[Row] = tuple(
    Row("calls", "transformers:ZeroShotImageClassificationPipeline", f"scores of labels, {kind}",
        partial(_labelled, kind), [], since="4.57")
    for kind in KINDS
)  # fmt: skip
