"""What the installed release's code names: the scalars that a trainer logs, and the choices of its options.

The sources are the modules of the trainer's and the configuration's classes, with their comments and docstrings. A
name is a quoted text there: `"entropy"`, an f-string that ends with it, or one with the same parts between slashes.
"""

from __future__ import annotations

import importlib
import inspect
import re
import sys
from collections.abc import Iterable, Mapping
from functools import cache
from importlib.util import find_spec
from inspect import Parameter, signature
from typing import Any

from seatrial.relations.contracts.trainers import RolloutSpec, Scalar, TrainerSpec

CHOICES = (
    "loss_type", "f_divergence_type", "importance_sampling_level", "scale_rewards", "truncation_mode",
    "packing_strategy", "multi_objective_aggregation",
)  # fmt: skip
"""Options of TRL that take one of a few words."""


def unnamed_scalars(names: Iterable[str], *classes: type) -> frozenset[str]:
    """Return those of these scalars that the code of these classes does not name."""
    return frozenset(name for name in names if not _is_named(name, classes))


def scalars_of(trainer_class: type, spec: TrainerSpec) -> Mapping[str, Scalar]:
    """Return the declared scalars as the installed release defines them.

    Releases of TRL before 0.27 document `reward_std` as the mean deviation in a group, unless rewards are scaled by
    that of the batch, and count the penalty of RLOO as a part of `reward`; their code averages `std_rewards`. The
    `entropy` of supervised training was a mean over all tokens first, prompts and the last token included.
    """
    objective, own = spec.objective, dict(spec.scalars)
    if code_has("per_token_entropy * attention_mask", trainer_class):
        every = Scalar(quantity="entropy after each token")
        own = {name: every if name == "entropy" else one for name, one in own.items()}
    if not code_has("nanmin(gathered_low_clip)", trainer_class) or not code_has(
        "masked_seq_mean", trainer_class
    ):
        own = {name: one for name, one in own.items() if not name.endswith(("low_min", "high_max"))}
    of_groups = r"\bstd_\w*rewards\.mean\(\)"
    if not isinstance(objective, RolloutSpec) or not any(
        re.search(of_groups, source) for source in sources([trainer_class])
    ):
        return own
    reward = "shaped reward" if objective.kl_in == "reward" else "reward"
    if "reward" in own:
        own["reward"] = Scalar(quantity=reward)
    if "reward_std" in own and objective.scale != "batch":
        own["reward_std"] = Scalar(quantity=f"deviation of the {reward} in a group")
    return own


FORMER_NAMES: Mapping[str, str] = {
    "clip_ratio/region_mean": "clip_ratio",
    "completions/mean_length": "completion_length",
    "rewards/reward0/mean": "rewards/reward0",
}
"""What scalars of GRPO and RLOO were called in releases whose code does not have the present name."""


def with_former_names(scalars: Mapping[str, Scalar], trainer_class: type) -> dict[str, Scalar]:
    """Return scalars under the names of the installed release."""
    return {
        FORMER_NAMES[name] if _is_former(name, trainer_class) else name: one for name, one in scalars.items()
    }


def _is_former(name: str, trainer_class: type) -> bool:
    if name not in FORMER_NAMES or _quotes(name, [trainer_class]):
        return False
    if name == "rewards/reward0/mean":
        return not code_has('/mean"', trainer_class) and code_has('f"rewards/', trainer_class)
    return _quotes(FORMER_NAMES[name], [trainer_class])


def takes_no_reward(trainer_class: type) -> bool:
    """Return whether a reward function may return None: the release then takes NaN, and leaves it out."""
    return code_has("is not None else torch.nan", trainer_class)


def reads_labels(trainer_class: type) -> bool:
    """Return whether SFT takes labels that a row has; releases before 0.19 make all labels themselves."""
    return any(code_has(f"example{read}", trainer_class) for read in ('["labels"]', '.get("labels"'))


def answers_tools() -> bool:
    """Return whether a prompt may end with the result of a tool: releases before 0.26 refuse its role."""
    return "Invalid role" not in (own := _source("trl.data_utils")) or '"user", "tool"' in own


def extracts_turns_alone() -> bool:
    """Return whether a prompt that both answers begin with is one of turns alone, as before 0.12."""
    return '["chosen"][idx]["content"]' in _source("trl.data_utils")


def averages_tokens(trainer_class: type) -> bool:
    """Return whether GRPO divides by the tokens of several rows; releases before 0.16 average each row first."""
    return not code_has("(per_token_loss * completion_mask).sum(dim=1) /", trainer_class)


def repeats_prompts(trainer_class: type) -> bool:
    """Return whether GRPO samples a group for each prompt of a batch; later ones have batches of completions."""
    return code_has("num_return_sequences=self.num_generations", trainer_class)


def generates_micro_batches(trainer_class: type) -> bool:
    """Return whether a trainer that samples does so for each micro-batch; those since 0.17 do for a whole step."""
    return not code_has("generate_every", trainer_class)


def drops_caches() -> bool:
    """Return whether layers of Transformers that checkpoint gradients take no cache; 4.49 has no such layers."""
    module = "transformers.modeling_layers"
    return find_spec(module) is not None and '["past_key_values"] = None' in _source(module)


def code_has(words: str, trainer_class: type, package: str = "") -> bool:
    """Return whether the code of a trainer and of its bases, of one package if it is given, has these words."""
    return any(words in source for source in sources([trainer_class], package))


def unknown_choices(options: Mapping[str, Any], *classes: type) -> list[str]:
    """Return `option=word` for each word of `CHOICES` that the code of these classes does not name."""
    found = []
    for option in CHOICES:
        value = options.get(option)
        words = value if isinstance(value, list) else [value]
        found += [
            f"{option}={word}" for word in words if isinstance(word, str) and not _quotes(word, classes)
        ]
    return found


def _is_named(name: str, classes: Iterable[type]) -> bool:
    """Return whether a scalar is named; a plain word soon after metrics or a log, as it may be a column's name too."""
    before = "" if "/" in name else r"(?:\b_?metrics\b|\blogs?\b)(?s:.){0,200}?"
    return _quotes(name, classes, before) or _quotes_parts(name, classes)


def _quotes(word: str, classes: Iterable[type], before: str = "") -> bool:
    """Return whether a text in quotes is this word, or an f-string's end after a value; after the pattern `before`."""
    pattern = rf"{before}[\"'`}}]{re.escape(word)}[\"'`]"
    return any(re.search(pattern, source) for source in sources(classes))


def _quotes_parts(name: str, classes: Iterable[type]) -> bool:
    """Return whether an f-string has the name's parts, some of them as values: `f"rewards/{function}/mean"`."""
    value = r"\{[^{}\"']*\}"
    parts = name.split("/")
    if len(parts) == 1:
        return False
    pattern = "/".join(rf"(?:{re.escape(part)}|{value})" for part in parts)
    found = (
        one.group() for source in sources(classes) for one in re.finditer(rf"[\"'`}}]{pattern}[\"'`]", source)
    )
    return any(re.search(rf"(?:^.|/){re.escape(part)}(?:/|.$)", text) for text in found for part in parts)


def sources(classes: Iterable[type], package: str = "") -> list[str]:
    """Return the sources of the modules of these classes and of those that they extend, or those of one package."""
    modules = {base.__module__ for one in classes for base in inspect.getmro(one)}
    own = sorted(name for name in modules if name.partition(".")[0] not in sys.stdlib_module_names)
    own = [name for name in own if package in ("", name.partition(".")[0])]
    return [_source(module) for module in own]


@cache
def _source(module: str) -> str:
    return inspect.getsource(importlib.import_module(module))


def parameters_of(trainer_class: type) -> Mapping[str, Parameter]:
    """Return what a trainer takes; one that passes all on takes what its base does."""
    found: dict[str, Parameter] = {}
    for base in trainer_class.__mro__:
        if "__init__" in vars(base):
            own = signature(vars(base)["__init__"]).parameters
            found = {**own, **found}
            if not any(one.kind is Parameter.VAR_KEYWORD for one in own.values()):
                break
    return found
