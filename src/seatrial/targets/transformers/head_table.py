"""Families whose heads the laws judge: options of a tiny model, heads left out, and known failures."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from seatrial.targets.common.known import Releases, before, every_release

FAMILIES: Mapping[str, Mapping[str, Any]] = {
    name: {}
    for name in (
        "albert", "bart", "bert", "bigbird_pegasus", "blenderbot", "bloom", "camembert", "ctrl", "data2vec-text",
        "deberta", "deberta-v2", "distilbert", "electra", "ernie", "eurobert", "falcon", "gemma", "gemma3_text",
        "gpt2", "gpt_bigcode", "gpt_neox", "gpt_oss", "gte", "jina_embeddings_v3", "layoutlm", "llama", "longt5",
        "m2m_100", "mbart", "megatron-bert", "mistral", "mixtral", "modernbert", "modernbert-decoder", "mpt", "mra",
        "mt5", "mvp", "nllb-moe", "nomic_bert", "openai-gpt", "openai_privacy_filter", "opt", "pegasus", "phi3",
        "plbart", "qwen2", "qwen3", "qwen3_moe", "rembert", "roberta", "roberta-prelayernorm", "roformer",
        "splinter", "stablelm", "switch_transformers", "t5", "t5gemma", "tapas", "ultrabert", "umt5", "xlm-roberta",
        "xlm-roberta-xl",
    )
}  # fmt: skip
"""By the type of the configuration. Others that a release has are uncovered, and are named so: FNet, ConvBERT, XLNet,
Nystromformer and YOSO see padding by design, and the small models of some are not small, or are not made."""
SINCE: Mapping[str, str] = {"mra": "5"}
"""The first release whose model takes rows of any length."""
NO_HEADS: Mapping[str, Sequence[str]] = {"roformer": ("choices",)}
"""Kinds that are not judged: RoFormer summarises a choice by its last place, which may be padding, by default."""


@dataclass(frozen=True, kw_only=True)
class HeadFailure:
    """A known failure of heads."""

    families: Sequence[str]
    kinds: Sequence[str]
    laws: Sequence[str]
    finding: str
    """The heading in docs/evidence/findings.md."""
    releases: Releases = every_release


LONGEST_ROW = "Transformers: the longest row that T5Gemma classifies"
LABELS_CUT = "Transformers: labels that RemBERT changes"
FAILURES: Sequence[HeadFailure] = (
    HeadFailure(
        families=("t5gemma",),
        kinds=("row classes", "row numbers", "row labels"),
        laws=("padded", "padded sdpa", "loss"),
        finding=LONGEST_ROW,
    ),
    HeadFailure(
        families=("t5", "mt5"),
        kinds=("token classes",),
        laws=("asked",),
        finding="Transformers: small functions of older releases",
        releases=before("transformers", "5"),
    ),
    HeadFailure(families=("rembert", "splinter"), kinds=("spans",), laws=("inputs",), finding=LABELS_CUT),
)
