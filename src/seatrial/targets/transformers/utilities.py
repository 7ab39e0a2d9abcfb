"""Transformers' small functions, whichever release is installed; see `contracts.utilities`."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from seatrial.targets.common.known import KnownFailure, KnowsFailures, before
from seatrial.targets.transformers import attending, encodings, scoring, training_parts

OLDER = KnownFailure(
    "a bare list is an object, an end of probability zero becomes NaN, a batch keeps what follows its last messages, "
    "and a cache that begins again keeps its length",
    finding="Transformers: small functions of older releases",
    releases=before("transformers", "5"),
).of(
    "R31.schemas/types",
    "R31.scores/ExponentialDecayLengthPenalty",
    "R31.encodings/conversations",
    "R31.visible/keys that a cache keeps",
)


class Utilities(KnowsFailures):
    """Tokenizers, templates, processors of scores, masks, caches, losses and optimizers."""

    thorough = True
    known_failures = (OLDER,)

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
