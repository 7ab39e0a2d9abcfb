"""Transformers' rotary embeddings on Llama's module, by the kind of their scaling; see `contracts.rotary`."""

from __future__ import annotations

import inspect
from typing import Any

import torch
from torch import Tensor

from seatrial.relations.contracts.rotary import RotaryPlan
from seatrial.relations.not_served import NotServed
from seatrial.targets.common.known import KnowsFailures
from seatrial.targets.common.target import find_name

ORIGINAL = "original_max_position_embeddings"


class RotaryEmbeddings(KnowsFailures):
    """`LlamaRotaryEmbedding`."""

    def __init__(self) -> None:
        """Find the module and the kinds."""
        self._module: Any = find_name(
            "transformers", ["transformers.models.llama.modeling_llama:LlamaRotaryEmbedding"]
        )
        self._config: Any = find_name("transformers", ["transformers:LlamaConfig"])
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


ADAPTERS: dict[str, type[Any]] = {"rotary": RotaryEmbeddings}
