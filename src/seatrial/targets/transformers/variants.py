"""`transformers.Trainer` on a language model over epochs, with options that must not change what an update is."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any, ClassVar

from seatrial.targets.transformers.heads import LanguageModel


class Grouped(LanguageModel):
    """Rows of about the same length in a batch."""

    thorough = True

    @property
    def training(self) -> Mapping[str, Any]:  # type: ignore[override]
        """The option, which has another name since Transformers 5."""
        import transformers

        known = {item.name for item in dataclasses.fields(transformers.TrainingArguments)}
        if "train_sampling_strategy" in known:
            return {"train_sampling_strategy": "group_by_length"}
        return {"group_by_length": True}


class Checkpointed(LanguageModel):
    """Activations computed again in the backward pass."""

    thorough = True
    training: ClassVar[Mapping[str, Any]] = {"gradient_checkpointing": True}


class OwnCounts(LanguageModel):
    """Tokens counted by each process for itself."""

    thorough = True
    training: ClassVar[Mapping[str, Any]] = {"average_tokens_across_devices": False}


class FoundSize(LanguageModel):
    """The batch's size lowered until it fits, which the given one does."""

    thorough = True
    training: ClassVar[Mapping[str, Any]] = {"auto_find_batch_size": True}


ADAPTERS: dict[str, type[Any]] = {
    "causal-lm-grouped": Grouped,
    "causal-lm-epochs-checkpointed": Checkpointed,
    "causal-lm-own-counts": OwnCounts,
    "causal-lm-found-size": FoundSize,
}
