"""What PEFT is known to break, with the finding that shows each."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from seatrial.targets.common.known import KnownFailure, before, since
from seatrial.targets.peft.known_tokens import TIED_TOKENS_IN_USE, TOKENS_STAY_MERGED

MIXED = KnownFailure(
    "adapter_names of a batch is ignored without a word by every type but LoRA, RoAd and a few",
    finding="PEFT: adapter_names of types other than LoRA",
).of("R29.several/mixed batch", "R29.histories/rows")
_SUMS = (
    "R29.combined/one adapter times 0.7",
    "R29.combined/one adapter times -0.7",
    "R29.combined/by singular values, one times zero",
    "R29.combined/concatenated",
    "R29.combined/concatenated, one subtracted",
    "R29.combined/by singular values",
    "R29.combined/by singular values, one subtracted",
    "R29.histories/combined",
)
RSLORA_SUMS = KnownFailure(
    "the scaling of a combined adapter is sqrt(r) with rsLoRA, and its factors are for 1",
    finding="PEFT: weighted combinations of rsLoRA",
).of(
    *_SUMS,
    "R29.combined/pruned by magnitude",
    "R29.combined/pruned by magnitude, one subtracted",
    "R29.combined/by elected signs",
    "R29.combined/changes dropped at random",
    "R29.combined/changes dropped at random, by elected signs",
)
BIAS_SUMS = KnownFailure(
    "a combined adapter has none of the biases that lora_bias trained",
    finding="PEFT: weighted combinations and lora_bias",
).of(*_SUMS)
SUMS_ELSEWHERE = KnownFailure(
    "exclude_modules and layers_to_transform of the first adapter leave out layers of the others in a weighted sum",
    finding="PEFT: weighted combinations of adapters on other layers",
).of("R29.histories/combined")
OLORA_SQUARE = KnownFailure(
    "OLoRA decomposes the weight of a Conv1D in its transposed layout",
    finding="PEFT: OLoRA of transposed layers",
).of("R29.adapted/starts as the base")
OLORA_OTHER = KnownFailure(
    "OLoRA decomposes the weight of a Conv1D in its transposed layout, and factors of another shape raise",
    finding="PEFT: OLoRA of transposed layers",
).of("R29.adapted", "R29.merged", "R29.trained", "R29.saved", "R29.routes")
_ELSEWHERE = ("R29.elsewhere/switched", "R29.elsewhere/deleted and added again", "R29.elsewhere/any order")
_MERGED_ELSEWHERE = (
    "R29.elsewhere/merged twice",
    "R29.elsewhere/merged again",
    "R29.elsewhere/merged next to the other",
    "R29.elsewhere/any order",
)
_SECONDS = ("R29.saved/loaded as another one", "R29.saved/tensors of one set in the other")
TIED_MERGE = KnownFailure(
    "the weight that embedding and head share gets the change of the tied adapter twice in a merge",
    finding="PEFT: a tied adapter is merged twice",
).of(
    "R29.merged/outputs",
    "R29.merged/outputs while merged",
    "R29.merged/weights in bfloat16",
    "R29.merged/weights in float16",
    "R29.merged/two adapters",
    "R29.merged/two adapters, in turn",
    "R29.merged/one of two by name",
    "R29.elsewhere/merged twice",
    "R29.elsewhere/merged again",
    "R29.histories/outputs",
    "R29.histories/scaled",
    "R29.histories/scaled alone",
    "R29.histories/combined",
)
TIED_DISABLED = replace(TIED_MERGE, releases=since("peft", "0.19")).of("R29.merged/disabled while merged")
TIED_SECOND = KnownFailure(
    "the head of a second tied adapter is not in use or in its file",
    finding="PEFT: a second tied adapter",
    releases=since("peft", "0.19"),
).of(
    "R29.saved/the second adapter of two",
    "R29.histories/files",
    "R29.histories/what trains",
    "R29.histories/tensors",
    "R29.histories/gradients",
)
TIED_SECOND_TRAINS = replace(TIED_SECOND, releases=since("transformers", "5.23")).of(
    *_SECONDS, "R29.several/only the adapter in use trains"
)
TIED = (TIED_MERGE, TIED_DISABLED, TIED_SECOND, TIED_SECOND_TRAINS)
TIED_SECOND_SAVED = KnownFailure(
    "a second adapter has no copy of the tied head, which its file and a mixed batch need",
    finding="PEFT: a second tied module that is saved",
    releases=since("transformers", "5.23"),
).of(
    "R29.saved/the second adapter of two",
    "R29.several/mixed batch",
    *_SECONDS,
    "R29.histories/files",
    "R29.histories/rows",
    "R29.histories/tensors",
    "R29.histories/outputs",
    "R29.histories/gradients",
    "R29.histories/what trains",
)
HRA_START = KnownFailure(
    "pairs of equal vectors, which make HRA start as the base, are what Gram-Schmidt divides by zero, or by rounding",
    finding="PEFT: HRA with Gram-Schmidt does not start as the base",
).of("R29.adapted/starts as the base", "R29.trained/every tensor has a gradient")
LILY_SECOND = KnownFailure(
    "layers share factors of the first adapter, and not of one that is added",
    finding="PEFT: a second Lily adapter",
).of(
    "R29.several/only the adapter in use trains",
    "R29.saved/the second adapter of two",
    *_ELSEWHERE,
    "R29.elsewhere/gradients",
    "R29.elsewhere/saved",
    "R29.histories/outputs",
    "R29.histories/what trains",
    "R29.histories/gradients",
    "R29.histories/tensors",
    "R29.histories/files",
)
LILY_ROWS = KnownFailure(
    "experts are weighted by the mean of the router over all rows and tokens of a batch",
    finding="PEFT: rows of a batch under Lily",
).of(
    "R29.adapted/padded rows",
    "R29.routes/asked: with a cache",
    "R29.routes/asked: generated",
    "R29.routes/asked: generated from padded rows",
)
OSF_DISABLED = KnownFailure(
    "a merged adapter stays merged where it is disabled",
    finding="PEFT: OSF disabled while merged",
).of("R29.merged/disabled while merged", "R29.histories/what trains")
OSF_TWICE = KnownFailure(
    "an adapter that is merged a second time is added a second time",
    finding="PEFT: OSF merged twice",
).of("R29.elsewhere/merged twice")
PROMPTS_TRAIN = KnownFailure(
    "prompts of an adapter that is not in use stay trainable",
    finding="PEFT: prompts that are not in use",
).of(
    "R29.several/only the adapter in use trains",
    "R29.elsewhere/added",
    *_ELSEWHERE,
    "R29.histories/what trains",
)
GENERATED = KnownFailure(
    "generation with a cache leaves a prefix out, and moves ids that come after the virtual tokens of a prompt",
    finding="PEFT: generation with virtual tokens",
    releases=since("transformers", "5.24"),
).of("R29.routes/asked: generated")
PADDED = KnownFailure(
    "ids are further from the virtual tokens where their row is padded",
    finding="PEFT: padded rows of a generation with virtual tokens",
).of("R29.routes/asked: generated from padded rows")
PADDED_PREFIX = replace(PADDED, releases=before("peft", "0.19"))
GENERATED_PREFIX = GENERATED.of("R29.routes/asked: generated from padded rows")
FROD_BFLOAT16 = KnownFailure(
    "projections are computed again from the weights of the base, in their precision",
    finding="PEFT: FRoD over a base in bfloat16",
).of("R29.saved/into bfloat16")
ATTENTION = KnownFailure(
    "the output projection of MultiheadAttention gets the change of its adapter twice",
    finding="PEFT: the output projection of MultiheadAttention",
).of(
    "R29.adapted/float64 oracle",
    "R29.merged/weights in bfloat16",
    "R29.merged/weights in float16",
    "R29.adapted/rescaled",
    "R29.histories/scaled",
    "R29.histories/scaled alone",
    "R29.histories/combined",
)
ATTENTION_DRIFT = KnownFailure(
    "each forward pass of MultiheadAttention merges and unmerges, which rounds the weights of the base",
    finding="PEFT: weights of MultiheadAttention in forward passes",
).of("R29.several/switching", "R29.trained/a step changes the adapter alone")
CONVOLUTION = KnownFailure(
    "the first factor of a convolution has neither its dilation nor its padding mode",
    finding="PEFT: dilated and circular convolutions",
).of(
    "R29.adapted/float64 oracle",
    "R29.adapted/rescaled",
    "R29.merged/outputs",
    "R29.merged/outputs while merged",
    "R29.merged/two adapters",
    "R29.merged/two adapters, in turn",
    "R29.merged/one of two by name",
    *_MERGED_ELSEWHERE[:3],
    "R29.histories/outputs",
    "R29.histories/scaled",
    "R29.histories/scaled alone",
    "R29.histories/combined",
)
REPLICATED_SECOND = KnownFailure(
    "adding an adapter replicates layers again, which then share the factors of the first one",
    finding="PEFT: a second adapter of replicated layers",
).of(
    "R29.several/switching",
    "R29.several/only the adapter in use trains",
    "R29.saved/loaded as another one",
    "R29.histories/outputs",
    "R29.histories/what trains",
    "R29.histories/tensors",
    "R29.histories/gradients",
    "R29.histories/files",
    "R29.histories/rows",
    "R29.histories/combined",
    "R29.histories/scaled",
    "R29.histories/scaled alone",
)
REPLICATED_MERGE = KnownFailure(
    "replicated layers share the weight that each of them merges its own change into",
    finding="PEFT: replicated layers are merged into one weight",
).of(
    "R29.merged/outputs",
    "R29.merged/outputs while merged",
    "R29.merged/weights in bfloat16",
    "R29.merged/weights in float16",
    "R29.merged/disabled while merged",
    "R29.merged/two adapters",
    "R29.merged/two adapters, in turn",
    "R29.merged/one of two by name",
    "R29.elsewhere/merged twice",
    "R29.elsewhere/merged again",
)
SAVED_WHILE_MERGED = KnownFailure(
    "while merged, embeddings and heads of the file have the adapter in them, and norms are those of the base",
    finding="PEFT: an adapter saved while it is merged",
).of("R29.routes/moved: file written while merged")
CONVERTED = KnownFailure(
    "convert_to_lora leaves out norms of DoRA and biases of lora_bias",
    finding="PEFT: adapters converted to LoRA",
).of("R29.routes/moved: converted to low rank", "R29.routes/moved: converted to low rank by energy")
NOWHERE_ELSE = KnownFailure(
    "a layer that one of two adapters alone is on raises where the other one is in use, saved or deleted",
    finding="PEFT: a layer that one of two adapters is on",
).of(
    "R29.elsewhere/added",
    *_ELSEWHERE[:2],
    "R29.elsewhere/gradients",
    "R29.elsewhere/merged next to the other",
)
TOKENS_ELSEWHERE = NOWHERE_ELSE.of("R29.elsewhere/saved")
FROD_ELSEWHERE = NOWHERE_ELSE.of("R29.elsewhere/deleted and added again")
FROD_TRANSPOSED = KnownFailure(
    "a second adapter does not transpose weights of Conv1D that the first one is around",
    finding="PEFT: a second FRoD adapter of transposed layers",
).of(
    "R29.elsewhere/added",
    *_ELSEWHERE,
    "R29.elsewhere/gradients",
    "R29.elsewhere/disabled",
    "R29.elsewhere/merged next to the other",
    "R29.elsewhere/saved",
)
TRAINS_FOR_INFERENCE = KnownFailure(
    "biases and prompts train of an adapter that is loaded for inference",
    finding="PEFT: what trains of an adapter for inference",
).of("R29.saved/for inference")
HIRA_RANKS = KnownFailure(
    "the first adapter has the rank of the options in every layer, and a second one that of the pattern",
    finding="PEFT: the pattern of ranks of HiRA",
).of("R29.saved/tensors of one set in the other", "R29.saved", "R29.options/the option has an effect")
OFT_CONVOLUTION = KnownFailure(
    "windows of a convolution that overlap are summed after they are rotated",
    finding="PEFT: OFT on convolutions",
).of(
    "R29.adapted/starts as the base",
    "R29.merged/outputs",
    "R29.merged/outputs while merged",
    "R29.merged/one of two by name",
    "R29.merged/two adapters",
    "R29.merged/two adapters, in turn",
    *_MERGED_ELSEWHERE,
)
OFT_CONSTRAINED = KnownFailure(
    "each forward pass projects the weights of the adapter again, which rounds them",
    finding="PEFT: constrained OFT in forward passes",
).of(
    "R29.adapted/after it was disabled",
    "R29.several/switching",
    "R29.several/deleting",
    "R29.histories/tensors",
)
OFT_DROPOUT = KnownFailure(
    "dropout of OFT is made and not applied",
    finding="PEFT: dropout of OFT",
    releases=since("peft", "0.16"),
).of("R29.routes/training with all of it dropped", "R29.routes/training with dropout, on average")
EVA_HALF = KnownFailure(
    "factors whose rank EVA changes are in the precision of the base",
    finding="PEFT: EVA over a base in bfloat16",
).of("R29.saved/float32 over bfloat16")
ADALORA_RSLORA = KnownFailure(
    "AdaLoRA takes use_rslora and does not use it", finding="PEFT: rsLoRA of AdaLoRA"
).of("R29.options/the option has an effect")
SAVED_IN_A_MIXED_BATCH = KnownFailure(
    "adapter_names of a batch does not reach modules that are saved, which compute with the adapter in use",
    finding="PEFT: saved modules in a batch of several adapters",
).of("R29.several/mixed batch", "R29.histories/rows")
SAVED_STAYS_WRAPPED = KnownFailure(
    "a module that is saved stays in its wrapper in the merged model",
    finding="PEFT: saved modules of LN tuning after a merge",
).of("R29.merged", "R29.merged/outputs", "R29.merged/weights in bfloat16", "R29.merged/weights in float16")
DERIVED_IN_BFLOAT16 = KnownFailure(
    "what is derived from the weights of the base is derived again in their precision",
    finding="PEFT: FRoD over a base in bfloat16",
).of("R29.saved/into bfloat16")
ENABLED_TRAINS = KnownFailure(
    "an adapter that is used for inference trains after a block in which adapters are disabled",
    finding="PEFT: an adapter for inference that was disabled",
).of("R29.histories/disabled while for inference")
OLDER_FILES = KnownFailure(
    "the file of an adapter has tensors of others whose names contain its name",
    finding="PEFT: several adapters in older releases",
    releases=before("peft", "0.20"),
).of("R29.histories/files")
OLDER_TRAINS = KnownFailure(
    "saved modules of the adapter in use are frozen where another adapter is added",
    finding="PEFT: several adapters in older releases",
    releases=before("peft", "0.21"),
).of("R29.histories/what trains", "R29.histories/gradients")
SCALED_TWICE = KnownFailure(
    "weighted sums by singular values multiply each adapter by its scaling twice",
    finding="PEFT: several adapters in older releases",
    releases=before("peft", "0.21"),
).of("R29.histories/combined")
MAGNITUDE_LEFT = KnownFailure(
    "the magnitudes of a DoRA adapter of an embedding stay where it is deleted",
    finding="PEFT: several adapters in older releases",
    releases=before("peft", "0.21"),
).of("R29.histories/tensors")
SCALED_EMBEDDING = KnownFailure(
    "scale_layer and unscale_layer pass over adapters of embeddings",
    finding="PEFT: the scale of an adapter of an embedding",
).of("R29.histories/scaled", "R29.histories/scaled alone")


def embeds(options: Mapping[str, Any]) -> bool:
    """Return whether the options name embeddings or a head."""
    targets = options.get("target_modules") or []
    return any(name in targets for name in ("embed_tokens", "lm_head", "wte"))


def moving(options: Mapping[str, Any]) -> list[KnownFailure]:
    """Return what moving an adapter with these options to another model breaks."""
    # A file of tokens alone is right while merged.
    found = [SAVED_WHILE_MERGED] if embeds(options) and "token_indices" not in options else []
    return found + ([CONVERTED] if options.get("use_dora") or options.get("lora_bias") else [])


def in_histories(options: Mapping[str, Any]) -> list[KnownFailure]:
    """Return what a history of several adapters of LoRA with these options breaks."""
    found = [SCALED_EMBEDDING] if embeds(options) else []
    found += [MAGNITUDE_LEFT] if options.get("use_dora") and embeds(options) else []
    found += [SCALED_TWICE]
    found += [RSLORA_SUMS] if options.get("use_rslora") else []
    found += [BIAS_SUMS] if options.get("lora_bias") else []
    chosen = options.get("exclude_modules") or options.get("layers_to_transform")
    found += [SUMS_ELSEWHERE] if chosen else []
    if not options.get("trainable_token_indices"):
        return found
    return [*found, TOKENS_STAY_MERGED] + ([TIED_TOKENS_IN_USE] if options.get("trait") == "tied" else [])
