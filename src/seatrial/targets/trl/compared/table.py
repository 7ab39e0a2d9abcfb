"""Which trainers of TRL are compared, with the rows that they train on and the options of their runs.

A trainer or an option that the installed release does not have is left out. `effective` options are those whose
documentation says that they change the loss of the rows here.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal

from torch import Tensor

from seatrial.targets.common.known import KnownFailure, between
from seatrial.targets.trl.compared.definitions.distilled import generalized, weighted
from seatrial.targets.trl.compared.definitions.preferences import sampled_pairs, triples
from seatrial.targets.trl.compared.definitions.self_distillation import demonstrations, successes
from seatrial.targets.trl.compared.definitions.setting import Setting
from seatrial.targets.trl.compared.definitions.values import geometric_mean, optimal_values
from seatrial.targets.trl.former import ENDS, FIRST_LABELS_COMPARED, SUMS, SUMS_OF_DISTILLATION

Options = Mapping[str, Any]


DIVIDED = (
    "R33.compared/micro-batches, equal lengths",
    "R33.compared/micro-batches, unequal lengths",
    "R33.compared/logged scalars, equal lengths",
    "R33.compared/adapters, micro-batches",
)
REPEATED = KnownFailure(
    "each micro-batch counts the tokens of the whole step, so that the loss is divided by their number twice",
    finding="TRL: micro-batches of GOLD and IW-OPD",
).of(*DIVIDED)
DIVIDED_PROCESSES = (
    "R33.processes/gradient, equal lengths",
    "R33.processes/gradient, unequal lengths",
    "R33.processes/logged scalars, equal lengths",
)
ACROSS = KnownFailure(
    "the tokens of all processes divide a loss whose gradients are averaged over processes",
    finding="TRL: GKD in several processes",
).of(*DIVIDED_PROCESSES)
ACROSS_EVALUATED = ACROSS.of(*DIVIDED_PROCESSES, "R33.processes/evaluation, equal lengths")
ACROSS_EVALUATED_BEFORE_5 = replace(
    ACROSS,
    reason="the tokens of all processes divide the loss of an evaluation too, which transformers before 5 counts there",
    releases=between("transformers", "4.50", "5"),
).of("R33.processes/evaluation, equal lengths")
OF_THE_FIRST = KnownFailure(
    "metrics are those of the first process's rows", finding="TRL: metrics of the first process"
).of("R33.processes/logged scalars, equal lengths", "R33.processes/evaluation, equal lengths")
EVALUATED = KnownFailure(
    "the evaluation loss is that of the first process: copies of prompts are cut as if they filled up the last batch",
    finding="TRL: the evaluation loss of copies in several processes",
).of("R33.processes/evaluation, equal lengths")
PADDING = KnownFailure(
    "padding of completions counts in the advantages and the divergence of MiniLLM",
    finding="TRL: padding and micro-batches of MiniLLM",
).of("R33.compared/neutral variations")
DIVERGENCE = KnownFailure(
    "the divergence of MiniLLM is summed over micro-batches",
    finding="TRL: padding and micro-batches of MiniLLM",
).of(*DIVIDED)
REPEATED_OF_ANY = REPEATED.of(*DIVIDED, "R33.adapter_kinds/adapters of every kind, micro-batches")
SUMMED = KnownFailure(
    "gradients of micro-batches are summed, and the mean of their losses is logged",
    finding="TRL: micro-batches of online DPO",
).of(*DIVIDED, "R33.compared/the logged loss", "R33.compared/the logged loss of two steps")
UNREAD = KnownFailure("`beta` of SDPO is not read", finding="TRL: beta of SDPO").of(
    "R33.compared/effective options"
)
TOKENS = KnownFailure(
    "dapo of SDPO is the mean of micro-batches' means over tokens", finding="TRL: dapo of SDPO"
).of("R33.compared/micro-batches, unequal lengths", "R33.processes/gradient, unequal lengths")
RIGHT = KnownFailure(
    "prompts are padded on the side of the given tokenizer, and completions follow the padding",
    finding="TRL: A2PO and padding on the right",
).of("R33.compared/neutral variations")
LIKELIHOOD = KnownFailure(
    "the negative log-likelihood is a mean over the tokens of each micro-batch",
    finding="TRL: the likelihood term of TPO",
).of("R33.compared/micro-batches, unequal lengths", "R33.processes/gradient, unequal lengths")


@dataclass(frozen=True, kw_only=True)
class Kind:
    """A trainer with the options of its runs."""

    trainer: str
    """Name of its class without `Trainer`."""
    rows: Literal[
        "prompts",
        "chats",
        "privileged",
        "pairs",
        "triples",
        "labels",
        "steps",
        "messages",
        "completions",
        "ids",
    ]
    options: Options = field(default_factory=dict)
    """Those that a release does not have are left out."""
    requires: Sequence[str] = ()
    """Names of `options` without which it is another case."""
    copies: int = 1
    """Rows of a batch that a prompt has."""
    effective: Sequence[Options] = ()
    neutral: Sequence[Options] = ()
    """In addition to those of every trainer."""
    means: Literal["rows", "tokens", "batch"] = "rows"
    logs_means: bool = True
    resumes: bool = True
    evaluates: bool = True
    evaluates_loss: bool = True
    mixed_scalars: str = r"/std|_std|/min|/max|min_|max_|accurac|margin|_var|^kl$|distillation_loss"
    leaves_out: Sequence[str] = ()
    """Neutral variations that mean something else to it; see `NEUTRAL` and `adapter.FORMS`."""
    adapts: bool = True
    """Whether adapters are all that it trains if it is given a configuration of them."""
    scored_by_model: bool = False
    """Whether completions are scored by a reward model alone."""
    imports: Sequence[str] = ()
    """Modules that the trainer needs in addition to TRL's."""
    most_parts: int = 4
    """Micro-batches that four rows can be divided into."""
    most_ranks: int = 2
    """Processes that a step's rows can be divided between."""
    definition: Callable[[Setting], Tensor] | None = None
    """The loss of a step, and what is logged of it."""
    defined: Sequence[Options] = ()
    """Those in which steps are defined, in addition to none and to `effective`."""
    thorough: bool = True
    known_failures: Sequence[KnownFailure] = ()


NEUTRAL: Sequence[Options] = (
    {"gradient_checkpointing": True},
    {"pad_to_multiple_of": 8},
    {"max_length": 190},
    {"max_prompt_length": 150},
    {"max_completion_length": 7},
    {"max_new_tokens": 7},
    {"disable_dropout": True},
    {"disable_dropout": False},
    {"precompute_ref_log_probs": True},
    {"cast_lm_head_to_fp32": True},
    {"truncation_mode": "keep_end"},
    {"dataloader_drop_last": True},
    {"average_tokens_across_devices": False},
    {"mask_truncated_completions": True},
    {"missing_eos_penalty": 1.0},
    {"local_rollout_forward_batch_size": 1},
    {"shuffle_dataset": False},
    {"torch_empty_cache_steps": 1},
    {"dataset_num_proc": 1},
    {"generation_kwargs": {"typical_p": 0.9}},
    {"top_p": 0.9},
    {"max_steps": -1, "num_train_epochs": 1},
)
"""Options of any trainer that do not change the loss: rows are short, completions are made and end, no dropout."""

SHORT: Options = {
    "max_completion_length": 9,
    "max_new_tokens": 9,
    "response_length": 9,
    "max_length": 200,
    "max_prompt_length": 100,
}
GROUPS: Options = {**SHORT, "num_generations": 2}

KINDS: Mapping[str, Kind] = {
    "distillation": Kind(
        trainer="Distillation",
        known_failures=(SUMS_OF_DISTILLATION,),
        rows="chats",
        options={**SHORT, "beta": 0.5},
        effective=({"beta": 0.0}, {"beta": 1.0}, {"temperature": 0.5}),
    ),
    "iwopd": Kind(
        trainer="IWOPD",
        known_failures=(REPEATED_OF_ANY, ACROSS_EVALUATED),
        rows="messages",
        options={**SHORT, "lmbda": 1.0},
        evaluates_loss=False,
        effective=({"iw_opd_gamma": 0.1}, {"distillation_objective": "jsd"}),
        definition=weighted,
        defined=({"temperature": 0.7}, {"ends": "some"}),
    ),
    "iwopd-given": Kind(
        trainer="IWOPD",
        known_failures=(REPEATED_OF_ANY, ACROSS_EVALUATED),
        rows="messages",
        options={**SHORT, "lmbda": 0.0, "distillation_objective": "jsd", "beta": 0.5},
        definition=weighted,
        defined=(
            {"loss_top_k": 3},
            {"loss_top_k": 3, "loss_add_tail": False},
            {"loss_top_k": 0, "temperature": 0.7},
            {"loss_top_k": 3, "beta": 0.0},
            {"loss_top_k": 3, "beta": 1.0},
            {"reverse_kl_top_1_mode": "argmax"},
            {"beta": 1.0, "loss_add_tail": False},
            {"beta": 1.0},
        ),
    ),
    "gold": Kind(
        trainer="GOLD",
        known_failures=(REPEATED, ENDS, ACROSS, ACROSS_EVALUATED_BEFORE_5),
        rows="messages",
        options={**SHORT, "lmbda": 1.0},
        evaluates_loss=False,
        effective=({"beta": 0.0}, {"beta": 1.0}),
        definition=generalized,
        defined=({"temperature": 0.5},),
    ),
    "gold-given": Kind(
        trainer="GOLD",
        known_failures=(REPEATED, ACROSS, ACROSS_EVALUATED_BEFORE_5),
        rows="messages",
        options={**SHORT, "lmbda": 0.0},
        effective=({"beta": 0.0}, {"beta": 1.0}),
        definition=generalized,
        defined=({"temperature": 0.5},),
    ),
    "gkd": Kind(
        trainer="GKD",
        known_failures=(ENDS, SUMS, ACROSS, ACROSS_EVALUATED_BEFORE_5),
        rows="messages",
        options={**SHORT, "lmbda": 1.0},
        evaluates_loss=False,
        effective=({"beta": 0.0}, {"beta": 1.0}),
    ),
    "gkd-given": Kind(
        trainer="GKD",
        known_failures=(SUMS, ACROSS, ACROSS_EVALUATED_BEFORE_5),
        rows="messages",
        options={**SHORT, "lmbda": 0.0},
        effective=({"beta": 0.0},),
    ),
    "minillm": Kind(
        trainer="MiniLLM",
        known_failures=(PADDING, DIVERGENCE, EVALUATED),
        rows="prompts",
        options=GROUPS,
        copies=2,
        means="tokens",
        effective=(
            {"kd_temperature": 0.5},
            {"gamma": 0.5},
            {"rkl_advantage": False},
            {"single_step_decomposition": False},
        ),
    ),
    "onlinedpo": Kind(
        trainer="OnlineDPO",
        known_failures=(SUMMED,),
        rows="prompts",
        options=SHORT,
        evaluates=False,
        effective=({"beta": 0.7}, {"beta": [0.7]}, {"loss_type": "ipo"}),
        definition=sampled_pairs,
        defined=(
            {"rewards": "several, some missing"},
            {"rewards": "several", "reward_weights": [0.3, 2.0]},
            {"ends": "some", "missing_eos_penalty": 0.7},
            {"rewards": "several", "ends": "some"},
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
    "sdft": Kind(
        trainer="SDFT",
        known_failures=(EVALUATED,),
        rows="privileged",
        options=GROUPS,
        copies=2,
        effective=(
            {"distillation_alpha": 0.0},
            {"distillation_mode": "full_logits"},
            {"distillation_topk": 3},
            {"distillation_topk": 3, "distillation_add_tail": True},
            {"num_loss_tokens_to_skip": 1},
            {"generate_from_teacher": True},
        ),
        definition=demonstrations,
        defined=(
            {"distillation_mode": "sampled_token", "distillation_alpha": 1.0},
            {"distillation_mode": "full_logits", "temperature": 0.6},
            {"distillation_mode": "full_logits", "distillation_alpha": 1.0},
            {"teacher_model_kind": "ema", "teacher_update_rate": 0.4},
            {"teacher_model_kind": "live"},
            {"max_prompt_length": 5},
            {"teacher_prompt_template": "{privileged_context}|{prompt}"},
            {"num_iterations": 2},
            {"num_iterations": 2, "distillation_is_clip": 0.9},
            {"ends": "some", "num_loss_tokens_to_skip": 2},
        ),
    ),
    "sdpo": Kind(
        trainer="SDPO",
        known_failures=(UNREAD, EVALUATED),
        rows="prompts",
        options={
            **GROUPS,
            "teacher_model_kind": "base",
            "teacher_regularization": "none",
            "distillation_weight": 0.5,
            "loss_type": "grpo",
        },
        copies=2,
        leaves_out=("turns",),
        effective=(
            {"distillation_weight": 0.9},
            {"distillation_mode": "full_logits"},
            {"beta": 0.5},
            {"scale_rewards": "none"},
        ),
        definition=successes,
        defined=(
            {"scale_rewards": "batch"},
            {"dont_reprompt_on_self_success": False},
            {"use_successful_as_teacher": False},
            {"success_reward_threshold": 0.0},
            {"rewards": "several", "reward_weights": [0.3, 2.0]},
            {"rewards": "several, some missing"},
            {"feedback": "some", "include_environment_feedback": True},
            {
                "feedback": "some",
                "include_environment_feedback": True,
                "environment_feedback_only_without_solution": True,
            },
            {"feedback": "some"},
            {"num_iterations": 2},
            {"num_iterations": 2, "importance_sampling_level": "sequence"},
            {"num_iterations": 2, "epsilon": 0.01, "epsilon_high": 0.02, "loss_type": "bnpo"},
            {"loss_type": "dr_grpo"},
            {"loss_type": "dapo", "ends": "some"},
            {"distillation_weight": 1.0, "teacher_model_kind": "ema", "teacher_update_rate": 0.4},
            {"distillation_mode": "topk_logits", "distillation_topk": 3, "distillation_add_tail": True},
            {"distillation_mode": "full_logits", "distillation_alpha": 0.3, "temperature": 0.6},
            {"max_reprompt_len": 12},
            {"max_prompt_length": 3},
        ),
    ),
    "sdpo-tokens": Kind(
        trainer="SDPO",
        known_failures=(TOKENS,),
        rows="prompts",
        options={
            **GROUPS,
            "distillation_weight": 0.0,
            "loss_type": "dapo",
            "teacher_model_kind": "base",
            "teacher_regularization": "none",
            "sdpo_policy_loss_mode": "hybrid",
        },
        requires=("distillation_weight", "loss_type"),
        copies=2,
        leaves_out=("turns",),
    ),
    "a2po": Kind(
        trainer="A2PO",
        known_failures=(RIGHT, OF_THE_FIRST),
        rows="prompts",
        options={**SHORT, "num_value_samples": 3, "filter_all_incorrect": False},
        effective=({"beta1": 0.1}, {"beta2": 0.1}, {"num_value_samples": 2}),
        definition=optimal_values,
        defined=(
            {"rewards": "several", "reward_weights": [0.3, 2.0], "beta2": 0.1},
            {"filter_all_incorrect": True, "num_value_samples": 1, "beta2": 0.1},
            {"ends": "some", "beta2": 0.1},
        ),
    ),
    "gmpo": Kind(
        trainer="GMPO",
        rows="prompts",
        options=GROUPS,
        copies=2,
        definition=geometric_mean,
        defined=(
            {"beta": 0.3},
            {"num_iterations": 2, "temperature": 0.7},
            {"num_iterations": 2, "epsilon": 0.01, "epsilon_high": 0.03, "beta": 0.3},
            {"scale_rewards": "none"},
            {"rewards": "several", "reward_weights": [0.3, 2.0]},
        ),
    ),
    "tpo": Kind(
        trainer="TPO",
        known_failures=(LIKELIHOOD,),
        rows="triples",
        options=SHORT,
        effective=({"beta": 0.7}, {"label_smoothing": 0.2}, {"tpo_alpha": 0.3}, {"loss_type": "ipo"}),
        definition=triples,
        defined=(
            {"loss_type": "hinge", "beta": 0.3},
            {"loss_type": "tpo-l", "beta": 0.7, "tpo_l_gamma": 1.2, "label_smoothing": 0.1},
            {"tpo_alpha": 0.0},
            {"max_length": 8},
            {"max_length": 8, "truncation_mode": "keep_end"},
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
    "cpo": Kind(trainer="CPO", rows="pairs", options=SHORT, means="tokens", effective=({"beta": 0.7},)),
    "orpo": Kind(trainer="ORPO", rows="pairs", options=SHORT, means="tokens", effective=({"beta": 0.7},)),
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
