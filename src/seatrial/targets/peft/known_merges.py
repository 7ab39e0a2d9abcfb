"""What PEFT is known to break in merges of types other than LoRA, with the finding that shows each."""

from __future__ import annotations

from seatrial.targets.common.known import KnownFailure, before, since

_MERGES = (
    "R29.merged/outputs",
    "R29.merged/outputs while merged",
    "R29.merged/two adapters",
    "R29.merged/two adapters, in turn",
    "R29.merged/one of two by name",
    "R29.elsewhere/merged twice",
    "R29.elsewhere/merged again",
    "R29.elsewhere/merged next to the other",
    "R29.elsewhere/any order",
    "R29.histories/outputs",
)
CIRCULAR = KnownFailure(
    "what AdaLoRA, HiRA, LoHa and LoKr add to a convolution is padded with zeros where the base pads in a circle",
    finding="PEFT: circular convolutions of other types",
).of(*_MERGES)
BOFT_CHECKS = KnownFailure(
    "a safe merge of BOFT on a convolution does not check its values",
    finding="PEFT: checks of merges of BOFT and LN tuning",
).of("R29.merged/refused merge")
NORM_CHECKS = KnownFailure(
    "a safe merge of LN tuning does not check its values, and a second adapter is merged after the first",
    finding="PEFT: checks of merges of BOFT and LN tuning",
).of("R29.merged/refused merge", "R29.merged/refused together and in turn")
NORMS = (
    NORM_CHECKS,
    KnownFailure(
        "a norm that is added next to another one trains",
        finding="PEFT: several adapters in older releases",
        releases=before("peft", "0.18"),
    ).of("R29.several/only the adapter in use trains"),
)
DEFT_IN_TURN = KnownFailure(
    "the change of a DEFT adapter is computed from weights that another one is merged into",
    finding="PEFT: DEFT adapters merged in turn",
).of("R29.merged/two adapters, in turn")
HIRA_SCALED = KnownFailure(
    "what HiRA adds to an embedding is not multiplied by the embedding's scale",
    finding="PEFT: HiRA on scaled embeddings",
).of(*_MERGES, "R29.adapted/float64 oracle", "R29.histories/scaled", "R29.histories/scaled alone")
HIRA_IN_TURN = KnownFailure(
    "what a second HiRA adapter adds is multiplied by weights that the first one is merged into",
    finding="PEFT: adapters in earlier releases",
    releases=before("peft", "0.21"),
).of("R29.merged/two adapters, in turn")
BOFT_IN_BFLOAT16 = KnownFailure(
    "a model of BOFT that is in bfloat16 as a whole raises",
    finding="PEFT: adapters in earlier releases",
    releases=before("peft", "0.19"),
).of("R29.merged/training continues in bfloat16")
MISS_MINI = KnownFailure(
    "merging MiSS in half precision on a CPU repeats the tensor of the adapter itself, which unmerging does not take",
    finding="PEFT: MiSS merged in half precision",
).of("R29.merged/training continues in bfloat16")
OFT_TWO = KnownFailure(
    "two rotations at once are applied in one order by the forward pass, and in the other one by a merge",
    finding="PEFT: two OFT adapters at once",
    releases=since("peft", "0.16"),
).of("R29.merged/two adapters", "R29.merged/two adapters, in turn")
C3A_TWO = KnownFailure(
    "the second of two adapters gets the first one's output for its input",
    finding="PEFT: two C3A adapters at once",
).of("R29.merged/two adapters", "R29.merged/two adapters, in turn")
TOKENS_TRAIN = KnownFailure(
    "tokens that are used for inference train after another adapter is deleted",
    finding="PEFT: tokens for inference after a deletion",
).of("R29.histories/what trains")
