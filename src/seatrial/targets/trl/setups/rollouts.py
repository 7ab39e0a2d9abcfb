"""Setups of the trainers that sample their completions: GRPO and RLOO."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from seatrial.relations.contracts.trainers import ReferenceSync, RolloutSpec, Scalar
from seatrial.targets.trl.setup import (
    DATA_SEED,
    ENTROPY,
    ENTROPY_MEANS,
    ENTROPY_QUANTILE,
    EXPERTS,
    MAX_COMPLETION_LENGTH,
    MEANS_OF_ROLLOUTS,
    REFERENCE,
    RESULTS,
    REUSE_SCALARS,
    ROLLOUT_SCALARS,
    SLICES,
    TOOL_SCALARS,
    Setup,
)
from seatrial.targets.trl.setups.shared import EPOCH, OWN_ROUTERS, SCHEDULE

TOOLS_LENGTH = 120
"""Tokens of all turns and results together, which no made completion reaches."""
GENERATION: Mapping[str, Any] = {
    "num_generations": 4,
    "max_completion_length": MAX_COMPLETION_LENGTH,
    "temperature": 0.8,
}
GIVEN: Mapping[str, Any] = {
    "data": "prompts",
    "scalars": ROLLOUT_SCALARS,
    "truncates": True,
    "thorough": True,
}
LIGER: Mapping[str, Any] = {
    "use_liger_kernel": True,
    "liger_kernel_config": dict.fromkeys(
        ("rope", "rms_norm", "swiglu", "cross_entropy", "fused_linear_cross_entropy"), False
    ),
}
"""Its loss, without its kernels, which need a GPU."""
FUSED: Mapping[str, Any] = {"reduction": "rows", "updates_only": True}
RLOO: Mapping[str, Any] = {
    "beta": 0.2,
    "kl_in": "reward",
    "estimator": "rloo",
    "scale": "none",
    "ratio": "sum",
    "reduction": "row_sums",
}
"""The objective of RLOO."""


def grpo(options: Mapping[str, Any], trainer: str = "GRPO", **more: Any) -> Setup:
    """Return a setup of `GRPOTrainer`; `more` are fields of the setup or of its objective."""
    setup = {key: more.pop(key) for key in list(more) if key in Setup.__dataclass_fields__}
    objective = RolloutSpec(temperature=0.8, **more)
    if objective.num_uses > 1 or setup.get("num_slices", 1) > 1:
        setup.setdefault("scalars", REUSE_SCALARS if objective.loss == "clip" else ENTROPY)
    elif objective.beta:
        quantity = "reference KL" if objective.kl_in == "loss" else "log-ratio to the reference"
        setup.setdefault("scalars", {**ROLLOUT_SCALARS, "kl": Scalar(quantity=quantity)})
    if objective.beta:
        setup.setdefault("reference", "loaded")
    return Setup(
        trainer=trainer,
        objective=objective,
        options={**GENERATION, "beta": objective.beta, **options},
        **{**GIVEN, **setup},
    )


def grpo_tools(options: Mapping[str, Any], **more: Any) -> Setup:
    """Return a setup of `GRPOTrainer` whose completions call tools."""
    given = {"tools": "in turn", "form": "turns", "scalars": TOOL_SCALARS, "truncates": False, **more}
    return grpo(
        {"max_completion_length": TOOLS_LENGTH, **options}, max_completion_length=TOOLS_LENGTH, **given
    )


def rloo(options: Mapping[str, Any], **more: Any) -> Setup:
    """Return a setup of `RLOOTrainer`; `more` are fields of the setup or of its objective."""
    return grpo({"beta": 0.2, **options}, trainer="RLOO", **{**RLOO, **more})


ROLLOUTS: Mapping[str, Setup] = {
    "whole-grpo": grpo({"loss_type": "dapo"}),
    "whole-grpo-kl": grpo(
        {"loss_type": "grpo", "beta": 0.2},
        beta=0.2,
        reduction="rows",
        known_failures=(MEANS_OF_ROLLOUTS,),
        thorough=False,
    ),
    "whole-grpo-reuse": grpo(
        {
            "loss_type": "grpo",
            "num_iterations": 2,
            "steps_per_generation": 4,
            "epsilon": 0.05,
            "epsilon_high": 0.1,
        },
        reduction="rows",
        num_uses=2,
        num_slices=2,
        clip_low=0.05,
        clip_high=0.1,
        known_failures=(MEANS_OF_ROLLOUTS,),
    ),
    "whole-grpo-slices": grpo(
        {"loss_type": "dapo", "steps_per_generation": 4},
        num_slices=2,
        known_failures=(SLICES, MEANS_OF_ROLLOUTS),
    ),
    "whole-grpo-sequence": grpo(
        {
            "loss_type": "grpo",
            "importance_sampling_level": "sequence",
            "num_iterations": 2,
            "epsilon": 0.02,
            "scale_rewards": "batch",
        },
        ratio="mean",
        reduction="rows",
        num_uses=2,
        clip_low=0.02,
        clip_high=0.02,
        scale="batch",
    ),
    "whole-grpo-masked": grpo(
        {"loss_type": "dapo", "mask_truncated_completions": True, "scale_rewards": "none"},
        masks_truncated=True,
        scale="none",
    ),
    "whole-grpo-dr": grpo(
        {"loss_type": "dr_grpo", "scale_rewards": "none", "reward_weights": [0.5, 2.0]},
        reduction="fixed",
        fixed_length=MAX_COMPLETION_LENGTH,
        scale="none",
        reward_weights=(0.5, 2.0),
        num_rewards=2,
        unscored=True,
        sheds=("unscored",),
    ),
    "whole-grpo-bnpo": grpo({"loss_type": "bnpo"}, reduction="micro_batch"),
    "whole-grpo-two-sided": grpo(
        {"loss_type": "dapo", "num_iterations": 2, "delta": 1.1, "epsilon": 0.05},
        num_uses=2,
        delta=1.1,
        clip_low=0.05,
        clip_high=0.05,
        known_failures=(MEANS_OF_ROLLOUTS,),
    ),
    "whole-grpo-sapo": grpo(
        {
            "loss_type": "sapo",
            "num_iterations": 2,
            "sapo_temperature_pos": 2.0,
            "sapo_temperature_neg": 3.0,
        },
        loss="sapo",
        sapo_temperatures=(2.0, 3.0),
        reduction="rows",
        num_uses=2,
    ),
    "whole-grpo-luspo": grpo(
        {"loss_type": "luspo", "importance_sampling_level": "sequence", "num_iterations": 2, "epsilon": 0.05},
        ratio="mean",
        reduction="row_sums",
        clip_low=0.05,
        clip_high=0.05,
        num_uses=2,
    ),
    "whole-grpo-cispo": grpo(
        {"loss_type": "cispo", "num_iterations": 2, "epsilon_high": 1.05},
        loss="cispo",
        clip_high=1.05,
        num_uses=2,
    ),
    "whole-grpo-entropy": grpo(
        {"loss_type": "grpo", "entropy_coef": 0.3},
        reduction="rows",
        entropy_coefficient=0.3,
        known_failures=(ENTROPY_MEANS,),
    ),
    "whole-grpo-lora": grpo(
        {"loss_type": "dapo", "beta": 0.2},
        beta=0.2,
        lora="made",
        reference="base",
        known_failures=(MEANS_OF_ROLLOUTS,),
    ),
    "whole-grpo-turns": grpo({"loss_type": "dapo"}, form="turns with system"),
    "whole-grpo-schedule": grpo({**SCHEDULE, "per_device_eval_batch_size": 4, "loss_type": "dapo"}),
    # After a step at the usual rate the weights of rows with a positive advantage are 0 in all but name.
    "whole-grpo-vespo": grpo(
        {
            "loss_type": "vespo",
            "num_iterations": 2,
            "learning_rate": 0.001,
            "vespo_k_pos": 1.0,
            "vespo_lambda_pos": 2.0,
            "vespo_k_neg": 2.0,
            "vespo_lambda_neg": 1.0,
        },
        loss="vespo",
        vespo=((1.0, 2.0), (2.0, 1.0)),
        num_uses=2,
    ),
    "whole-grpo-epoch": grpo(
        {
            **{
                name: value
                for name, value in EPOCH.items()
                if "dataloader" not in name and "sampling" not in name
            },
            "num_train_epochs": 0.5,
            "per_device_eval_batch_size": 4,
            "num_generations_eval": 1,
            "metric_for_best_model": "reward",
            "shuffle_dataset": False,
            "loss_type": "grpo",
            "multi_objective_aggregation": "normalize_then_sum",
            "reward_weights": [0.5, 2.0],
        },
        sheds=("multi_objective_aggregation", "num_generations_eval"),
        aggregation="normalized",
        reward_weights=(0.5, 2.0),
        num_rewards=2,
        reduction="rows",
    ),
    "whole-grpo-synchronised": grpo(
        {
            "loss_type": "grpo",
            "beta": 0.2,
            "sync_ref_model": True,
            "ref_model_sync_steps": 1,
            "ref_model_mixup_alpha": 0.7,
            "use_bias_correction_kl": False,
        },
        beta=0.2,
        reduction="rows",
        reference_sync=ReferenceSync(alpha=0.7, every=1),
        sheds=("use_bias_correction_kl",),
        known_failures=(MEANS_OF_ROLLOUTS, REFERENCE),
    ),
    "whole-grpo-entropy-tokens": grpo(
        {"loss_type": "dapo", "top_entropy_quantile": 0.5, "mask_truncated_completions": True},
        top_entropy=0.5,
        masks_truncated=True,
        known_failures=(ENTROPY_QUANTILE,),
    ),
    "whole-grpo-off-policy": grpo(
        {
            "loss_type": "dr_grpo",
            "max_completion_length": 12,
            "num_iterations": 2,
            "off_policy_mask_threshold": 0.01,
        },
        reduction="fixed",
        fixed_length=12,
        max_completion_length=12,
        num_uses=2,
        off_policy_threshold=0.01,
        known_failures=(MEANS_OF_ROLLOUTS,),
    ),
    "whole-grpo-sampling": grpo(
        {
            "loss_type": "grpo",
            "temperature": 0.8,
            "top_p": 0.9,
            "top_k": 20,
            "min_p": 0.05,
            "repetition_penalty": 1.1,
            "generation_kwargs": {"typical_p": 0.9},
            "generation_batch_size": 16,
            "pad_to_multiple_of": 8,
            "chat_template_kwargs": {"shouts": True},
            "data_seed": 5,
            "optim": "sgd",
        },
        form="bracketed",
        reduction="rows",
        num_slices=2,
        known_failures=(DATA_SEED,),
    ),
    "whole-grpo-loaded": grpo(
        {
            "loss_type": "dapo",
            "model_init_kwargs": {"layer_norm_eps": 0.3},
            "disable_dropout": True,
            "cast_lm_head_to_fp32": True,
        },
        trait="dropout",
    ),
    "whole-grpo-tools": grpo_tools({"loss_type": "dapo"}, thorough=False, updates_only=True),
    "whole-grpo-tools-limited": grpo_tools(
        {"loss_type": "grpo", "max_tool_calling_iterations": 1, "beta": 0.2},
        tools="limited",
        beta=0.2,
        reduction="rows",
        reference="loaded",
        known_failures=(MEANS_OF_ROLLOUTS,),
    ),
    "whole-grpo-tools-mixed": grpo_tools(
        {"loss_type": "dapo"}, tools="mixed", scalars={}, updates_only=True, known_failures=(RESULTS,)
    ),
    "whole-grpo-environment": grpo_tools({"loss_type": "dapo"}, tools="environment"),
    "whole-grpo-tools-reuse": grpo_tools(
        {"loss_type": "dr_grpo", "num_iterations": 2, "importance_sampling_level": "sequence"},
        ratio="mean",
        reduction="fixed",
        fixed_length=TOOLS_LENGTH,
        num_uses=2,
        scalars=REUSE_SCALARS,
    ),
    "whole-grpo-iterations": grpo(
        {"loss_type": "dapo", "num_iterations": 2, "epsilon": 0.05},
        num_uses=2,
        clip_low=0.05,
        clip_high=0.05,
        known_failures=(MEANS_OF_ROLLOUTS,),
    ),
    "whole-grpo-experts-own": grpo(
        {"loss_type": "grpo"}, trait="experts", model_options=OWN_ROUTERS, reduction="rows", updates_only=True
    ),
    "whole-grpo-experts": grpo(
        {"loss_type": "grpo", "router_aux_loss_coef": 0.5},
        trait="experts",
        reduction="rows",
        known_failures=(EXPERTS,),
    ),
    "whole-grpo-liger": grpo(
        {"loss_type": "grpo", "num_iterations": 2, "epsilon": 0.05, **LIGER},
        num_uses=2,
        clip_low=0.05,
        clip_high=0.05,
        scalars={},
        **FUSED,
    ),
    "whole-grpo-liger-kl": grpo({"loss_type": "grpo", "beta": 0.2, **LIGER}, beta=0.2, scalars={}, **FUSED),
    "whole-grpo-liger-tools": grpo_tools({"loss_type": "grpo", **LIGER}, **{**FUSED, "scalars": {}}),
    "whole-rloo": rloo({}),
    "whole-rloo-reuse": rloo({"num_iterations": 2, "epsilon": 0.3}, num_uses=2, clip_low=0.3, clip_high=0.3),
    "whole-rloo-clipped": rloo(
        {"beta": 0.0, "reward_clip_range": (0.0, 0.9), "normalize_advantages": True},
        beta=0.0,
        reward_range=(0.0, 0.9),
        normalizes_advantages=True,
    ),
}
