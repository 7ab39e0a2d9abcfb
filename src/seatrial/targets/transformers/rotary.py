"""Transformers' rotary embeddings by the kind of their scaling, one adapter a family; see `contracts.rotary`."""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from typing import Any, ClassVar

import torch
from packaging.version import Version
from torch import Tensor

from seatrial.relations.contracts.rotary import RotaryPlan
from seatrial.relations.not_served import NotServed
from seatrial.targets.common.known import KnownFailure, KnowsFailures, between
from seatrial.targets.common.target import Gone, find_name, release

ORIGINAL = "original_max_position_embeddings"


FAMILIES: Mapping[str, str] = {
    "cwm": "Cwm", "deepseek_v3": "DeepseekV3", "doge": "Doge", "ernie4_5_moe": "Ernie4_5_Moe", "gemma": "Gemma",
    "granite": "Granite", "helium": "Helium", "mistral": "Mistral", "mixtral": "Mixtral", "olmo2": "Olmo2",
    "olmoe": "Olmoe", "qwen2": "Qwen2", "qwen2_moe": "Qwen2Moe", "qwen3": "Qwen3", "qwen3_moe": "Qwen3Moe",
    "smollm3": "SmolLM3", "starcoder2": "Starcoder2",
}  # fmt: skip
"""The beginning of classes' names by that of the module, of families whose whole heads are turned alike."""


LONG_STAYS = KnownFailure(
    "frequencies of a longer row are kept for shorter ones",
    finding="Transformers: dynamic rotary embeddings after a longer row",
    releases=between("transformers", "5", "5.13"),
).of("R12.rotary/dynamic, a short row after a long one")


class RotaryEmbeddings(KnowsFailures):
    """`LlamaRotaryEmbedding`."""

    known_failures = (LONG_STAYS,)

    family: ClassVar[str] = "llama"
    prefix: ClassVar[str] = "Llama"

    def __init__(self) -> None:
        """Find the module and the kinds."""
        if self.family != "llama" and Version(release("transformers")) < Version("5"):
            raise Gone(f"the adapter of {self.family} fits transformers 5 and later")
        module = f"transformers.models.{self.family}.modeling_{self.family}"
        self._module: Any = find_name("transformers", [f"{module}:{self.prefix}RotaryEmbedding"])
        self._config: Any = find_name("transformers", [f"transformers:{self.prefix}Config"])
        self._kinds = find_name("transformers", ["transformers.modeling_rope_utils:ROPE_INIT_FUNCTIONS"])

    def turned(self, plan: RotaryPlan) -> tuple[Tensor, Tensor]:
        if plan.kind not in {*self._kinds, "default"}:
            raise NotServed(f"no rotary embeddings of the kind {plan.kind}")
        heads = {"hidden_size": 4 * plan.head_dim, "num_attention_heads": 4, "head_dim": plan.head_dim}
        sizes = {**heads, "max_position_embeddings": plan.max_positions}
        options = {"rope_type": plan.kind, **plan.options}
        if hasattr(self._config(), "rope_parameters"):
            config = self._config(**sizes, rope_parameters={**options, "rope_theta": plan.base})
        else:
            original = options.pop(ORIGINAL, None)
            if plan.kind == "longrope":  # read from the configuration, and its factor from both lengths
                sizes[ORIGINAL] = original
            elif original is not None:
                if ORIGINAL not in inspect.getsource(self._kinds[plan.kind]):
                    raise NotServed(f"{plan.kind} of this release does not take {ORIGINAL}")
                options[ORIGINAL] = original
            config = self._config(**sizes, rope_theta=plan.base, rope_scaling=options)
        module = self._module(config=config)
        with torch.no_grad():
            for length in plan.lengths:
                cosines, sines = module(torch.zeros(1, length, 4), torch.arange(length)[None])
        return cosines[0], sines[0]


def _adapter(family: str, prefix: str) -> type[RotaryEmbeddings]:
    words = {"__doc__": f"`{prefix}RotaryEmbedding`.", "family": family, "prefix": prefix, "thorough": True}
    return type(f"Rotary_{family}", (RotaryEmbeddings,), words)


ADAPTERS: dict[str, type[Any]] = {
    "rotary": RotaryEmbeddings,
    **{f"rotary-{family}": _adapter(family, prefix) for family, prefix in FAMILIES.items()},
}
