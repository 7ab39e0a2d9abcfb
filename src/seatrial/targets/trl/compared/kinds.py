"""What a compared trainer is: its rows, its options, and those that change nothing or something."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from torch import Tensor

from seatrial.targets.common.known import KnownFailure
from seatrial.targets.trl.compared.definitions.setting import Setting

Options = Mapping[str, Any]


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
    defined_since: str = "1.12"
    """The first release of TRL whose steps are compared with the definition; what earlier ones do was not read."""
    defined: Sequence[Options] = ()
    """Those in which steps are defined, in addition to none and to `effective`."""
    adapted: Sequence[Options] = ()
    """Those of `defined` in which steps of adapters are defined, in addition to none."""
    thorough: bool = True
    known_failures: Sequence[KnownFailure] = ()


NEUTRAL: Sequence[Options] = (
    {"gradient_checkpointing": True},
    {"gradient_checkpointing": True, "gradient_checkpointing_kwargs": {"use_reentrant": True}},
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

ORDERS: Sequence[tuple[Options, int]] = (
    ({"steps_per_generation": 4}, 2),
    ({"shuffle_dataset": False}, 1),
    ({"train_sampling_strategy": "group_by_length"}, 1),
    ({"dataloader_drop_last": True}, 1),
)
"""Options of any trainer that give steps their rows in another way, with the number of steps that share theirs."""
MAY_LACK = ("train_sampling_strategy=group_by_length",)
"""Of `ORDERS`: what a trainer whose rows have no `input_ids` refuses."""

FORMS = (
    "the model as a folder",
    "no tokenizer",
    "more columns",
    "padding on the right",
    "padding is the end token",
    "a stream",
)
"""Variations of arguments, in addition to those of options."""
BFLOAT16, LOADED_BFLOAT16 = "a model in bfloat16", "a model that is loaded in bfloat16"
"""Which are the same: a reference has the precision of its policy."""
MAY_BE_REFUSED = (*FORMS[:2], "a stream", "turns", BFLOAT16, LOADED_BFLOAT16, *MAY_LACK)
"""Forms that a trainer may refuse with an error of any kind: it does so aloud."""
FEEDBACK = ("no", " ", "nearly there", "")
DROPOUT = "a model with dropout, which `disable_dropout` disables"
TURNS = ("prompts", "pairs", "triples", "labels", "completions")
"""Kinds of rows that may be conversations."""
GIVEN = frozenset(
    {
        "self", "model", "args", "train_dataset", "eval_dataset", "processing_class", "tokenizer", "ref_model",
        "teacher_model", "reward_funcs", "reward_model", "value_model",
    }
)  # fmt: skip
"""Arguments that a trainer may require."""

SHORT: Options = {
    "max_completion_length": 9,
    "max_new_tokens": 9,
    "response_length": 9,
    "max_length": 200,
    "max_prompt_length": 100,
}
GROUPS: Options = {**SHORT, "num_generations": 2}

SCALED: Sequence[Options] = tuple(
    {"trait": name}
    for name in ("final_logit_softcapping", "head with a bias", "logits_scaling", "lm_head_multiplier")
)
"""Models whose logits are more than a product with the head's weight; see `zoo.ZOO`."""

CUTS = ("max_length", "max_prompt_length")
APART: Mapping[str, Sequence[str]] = {"turns": CUTS, **dict.fromkeys(CUTS, ("turns",))}
"""Options that are not set at once: limits that suit texts leave nothing of a conversation that is its own."""


SUBJECTS: Mapping[str, Literal["rows", "completions", "models"]] = {
    "trait": "models",
    "ends": "completions",
    "turns": "rows",
    "rewards": "rows",
    "feedback": "rows",
}


def subject_of(options: Options) -> Literal["rows", "completions", "models"] | None:
    """Return what a variation varies in addition to options, if anything."""
    return next((found for name, found in SUBJECTS.items() if name in options), None)


def mixed(options: Sequence[Options]) -> list[Options]:
    """Return sets of options, in which every second one of these is with up to two others that name other options."""
    found: list[Options] = []
    for place in range(0, len(options), 2):
        made: dict[str, Any] = dict(options[place])
        parts = 1
        for step in range(3, len(options)):  # neighbours are alike
            other = options[(place + step) % len(options)]
            taken = made.keys() | {name for one in made for name in APART.get(one, ())}
            if parts < 3 and not taken & other.keys():
                made, parts = {**made, **other}, parts + 1
        if parts > 1:
            found.append(made)
    return found
