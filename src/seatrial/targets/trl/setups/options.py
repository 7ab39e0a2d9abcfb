"""Setups of KTO, reward models, RLOO, CPO, ORPO and GKD that set what trainers share: schedules, epochs, references."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from seatrial.relations.cases.examples import ObjectiveSpec
from seatrial.relations.contracts.trainers import ReferenceSync
from seatrial.targets.common.known import KnownFailure
from seatrial.targets.trl.setup import (
    DATA_SEED,
    EVALUATION_LOSS,
    LIKELIHOOD,
    MEANS_OF_KTO,
    NUM_TOKENS,
    PROCESSES,
    REFERENCE,
    Setup,
)
from seatrial.targets.trl.setups.preferences import CUT_BY_KTO, RARE, kto, pairs, reward
from seatrial.targets.trl.setups.rollouts import rloo
from seatrial.targets.trl.setups.shared import EPOCH, SCHEDULE

SYNCHRONISED: Mapping[str, Any] = {
    "sync_ref_model": True,
    "ref_model_sync_steps": 1,
    "ref_model_mixup_alpha": 0.7,
}
OWN_ORDER: Mapping[str, Any] = {"data_seed": 5, "optim": "sgd"}
SAMPLED_EPOCH: Mapping[str, Any] = {
    **{name: value for name, value in EPOCH.items() if "dataloader" not in name and "sampling" not in name},
    "num_train_epochs": 0.5,
    "per_device_eval_batch_size": 4,
    "num_generations_eval": 1,
    "metric_for_best_model": "reward",
    "shuffle_dataset": False,
}
"""Of trainers that sample: half an epoch in the order of the split, with one completion in evaluation."""
DROPPING: Mapping[str, Any] = {
    "trait": "dropout",
    "model_options": {"resid_pdrop": RARE, "embd_pdrop": 0.0},
}
"""A model whose dropout would drop next to nothing."""


LIKELIHOOD_LOGGED = LIKELIHOOD.of(
    *LIKELIHOOD.laws,
    "R22.whole/loss, two micro-batches a step",
    "R23.whole/logged loss and scalars::loss",
    "R23.whole/logged loss and scalars, between steps that are logged::loss",
)
"""In the logged loss too, where rows of one micro-batch differ much in their tokens."""


def cpo(options: Mapping[str, Any], **more: Any) -> Setup:
    """Return a setup of `CPOTrainer` with beta 0.3, without its likelihood term where none is given."""
    objective = ObjectiveSpec(kind="cpo", beta=0.3, **more.pop("objective", {}))
    given = {"beta": 0.3, "cpo_alpha": 0.0, "max_length": 64, **options}
    return pairs("CPO", objective, given, **{"thorough": True, **more})


def orpo(options: Mapping[str, Any], **more: Any) -> Setup:
    """Return a setup of `ORPOTrainer` with beta 0.3."""
    objective = ObjectiveSpec(kind="orpo", beta=0.3, nll_weight=1.0, nll_over="all")
    return pairs(
        "ORPO",
        objective,
        {"beta": 0.3, "max_length": 64, **options},
        **{"thorough": True, "known_failures": (LIKELIHOOD_LOGGED,), **more},
    )


def gkd(options: Mapping[str, Any], *known: KnownFailure, **fields: Any) -> Setup:
    """Return a setup of `GKDTrainer` on the completions of the data set."""
    objective = ObjectiveSpec(kind="gkd", **{"beta": 0.3, **fields})
    return Setup(
        trainer="GKD",
        objective=objective,
        data="messages",
        form="turns",
        options={"beta": objective.beta, "lmbda": 0.0, **options},
        optional={"max_length": 64},
        reference="teacher",
        padding_side="right",
        thorough=True,
        known_failures=(PROCESSES, *known),
    )


KTO: Mapping[str, Setup] = {
    "whole-kto-schedule": kto(
        {**SCHEDULE, "pad_to_multiple_of": 8, "disable_dropout": False}, objective={}, **DROPPING
    ),
    "whole-kto-epoch": kto({**EPOCH, "metric_for_best_model": "logps/chosen"}, objective={}),
    "whole-kto-synchronised": kto(
        SYNCHRONISED,
        objective={},
        reference_sync=ReferenceSync(alpha=0.7, every=1),
        known_failures=(NUM_TOKENS, MEANS_OF_KTO, REFERENCE),
    ),
    "whole-kto-precomputed": kto({"precompute_ref_log_probs": True}, objective={}),
    "whole-kto-truncated": replace(
        kto({"max_length": 14}, objective={"max_length": 14}, is_long=True),
        optional={},
        known_failures=(NUM_TOKENS, MEANS_OF_KTO, CUT_BY_KTO),
    ),
    "whole-kto-loaded": replace(
        kto({**OWN_ORDER, "model_init_kwargs": {"rms_norm_eps": 0.3}}, objective={}), reference="loaded"
    ),
    "whole-kto-lora": replace(kto({}, objective={}, lora="made"), reference="base"),
    "whole-kto-turns": kto({}, objective={}, form="turns with system"),
}
REWARD: Mapping[str, Setup] = {
    "whole-reward-schedule": reward(
        {**SCHEDULE, "pad_to_multiple_of": 8, "disable_dropout": False}, **DROPPING
    ),
    "whole-reward-epoch": reward({**EPOCH, "metric_for_best_model": "accuracy"}),
    "whole-reward-centred": reward({**OWN_ORDER, "center_rewards_coefficient": 0.3}, centre=0.3),
    "whole-reward-words": reward({"eos_token": "<eos>"}, end="<eos>", spells_end=False),
    "whole-reward-loaded": reward({"model_init_kwargs": {"rms_norm_eps": 0.3}}),
    "whole-reward-template": reward(
        {"chat_template_path": "template.jinja"}, form="bracketed", spells_end=False
    ),
}
OTHERS: Mapping[str, Setup] = {
    "whole-cpo-schedule": cpo(
        {**SCHEDULE, "label_smoothing": 0.2, "disable_dropout": False},
        objective={"label_smoothing": 0.2},
        **DROPPING,
    ),
    "whole-cpo-epoch": cpo({**EPOCH, "metric_for_best_model": "logps/chosen"}),
    "whole-cpo-likelihood": cpo(
        {**OWN_ORDER, "cpo_alpha": 0.5}, objective={"nll_weight": 0.5}, known_failures=(LIKELIHOOD,)
    ),
    "whole-cpo-loaded": cpo({"model_init_kwargs": {"rms_norm_eps": 0.3}}),
    "whole-orpo-schedule": orpo({**SCHEDULE, "disable_dropout": False}, **DROPPING),
    "whole-orpo-epoch": orpo({**EPOCH, "metric_for_best_model": "logps/chosen"}),
    "whole-orpo-loaded": orpo({**OWN_ORDER, "model_init_kwargs": {"rms_norm_eps": 0.3}}),
    "whole-gkd-schedule": gkd({**SCHEDULE, **OWN_ORDER}, beta=0.8),
    "whole-gkd-epoch": gkd({**EPOCH, "metric_for_best_model": "loss"}, EVALUATION_LOSS, beta=0.0),
    "whole-gkd-reverse": gkd({}, beta=1.0),
}
RLOO: Mapping[str, Setup] = {
    "whole-rloo-schedule": rloo({**SCHEDULE, "per_device_eval_batch_size": 4}),
    "whole-rloo-epoch": rloo(
        {**SAMPLED_EPOCH, "reward_weights": [0.5, 2.0]},
        reward_weights=(0.5, 2.0),
        num_rewards=2,
        unscored=True,
    ),
    "whole-rloo-synchronised": rloo(
        SYNCHRONISED, reference_sync=ReferenceSync(alpha=0.7, every=1), known_failures=(REFERENCE,)
    ),
    "whole-rloo-slices": rloo({"steps_per_generation": 4}, num_slices=2),
    "whole-rloo-turns": rloo({"disable_dropout": True}, form="turns with system", trait="dropout"),
    "whole-rloo-loaded": rloo({"model_init_kwargs": {"rms_norm_eps": 0.3}}),
    "whole-rloo-high": rloo({"num_iterations": 2, "epsilon_high": 0.5}, num_uses=2, clip_high=0.5),
    "whole-rloo-sampling": rloo(
        {
            "top_p": 0.9,
            "top_k": 20,
            "min_p": 0.05,
            "repetition_penalty": 1.1,
            "generation_kwargs": {"typical_p": 0.9},
            "generation_batch_size": 16,
            "pad_to_multiple_of": 8,
            "chat_template_kwargs": {"shouts": True},
            **OWN_ORDER,
        },
        form="bracketed",
        num_slices=2,
        known_failures=(DATA_SEED,),
    ),
}
OPTIONS: Mapping[str, Setup] = {
    name: replace(setup, thorough=True) for name, setup in {**KTO, **REWARD, **OTHERS, **RLOO}.items()
}
