"""A setup in the form that the installed release takes, by the types of its configuration and by its code."""

from __future__ import annotations

import re
import types
import typing
from collections.abc import Mapping
from dataclasses import fields, replace
from enum import Enum
from inspect import getdoc, signature
from typing import Any, Literal

from seatrial.relations.cases.examples import ObjectiveSpec
from seatrial.relations.contracts.trainers import RolloutSpec
from seatrial.targets.common.target import Gone, release
from seatrial.targets.trl.fused import with_liger
from seatrial.targets.trl.named import (
    answers_tools,
    averages_tokens,
    code_has,
    reads_labels,
    repeats_prompts,
    takes_no_reward,
    unknown_choices,
    with_former_names,
)
from seatrial.targets.trl.setup import Setup
from seatrial.targets.trl.shedding import shed

BEGINNING = ("_tokenize(", "_tokenize_prompts(", "add_bos_token_if_needed")
"""Words in the code of trainers that leave the first token of a text to the tokenizer, or add it themselves."""
CUTS_ANSWERS = 'max_length - kwargs["max_prompt_length"]'
"""Words in the code of KTO before 0.27, which cuts a prompt to its own limit and an answer to what that leaves."""
COUNTED = "include_num_input_tokens_seen"
OF_THE_BEST = ("load_best_model_at_end", "metric_for_best_model", "greater_is_better")
MEANS = ("dapo", "bnpo", "grpo")
"""Loss types that differ in their divisor alone: that of a release without the option has one of its own."""


def fitted_setup(setup: Setup, trainer_class: type, config_class: type) -> Setup:
    """Return the setup with its options, and what they mean, as the installed release has them.

    Raises:
        Gone: the release does not have the setup; the text names what is missing.
    """
    what = f"{setup.trainer}Trainer of trl {release('trl')}"
    defaults = {item.name: item.default for item in fields(config_class)}
    if setup.trainer == "SFT" and "max_length" not in defaults and "max_seq_length" in defaults:
        setup = _on_whole_texts(setup, defaults)
    if setup.fused:
        setup = with_liger(setup, trainer_class, defaults)
    setup = shed(setup, (trainer_class, config_class), defaults)
    setup = _with_own_mean(setup, (trainer_class, config_class), frozenset(defaults))
    setup = _with_own_best(setup, trainer_class)
    setup = _with_own_count(setup, config_class)
    setup = _with_shorter_prompts(setup, trainer_class, defaults)
    setup = _with_own_divergence(setup, trainer_class, config_class)
    if setup.form == "own" and not code_has('"tools"', trainer_class):
        setup = replace(setup, gives_tools=False)
    if missing := sorted(set(setup.options) - set(defaults)):
        raise Gone(f"{config_class.__name__} of trl {release('trl')} has no {', '.join(missing)}")
    if setup.samples and "reward_funcs" not in signature(trainer_class).parameters:
        raise Gone(f"{what} takes no reward functions")
    if setup.samples and repeats_prompts(trainer_class):
        raise Gone(f"{what} counts prompts in place of completions")
    own = "environment_factory" if setup.tools.startswith("environment") else "tools"
    if setup.tools and own not in signature(trainer_class).parameters:
        raise Gone(f"{what} takes no {own}")
    if setup.tools and int(release("transformers").split(".")[0]) < 5:
        raise Gone(f"tools need transformers 5, and not {release('transformers')}")
    if unknown := unknown_choices(setup.options, trainer_class, config_class):
        raise Gone(f"{what} has no {', '.join(unknown)}")
    for wanted, words, lacking in (
        (setup.form == "own", ("chat_template_kwargs",), "options of a row for its template"),
        (setup.form == "called" and not setup.samples, ("json.loads(tools)",), "tools of a row as a text"),
        (setup.begins, BEGINNING, "first token of texts that its tokenizer adds"),
        (setup.awaits_rewards, ("async",), "reward functions that it awaits"),
        (setup.margins, ("margin",), "margins of pairs"),
        (
            setup.adds_head,
            ("model: Union[str", 'model: "str', "model: str"),
            "model that is given as a folder",
        ),
        (
            setup.trainer == "Reward" and setup.form == "text" and not setup.spells_end,
            ("add_eos",),
            "end token that it adds",
        ),
        (setup.trainer == "Reward", ('"chosen"',), "texts of pairs that it makes ids of"),
        (setup.second_end, ("eos_token_ids",), "second end token"),
        # Releases around 0.28 have the option without effect, and say so.
        (setup.prompt_limit and setup.samples, ("max_prompt_length",), "limit of prompts that it keeps"),
        (setup.tools == "environments", ("_multi_environment",), "environments of several kinds"),
        (setup.logs_rows, ('"log_extra"',), "columns that reward functions add to its tables"),
    ):
        if wanted and not any(code_has(word, trainer_class) for word in words):
            raise Gone(f"{what} has no {lacking}")
    longest = getattr(setup.objective, "max_length", None)
    if longest is not None and code_has(CUTS_ANSWERS, trainer_class):
        raise Gone(f"{what} cuts prompts and answers by rules of their own")
    if setup.form == "called" and setup.samples and not answers_tools():
        raise Gone(f"{what} takes no prompts that end with the result of a tool")
    if setup.unscored and not takes_no_reward(trainer_class):
        raise Gone(f"reward functions of trl {release('trl')} return a number for each completion")
    if setup.data == "ids" and not reads_labels(trainer_class):
        raise Gone(f"{what} takes no labels of a row")
    options = fitted(config_class, setup.options)
    for name in setup.enumerated:
        if not isinstance(default := defaults[name], Enum):
            raise Gone(f"{name} of trl {release('trl')} is no enumeration")
        options[name] = type(default)(options[name])
    scalars = with_former_names(setup.scalars, trainer_class) if setup.samples else setup.scalars
    return replace(setup, options=options, scalars=scalars)


def _with_own_mean(setup: Setup, classes: tuple[type, type], known: frozenset[str]) -> Setup:
    """Return a setup of GRPO with a mean that the release has.

    A release without `dapo` has `bnpo`, the mean over the tokens of a micro-batch. One without the option has one mean
    alone, which it documents: before 0.16 that is a mean of each row; `rollouts.GRPO` shows that it weights a token by
    its row's length.
    """
    objective = setup.objective
    if not isinstance(objective, RolloutSpec) or setup.options.get("loss_type") not in MEANS:
        return setup
    if "loss_type" in known:
        if setup.options["loss_type"] != "dapo" or not unknown_choices({"loss_type": "dapo"}, *classes):
            return setup
        options = {**setup.options, "loss_type": "bnpo"}
        return replace(setup, options=options, objective=replace(objective, reduction="micro_batch"))
    own: Literal["micro_batch", "rows"] = "micro_batch" if averages_tokens(classes[0]) else "rows"
    options = {name: value for name, value in setup.options.items() if name != "loss_type"}
    return replace(setup, options=options, objective=replace(objective, reduction=own))


def _with_own_best(setup: Setup, trainer_class: type) -> Setup:
    """Return a setup without a best checkpoint by a scalar that evaluations of the release log and do not return."""
    metric = setup.options.get("metric_for_best_model", "loss")
    if metric.endswith("loss") or not code_has("logs = {**logs, **metrics}", trainer_class):
        return setup
    return replace(
        setup, options={name: value for name, value in setup.options.items() if name not in OF_THE_BEST}
    )


def _with_own_divergence(setup: Setup, trainer_class: type, config_class: type) -> Setup:
    """Return a setup of DPO whose options mean what releases before 0.29 document.

    The derivative of their alpha divergence is (1 - u^-alpha) / alpha, their `sigmoid` has the label smoothing of cDPO,
    their DiscoPOP is one of log-ratios with any divergence, and their IPO logs log-probabilities per token.
    """
    objective = setup.objective
    if setup.trainer != "DPO" or not isinstance(objective, ObjectiveSpec):
        return setup
    if code_has("ALPHA_DIVERGENCE_COEF_DEFAULT", trainer_class):
        objective = replace(objective, alpha=1 - objective.alpha)
        if objective.form == "discopop":
            setup = replace(
                setup, options={name: one for name, one in setup.options.items() if not name.startswith("f_")}
            )
            objective = replace(objective, divergence="reverse_kl")
    if objective.label_smoothing and "cDPO" in str(getdoc(config_class)):
        own = {"sigmoid": "conservative"}
        mixture = tuple((own.get(form, form), weight) for form, weight in objective.mixture)
        objective = replace(objective, form=own.get(objective.form, objective.form), mixture=mixture)
    if objective.form == "ipo" and code_has("all_logps = all_logps / loss_mask.sum(-1)", trainer_class):
        scalars = {
            name: one for name, one in setup.scalars.items() if not name.startswith(("logps/", "rewards/"))
        }
        setup = replace(setup, scalars=scalars)
    return replace(setup, objective=objective)


def _with_shorter_prompts(setup: Setup, trainer_class: type, defaults: Mapping[str, Any]) -> Setup:
    """Return a setup whose limit of prompts is below that of rows, where the release refuses another."""
    longest, own = setup.options.get("max_length"), defaults.get("max_prompt_length")
    if longest is None or own is None or own < longest or "max_prompt_length" in setup.options:
        return setup
    if not code_has("should be strictly less than max_length", trainer_class):
        return setup
    return replace(setup, options={**setup.options, "max_prompt_length": longest - 1})


def _with_own_count(setup: Setup, config_class: type) -> Setup:
    """Return a setup without a count of the tokens that are no padding, where Transformers has only one of all."""
    value, kind = setup.options.get(COUNTED), _kinds(config_class).get(COUNTED)
    if value is None or kind is None or admits(kind, value):
        return setup
    options = {name: one for name, one in setup.options.items() if name != COUNTED}
    scalars = {name: one for name, one in setup.scalars.items() if name != "num_input_tokens_seen"}
    return replace(setup, options=options, scalars=scalars)


def _kinds(config_class: type) -> Mapping[str, Any]:
    """Return the types of a configuration's fields; none where one is imported for type checkers alone."""
    try:
        return typing.get_type_hints(config_class)
    except NameError:
        return {}


def _on_whole_texts(setup: Setup, defaults: Mapping[str, Any]) -> Setup:
    """Return a setup of SFT before 0.16, with its name of the length; it takes no prompts apart from completions.

    The column of texts has no name by default before 0.12.
    """
    options = dict(setup.options)
    options["max_seq_length"] = options.pop("max_length", None)
    texts = setup.data == "texts" and setup.form == "text"
    data = "whole" if texts else setup.data
    if data == "whole" and not setup.formats and defaults.get("dataset_text_field", "") is None:
        options.setdefault("dataset_text_field", "text")
    return replace(setup, options=options, data=data)


def fitted(config_class: type, options: Mapping[str, Any]) -> dict[str, Any]:
    """Return the options as the fields of a configuration take them.

    A list of one value may be given as the value, a value as a list of one, and a text as the member of an enumeration
    with that value, unless the option is documented as a text.

    Raises:
        Gone: a field takes no such value, such as a text where an older release has a switch.
    """
    kinds = _kinds(config_class)
    return {
        name: _fitted(config_class, name, value, kinds[name]) if name in kinds else value
        for name, value in options.items()
    }


def _fitted(config_class: type, name: str, value: Any, kind: Any) -> Any:
    if isinstance(value, str) and re.search(rf"\b{name} \([^)]*`str`", str(getdoc(config_class))):
        return value
    forms = [value, [value]]
    if isinstance(value, list) and len(value) == 1 and value[0] is not None:
        forms.append(value[0])
    if isinstance(value, str):
        forms += [
            member
            for one in _alternatives(kind)
            if isinstance(one, type) and issubclass(one, Enum)
            for member in one
            if member.value == value
        ]
    for form in forms:
        if admits(kind, form):
            return form
    raise Gone(f"{name} of trl {release('trl')}'s {config_class.__name__} is {kind}, and not {value!r}")


def admits(kind: Any, value: Any) -> bool:
    """Return whether a field of this type takes a value; True for a type that says nothing about it."""
    return any(_is_one(alternative, value) for alternative in _alternatives(kind))


def _alternatives(kind: Any) -> tuple[Any, ...]:
    is_union = typing.get_origin(kind) in (typing.Union, types.UnionType)
    return typing.get_args(kind) if is_union else (kind,)


def _is_one(kind: Any, value: Any) -> bool:
    outer, inner = typing.get_origin(kind) or kind, typing.get_args(kind)
    if outer is Any:
        return True
    if outer is typing.Literal:
        return value in inner
    if outer in (list, tuple):
        elements = [one for one in inner if one is not Ellipsis]
        return isinstance(value, list | tuple) and all(
            not elements or any(admits(one, element) for one in elements) for element in value
        )
    if outer is bool or outer is int:
        return type(value) is outer
    if outer is float:
        return type(value) in (int, float)
    if isinstance(outer, type):
        return isinstance(value, outer)
    return True
