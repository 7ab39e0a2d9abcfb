"""A trainer of TRL with its options: what `setups` lists, the scalars it logs, and what it is known to break."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from seatrial.relations.cases.examples import ObjectiveSpec
from seatrial.relations.contracts.trainers import ReferenceSync, RolloutSpec, Scalar
from seatrial.targets.common.known import KnownFailure

MAX_COMPLETION_LENGTH = 10


@dataclass(frozen=True, kw_only=True)
class Setup:
    """A trainer with its options."""

    trainer: str
    """Name of its class without `Trainer`."""
    objective: ObjectiveSpec | RolloutSpec
    data: Literal["texts", "messages", "pairs", "labels", "prompts", "whole", "ids"]
    """`whole` are texts without a border between prompt and completion; `ids` are tokenized already."""
    form: Literal[
        "text", "turns", "turns with system", "several turns", "bracketed", "opened", "own", "called"
    ] = "text"
    """Plain texts; turns of the tokenizer's template, with a system turn, with earlier turns; or turns of a template
    of `made_rows`: with `own`, rows have tools and options of the template, with `called`, tools as a text and a call.
    """
    begins: bool = False
    """Whether the tokenizer begins texts with a token of its own; a template writes its own first token."""
    options: Mapping[str, Any] = field(default_factory=dict)
    """Of the configuration; a release without one of them does not have the setup."""
    optional: Mapping[str, Any] = field(default_factory=dict)
    """Those that a release may lack."""
    sheds: Sequence[str] = ()
    """Options without which it is still worth a run, where a release does not have them; see `shedding`."""
    enumerated: Sequence[str] = ()
    """Options that are given as members of the enumeration that their default is one of."""
    scalars: Mapping[str, Scalar] = field(default_factory=dict)
    reference: Literal["given", "loaded", "base", "adapted", "teacher"] | None = None
    """Given as `ref_model`; loaded by the trainer from the model's folder, or copied; the model without its adapters;
    with the adapters that it is given with; given as `teacher_model`."""
    reference_sync: ReferenceSync | None = None
    lora: Literal["made", "given", "virtual tokens"] | None = None
    """Adapters that the trainer makes by its `peft_config`, or that the given model has; or virtual tokens of a prompt
    that it trains by its `peft_config`."""
    head: Literal["", "adapted", "saved"] = ""
    """Whether the adapters that it makes or is given are on the head too, or the head is trained as a whole."""
    adds_head: bool = False
    """Whether a reward model is given as the folder of a language model, to which the trainer adds a head."""
    pad_is_end: bool = False
    padding_side: str = "left"
    spells_end: bool = False
    """Whether texts of the data set spell their end token; otherwise the trainer adds it."""
    gives_tools: bool = True
    """Whether rows of the form `own` have tools, in addition to options of the template."""
    joins_prompt: bool = False
    """Whether pairs are whole texts."""
    margins: bool = False
    """Whether pairs have a column `margin`."""
    is_long: bool = False
    """Whether texts are longer than `max_length`."""
    prompt_limit: int = 0
    """Tokens at the end of a prompt that a release keeps, by an option of its own; 0: all."""
    answer_limit: int = 0
    """Tokens at the start of an answer that it keeps; 0: all."""
    formats: bool = False
    """Whether a function of the caller makes the texts of rows that have other columns."""
    unanswered: bool = False
    """Whether the training split begins with rows whose prompts alone fill `max_length`: the trainer drops them."""
    edges: Literal["none", "answers", "all"] = "none"
    """Whether rows include two equal answers, and a long one against one of a character; and empty prompts too."""
    max_completion_length: int = MAX_COMPLETION_LENGTH
    truncates: bool = False
    """Whether every third sampled completion reaches the limit without an end token."""
    num_slices: int = 1
    """Optimizer steps that one generation is divided over."""
    num_rewards: int = 1
    awaits_rewards: bool = False
    """Whether the first reward function is a coroutine function."""
    reward_model: Literal["", "given", "loaded"] = ""
    """Whether a model scores completions, in place of a function: given with the tokenizer of the policy, or as the
    folder of both."""
    logs_rows: bool = False
    """Whether the trainer writes tables of completions, to which the first reward function adds a column."""
    unscored: bool = False
    """Whether the first reward function scores some completions None."""
    tools: Literal["", "in turn", "mixed", "limited", "environment", "environments"] = ""
    """Whether completions call tools: over several turns, awaited ones before others, in more turns than allowed, or
    those of an environment of each rollout, of one kind or of the kind that its row names."""
    trait: str = ""
    """Of the model; see `common.zoo`."""
    model_options: Mapping[str, Any] = field(default_factory=dict)
    """Of the model's configuration, in addition to those of its trait."""
    end: str = "<|im_end|>"
    """Token that ends a text."""
    second_end: Literal["", "in a list", "alone"] = ""
    """Whether the model's generation settings name a second end token, which ends every other sampled completion: next
    to that of the tokenizer, or in its place."""
    spreads: bool = False
    """Whether it runs in two processes too, which takes ten seconds."""
    updates_only: bool = False
    """Whether only the laws of updates and their log are run."""
    thorough: bool = False
    """Whether it runs only if a thorough run is requested."""
    known_failures: Sequence[KnownFailure] = ()

    @property
    def fused(self) -> bool:
        """Whether the loss is the one of Liger, which computes it without the logits of all tokens."""
        return bool(self.options.get("use_liger_kernel"))

    @property
    def samples(self) -> bool:
        """Whether the trainer samples its completions."""
        return self.data == "prompts"

    @property
    def scores(self) -> bool:
        """Whether the model gives a sequence one score."""
        return self.trainer == "Reward"


NUM_TOKENS = KnownFailure(
    "num_tokens begins again at 0 after a resume", finding="TRL: num_tokens after a resume"
).of("R13.whole/totals::num_tokens")
MEANS = KnownFailure(
    "a scalar of a step is the mean of its micro-batches' means", finding="TRL: means of means in the log"
).of("R22.whole/means of a step are over all its rows")
MEANS_OF_SFT, MEANS_OF_DPO, MEANS_OF_KTO, MEANS_OF_ROLLOUTS = (
    MEANS.of(f"{MEANS.laws[0]}::{scalars}")
    for scalars in (
        "mean_token_accuracy",
        "logits/*, mean_token_accuracy, entropy",
        "logits/*, logps/*, rewards/*, entropy",
        "kl, clip_ratio*",
    )
)
"""By trainer."""
REFERENCE = KnownFailure(
    "a checkpoint does not hold the synchronised reference, which starts again from the first one",
    finding="TRL: a synchronised reference after a resume",
).of("R13.whole/gradient, after a resume", "R13.whole/weights and moments", "R13.whole/rows, rates and log")
SLICES = KnownFailure(
    "the divisor of dapo is the tokens of the whole generation where it serves several steps",
    finding="TRL: the divisor of dapo over several steps",
).of(
    "R2.whole/gradient, two processes",
    "R12.whole/gradient, two micro-batches a step",
    "R12.whole/gradient, one micro-batch a step",
    "R12.whole/gradient, generations that begin within a step",
    "R22.whole/loss, two processes",
    "R13.whole/gradient, after a resume",
    "R22.whole/loss, two micro-batches a step",
    "R22.whole/loss and scalars, a logging interval of two steps::loss",
)
RESULTS = KnownFailure(
    "results of tools that are awaited follow those of all others, in another order than the calls",
    finding="TRL: the order of tools' results",
).of(
    "R12.whole/gradient, two micro-batches a step",
    "R12.whole/gradient, one micro-batch a step",
    "R12.whole/rows are used as often as configured",
    "R22.whole/loss, two micro-batches a step",
    "R22.whole/loss and scalars, a logging interval of two steps::loss",
)
ENTROPY_MEANS = KnownFailure(
    "the entropy bonus is the mean of the micro-batches' means",
    finding="TRL: the entropy bonus of micro-batches",
).of(
    "R2.whole/gradient, two processes",
    "R12.whole/gradient, two micro-batches a step",
    "R13.whole/gradient, after a resume",
)
DATA_SEED = KnownFailure(
    "`data_seed` is not read: the order of prompts follows `seed`", finding="TRL: data_seed of GRPO and RLOO"
).of("R24.whole/seed of the order")
ENTROPY_QUANTILE = KnownFailure(
    "the quantile of entropies is that of each micro-batch",
    finding="TRL: the entropy quantile of micro-batches",
).of(
    "R12.whole/gradient, two micro-batches a step",
    "R13.whole/gradient, after a resume",
    "R22.whole/loss, two micro-batches a step",
)
MASKED_ROWS = KnownFailure(
    "a masked completion stays in the mean of RLOO's loss, and its KL penalty is left out of its reward",
    finding="TRL: masked completions of RLOO",
).of(
    "R12.whole/gradient, two micro-batches a step",
    "R12.whole/gradient, one micro-batch a step",
    "R12.whole/gradient, generations that begin within a step",
    "R22.whole/loss, two micro-batches a step",
    "R22.whole/loss and scalars, a logging interval of two steps::loss",
)
LIKELIHOOD = KnownFailure(
    "the negative log-likelihood is a mean over the tokens of each micro-batch",
    finding="TRL: the likelihood term of CPO and ORPO",
).of(
    "R2.whole/gradient, two processes",
    "R12.whole/gradient, two micro-batches a step",
    "R12.whole/gradient, an epoch that ends within a step",
    "R13.whole/gradient, after a resume",
)
LIKELIHOOD_OF_DPO = KnownFailure(
    "the loss type sft is a mean over the tokens of each micro-batch",
    finding="TRL: the loss type sft of DPO",
).of(
    "R12.whole/gradient, two micro-batches a step",
    "R12.whole/gradient, an epoch that ends within a step",
    "R13.whole/gradient, after a resume",
    "R22.whole/loss, two micro-batches a step",
    "R23.whole/logged loss and scalars::loss",
    "R23.whole/logged loss and scalars, between steps that are logged::loss",
)
EVALUATION_LOSS = KnownFailure(
    "eval_loss is the mean of the batches' means, each weighted by its rows",
    finding="TRL: the evaluation loss of several batches",
).of(
    "R23.whole/logged loss and scalars::loss",
    "R23.whole/logged loss and scalars, between steps that are logged::loss",
)
SUMS_AT_THE_END = KnownFailure(
    "sums of the last step of an epoch leave out processes that have rows of it",
    finding="TRL: sums of the last step of an epoch",
).of(
    # Any scalar: which ones has not been run.
    "R22.whole/scalars, two processes",
    "R22.whole/entropy, divergence and clipping, two processes",
    "R22.whole/means of a step are over the rows of both processes",
)
PROCESSES = KnownFailure(
    "the loss is divided by the tokens of all processes, whose gradients are then averaged",
    finding="TRL: GKD in several processes",
).of("R2.whole/gradient, two processes", "R22.whole/loss, two processes")
EXPERTS = KnownFailure(
    "a resumed run begins again with the first weights of the experts",
    finding="TRL: experts after a resume",
).of("R13.whole/gradient, after a resume", "R13.whole/weights and moments", "R13.whole/rows, rates and log")
TOKENS = {"num_tokens": Scalar(quantity="tokens", how="total")}
SFT_SCALARS = {**TOKENS, "entropy": Scalar(quantity="entropy"), "mean_token_accuracy": Scalar(quantity="hit")}
PREFERENCE_SCALARS = {
    "logps/chosen": Scalar(quantity="chosen log-probability"),
    "logps/rejected": Scalar(quantity="rejected log-probability"),
    "rewards/chosen": Scalar(quantity="chosen reward"),
    "rewards/rejected": Scalar(quantity="rejected reward"),
}
PAIR_SCALARS = {
    **PREFERENCE_SCALARS,
    "rewards/margins": Scalar(quantity="reward margin"),
    "rewards/accuracies": Scalar(quantity="right reward"),
}
LOGIT_SCALARS = {
    "logits/chosen": Scalar(quantity="chosen logit"),
    "logits/rejected": Scalar(quantity="rejected logit"),
}
DPO_SCALARS = {
    **TOKENS,
    **PAIR_SCALARS,
    **LOGIT_SCALARS,
    "entropy": Scalar(quantity="entropy"),
    "mean_token_accuracy": Scalar(quantity="chosen hit"),
}
KTO_SCALARS = {**TOKENS, **PREFERENCE_SCALARS, **LOGIT_SCALARS, "entropy": Scalar(quantity="entropy")}
REWARD_SCALARS = {
    **TOKENS,
    "accuracy": Scalar(quantity="right score"),
    "min_reward": Scalar(quantity="score", how="min"),
    "mean_reward": Scalar(quantity="score"),
    "max_reward": Scalar(quantity="score", how="max"),
    "margin": Scalar(quantity="score margin"),
}
ROLLOUT_SCALARS = {
    **TOKENS,
    "completions/mean_length": Scalar(quantity="length"),
    "completions/min_length": Scalar(quantity="length", how="min"),
    "completions/max_length": Scalar(quantity="length", how="max"),
    "completions/mean_terminated_length": Scalar(quantity="ended length"),
    "completions/min_terminated_length": Scalar(quantity="ended length", how="min"),
    "completions/max_terminated_length": Scalar(quantity="ended length", how="max"),
    "completions/clipped_ratio": Scalar(quantity="truncated"),
    "rewards/reward0/mean": Scalar(quantity="first reward"),
    "rewards/reward0/std": Scalar(quantity="first reward", how="deviation"),
    "reward": Scalar(quantity="reward"),
    "reward_std": Scalar(quantity="reward", how="deviation"),
    "frac_reward_zero_std": Scalar(quantity="constant group"),
    "entropy": Scalar(quantity="entropy"),
    "clip_ratio/region_mean": Scalar(quantity="clipped"),
    "clip_ratio/low_mean": Scalar(quantity="clipped low"),
    "clip_ratio/high_mean": Scalar(quantity="clipped high"),
    "clip_ratio/low_min": Scalar(quantity="clipped low of a row", how="min"),
    "clip_ratio/high_max": Scalar(quantity="clipped high of a row", how="max"),
}
TOOL_SCALARS = {
    **{name: one for name, one in ROLLOUT_SCALARS.items() if name not in TOKENS},
    "tools/call_frequency": Scalar(quantity="tool calls"),
    "tools/failure_frequency": Scalar(quantity="failed call"),
}
ENTROPY = {"entropy": Scalar(quantity="entropy")}
REUSE_SCALARS = {
    name: value
    for name, value in ROLLOUT_SCALARS.items()
    if name == "entropy" or name.startswith("clip_ratio")
}
"""What is logged of steps that sample nothing too."""
