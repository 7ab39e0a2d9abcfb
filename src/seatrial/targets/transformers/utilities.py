"""Transformers' small functions, whichever release is installed; see `contracts.utilities`."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from seatrial.targets.common.known import KnownFailure, KnowsFailures, before, between, since
from seatrial.targets.transformers import (
    attending,
    encodings,
    gathering,
    kept_texts,
    packing,
    run_events,
    scoring,
    short_runs,
    training_parts,
)

OLDER = KnownFailure(
    "a bare list is an object, a batch keeps what follows its last messages, and a cache that begins again keeps "
    "its length",
    finding="Transformers: small functions of older releases",
    releases=before("transformers", "5"),
).of(
    "R31.schemas/types",
    "R31.encodings/conversations",
    "R31.visible/keys that a cache keeps",
)

FINDING = "Transformers: small functions of later releases"
LATER = (
    KnownFailure("fields that are None are given to templates", FINDING, before("transformers", "5.24")).of(
        "R31.texts/templates, fields that are None"
    ),
    KnownFailure("a line of a description with a colon ends it", FINDING, before("transformers", "5.23")).of(
        "R31.schemas/tools with a nested description"
    ),
    KnownFailure("an end of probability zero becomes NaN", FINDING, before("transformers", "5.19")).of(
        "R31.scores/ExponentialDecayLengthPenalty"
    ),
    KnownFailure(
        "a prompt with no allowed token left has no scores", FINDING, before("transformers", "5.18")
    ).of("R31.scores/allowed tokens, none of which is left"),
    KnownFailure(
        "a sequence is left out whose first ids are the whole row", FINDING, before("transformers", "5.18")
    ).of("R31.scores/sequences that begin with the row"),
    KnownFailure("letters are compared in place of bytes", FINDING, before("transformers", "5.12")).of(
        "R31.stops/strings of several bytes that stop"
    ),
    KnownFailure(
        "a batch is not cleaned up as its tokenizer says", FINDING, between("transformers", "5", "5.17")
    ).of("R31.texts/texts of a batch of ids"),
    KnownFailure(
        "special tokens in files of releases of 4 are not special",
        FINDING,
        between("transformers", "5.1", "5.18"),
    ).of("R31.texts/tokenizers that were saved"),
)


class Utilities(KnowsFailures):
    """Tokenizers, templates, processors of scores, masks, caches, losses and optimizers."""

    thorough = True
    known_failures = (OLDER, *LATER)

    utilities: Mapping[str, Callable[..., Any]] = {
        **encodings.FUNCTIONS,
        **kept_texts.FUNCTIONS,
        **scoring.FUNCTIONS,
        **attending.FUNCTIONS,
        **training_parts.FUNCTIONS,
        **gathering.FUNCTIONS,
        **packing.FUNCTIONS,
    }


class OfTrainers(KnowsFailures):
    """What a trainer makes, decides, logs and predicts."""

    thorough = True
    known_failures = (
        KnownFailure(
            "the first batch is generated with another limit than the others",
            finding="Transformers: the limit of predictions that are generated",
            releases=since("transformers", "5.3"),
        ).of("R31.short_runs/predictions by generation, no limit given"),
        KnownFailure(
            "micro-batches at the end of a stream are added to the next update",
            finding="Transformers: the end of a stream within an update",
        ).of("R31.short_runs/rows of a stream that ends within an update"),
        KnownFailure(
            "after a loss that is not finite all later ones are logged as NaN",
            finding="Transformers: the log of losses that are not finite",
        ).of("R31.run_events/losses that are not finite"),
        KnownFailure(
            "the mean that replaces a loss counts it",
            finding="Transformers: the log of losses that are not finite",
        ).of("R31.run_events/losses that are not finite, filtered"),
        KnownFailure(
            "a run that saves its best alone does not load it", FINDING, before("transformers", "5.4")
        ).of("R31.training_parts/the best checkpoint in every way of saving"),
    )
    utilities: Mapping[str, Callable[..., Any]] = {
        **training_parts.OF_TRAINERS,
        **short_runs.FUNCTIONS,
        **run_events.FUNCTIONS,
    }


ADAPTERS: dict[str, type[Any]] = {"utilities": Utilities, "utilities-of-trainers": OfTrainers}
