"""What earlier releases of PEFT break, by names of adapters; what the current one breaks as well: `known`."""

from __future__ import annotations

from fnmatch import fnmatchcase
from typing import NamedTuple

from seatrial.targets.common.known import KnownFailure, before

FINDING = "PEFT: adapters in earlier releases"


class Former(NamedTuple):
    """A bug that a release has fixed."""

    reason: str
    before: str
    """The first release without it, or the end of what was looked at."""
    adapters: tuple[str, ...]
    """Names, where `*` is any text."""
    laws: tuple[str, ...]
    but: tuple[str, ...] = ()
    """Adapters that it is not declared of: these show the bug."""

    def is_of(self, name: str) -> bool:
        """Return whether it is of the adapter of this name."""
        return name not in self.but and any(fnmatchcase(name, pattern) for pattern in self.adapters)

    def known(self) -> KnownFailure:
        """Return it as a declaration."""
        return KnownFailure(self.reason, finding=FINDING, releases=before("peft", self.before)).of(*self.laws)


COMBINING = ("lora", "lora-patterns", "lora-embedding", "lora-conv1d")
ALL_COMBINING = (*COMBINING, "lora-rank-patterns", "lora-rslora", "lora-bias")
TOKENS = ("lora-tokens", "lora-tied-tokens", "lora-scaled-tokens")
SAVING = ("lora-head-saved", "lora-norms-saved", "lora-layers-saved", "lora-tied-head", "*-saved-head")
VIRTUAL = ("prompt", "prefix", "p-tuning")
DROPPED = tuple(
    f"R29.combined/{what} dropped at random{how}"
    for what in ("changes", "factors")
    for how in ("", ", by elected signs")
)
FORMER = (
    Former(
        "factors of one adapter are scaled twice in a combination by singular values",
        "0.21",
        COMBINING,
        (
            "R29.combined/by singular values, one times zero",
            "R29.combined/by singular values",
            "R29.combined/by singular values, one subtracted",
            "R29.combined/pruned by magnitude",
            "R29.combined/pruned by magnitude, one subtracted",
            "R29.combined/by elected signs",
            *DROPPED[:2],
        ),
    ),
    Former(
        "a negative weight of a combination raises a domain error",
        "0.18",
        ALL_COMBINING,
        (
            "R29.combined/one adapter times -0.7",
            "R29.combined/factors, one subtracted",
            "R29.combined/factors pruned by magnitude",
        ),
    ),
    Former(
        "values that are kept at random are not divided by the part that is kept (peft-3152)",
        "0.19",
        ALL_COMBINING,
        DROPPED,
    ),
    Former(
        "a combined adapter is too small for the ranks of a pattern",
        "0.16",
        ("lora-patterns", "lora-rank-patterns"),
        (
            "R29.combined/concatenated",
            "R29.combined/concatenated, one subtracted",
            "R29.combined/the given ones stay",
        ),
    ),
    Former(
        "the norm of a second DoRA adapter is that of weights with the first one merged",
        "0.21",
        ("lora-dora", "lora-dora-embedding", "lora-conv1d-dora", "lora-dora-rslora", "lora-scaled-dora"),
        ("R29.merged/two adapters", "R29.merged/two adapters, in turn"),
    ),
    Former(
        "DoRA on an embedding is merged as plain LoRA",
        "0.16",
        ("lora-dora-embedding",),
        (
            "R29.merged/outputs",
            "R29.merged/outputs while merged",
            "R29.merged/weights in bfloat16",
            "R29.merged/weights in float16",
        ),
    ),
    Former(
        "the magnitude of a second DoRA adapter on an embedding is neither frozen nor deleted",
        "0.20",
        ("lora-dora-embedding",),
        ("R29.several/only the adapter in use trains", "R29.several/deleting"),
    ),
    Former(
        "the file of one adapter has the tensors of the others (peft-3282)",
        "0.20",
        (
            *("lora-bias", "lora-*-bias*", "ia3*", "loha*", "lokr*", "vera", "vera-keeps-no-projection"),
            *("fourierft", "oft*", "boft", "hra", "vblora", "ln-tuning", "randlora", "miss", "miss-bat"),
            *("shira", "c3a", "trainable-tokens*", "road", "delora", "tinylora*"),
        ),
        ("R29.saved/the adapter's tensors alone", "R29.elsewhere/saved"),
        but=("lokr",),
    ),
    Former(
        "a module that is saved with an adapter is not deleted with it",
        "0.16",
        (*SAVING, "*-tokens-classified"),
        ("R29.several/deleting", "R29.elsewhere/deleted and added again", "R29.histories/tensors"),
    ),
    Former(
        "adapters over a base in half precision raise",
        "0.16",
        ("loha*", "lokr*", "oft*", "boft*", "hra*", "ln-tuning*"),
        (
            "R29.saved/into bfloat16",
            "R29.merged/weights in bfloat16",
            "R29.merged/weights in float16",
            "R29.merged/merge and unmerge in bfloat16",
        ),
    ),
    Former(
        "an adapter of this type cannot be deleted",
        "0.18",
        ("ln-tuning", "c3a", "trainable-tokens*"),
        (
            "R29.several/deleting",
            "R29.elsewhere/deleted and added again",
            "R29.elsewhere/any order",
            "R29.histories/outputs",
            "R29.histories/tensors",
        ),
    ),
    Former("an adapter of prompts cannot be deleted", "0.21", VIRTUAL, ("R29.several/deleting",)),
    Former(
        "an adapter of a prompt cannot be deleted in a history",
        "0.17",
        VIRTUAL,
        ("R29.histories/outputs", "R29.histories/tensors"),
    ),
    Former(
        "AdaLoRA keeps numbers of ranks on the meta device where it is made without memory",
        "0.21",
        ("adalora",),
        ("R29.routes/moved: tensors set in a new model, low memory", "R29.routes/moved: file, low memory"),
    ),
    Former(
        "the vectors of VB-LoRA are not found in a model that is no PeftModel",
        "0.21",
        ("vblora",),
        ("R29.routes/moved: injected into a plain model",),
    ),
    Former(
        "TinyLoRA finds its vectors in a PeftModel alone, and raises where it is made without memory",
        "0.21",
        ("tinylora*",),
        (
            "R29.routes/moved: injected into a plain model",
            "R29.routes/moved: file loaded by the model itself",
            "R29.routes/moved: file with its base, loaded as one model",
            "R29.routes/moved: tensors set in a new model, low memory",
            "R29.routes/moved: file, low memory",
        ),
    ),
    Former(
        "AdaLoRA cannot be injected into a plain model",
        "0.17",
        ("adalora",),
        ("R29.routes/moved: injected into a plain model",),
    ),
    Former(
        "adding an adapter freezes the module that the one in use saves, or its tokens",
        "0.21",
        (*SAVING, *TOKENS),
        ("R29.elsewhere/added",),
    ),
    Former(
        "saved modules and tokens of an adapter for inference train",
        "0.18.1",
        (*SAVING, "lora-tokens", "lora-scaled-tokens", "*-tokens-classified"),
        ("R29.saved/for inference",),
    ),
    Former(
        "a saved module of an adapter that is added is in use at once, for the adapter in use as well",
        "0.17",
        (
            *("lora*", "adalora*", "ia3*", "loha*", "lokr*", "boft*", "vblora*", "miss*", "oft*", "hra*"),
            *("c3a*", "shira*", "fourierft*"),
        ),
        ("R29.histories/outputs", "R29.histories/scaled"),
        but=("lora-head-saved",),
    ),
    Former(
        "a saved module takes a list of adapters for the name of one",
        "0.18",
        ("lora-layers-saved", "lora-tied-head"),
        ("R29.histories/tensors",),
    ),
    Former(
        "a scale of rsLoRA is set by the rank, not by its root (peft-2775)",
        "0.17",
        ("lora-rslora", "lora-rslora-patterns", "lora-*-rslora"),
        ("R29.histories/scaled alone",),
    ),
    Former(
        "a merged adapter is deleted, and its change stays in the base (peft-3504)",
        "0.21",
        ("*",),
        ("R29.several/deleting a merged one",),
    ),
    Former(
        "a safe merge adds to the weights before it checks the bias of lora_bias",
        "0.21",
        ("lora-bias", "lora-*-bias*"),
        ("R29.merged/refused merge",),
    ),
    Former(
        "names of tensors lose a module that has the name of their adapter (peft-2773)",
        "0.17",
        ("*",),
        ("R29.routes/moved: file of an adapter with the name of a module",),
    ),
    Former(
        "tokens of an adapter of LoRA are left where it is deleted, and not found in a model that is no PeftModel",
        "0.17",
        TOKENS,
        ("R29.several/deleting", "R29.routes/moved: injected into a plain model"),
    ),
    Former(
        "the scale of an embedding is not applied where tokens of it train",
        "0.18.1",
        ("lora-scaled-tokens", "trainable-tokens-scaled"),
        (
            "R29.adapted/starts as the base",
            "R29.merged/outputs",
            "R29.merged/outputs while merged",
            "R29.elsewhere/merged twice",
            "R29.elsewhere/merged again",
            "R29.elsewhere/merged next to the other",
            "R29.histories/outputs",
        ),
    ),
    Former(
        "tokens that begin at random values are put back to these",
        "0.21",
        ("trainable-tokens-drawn",),
        (
            "R29.merged/merge and unmerge",
            "R29.merged/merge and unmerge in bfloat16",
            "R29.merged/disabled while merged",
            "R29.elsewhere/merged next to the other",
        ),
    ),
    Former(
        "MultiheadAttention in half precision raises where its adapter is in float32",
        "0.17",
        ("lora-attention",),
        ("R29.saved/into bfloat16",),
    ),
    Former(
        "a second adapter is accepted that is on no layer, and one of two variants of LoRA is dropped",
        "0.20",
        ("refusals",),
        ("R18.refused/refused",),
    ),
)


def former(name: str) -> tuple[KnownFailure, ...]:
    """Return what earlier releases break of the adapter of this name."""
    return tuple(row.known() for row in FORMER if row.is_of(name))
