"""Setups of several options on a release without one of them: the others are judged there without it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import MISSING, fields, replace
from typing import Any

from seatrial.targets.trl.named import takes_no_reward, unknown_choices
from seatrial.targets.trl.setup import Setup

MEANINGS: Mapping[str, Sequence[str]] = {
    "loss_type": ("loss", "reduction", "fixed_length", "clip_high"),
    "steps_per_generation": ("num_slices",),
    "num_iterations": ("num_uses",),
    "mask_truncated_completions": ("masks_truncated",),
    "importance_sampling_level": ("ratio",),
    "scale_rewards": ("scale",),
    "multi_objective_aggregation": ("aggregation",),
    "reward_clip_range": ("reward_range",),
    "normalize_advantages": ("normalizes_advantages",),
    "use_bias_correction_kl": (),
    "num_generations_eval": (),
    "ld_alpha": ("tail_weight",),
    "f_divergence_type": ("divergence",),
    "use_weighting": ("weights_pairs",),
    "padding_free": (),
    "pad_to_multiple_of": (),
    "packing_strategy": (),
    "gradient_checkpointing": (),
}
"""By option: the fields of a setup or its objective that say what it means; without it they have their defaults.

A loss type of GRPO becomes `dapo`, or what the release has in its place.
"""
SPARED = frozenset(
    (
        "pad_to_multiple_of", "chat_template_kwargs", "num_generations_eval", "top_p", "top_k", "min_p",
        "repetition_penalty", "generation_kwargs", "cast_lm_head_to_fp32",
    )
)  # fmt: skip
"""Options without which every setup runs where a release does not have them: the others say what is expected."""


def shed(setup: Setup, classes: tuple[type, type], defaults: Mapping[str, Any]) -> Setup:
    """Return the setup without options that the release does not have: those in `sheds`, or their values, and `SPARED`.

    Args:
        setup: what is asked for.
        classes: the trainer and its configuration.
        defaults: of the configuration's options, by name.
    """
    setup = _with_switch(setup, defaults)
    absent = setup.options.keys() - defaults.keys()
    missing = absent | {one.partition("=")[0] for one in unknown_choices(setup.options, *classes)}
    if setup.unscored and "unscored" in setup.sheds and not takes_no_reward(classes[0]):
        setup = replace(setup, unscored=False)
    for name in sorted(missing & set(setup.sheds) | absent & SPARED):
        options = {one: value for one, value in setup.options.items() if one != name}
        if name == "packing_strategy" and name not in defaults:
            del options["packing"]  # it cuts rows there
        if name == "loss_type":
            options = {one: value for one, value in options.items() if one != "epsilon_high"}
            options["loss_type"] = "dapo"
        setup = replace(_reset(setup, MEANINGS.get(name, ())), options=options)
    return setup


def _with_switch(setup: Setup, defaults: Mapping[str, Any]) -> Setup:
    """Return a setup whose scale of rewards is the switch that it was before 0.24; one of the batch had none."""
    scale = setup.options.get("scale_rewards")
    if not isinstance(defaults.get("scale_rewards"), bool) or not isinstance(scale, str):
        return setup
    if scale == "batch":
        if "scale_rewards" not in setup.sheds:
            return setup
        setup, scale = _reset(setup, ("scale",)), "group"
    return replace(setup, options={**setup.options, "scale_rewards": scale == "group"})


def _reset(setup: Setup, names: Sequence[str]) -> Setup:
    """Return the setup with the defaults of these fields, those of its objective too."""
    own = {one.name: one.default for one in fields(Setup) if one.default is not MISSING}
    of_objective = {
        one.name: one.default for one in fields(type(setup.objective)) if one.default is not MISSING
    }
    objective: Any = setup.objective
    changed = {name: of_objective[name] for name in names if name in of_objective}
    return replace(
        setup,
        objective=replace(objective, **changed),
        **{name: own[name] for name in names if name in own},
    )
