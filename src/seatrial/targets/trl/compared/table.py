"""Which trainers of TRL are compared, with the rows that they train on and the options of their runs.

A trainer or an option that the installed release does not have is left out. `effective` options are those whose
documentation says that they change the loss of the rows here.
"""

from __future__ import annotations

from collections.abc import Mapping

from seatrial.targets.trl.compared.definitions.preferences import (
    likelihood_pairs,
    odds_of_pairs,
    sampled_pairs,
    triples,
)
from seatrial.targets.trl.compared.definitions.values import geometric_mean, optimal_values
from seatrial.targets.trl.compared.failures import (
    LIKELIHOOD,
    OF_THE_FIRST,
    RIGHT,
    SUMMED,
)
from seatrial.targets.trl.compared.kinds import GROUPS, SCALED, SHORT, Kind
from seatrial.targets.trl.compared.table_of_distillation import OF_DISTILLATION
from seatrial.targets.trl.former import FIRST_LABELS_COMPARED

KINDS: Mapping[str, Kind] = {
    **OF_DISTILLATION,
    "onlinedpo": Kind(
        trainer="OnlineDPO",
        known_failures=(SUMMED,),
        rows="prompts",
        options=SHORT,
        evaluates=False,
        effective=({"beta": 0.7}, {"beta": [0.7]}, {"loss_type": "ipo"}),
        defined_since="0.29",
        definition=sampled_pairs,
        defined=(
            {"rewards": "several, some missing"},
            {"rewards": "several", "reward_weights": [0.3, 2.0]},
            {"ends": "some", "missing_eos_penalty": 0.7},
            {"rewards": "several", "ends": "some"},
            {"turns": "several", "rewards": "several"},
            *SCALED[:2],
        ),
    ),
    "nashmd": Kind(
        trainer="NashMD",
        known_failures=(SUMMED,),
        rows="prompts",
        options=SHORT,
        scored_by_model=True,
        evaluates=False,
        effective=(
            {"beta": 0.7},
            {"beta": [0.7]},
        ),
    ),
    "xpo": Kind(
        trainer="XPO",
        known_failures=(SUMMED,),
        rows="prompts",
        options=SHORT,
        scored_by_model=True,
        evaluates=False,
        effective=({"beta": 0.7}, {"beta": [0.7]}, {"alpha": 0.1}, {"loss_type": "ipo"}),
    ),
    "a2po": Kind(
        trainer="A2PO",
        known_failures=(RIGHT, OF_THE_FIRST),
        rows="prompts",
        options={**SHORT, "num_value_samples": 3, "filter_all_incorrect": False},
        effective=({"beta1": 0.1}, {"beta2": 0.1}, {"num_value_samples": 2}),
        defined_since="1.8",
        definition=optimal_values,
        defined=(
            {"rewards": "several", "reward_weights": [0.3, 2.0], "beta2": 0.1},
            {"filter_all_incorrect": True, "num_value_samples": 1, "beta2": 0.1},
            {"ends": "some", "beta2": 0.1},
            {"turns": "several", "beta2": 0.1},
            *({**one, "beta2": 0.1} for one in SCALED[:2]),
        ),
    ),
    "gmpo": Kind(
        trainer="GMPO",
        rows="prompts",
        options=GROUPS,
        copies=2,
        defined_since="1.9",
        definition=geometric_mean,
        defined=(
            {"beta": 0.3},
            {"num_iterations": 2, "temperature": 0.7},
            {"num_iterations": 2, "epsilon": 0.01, "epsilon_high": 0.03, "beta": 0.3},
            {"scale_rewards": "none"},
            {"rewards": "several", "reward_weights": [0.3, 2.0]},
            {"turns": "several"},
            *SCALED,
        ),
    ),
    "tpo": Kind(
        trainer="TPO",
        known_failures=(LIKELIHOOD,),
        rows="triples",
        options=SHORT,
        effective=({"beta": 0.7}, {"label_smoothing": 0.2}, {"tpo_alpha": 0.3}, {"loss_type": "ipo"}),
        defined_since="1.3",
        definition=triples,
        defined=(
            {"loss_type": "hinge", "beta": 0.3},
            {"loss_type": "tpo-l", "beta": 0.7, "tpo_l_gamma": 1.2, "label_smoothing": 0.1},
            {"tpo_alpha": 0.0},
            {"max_length": 8},
            {"max_length": 8, "truncation_mode": "keep_end"},
            {"turns": "several"},
            *SCALED,
        ),
    ),
    "bco": Kind(
        trainer="BCO",
        rows="labels",
        options=SHORT,
        imports=("sklearn", "joblib"),
        means="batch",
        effective=({"beta": 0.7},),
    ),
    "prm": Kind(
        trainer="PRM",
        rows="steps",
        options=SHORT,
        leaves_out=("max_completion_length=7",),
        effective=({"train_on_last_step_only": True},),
    ),
    "ppo": Kind(
        trainer="PPO",
        rows="ids",
        options={
            **SHORT,
            "num_ppo_epochs": 1,
            "num_mini_batches": 1,
            "num_sample_generations": 0,
            "stop_token": "eos",
            "whiten_rewards": False,
        },
        logs_means=False,  # its own loop logs the step that is due
        most_ranks=1,  # each process whitens its own advantages
        resumes=False,
        evaluates=False,
        adapts=False,
        leaves_out=("padding on the right", "padding is the end token"),
        means="tokens",
        effective=({"kl_coef": 0.5}, {"vf_coef": 0.7}, {"gamma": 0.5}, {"lam": 0.5}),
    ),
    "dpo": Kind(
        trainer="DPO",
        rows="pairs",
        options=SHORT,
        effective=({"beta": 0.7}, {"loss_type": "ipo"}, {"loss_type": "robust", "label_smoothing": 0.2}),
    ),
    "cpo": Kind(
        trainer="CPO",
        rows="pairs",
        options=SHORT,
        means="tokens",
        effective=({"beta": 0.7}, {"cpo_alpha": 0.3}),
        defined_since="0.16",
        definition=likelihood_pairs,
        defined=(
            {"label_smoothing": 0.2, "cpo_alpha": 0.0},
            {"loss_type": "hinge", "beta": 0.3},
            {"loss_type": "ipo", "beta": 0.3},
            {"loss_type": "simpo", "beta": 2.0, "simpo_gamma": 0.7, "label_smoothing": 0.1},
            {"loss_type": "alphapo", "beta": 2.0, "alpha": 0.3, "simpo_gamma": 0.2},
            {"turns": "several"},
            *SCALED[:2],
        ),
    ),
    "orpo": Kind(
        trainer="ORPO",
        rows="pairs",
        options=SHORT,
        means="tokens",
        effective=({"beta": 0.7},),
        defined_since="0.16",
        definition=odds_of_pairs,
        defined=({"turns": "several"}, *SCALED[:2]),
    ),
    "kto": Kind(
        trainer="KTO", rows="labels", options=SHORT, means="batch", most_parts=2, effective=({"beta": 0.7},)
    ),
    "reward": Kind(
        trainer="Reward",
        rows="pairs",
        options=SHORT,
        leaves_out=("padding is the end token",),
        effective=({"center_rewards_coefficient": 0.5},),
    ),
    "sft": Kind(
        trainer="SFT",
        known_failures=(FIRST_LABELS_COMPARED,),
        rows="completions",
        options=SHORT,
        effective=({"completion_only_loss": False}, {"loss_type": "dft"}),
    ),
    "grpo": Kind(
        trainer="GRPO", rows="prompts", options=GROUPS, copies=2, effective=({"scale_rewards": "none"},)
    ),
    "rloo": Kind(trainer="RLOO", rows="prompts", options={**GROUPS, "beta": 0.2}, copies=2),
}
