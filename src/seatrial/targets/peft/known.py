"""What PEFT is known to break, with the finding that shows each."""

from __future__ import annotations

from dataclasses import replace

from seatrial.targets.common.known import KnownFailure, since

MIXED = KnownFailure(
    "adapter_names of a batch is ignored without a word by every type but LoRA, RoAd and a few",
    finding="PEFT: adapter_names of types other than LoRA",
).of("R29.several/mixed batch")
_SUMS = (
    "R29.combined/one adapter times 0.7",
    "R29.combined/one adapter times -0.7",
    "R29.combined/concatenated",
    "R29.combined/concatenated, one subtracted",
    "R29.combined/by singular values",
    "R29.combined/by singular values, one subtracted",
)
RSLORA_SUMS = KnownFailure(
    "the scaling of a combined adapter is sqrt(r) with rsLoRA, and its factors are for 1",
    finding="PEFT: weighted combinations of rsLoRA",
).of(*_SUMS)
BIAS_SUMS = KnownFailure(
    "a combined adapter has none of the biases that lora_bias trained",
    finding="PEFT: weighted combinations and lora_bias",
).of(*_SUMS)
OLORA_SQUARE = KnownFailure(
    "OLoRA decomposes the weight of a Conv1D in its transposed layout",
    finding="PEFT: OLoRA of transposed layers",
).of("R29.adapted/starts as the base")
OLORA_OTHER = KnownFailure(
    "OLoRA decomposes the weight of a Conv1D in its transposed layout, and factors of another shape raise",
    finding="PEFT: OLoRA of transposed layers",
).of("R29.adapted", "R29.merged", "R29.trained", "R29.saved")
TIED_MERGE = KnownFailure(
    "the weight that embedding and head share gets the change of the tied adapter twice in a merge",
    finding="PEFT: a tied adapter is merged twice",
).of(
    "R29.merged/outputs",
    "R29.merged/outputs while merged",
    "R29.merged/weights in bfloat16",
    "R29.merged/weights in float16",
    "R29.merged/two adapters",
)
TIED_DISABLED = replace(TIED_MERGE, releases=since("peft", "0.19")).of("R29.merged/disabled while merged")
TIED_SECOND = KnownFailure(
    "the head of a second tied adapter is not in use or in its file",
    finding="PEFT: a second tied adapter",
    releases=since("peft", "0.19"),
).of("R29.saved/the second adapter of two")
TIED_SECOND_TRAINS = replace(TIED_SECOND, releases=since("peft", "0.21")).of(
    "R29.several/only the adapter in use trains"
)
TIED = (TIED_MERGE, TIED_DISABLED, TIED_SECOND, TIED_SECOND_TRAINS)
TIED_SECOND_SAVED = KnownFailure(
    "a second adapter has no copy of the tied head, which its file and a mixed batch need",
    finding="PEFT: a second tied module that is saved",
    releases=since("peft", "0.21"),
).of("R29.saved/the second adapter of two", "R29.several/mixed batch")
OFT_TWO = KnownFailure(
    "two rotations at once are applied in one order by the forward pass, and in the other one by a merge",
    finding="PEFT: two OFT adapters at once",
    releases=since("peft", "0.16"),
).of("R29.merged/two adapters")
C3A_TWO = KnownFailure(
    "the second of two adapters gets the first one's output for its input",
    finding="PEFT: two C3A adapters at once",
).of("R29.merged/two adapters")
HRA_START = KnownFailure(
    "pairs of equal vectors, which make HRA start as the base, are what Gram-Schmidt divides by zero, or by rounding",
    finding="PEFT: HRA with Gram-Schmidt does not start as the base",
).of("R29.adapted/starts as the base")
LILY_SECOND = KnownFailure(
    "layers share factors of the first adapter, and not of one that is added",
    finding="PEFT: a second Lily adapter",
).of("R29.several/only the adapter in use trains", "R29.saved/the second adapter of two")
OSF_DISABLED = KnownFailure(
    "a merged adapter stays merged where it is disabled",
    finding="PEFT: OSF disabled while merged",
).of("R29.merged/disabled while merged")
PROMPTS_TRAIN = KnownFailure(
    "prompts of an adapter that is not in use stay trainable",
    finding="PEFT: prompts that are not in use",
).of("R29.several/only the adapter in use trains")
FROD_BFLOAT16 = KnownFailure(
    "projections are computed again from the weights of the base, in their precision",
    finding="PEFT: FRoD over a base in bfloat16",
).of("R29.saved/into bfloat16")
