"""Which trainers of TRL run with which options, and what the documentation says that they then compute.

A row of `SETUPS` is an adapter of `whole.Whole`. Objectives and scalars are written from TRL's documentation and the
papers that it names, never from its code.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from seatrial.relations.cases.examples import ObjectiveSpec
from seatrial.relations.contracts.trainers import ReferenceSync, RolloutSpec, Scalar
from seatrial.targets.trl.setup import (
    DPO_SCALARS,
    ENTROPY,
    ENTROPY_MEANS,
    KTO_SCALARS,
    LIKELIHOOD,
    MAX_COMPLETION_LENGTH,
    MEANS,
    NUM_TOKENS,
    PAIR_SCALARS,
    REFERENCE,
    REUSE_SCALARS,
    REWARD_SCALARS,
    ROLLOUT_SCALARS,
    SFT_SCALARS,
    SLICES,
    Setup,
)

GENERATION: Mapping[str, Any] = {
    "num_generations": 4,
    "max_completion_length": MAX_COMPLETION_LENGTH,
    "temperature": 0.8,
}
ROLLOUTS: Mapping[str, Any] = {"data": "prompts", "scalars": ROLLOUT_SCALARS, "truncates": True}


def _sft(options: Mapping[str, Any], **more: Any) -> Setup:
    objective = more.pop("objective", ObjectiveSpec(kind="sft"))
    given = {"data": "texts", "padding_side": "right", "scalars": SFT_SCALARS, "spells_end": True, **more}
    return Setup(trainer="SFT", objective=objective, options={"max_length": 64, **options}, **given)


def _pairs(trainer: str, objective: ObjectiveSpec, options: Mapping[str, Any], **more: Any) -> Setup:
    return Setup(trainer=trainer, objective=objective, options=options, **{"data": "pairs", **more})


def _grpo(options: Mapping[str, Any], trainer: str = "GRPO", **more: Any) -> Setup:
    setup = {key: more.pop(key) for key in list(more) if key in Setup.__dataclass_fields__}
    objective = RolloutSpec(temperature=0.8, **more)
    if objective.num_uses > 1 or setup.get("num_slices", 1) > 1:
        setup["scalars"] = REUSE_SCALARS if objective.loss == "clip" else ENTROPY
    elif objective.beta:
        quantity = "reference KL" if objective.kl_in == "loss" else "log-ratio to the reference"
        setup["scalars"] = {**ROLLOUT_SCALARS, "kl": Scalar(quantity=quantity)}
    if objective.beta:
        setup.setdefault("reference", "loaded")
    given = {**ROLLOUTS, **setup}
    return Setup(trainer=trainer, objective=objective, options={**GENERATION, **options}, **given)


def _dpo(form: str, **options: Any) -> Setup:
    """Return DPO with a loss type."""
    spec = ObjectiveSpec(kind="dpo", beta=0.3, form=form, per_token=form == "ipo")  # type: ignore[arg-type]
    given = {"loss_type": [form], "beta": 0.3, "max_length": 64, **options}
    return _pairs(
        "DPO",
        spec,
        given,
        reference="given",
        scalars=DPO_SCALARS,
        thorough=True,
        known_failures=(NUM_TOKENS,),
    )


DPO_OBJECTIVE = ObjectiveSpec(kind="dpo", beta=0.3)
DPO_OPTIONS: Mapping[str, Any] = {"beta": 0.3, "max_length": 64}
SETUPS: Mapping[str, Setup] = {
    "whole-sft": _sft({}, known_failures=(NUM_TOKENS,)),
    "whole-sft-turns": _sft(
        {},
        data="messages",
        form="turns with system",
        objective=ObjectiveSpec(kind="sft", trains="all"),
        known_failures=(NUM_TOKENS,),
        thorough=True,
    ),
    "whole-sft-packing": _sft(
        {"packing": True, "max_length": 40},
        thorough=True,
        known_failures=(
            NUM_TOKENS,
            MEANS,
        ),
    ),
    "whole-sft-padding-free": _sft(
        {"padding_free": True, "max_length": None}, thorough=True, known_failures=(NUM_TOKENS,)
    ),
    "whole-sft-truncated": _sft(
        {"max_length": 14},
        objective=ObjectiveSpec(kind="sft", max_length=14),
        is_long=True,
        thorough=True,
        known_failures=(NUM_TOKENS,),
    ),
    "whole-sft-lora": _sft({}, lora="made", known_failures=(NUM_TOKENS,), thorough=True),
    "whole-dpo": _pairs(
        "DPO",
        DPO_OBJECTIVE,
        DPO_OPTIONS,
        reference="given",
        scalars=DPO_SCALARS,
        known_failures=(NUM_TOKENS,),
    ),
    "whole-dpo-precomputed": _pairs(
        "DPO",
        DPO_OBJECTIVE,
        {**DPO_OPTIONS, "precompute_ref_log_probs": True},
        reference="given",
        scalars=DPO_SCALARS,
        known_failures=(NUM_TOKENS,),
        thorough=True,
    ),
    "whole-dpo-synchronised": _pairs(
        "DPO",
        DPO_OBJECTIVE,
        {**DPO_OPTIONS, "sync_ref_model": True, "ref_model_sync_steps": 1, "ref_model_mixup_alpha": 0.7},
        reference="given",
        reference_sync=ReferenceSync(alpha=0.7, every=1),
        scalars=DPO_SCALARS,
        thorough=True,
        known_failures=(
            NUM_TOKENS,
            REFERENCE,
        ),
    ),
    "whole-dpo-truncated": _pairs(
        "DPO",
        replace(DPO_OBJECTIVE, max_length=14),
        {**DPO_OPTIONS, "max_length": 14},
        reference="given",
        scalars=DPO_SCALARS,
        is_long=True,
        thorough=True,
        known_failures=(NUM_TOKENS,),
    ),
    "whole-dpo-turns": _pairs(
        "DPO",
        DPO_OBJECTIVE,
        DPO_OPTIONS,
        form="turns with system",
        reference="given",
        scalars=DPO_SCALARS,
        thorough=True,
        known_failures=(NUM_TOKENS,),
    ),
    "whole-dpo-lora": _pairs(
        "DPO",
        DPO_OBJECTIVE,
        DPO_OPTIONS,
        lora="made",
        reference="base",
        scalars=DPO_SCALARS,
        known_failures=(NUM_TOKENS,),
    ),
    **{f"whole-dpo-{form}": _dpo(form) for form in ("hinge", "ipo")},
    "whole-kto": Setup(
        trainer="KTO",
        objective=ObjectiveSpec(kind="kto", beta=0.3, desirable_weight=1.5),
        data="labels",
        options={"beta": 0.3, "desirable_weight": 1.5},
        optional={"max_length": 64},
        reference="given",
        scalars=KTO_SCALARS,
        known_failures=(
            NUM_TOKENS,
            MEANS,
        ),
    ),
    "whole-kto-apo": Setup(
        trainer="KTO",
        objective=ObjectiveSpec(kind="kto", beta=0.3, reference_point="zero"),
        data="labels",
        options={"beta": 0.3, "loss_type": "apo_zero_unpaired"},
        optional={"max_length": 64},
        reference="given",
        scalars=KTO_SCALARS,
        thorough=True,
        known_failures=(
            NUM_TOKENS,
            MEANS,
        ),
    ),
    "whole-reward": _pairs(
        "Reward",
        ObjectiveSpec(kind="reward"),
        {"max_length": 64},
        padding_side="right",
        spells_end=True,
        joins_prompt=True,
        scalars=REWARD_SCALARS,
        known_failures=(NUM_TOKENS,),
    ),
    "whole-cpo": _pairs(
        "CPO",
        ObjectiveSpec(kind="cpo", beta=0.3),
        {"beta": 0.3, "cpo_alpha": 0.0, "max_length": 64},
        scalars=PAIR_SCALARS,
        thorough=True,
    ),
    "whole-orpo": _pairs(
        "ORPO",
        ObjectiveSpec(kind="orpo", beta=0.3, nll_weight=1.0, nll_over="all"),
        {"beta": 0.3, "max_length": 64},
        thorough=True,
        known_failures=(LIKELIHOOD,),
    ),
    "whole-gkd": Setup(
        trainer="GKD",
        objective=ObjectiveSpec(kind="gkd", beta=0.3),
        data="messages",
        form="turns",
        options={"beta": 0.3, "lmbda": 0.0},
        optional={"max_length": 64},
        reference="teacher",
        padding_side="right",
        thorough=True,
    ),
    "whole-grpo": _grpo({"loss_type": "dapo"}, thorough=True),
    "whole-grpo-kl": _grpo(
        {"loss_type": "grpo", "beta": 0.2}, beta=0.2, reduction="rows", known_failures=(MEANS,)
    ),
    "whole-grpo-reuse": _grpo(
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
        known_failures=(MEANS,),
    ),
    "whole-grpo-slices": _grpo(
        {"loss_type": "dapo", "steps_per_generation": 4},
        num_slices=2,
        thorough=True,
        known_failures=(SLICES,),
    ),
    "whole-grpo-sequence": _grpo(
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
        thorough=True,
    ),
    "whole-grpo-masked": _grpo(
        {"loss_type": "dapo", "mask_truncated_completions": True, "scale_rewards": "none"},
        masks_truncated=True,
        scale="none",
        thorough=True,
    ),
    "whole-grpo-dr": _grpo(
        {"loss_type": "dr_grpo", "scale_rewards": "none", "reward_weights": [0.5, 2.0]},
        reduction="fixed",
        fixed_length=MAX_COMPLETION_LENGTH,
        scale="none",
        reward_weights=(0.5, 2.0),
        num_rewards=2,
        unscored=True,
        thorough=True,
    ),
    "whole-grpo-bnpo": _grpo({"loss_type": "bnpo"}, reduction="micro_batch", thorough=True),
    "whole-grpo-two-sided": _grpo(
        {"loss_type": "dapo", "num_iterations": 2, "delta": 1.1, "epsilon": 0.05},
        num_uses=2,
        delta=1.1,
        clip_low=0.05,
        clip_high=0.05,
        thorough=True,
    ),
    "whole-grpo-sapo": _grpo(
        {"loss_type": "sapo", "num_iterations": 2}, loss="sapo", reduction="rows", num_uses=2, thorough=True
    ),
    "whole-grpo-luspo": _grpo(
        {"loss_type": "luspo", "importance_sampling_level": "sequence", "num_iterations": 2, "epsilon": 0.05},
        ratio="mean",
        reduction="row_sums",
        clip_low=0.05,
        clip_high=0.05,
        num_uses=2,
        thorough=True,
    ),
    "whole-grpo-cispo": _grpo(
        {"loss_type": "cispo", "num_iterations": 2, "epsilon_high": 1.05},
        loss="cispo",
        clip_high=1.05,
        num_uses=2,
        thorough=True,
    ),
    "whole-grpo-entropy": _grpo(
        {"loss_type": "grpo", "entropy_coef": 0.3},
        reduction="rows",
        entropy_coefficient=0.3,
        thorough=True,
        known_failures=(ENTROPY_MEANS,),
    ),
    "whole-grpo-lora": _grpo(
        {"loss_type": "dapo", "beta": 0.2}, beta=0.2, lora="made", reference="base", thorough=True
    ),
    "whole-grpo-turns": _grpo({"loss_type": "dapo"}, form="turns with system", thorough=True),
    "whole-rloo": _grpo(
        {"beta": 0.2},
        trainer="RLOO",
        beta=0.2,
        kl_in="reward",
        estimator="rloo",
        scale="none",
        ratio="sum",
        reduction="row_sums",
    ),
    "whole-rloo-reuse": _grpo(
        {"beta": 0.2, "num_iterations": 2, "epsilon": 0.3},
        trainer="RLOO",
        beta=0.2,
        kl_in="reward",
        estimator="rloo",
        scale="none",
        ratio="sum",
        reduction="row_sums",
        num_uses=2,
        clip_low=0.3,
        clip_high=0.3,
        thorough=True,
    ),
}
