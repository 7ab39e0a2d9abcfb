"""Setups of the trainers of preferences: DPO, CPO and ORPO on pairs, KTO on labels, reward models, GKD."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any, Literal

from seatrial.relations.cases.examples import ObjectiveSpec
from seatrial.relations.contracts.trainers import ReferenceSync
from seatrial.targets.common.known import KnownFailure, between
from seatrial.targets.trl.former import LOSSES
from seatrial.targets.trl.setup import (
    DPO_SCALARS,
    ENTROPY,
    EXPERTS,
    KTO_SCALARS,
    LIKELIHOOD,
    LIKELIHOOD_OF_DPO,
    MEANS_OF_DPO,
    MEANS_OF_KTO,
    NUM_TOKENS,
    PAIR_SCALARS,
    PROCESSES,
    REFERENCE,
    REWARD_SCALARS,
    TOKENS,
    Setup,
)
from seatrial.targets.trl.setups.shared import EPOCH, OWN_ROUTERS, SCHEDULE

RARE = 1e-7
"""A probability of dropout that drops nothing in a short run, so that gradients have one value."""
DPO_OBJECTIVE = ObjectiveSpec(kind="dpo", beta=0.3)


def pairs(trainer: str, objective: ObjectiveSpec, options: Mapping[str, Any], **more: Any) -> Setup:
    """Return a setup of a trainer of pairs."""
    return Setup(trainer=trainer, objective=objective, options=options, **{"data": "pairs", **more})


def dpo(options: Mapping[str, Any], **more: Any) -> Setup:
    """Return a setup of `DPOTrainer` with beta 0.3 and a given reference, where nothing else is given.

    Args:
        options: of its configuration.
        **more: fields of the objective, `turns` for the form of the rows, and fields of the setup.
    """
    fields = {key: more.pop(key) for key in list(more) if key in ObjectiveSpec.__dataclass_fields__}
    if "turns" in more:
        more["form"] = more.pop("turns")
    given = {
        "reference": "given",
        "scalars": DPO_SCALARS,
        "known_failures": (NUM_TOKENS, MEANS_OF_DPO),
        "thorough": True,
        **more,
    }
    return pairs("DPO", replace(DPO_OBJECTIVE, **fields), {"beta": 0.3, "max_length": 64, **options}, **given)


def dpo_form(form: str) -> Setup:
    """Return DPO with a loss type."""
    per_token = form in ("ipo", "sigmoid_norm")
    own = "sigmoid" if form == "sigmoid_norm" else form
    return dpo({"loss_type": [form]}, form=own, per_token=per_token)


def kto(options: Mapping[str, Any], **more: Any) -> Setup:
    """Return a setup of `KTOTrainer` with beta 0.3."""
    objective = ObjectiveSpec(kind="kto", beta=0.3, **more.pop("objective"))
    return Setup(
        trainer="KTO",
        objective=objective,
        data="labels",
        options={"beta": 0.3, **options},
        optional={"max_length": 64},
        reference="given",
        scalars=KTO_SCALARS,
        **{"known_failures": (NUM_TOKENS, MEANS_OF_KTO), **more},
    )


CUT_BY_KTO = KnownFailure(
    "KTO adds an end token to answers that it cuts, and does not cut prompts that are too long (trl-5635)",
    finding=LOSSES,
    releases=between("trl", "0.27", "1.2"),
).of("R12.whole", "R13.whole/gradient, after a resume", "R15.whole", "R22.whole", "R23.whole")
"""Of other rows, so that all is another. It is over in 1.3; the laws fail in 1.2.0 and trees of 1.3, which show it."""


def reward(options: Mapping[str, Any], **more: Any) -> Setup:
    """Return a setup of `RewardTrainer`."""
    return pairs(
        "Reward",
        ObjectiveSpec(kind="reward", centre=more.pop("centre", 0.0)),
        {"max_length": 64, **options},
        **{
            "padding_side": "right",
            "spells_end": True,
            "joins_prompt": True,
            "scalars": REWARD_SCALARS,
            "known_failures": (NUM_TOKENS,),
            **more,
        },
    )


CPO_FORMS: tuple[tuple[str, Mapping[str, Any], Mapping[str, Any]], ...] = (
    ("hinge", {"loss_type": "hinge"}, {"form": "hinge"}),
    ("ipo", {"loss_type": "ipo"}, {"form": "ipo", "per_token": True}),
    (
        "simpo",
        {"loss_type": "simpo", "simpo_gamma": 0.7, "label_smoothing": 0.1},
        {"per_token": True, "target": 0.7, "label_smoothing": 0.1},
    ),
    (
        "alphapo",
        {"loss_type": "alphapo", "alpha": 0.3, "simpo_gamma": 0.2},
        {"per_token": True, "target": 0.2, "power": 0.3},
    ),
)
"""Names of CPO's forms, with options and what they mean."""


def at_edges(setup: Setup) -> Setup:
    """Return a setup with rows at edges, run for its updates; a tie's accuracy is a matter of rounding.

    Log-probabilities per token have no empty prompts: what the first token of all counts for is not documented.
    """
    assert isinstance(setup.objective, ObjectiveSpec)
    edges: Literal["answers", "all"] = "answers" if setup.objective.per_token else "all"
    scalars = {name: one for name, one in setup.scalars.items() if "accurac" not in name}
    return replace(setup, edges=edges, scalars=scalars, updates_only=True, thorough=True)


EDGES: Mapping[str, Setup] = {
    f"whole-{name}-edges": at_edges(setup)
    for name, setup in {
        "dpo": dpo({}),
        "dpo-truncated": dpo({"max_length": 14}, max_length=14),
        "dpo-norm": dpo({"loss_type": ["sigmoid_norm"]}, per_token=True),
        "dpo-tails": dpo(
            {"ld_alpha": 0.4, "loss_type": ["apo_zero"]}, form="apo_zero", tail_weight=0.4, scalars=ENTROPY
        ),
        "kto": kto({}, objective={}),
        "cpo": pairs(
            "CPO", ObjectiveSpec(kind="cpo", beta=0.3), {"beta": 0.3, "cpo_alpha": 0.0, "max_length": 64}
        ),
        "orpo": pairs(
            "ORPO",
            ObjectiveSpec(kind="orpo", beta=0.3, nll_weight=1.0, nll_over="all"),
            {"beta": 0.3, "max_length": 64},
            known_failures=(LIKELIHOOD.of(*LIKELIHOOD.laws, "R22.whole/loss, two micro-batches a step"),),
        ),
        "reward": reward({}),
    }.items()
}
"""Trainers on rows at edges."""
PREFERENCES: Mapping[str, Setup] = {
    "whole-dpo": dpo({}, thorough=False),
    "whole-dpo-precomputed": dpo({"precompute_ref_log_probs": True, "precompute_ref_batch_size": 3}),
    "whole-dpo-synchronised": dpo(
        {"sync_ref_model": True, "ref_model_sync_steps": 1, "ref_model_mixup_alpha": 0.7},
        reference_sync=ReferenceSync(alpha=0.7, every=1),
        known_failures=(NUM_TOKENS, MEANS_OF_DPO, REFERENCE),
    ),
    "whole-dpo-truncated": dpo({"max_length": 14}, max_length=14, is_long=True),
    "whole-dpo-turns": dpo({}, turns="turns with system"),
    "whole-dpo-lora": dpo({}, lora="made", reference="base"),
    **{
        f"whole-dpo-{form}": dpo_form(form)
        for form in ("hinge", "ipo", "nca_pair", "sppo_hard", "aot", "aot_unpaired", "apo_zero", "apo_down")
    },
    "whole-dpo-schedule": dpo(
        {
            **SCHEDULE,
            "loss_type": ["robust"],
            "label_smoothing": 0.2,
            "f_divergence_type": "forward_kl",
            "pad_to_multiple_of": 8,
            "disable_dropout": False,
        },
        trait="dropout",
        model_options={"resid_pdrop": RARE, "embd_pdrop": 0.0},
        form="robust",
        label_smoothing=0.2,
        divergence="forward_kl",
        scalars={**DPO_SCALARS, "num_input_tokens_seen": TOKENS["num_tokens"]},
    ),
    "whole-dpo-enumerated": dpo(
        {"f_divergence_type": "js_divergence"}, divergence="js", enumerated=("f_divergence_type",)
    ),
    "whole-dpo-epoch": dpo(
        {
            **EPOCH,
            "metric_for_best_model": "logps/chosen",
            "loss_type": ["sigmoid", "bco_pair", "sft"],
            "loss_weights": [0.8, 0.2, 0.5],
        },
        mixture=(("sigmoid", 0.8), ("bco_pair", 0.2), ("sft", 0.5)),
        known_failures=(NUM_TOKENS, MEANS_OF_DPO, LIKELIHOOD_OF_DPO),
    ),
    "whole-dpo-alpha": dpo(
        {"f_divergence_type": "alpha_divergence", "f_alpha_divergence_coef": 0.3, "label_smoothing": 0.1},
        divergence="alpha",
        alpha=0.3,
        label_smoothing=0.1,
        updates_only=True,
    ),
    "whole-dpo-mixed": dpo(
        {
            "loss_type": ["sigmoid", "robust", "hinge"],
            "loss_weights": [0.5, 0.3, 0.4],
            "label_smoothing": 0.1,
        },
        mixture=(("sigmoid", 0.5), ("robust", 0.3), ("hinge", 0.4)),
        label_smoothing=0.1,
        updates_only=True,
    ),
    "whole-dpo-discopop": dpo(
        {
            "loss_type": ["discopop"],
            "discopop_tau": 0.5,
            "f_divergence_type": "alpha_divergence",
            "f_alpha_divergence_coef": 0.3,
            "ld_alpha": 0.4,
        },
        form="discopop",
        modulation=0.5,
        divergence="alpha",
        alpha=0.3,
        tail_weight=0.4,
        scalars={**TOKENS, **ENTROPY},
        known_failures=(NUM_TOKENS,),
    ),
    "whole-dpo-weighted": dpo(
        {
            "loss_type": ["sigmoid_norm"],
            "use_weighting": True,
            "data_seed": 5,
            "optim": "sgd",
            "truncation_mode": "keep_end",
            "max_length": 26,
        },
        per_token=True,
        weights_pairs=True,
        max_length=26,
        keep="end",
        is_long=True,
    ),
    "whole-dpo-loaded": dpo(
        {
            "model_init_kwargs": {"rms_norm_eps": 0.3},
            "loss_type": ["exo_pair"],
            "label_smoothing": 0.05,
            "f_divergence_type": "js_divergence",
        },
        form="exo_pair",
        label_smoothing=0.05,
        divergence="js",
        reference="loaded",
    ),
    "whole-dpo-experts-own": dpo({}, trait="experts", model_options=OWN_ROUTERS, updates_only=True),
    "whole-dpo-experts": dpo(
        {"router_aux_loss_coef": 0.5}, trait="experts", known_failures=(NUM_TOKENS, MEANS_OF_DPO, EXPERTS)
    ),
    "whole-kto": kto({"desirable_weight": 1.5}, objective={"desirable_weight": 1.5}),
    "whole-kto-apo": kto(
        {"loss_type": "apo_zero_unpaired", "undesirable_weight": 0.7},
        objective={"reference_point": "zero", "undesirable_weight": 0.7},
        thorough=True,
    ),
    "whole-reward": reward({}),
    "whole-reward-head": reward({}, adds_head=True, thorough=True),
    "whole-cpo": pairs(
        "CPO",
        ObjectiveSpec(kind="cpo", beta=0.3),
        {"beta": 0.3, "cpo_alpha": 0.0, "max_length": 64},
        scalars=PAIR_SCALARS,
        thorough=True,
    ),
    **{
        f"whole-cpo-{name}": pairs(
            "CPO",
            ObjectiveSpec(kind="cpo", beta=0.3, **fields),
            {"beta": 0.3, "cpo_alpha": 0.0, "max_length": 64, **options},
            updates_only=True,
            thorough=True,
        )
        for name, options, fields in CPO_FORMS
    },
    **EDGES,
    "whole-cpo-opened": pairs(
        "CPO",
        ObjectiveSpec(kind="cpo", beta=0.3),
        {"beta": 0.3, "cpo_alpha": 0.0, "max_length": 64},
        form="opened",
        scalars=PAIR_SCALARS,
        thorough=True,
    ),
    "whole-orpo": pairs(
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
        known_failures=(PROCESSES,),
    ),
}
