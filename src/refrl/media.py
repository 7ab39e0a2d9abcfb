"""An image or a sound of a prompt, as text that goes wherever a prompt goes, and as what a model takes.

The text is the shape and the float32 values in base64: `3x16x16:AAAA...`. Three dimensions, [channels, height, width],
are an image, two, [mel bins, frames], a sound. In the prompt stand placeholders for the model's features of it.
"""

from __future__ import annotations

import base64
from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

if TYPE_CHECKING:
    import torch
    from torch import Tensor

PLACEHOLDER = "<|media|>"
"""In the text of a prompt, once for each feature; the encoder puts the model's own token there."""


def pack(values: npt.NDArray[np.float32]) -> str:
    """Return an image or a sound as text."""
    shape = "x".join(map(str, values.shape))
    return f"{shape}:{base64.b64encode(values.astype('<f4').tobytes()).decode()}"


def unpack(text: str) -> npt.NDArray[np.float32]:
    """Return what `pack` took.

    Raises:
        ValueError: the text is not of that form.
    """
    shape, _, values = text.partition(":")
    array = np.frombuffer(base64.b64decode(values, validate=True), dtype="<f4")
    return array.reshape([int(size) for size in shape.split("x")]).copy()


def stack(media: Sequence[str | None]) -> Tensor | None:
    """Return the media of several rows as one tensor, [rows, ...]; None where none has any.

    Raises:
        ValueError: some rows have one and others have not, or their shapes differ.
    """
    import torch

    given = [unpack(one) for one in media if one is not None]
    if not given:
        return None
    shapes = {one.shape for one in given}
    if len(given) < len(media) or len(shapes) > 1:
        raise ValueError(
            f"{len(given)} of {len(media)} rows have an image or a sound, of the shapes {sorted(shapes)}: give one of "
            "one shape to each row, or none to any"
        )
    return torch.from_numpy(np.stack(given))


def model_inputs(media: Tensor | None, dtype: torch.dtype) -> dict[str, Tensor]:
    """Return the arguments of a model's forward, under the names that transformers gives them; none for None.

    Args:
        media: [rows, channels, height, width] or [rows, mel bins, frames].
        dtype: of the model.
    """
    if media is None:
        return {}
    if media.ndim == 4:
        return {"pixel_values": media.to(dtype)}
    whole = media.new_ones((media.shape[0], media.shape[2])).long()
    return {"input_features": media.to(dtype), "feature_attention_mask": whole}
