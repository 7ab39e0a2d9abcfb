"""Laws that families of causal language models are known to break, by what breaks; see `docs/evidence/findings.md`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from seatrial.targets.common.known import KnownFailure, before, between, since

IN_PASSES, PADDED_PASSES = "R5.family/in two passes", "R5.family/in two passes, padded on the left"
CHUNKS_RESTART = KnownFailure(
    "each chunk of a prompt begins with an empty state of the recurrent layers",
    finding="Transformers: chunked prompts of Jamba",
).of(
    "R5.family/decoded after a chunked prompt",
    IN_PASSES,
    PADDED_PASSES,
    "R5.cached/generation that continues",
)
STATE_RESTARTS = KnownFailure(
    "several ids that are given with a state begin with an empty one",
    finding="Transformers: several ids after a state of Mamba",
).of(IN_PASSES, PADDED_PASSES)
OLD_PASSES = KnownFailure(
    "several ids that are given with a cache are computed otherwise than in one pass",
    finding="Transformers: several ids after a state of Mamba",
    releases=before("transformers", "5"),
)
STATIC_WINDOWS = KnownFailure(
    "a mask of other places than those of the keys in a static cache",
    finding="Transformers: a static cache of GPT-Neo",
).of("R5.family/decoded from a static cache")
WITH_A_CACHE = (
    "R5.family/decoded from the cache",
    "R5.family/decoded from the cache, padded on the left",
    "R5.family/decoded from the cache, scaled dot-product attention",
    "R5.family/decoded after a chunked prompt",
    IN_PASSES,
    *(
        f"R5.cached/{law}"
        for law in ("one by one", "reordered", "rows chosen", "repeated", "copied", "beams")
    ),
    "R5.cached/generation that continues",
)
BEYOND_THE_WINDOW = KnownFailure(
    "a query in the cache sees other keys than in the whole row once a row is longer than the window",
    finding="Transformers: the sliding window of PhiMoE",
    releases=before("transformers", "5"),
).of(*WITH_A_CACHE, "R5.cached/beams that end, in a batch", "R5.cached/candidates of the prompt")
DROPPED_KEYS = KnownFailure(
    "the cache drops keys behind the window, which a query sees without a cache",
    finding="Transformers: the sliding window of Moshi",
).of(*WITH_A_CACHE, "R5.family/decoded from a static cache", "R5.cached/cut")
COUNTED_PLACES = KnownFailure(
    "the place of a row's last id is the number of ids that are no padding, on whichever side padding is",
    finding="Transformers: rows that BioGPT classifies",
    releases=before("transformers", "5.24"),
).of("R5.family/classes of rows padded on the left", "R5.family/classes of rows padded on the right")
NO_TUPLE = KnownFailure(
    "a crash where outputs are to be a tuple",
    finding="Transformers: small functions of older releases",
    releases=before("transformers", "5"),
).of("R5.calls/outputs as a tuple")
GOES_ON = "R5.cached/generation that continues"
READ_AGAIN = KnownFailure(
    "`generate` reads the ids that a given state holds again, or begins with an empty state",
    finding="Transformers: generation that continues from a state",
).of(GOES_ON)
READ_AGAIN_SINCE_5_4 = replace(READ_AGAIN, releases=since("transformers", "5.4"))
OLD_GOES_ON = KnownFailure(
    "`generate` reads the new ids otherwise than in one pass after a cache of its own",
    finding="Transformers: generation that continues from a state",
    releases=before("transformers", "5"),
).of(GOES_ON)
OLD_STATES_STAY = KnownFailure(
    "states stay with their place in the batch while beams change theirs",
    finding="Transformers: beams of MiniMax and RecurrentGemma",
    releases=before("transformers", "5"),
).of("R5.cached/beams")
STATES_STAY = KnownFailure(
    "states stay with their place in the batch while beams change theirs",
    finding="Transformers: beams of MiniMax and RecurrentGemma",
)
NO_ROUTER_LOSS = KnownFailure(
    "the loss of routers is never added",
    finding="Transformers: options that are ignored",
).of("R5.calls/loss of routers", "R5.calls/loss of routers by configuration")
NO_SCALE = KnownFailure(
    "the scale of logits is ignored", finding="Transformers: options that are ignored"
).of("R5.calls/head by definition")
NO_CAP = KnownFailure("the cap of logits is ignored", finding="Transformers: options that are ignored").of(
    "R5.calls/head by definition"
)
OTHER_MASKS = KnownFailure(
    "a mask of truth values or numbers is taken for another one",
    finding="Transformers: small functions of older releases",
    releases=before("transformers", "5"),
).of("R5.calls/masks of other types")
BEFORE_THE_NORM = KnownFailure(
    "the last of all hidden states is the one before the last norm",
    finding="Transformers: small functions of older releases",
    releases=before("transformers", "5"),
).of("R5.calls/the last hidden state")
STATIC_PLACES = KnownFailure(
    "keys in a static cache have other places than in one that grows",
    finding="Transformers: a static cache of Inkling",
).of("R5.family/decoded from a static cache")
MASKED_ZERO = KnownFailure(
    "experts of groups that are not chosen have a score of 0, which is above the negative ones of those chosen",
    finding="Transformers: experts of other groups",
    releases=before("transformers", "5"),
).of("R5.calls/experts by definition")
SCORES_FOR_LOGITS = KnownFailure(
    "weights of experts are given as the logits of routers",
    finding="Transformers: logits of GPT-OSS's routers",
    releases=before("transformers", "5"),
).of("R5.calls/logits of routers")
PROBABILITIES = KnownFailure(
    "probabilities of experts are given as the logits of routers",
    finding="Transformers: logits of GPT-OSS's routers",
    releases=between("transformers", "5", "5.6"),
).of("R5.calls/logits of routers")
OLDER_FAILURE = KnownFailure(
    "a crash, or other numbers in one of the forms of a call",
    finding="Transformers: small functions of older releases",
    releases=before("transformers", "5"),
)
ALONE = "R5.calls/a row padded on the left by itself"
PADDED_ALONE = KnownFailure(
    "padding is hidden from recurrent and convolutional layers in batches of more than one row alone",
    finding="Transformers: small functions of older releases",
    releases=before("transformers", "5.15"),
).of(ALONE)
GROWN = KnownFailure(
    "the cache of short factors is dropped, and the last id alone is read again",
    finding="Transformers: small functions of older releases",
    releases=before("transformers", "5.20"),
).of("R5.calls/long and short factors while a row grows")
BY_PLACE = KnownFailure(
    "queries are scaled by their place in the batch",
    finding="Transformers: small functions of older releases",
    releases=before("transformers", "5.4"),
).of(*(f"R5.calls/{how}, beyond a length" for how in ("padded on the left", "packed", "generated")))
NO_RELU = KnownFailure(
    "scores of an index's heads are added up with their negative parts",
    finding="Transformers: small functions of older releases",
    releases=before("transformers", "5.4"),
).of("R5.calls/places that an index chooses")
NOT_HIDDEN = KnownFailure(
    "padding is not hidden from convolutions",
    finding="Transformers: padding and a bias before the convolution",
).of(ALONE)
TEMPERATURES = KnownFailure(
    "the temperature of attention follows from the place in the batch",
    finding="Transformers: temperatures of attention in Llama 4",
).of(*(f"R5.calls/{how}, beyond a length" for how in ("padded on the left", "packed", "generated")))
OLDER: Mapping[str, Sequence[KnownFailure]] = {
    **dict.fromkeys(
        (
            "bamba", "falcon_h1", "granitemoehybrid", "lfm2", "lfm2_moe", "mamba2", "olmo_hybrid", "qwen3_5",
            "qwen3_5_moe", "qwen3_5_moe_text", "qwen3_5_text", "qwen3_next",
        ),
        (PADDED_ALONE,),
    ),
    **dict.fromkeys(("phi3", "phimoe"), (GROWN,)),
    **dict.fromkeys(("llama4", "llama4_text"), (TEMPERATURES,)),
    "glm_moe_dsa": (NO_RELU,),
    "ministral3": (BY_PLACE,),
    "recurrent_gemma": (NOT_HIDDEN,),
    "apertus": (OLDER_FAILURE.of("R5.family/saved and loaded"),),
    "jetmoe": (
        OLDER_FAILURE.of(
            "R5.family/decoded from a static cache",
            "R5.calls/loss of routers",
            "R5.calls/loss of routers by configuration",
        ),
    ),
    "minimax": (OLDER_FAILURE.of("R5.cached/candidates of the prompt"),),
    "roberta-prelayernorm": (BEFORE_THE_NORM,),
    "xglm": (OLDER_FAILURE.of("R5.calls/inputs stay", "R5.cached/cut"),),
}  # fmt: skip
"""Further ones by family."""
