"""`transformers.Trainer` on language models of experts whose load-balancing loss is on."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

import torch
from torch import Tensor
from transformers import PreTrainedModel

from seatrial.relations.contracts.supervised import SupervisedSpec
from seatrial.targets.common.known import KnownFailure
from seatrial.targets.common.target import Gone, release
from seatrial.targets.common.zoo import balance_loss
from seatrial.targets.transformers.heads import EPOCHS, QWEN, UNEQUAL, UNEVEN, LanguageModel, example_ids

WEIGHT = 0.5
NUM_EXPERTS, NUM_CHOSEN = 4, 2
EXPERTS = {
    **QWEN,
    "num_hidden_layers": 2,
    "output_router_logits": True,
    "router_aux_loss_coef": WEIGHT,
    "num_experts_per_tok": NUM_CHOSEN,
    "experts_implementation": "eager",
}

ADDED_OFTEN = KnownFailure(
    "the balance loss of every micro-batch is added whole: its weight grows with their number",
    finding="Transformers: balance loss of experts and accumulation",
).of(UNEQUAL, *EPOCHS, UNEVEN)


class Mixtral(LanguageModel):
    """Mixtral."""

    supervised_spec = SupervisedSpec(balance=WEIGHT)
    known_failures: ClassVar[Sequence[KnownFailure]] = (ADDED_OFTEN,)
    model_name, config_name = "MixtralForCausalLM", "MixtralConfig"
    options: ClassVar[Mapping[str, Any]] = {
        **EXPERTS,
        "num_local_experts": NUM_EXPERTS,
        "sliding_window": None,
    }

    def supervised_balance(self, model: Any, examples: Sequence[int]) -> Tensor:
        found = [
            model(input_ids=torch.tensor([example_ids(example)]), output_router_logits=True).router_logits
            for example in examples
        ]
        return balance_loss([layer for one in found for layer in one], NUM_CHOSEN)


class OtherExperts(Mixtral):
    """Mixtral whose experts are computed in another way."""

    thorough = True

    def __init__(self) -> None:
        """Find the option in the installed release."""
        super().__init__()
        if not hasattr(PreTrainedModel, "set_experts_implementation"):
            raise Gone(f"transformers {release('transformers')} computes experts in one way")


class MixtralGrouped(OtherExperts):
    """Mixtral, tokens sorted by their experts."""

    options: ClassVar[Mapping[str, Any]] = {**Mixtral.options, "experts_implementation": "grouped_mm"}

    def supervised_logits(self, model: Any, example: int) -> tuple[Tensor, Sequence[int]]:
        if model.dtype is torch.float64:  # the oracle's, which the kernel does not take
            model.set_experts_implementation("eager")
        return super().supervised_logits(model, example)

    def supervised_balance(self, model: Any, examples: Sequence[int]) -> Tensor:
        if model.dtype is torch.float64:
            model.set_experts_implementation("eager")
        return super().supervised_balance(model, examples)


class MixtralBatched(OtherExperts):
    """Mixtral, the matrices of each token's experts gathered."""

    options: ClassVar[Mapping[str, Any]] = {**Mixtral.options, "experts_implementation": "batched_mm"}


class Qwen2Experts(Mixtral):
    """Qwen2-MoE, with an expert that every token shares."""

    thorough = True
    model_name, config_name = "Qwen2MoeForCausalLM", "Qwen2MoeConfig"
    options: ClassVar[Mapping[str, Any]] = {
        **EXPERTS,
        "num_experts": NUM_EXPERTS,
        "moe_intermediate_size": 8,
        "shared_expert_intermediate_size": 8,
        "decoder_sparse_step": 1,
    }


class Qwen3Experts(Mixtral):
    """Qwen3-MoE."""

    thorough = True
    model_name, config_name = "Qwen3MoeForCausalLM", "Qwen3MoeConfig"
    options: ClassVar[Mapping[str, Any]] = {
        **EXPERTS,
        "num_experts": NUM_EXPERTS,
        "moe_intermediate_size": 8,
        "head_dim": 8,
        "norm_topk_prob": True,
    }


class Olmoe(Mixtral):
    """OLMoE."""

    thorough = True
    model_name, config_name = "OlmoeForCausalLM", "OlmoeConfig"
    options: ClassVar[Mapping[str, Any]] = {**EXPERTS, "num_experts": NUM_EXPERTS}


class Phimoe(Mixtral):
    """PhiMoE."""

    thorough = True
    model_name, config_name = "PhimoeForCausalLM", "PhimoeConfig"
    options: ClassVar[Mapping[str, Any]] = {**EXPERTS, "num_local_experts": NUM_EXPERTS}


class GraniteExperts(Mixtral):
    """GraniteMoe."""

    thorough = True
    model_name, config_name = "GraniteMoeForCausalLM", "GraniteMoeConfig"
    options: ClassVar[Mapping[str, Any]] = {**EXPERTS, "num_local_experts": NUM_EXPERTS}


ADAPTERS: dict[str, type[Any]] = {
    "experts-mixtral": Mixtral,
    "experts-mixtral-grouped": MixtralGrouped,
    "experts-mixtral-batched": MixtralBatched,
    "experts-qwen2": Qwen2Experts,
    "experts-qwen3": Qwen3Experts,
    "experts-olmoe": Olmoe,
    "experts-phimoe": Phimoe,
    "experts-granite": GraniteExperts,
}
