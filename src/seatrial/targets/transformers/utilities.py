"""Transformers' small functions, whichever release is installed; see `contracts.utilities`."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from seatrial.targets.common.known import KnowsFailures
from seatrial.targets.transformers import attending, encodings, scoring, training_parts


class Utilities(KnowsFailures):
    """Tokenizers, templates, processors of scores, masks, caches, losses and optimizers."""

    utilities: Mapping[str, Callable[..., Any]] = {
        **encodings.FUNCTIONS,
        **scoring.FUNCTIONS,
        **attending.FUNCTIONS,
        **training_parts.FUNCTIONS,
    }


class OfTrainers(KnowsFailures):
    """What a trainer makes and decides."""

    thorough = True
    utilities: Mapping[str, Callable[..., Any]] = training_parts.OF_TRAINERS


ADAPTERS: dict[str, type[Any]] = {"utilities": Utilities, "utilities-of-trainers": OfTrainers}
