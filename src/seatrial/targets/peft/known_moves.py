"""What adapters of PEFT break where a model loads them itself, or they are padded to be swapped in; see `known`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from seatrial.targets.common.known import KnownFailure, before, since
from seatrial.targets.peft.known import CONVERTED, embeds

SWAPPED = KnownFailure(
    "hotswap_adapter raises on norms of DoRA, embeddings, heads, biases, saved modules and tokens of the file",
    finding="PEFT: swapping adapters of embeddings",
).of("R29.saved/swapped in", "R29.saved/swapped in after preparing")
SWAPPED_PATTERNS = KnownFailure(
    "hotswap_adapter computes one scaling from alpha and rank, also where patterns give a layer others",
    finding="PEFT: swapping adapters with patterns",
).of("R29.saved/swapped in", "R29.saved/swapped in after preparing")
TRAINS = "R29.saved/what trains after preparing"
PREPARED = "R29.saved/swapped in after preparing"
FROZEN_TRAINS = KnownFailure(
    "weights of a frozen adapter train after it is padded to a larger rank",
    finding="PEFT: frozen adapters padded to a larger rank",
    releases=before("peft", "0.20"),
).of(TRAINS)
FROZEN_BIAS = KnownFailure(
    "the bias of a frozen adapter trains after it is padded to a larger rank",
    finding="PEFT: frozen adapters padded to a larger rank",
).of(TRAINS)
NO_PADDING = KnownFailure(
    "padding to a larger rank raises on parameters of experts and torch's attention",
    finding="PEFT: frozen adapters padded to a larger rank",
).of(TRAINS, PREPARED)
NO_MAGNITUDES = KnownFailure(
    "load_adapter and from_pretrained of Transformers do not find the magnitudes of DoRA, which stay as they were made",
    finding="PEFT: DoRA that Transformers loads",
    releases=since("transformers", "5"),
).of(
    "R29.routes/moved: file loaded by the model itself",
    "R29.routes/moved: file with its base, loaded as one model",
)

CONVERTED_WITHIN = KnownFailure(
    "convert_to_lora names parameters within a saved module by their last part alone",
    finding="PEFT: adapters converted to LoRA",
).of(*CONVERTED.laws)


def _swapping(options: Mapping[str, Any]) -> list[KnownFailure]:
    """Return what swapping an adapter of LoRA with these options breaks."""
    kept = ("use_dora", "bias", "modules_to_save", "trainable_token_indices")
    if embeds(options) or any(options.get(option) for option in kept):
        return [SWAPPED]
    # Patterns that are alike leave the scaling of each layer as it is.
    return [SWAPPED_PATTERNS] if options.get("rank_pattern") != options.get("alpha_pattern") else []


def of_lora(options: Mapping[str, Any]) -> list[KnownFailure]:
    """Return what LoRA with these options breaks."""
    found = [*_swapping(options), FROZEN_TRAINS]
    found += [FROZEN_BIAS] if options.get("lora_bias") else []
    found += [NO_PADDING] if options.get("target_parameters") or options.get("trait") == "attention" else []
    return found + ([NO_MAGNITUDES] if options.get("use_dora") else [])


PROMPTS_FOR_INFERENCE = KnownFailure(
    "prompts that are used for inference train",
    finding="PEFT: prompts that are not in use",
).of("R29.several/used for inference")
