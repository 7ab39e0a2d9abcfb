"""Setups of trainers on rows and tokenizers with features that models and data sets have.

A tokenizer that begins texts with a token of its own; rows with tools and options of the template; conversations of
several turns; a second end token of sampled completions; rewards of a model, or
that are awaited; margins; prompts within pairs; adapters with gradients computed again.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

from seatrial.relations.cases.examples import ObjectiveSpec
from seatrial.relations.contracts.trainers import EntropyControl, Scalar
from seatrial.targets.common.known import KnownFailure, before
from seatrial.targets.trl.former import LOSSES
from seatrial.targets.trl.named import code_has
from seatrial.targets.trl.setup import ENTROPY, SLICES, Setup
from seatrial.targets.trl.setups.options import LIKELIHOOD_LOGGED, cpo, orpo
from seatrial.targets.trl.setups.preferences import CUT_BY_KTO, dpo, kto, reward
from seatrial.targets.trl.setups.rollouts import grpo, grpo_tools, rloo
from seatrial.targets.trl.setups.supervised import ALL, sft
from seatrial.targets.trl.tables import METRIC

Fields = Mapping[str, Any]
BEGUN: Fields = {"begins": True}
OWN: Fields = {"form": "own", "spells_end": False}
SEVERAL: Fields = {"form": "several turns", "begins": True, "spells_end": False}
PROMPTS: Mapping[str, Any] = {"max_prompt_length": 60}
"""Of releases that have the option, whose default is longer than a row."""
CALLED: Fields = {"form": "called", "spells_end": False}
MARKED: Fields = {"form": "bracketed", "spells_end": False}
"""Of a template that marks what the assistant generates, which only `assistant_only_loss` reads."""
UNENDED: Fields = {"spells_end": False}
JOINED: Fields = {"joins_prompt": True, "form": "turns"}
ADAPTED: Fields = {"lora": "made"}
CUT: Mapping[str, Any] = {"max_prompt_length": 5}
"""Shorter than most prompts, in releases that have a limit of prompts: of DPO before 0.29, of GRPO and RLOO too."""
UNANSWERED = KnownFailure(
    "rows are kept of which truncation leaves no token of an answer (trl-6321)",
    finding="TRL: rows without an answer, before 1.9",
    releases=before("trl", "1.9"),
).of("R15.whole/rows have a target")
UNLIMITED = KnownFailure(
    "a limit of 0 calls of tools is no limit", finding=LOSSES, releases=before("trl", "1.9")
).of("R12.whole", "R22.whole")
"""All completions are others."""
SHORT: Mapping[str, Any] = {"max_length": 30}
"""Longer than every row, but those whose prompts alone fill it."""
SHORT_TURNS: Mapping[str, Any] = {"loss_type": "dapo", "max_completion_length": 24}
"""In which some results of tools have no place, and some turns after them end early."""
DIVISOR = replace(
    SLICES, releases=lambda adapter: not code_has("/ self.args.steps_per_generation", adapter.trainer_class)
)
EQUAL: Fields = {"max_completion_length": 5, "truncates": False, "num_slices": 2}
"""Of completions of one length, over whose steps a divisor of the whole generation is that of each step."""
EQUAL_SLICES: Mapping[str, Any] = {"max_completion_length": 5, "steps_per_generation": 4}
ADAPTIVE: Mapping[str, Any] = {
    "use_adaptive_entropy": True,
    "entropy_target": 100.0,
    "entropy_coef_delta": 0.3,
}
"""An entropy bonus that grows from the second step on, up to the largest coefficient."""
ANSWERS = ObjectiveSpec(kind="sft", trains="answers")
ASSISTANT: Mapping[str, Any] = {"assistant_only_loss": True}
CHECKPOINTS: Mapping[str, Any] = {"gradient_checkpointing": True}
TRAINERS: Mapping[str, Callable[[], Setup]] = {
    "sft": lambda: sft({}),
    "sft-messages": lambda: sft({}, data="messages", form="turns", objective=ALL),
    "sft-texts": lambda: sft({}, data="whole", objective=ALL),
    "dpo": lambda: dpo({}),
    "kto": lambda: kto({}, objective={}),
    "reward": lambda: reward({}),
    "cpo": lambda: replace(cpo({}), optional=PROMPTS),
    "orpo": lambda: replace(orpo({}), optional=PROMPTS),
}
FEATURES: Mapping[str, Mapping[str, Fields]] = {
    "begun": {
        **dict.fromkeys(("sft", "sft-texts", "dpo", "kto", "reward", "cpo"), BEGUN),
        "orpo": {**BEGUN, "known_failures": (LIKELIHOOD_LOGGED,)},
    },
    "unended": dict.fromkeys(("sft", "reward"), UNENDED),
    "joined": dict.fromkeys(("dpo", "cpo"), JOINED),
    "marked": dict.fromkeys(("sft", "dpo", "kto"), MARKED),
    "formatted": {"sft-texts": {"formats": True}},
    "margins": {"reward": {"margins": True}},
    "own": dict.fromkeys(("sft", "sft-messages", "dpo", "kto", "reward"), OWN),
    "called": dict.fromkeys(("sft", "sft-messages", "dpo", "kto", "reward"), CALLED),
    "several": dict.fromkeys(("sft", "sft-messages", "dpo", "kto", "reward", "cpo"), SEVERAL),
}
"""By feature, the trainers that are run with it, and its fields of their setups."""
CHECKPOINTED: Mapping[str, Setup] = {
    "rows-dpo-adapted": replace(dpo(CHECKPOINTS), reference="base", **ADAPTED),
    "rows-dpo-cut": dpo({**CUT, "max_completion_length": 6}, prompt_limit=5, answer_limit=6),
    "rows-kto-adapted": replace(kto(CHECKPOINTS, objective={}), reference="base", **ADAPTED),
    "rows-grpo-adapted": grpo(
        {"loss_type": "dapo", "beta": 0.2, **CHECKPOINTS}, beta=0.2, reference="base", **ADAPTED
    ),
}
SAMPLED: Mapping[str, Setup] = {
    "rows-grpo-awaited": grpo(
        {"loss_type": "dapo", "reward_weights": [0.5, 2.0]},
        reward_weights=(0.5, 2.0),
        num_rewards=2,
        awaits_rewards=True,
    ),
    "rows-grpo-begun": grpo({"loss_type": "dapo"}, begins=True),
    "rows-grpo-several": grpo({"loss_type": "dapo"}, **{**SEVERAL, "second_end": "in a list"}),
    "rows-grpo-called": grpo({"loss_type": "dapo"}, form="called"),
    "rows-rloo-called": rloo({}, form="called"),
    "rows-grpo-cut": grpo({"loss_type": "dapo", **CUT}, prompt_limit=5),
    "rows-rloo-cut": rloo(CUT, prompt_limit=5),
    "rows-rloo-ends": rloo({}, second_end="alone", begins=True),
    "rows-grpo-scored": grpo({"loss_type": "dapo"}, reward_model="given"),
    "rows-rloo-scored": rloo({}, reward_model="given", form="turns with system"),
    "rows-grpo-scored-loaded": grpo({"loss_type": "dapo"}, reward_model="loaded", form="turns"),
    "rows-rloo-scored-loaded": rloo({}, reward_model="loaded"),
    "rows-rloo-awaited": rloo(
        {"reward_weights": [0.5, 2.0]}, reward_weights=(0.5, 2.0), num_rewards=2, awaits_rewards=True
    ),
    "rows-grpo-tools-short": replace(grpo_tools(SHORT_TURNS), max_completion_length=24),
    "rows-grpo-tools-masked": replace(
        grpo_tools({**SHORT_TURNS, "mask_truncated_completions": True}, masks_truncated=True),
        max_completion_length=24,
    ),
    "rows-grpo-environments": grpo_tools(
        {"loss_type": "dapo"}, tools="environments", reward_weights=(1.0, 1.0)
    ),
}


def _of(setup: Setup, fields: Fields) -> Setup:
    """Return a setup with fields, run for its updates; its scalars are other setups'."""
    given: Fields = {"thorough": True, "updates_only": True, "known_failures": (), "scalars": {}, **fields}
    return replace(setup, **given)


OWN_SCALARS = {METRIC: Scalar(quantity="first reward")}
OF_ONE_LENGTH: Mapping[str, Setup] = {
    "rows-grpo-equal": replace(grpo({"loss_type": "dapo", **EQUAL_SLICES}), **EQUAL),
    "rows-grpo-equal-batch": replace(
        grpo({"loss_type": "dapo", "max_completion_length": 5, "generation_batch_size": 16}), **EQUAL
    ),
    "rows-grpo-equal-cispo": replace(
        grpo({"loss_type": "cispo", "epsilon_high": 1.05, **EQUAL_SLICES}, loss="cispo", clip_high=1.05),
        **EQUAL,
    ),
}
"""GRPO over several steps of one generation, whose completions have one length."""
OF_ASSISTANTS: Mapping[str, Setup] = {
    "answers": sft(ASSISTANT, **MARKED),
    "truncated": sft(
        {**ASSISTANT, "max_length": 14},
        data="messages",
        objective=ObjectiveSpec(kind="sft", max_length=14),
        is_long=True,
        **MARKED,
    ),
    "packing": sft({**ASSISTANT, "packing": True, "max_length": 40}, data="messages", **MARKED),
    "several": sft(ASSISTANT, data="messages", objective=ANSWERS, **SEVERAL),
    "several-prompts": sft(ASSISTANT, **SEVERAL),
    "several-packing": sft(
        {**ASSISTANT, "packing": True, "max_length": 90}, data="messages", objective=ANSWERS, **SEVERAL
    ),
    "several-truncated": sft(
        {**ASSISTANT, "max_length": 60},
        data="messages",
        objective=replace(ANSWERS, max_length=60),
        is_long=True,
        **SEVERAL,
    ),
    "several-end": sft(
        {**ASSISTANT, "max_length": 60, "truncation_mode": "keep_end"},
        data="messages",
        objective=replace(ANSWERS, max_length=60, keep="end"),
        is_long=True,
        **SEVERAL,
    ),
    "called": sft(ASSISTANT, data="messages", objective=ANSWERS, **CALLED),
    "called-flat": sft(
        {**ASSISTANT, "padding_free": True, "max_length": None},
        data="messages",
        objective=ANSWERS,
        **CALLED,
    ),
    "flat": sft({**ASSISTANT, "padding_free": True, "max_length": None}, data="messages", **MARKED),
}
"""SFT on what the assistant generates alone, where rows are cut, packed, or have prompts of their own."""
ROWS: Mapping[str, Setup] = {
    **{
        f"rows-{name}-{feature}": _of(TRAINERS[name](), fields)
        for feature, trainers in FEATURES.items()
        for name, fields in trainers.items()
    },
    **{
        f"rows-{name}-unanswered": _of(
            setup,
            {
                "unanswered": True,
                "optional": {},
                "known_failures": (UNANSWERED, *((CUT_BY_KTO,) if name == "kto" else ())),
            },
        )
        for name, setup in {
            "sft": sft(SHORT, objective=ObjectiveSpec(kind="sft", max_length=30)),
            "dpo": dpo(SHORT, max_length=30),
            "kto": kto(SHORT, objective={"max_length": 30}),
        }.items()
    },
    **{name: _of(setup, {"known_failures": (DIVISOR,)}) for name, setup in OF_ONE_LENGTH.items()},
    **{f"rows-sft-assistant-{name}": _of(setup, {}) for name, setup in OF_ASSISTANTS.items()},
    "rows-grpo-adaptive": _of(
        replace(
            grpo(
                {"loss_type": "dapo", "max_completion_length": 5, "entropy_coef": 0.5, **ADAPTIVE},
                entropy_coefficient=0.5,
                entropy_control=EntropyControl(target=100.0, delta=0.3, most=1.0),
            ),
            **{**EQUAL, "num_slices": 1},
        ),
        {"updates_only": False, "scalars": ENTROPY},
    ),
    "rows-grpo-logged": _of(
        grpo(
            {"loss_type": "dapo", "log_completions": True, "reward_weights": [0.5, 2.0]},
            reward_weights=(0.5, 2.0),
            num_rewards=2,
            unscored=True,
            logs_rows=True,
        ),
        {"scalars": OWN_SCALARS},
    ),
    "rows-rloo-logged": _of(rloo({}, logs_rows=True), {"scalars": OWN_SCALARS}),
    **{name: _of(setup, {}) for name, setup in {**SAMPLED, **CHECKPOINTED}.items()},
    "rows-grpo-uncalled": _of(
        grpo_tools({"loss_type": "dapo", "max_tool_calling_iterations": 0}, tools="limited"),
        {"known_failures": (UNLIMITED,)},
    ),
}
