"""What adapters of tokens of PEFT break, most of it where the head is tied to the embedding."""

from __future__ import annotations

from typing import Any

from seatrial.targets.common.known import KnownFailure, every_release, since

_TOKENS = (
    "R29.histories/outputs",
    "R29.histories/gradients",
    "R29.histories/scaled",
    "R29.histories/scaled alone",
    "R29.histories/rows",
)
TOKENS_STAY_MERGED = KnownFailure(
    "tokens of a merged adapter of LoRA stay merged where another adapter is put in use",
    finding="PEFT: merged tokens and another adapter",
).of(*_TOKENS)
TIED_TOKENS_IN_USE = KnownFailure(
    "tokens of an adapter that is added are in use and train at once where the head is tied",
    finding="PEFT: an adapter of tied tokens that is added",
).of(
    *_TOKENS,
    *("R29.elsewhere/saved", "R29.histories", "R29.histories/what trains"),
    *("R29.histories/tensors", "R29.histories/files"),
)


def _wraps_twice(adapter: Any) -> bool:
    """Return whether a tied head is found under the name that it has within the layer of the first adapter."""
    return since("transformers", "5")(adapter) and since("peft", "0.18.1")(adapter)


TIED_TOKENS = (
    KnownFailure(
        "the tied head of a second adapter of tokens is a layer within the layer of the first",
        finding="PEFT: a second adapter of tokens of a tied embedding",
        releases=_wraps_twice,
    ).of(
        *("R29.several", "R29.several/switching", "R29.several/deleting"),
        *("R29.saved", "R29.saved/the adapter's tensors alone"),
        *("R29.elsewhere", "R29.elsewhere/saved", "R29.histories"),
    ),
    KnownFailure(
        "the tied head computes with an adapter of tokens as soon as it is added",
        finding="PEFT: an adapter of tied tokens that is added",
        releases=since("peft", "0.19.0"),
    ).of(
        *("R29.elsewhere/added", "R29.saved/loaded as another one"),
        *("R29.histories/outputs", "R29.histories/gradients", "R29.histories/what trains"),
    ),
    KnownFailure(
        "a model that tied tokens were added to by its own method raises where it is saved",
        finding="PEFT: tied tokens that a model itself saves",
        releases=every_release,
    ).of("R29.routes/moved: file of an adapter that the model itself added"),
)
"""Of `TrainableTokensConfig`."""
