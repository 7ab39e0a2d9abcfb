"""Setups in pairwise sets: each value of an option, trait or form of data with each value of every other one."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from seatrial.relations.cases.pairwise import pairwise
from seatrial.targets.trl.setup import MASKED_ROWS, MAX_COMPLETION_LENGTH, Setup
from seatrial.targets.trl.setups.preferences import dpo
from seatrial.targets.trl.setups.rollouts import grpo, rloo
from seatrial.targets.trl.setups.supervised import ALL, sft
from seatrial.targets.trl.shedding import MEANINGS

Value = tuple[Mapping[str, Any], Mapping[str, Any]]
"""Options of the configuration, and what they mean: fields of the setup or of its objective."""
PLAIN: Value = ({}, {})
TRAITS: Mapping[str, Value] = {
    "": PLAIN,
    **{
        trait: ({}, {"trait": trait})
        for trait in (
            "wide vocabulary",
            "tied head",
            "sliding window",
            "logit_scale",
            "final_logit_softcapping",
        )
    },
}
ANSWERS: Mapping[str, Value] = {
    "one reward": PLAIN,
    "two rewards": (
        {"reward_weights": [0.5, 2.0]},
        {"reward_weights": (0.5, 2.0), "num_rewards": 2, "unscored": True},
    ),
}
FORMS: Mapping[str, Value] = {
    "text": PLAIN,
    "turns": ({}, {"form": "turns"}),
    "system": ({}, {"form": "turns with system"}),
}
USES: Mapping[str, Value] = {
    "once": PLAIN,
    "twice": ({"num_iterations": 2}, {"num_uses": 2}),
    "slices": ({"steps_per_generation": 4}, {"num_slices": 2}),
}
TRUNCATED: Mapping[str, Value] = {
    "kept": PLAIN,
    "masked": ({"mask_truncated_completions": True}, {"masks_truncated": True}),
}
GRPO: Mapping[str, Mapping[str, Value]] = {
    "loss": {
        "grpo": ({"loss_type": "grpo"}, {"reduction": "rows"}),
        "dapo": ({"loss_type": "dapo"}, {}),
        "bnpo": ({"loss_type": "bnpo"}, {"reduction": "micro_batch"}),
        "dr_grpo": (
            {"loss_type": "dr_grpo"},
            {"reduction": "fixed", "fixed_length": MAX_COMPLETION_LENGTH},
        ),
        "cispo": ({"loss_type": "cispo", "epsilon_high": 1.05}, {"loss": "cispo", "clip_high": 1.05}),
    },
    "level": {
        "token": PLAIN,
        "sequence": ({"importance_sampling_level": "sequence"}, {"ratio": "mean"}),
    },
    "scale": {scale: ({"scale_rewards": scale}, {"scale": scale}) for scale in ("group", "batch", "none")},
    "reference": {
        "none": PLAIN,
        "loaded": ({"beta": 0.2}, {"beta": 0.2}),
        "base": ({"beta": 0.2}, {"beta": 0.2, "lora": "made", "reference": "base"}),
    },
    "uses": USES,
    "truncated": TRUNCATED,
    "rewards": ANSWERS,
    "form": FORMS,
    "trait": TRAITS,
}
RLOO: Mapping[str, Mapping[str, Value]] = {
    "reference": {
        "loaded": PLAIN,
        "none": ({"beta": 0.0}, {"beta": 0.0}),
    },
    "advantages": {
        "plain": PLAIN,
        "normalized": ({"normalize_advantages": True}, {"normalizes_advantages": True}),
    },
    "range": {
        "none": PLAIN,
        "clipped": ({"reward_clip_range": (0.1, 1.4)}, {"reward_range": (0.1, 1.4)}),
    },
    "uses": USES,
    "truncated": {
        "kept": PLAIN,
        "masked": (TRUNCATED["masked"][0], {"masks_truncated": True, "known_failures": (MASKED_ROWS,)}),
    },
    "rewards": ANSWERS,
    "form": FORMS,
    "trait": TRAITS,
}
DPO: Mapping[str, Mapping[str, Value]] = {
    "loss": {
        **{
            form: ({"loss_type": [form]}, {"form": form})
            for form in ("sigmoid", "apo_zero", "nca_pair", "discopop")
        },
        "forward": ({"f_divergence_type": "forward_kl"}, {"divergence": "forward_kl"}),
        "js": ({"f_divergence_type": "js_divergence"}, {"divergence": "js"}),
        "weighted": ({"use_weighting": True}, {"weights_pairs": True}),
    },
    "data": {
        "text": PLAIN,
        "start": ({"max_length": 20}, {"max_length": 20, "is_long": True}),
        "turns": ({}, {"turns": "turns"}),
        "end of turns": (
            {"max_length": 26, "truncation_mode": "keep_end"},
            {"max_length": 26, "keep": "end", "is_long": True, "turns": "turns with system"},
        ),
    },
    "tails": {"whole": PLAIN, "light": ({"ld_alpha": 0.4}, {"tail_weight": 0.4})},
    "rows": {
        "padded": PLAIN,
        "flat": ({"padding_free": True}, {}),
        **{trait: TRAITS[trait] for trait in ("sliding window", "logit_scale")},
    },
    "reference": {
        "given": PLAIN,
        "loaded": ({}, {"reference": "loaded"}),
        "precomputed": ({"precompute_ref_log_probs": True}, {}),
        "base": ({}, {"lora": "made", "reference": "base"}),
    },
}
SFT: Mapping[str, Mapping[str, Value]] = {
    "data": {
        "pairs": PLAIN,
        "answers": ({}, {"form": "turns with system"}),
        "messages": ({}, {"data": "messages", "form": "turns", "objective": ALL}),
        "texts": ({}, {"data": "whole", "objective": ALL}),
    },
    "rows": {
        "padded": PLAIN,
        "multiple": ({"pad_to_multiple_of": 8}, {}),
        "packed": ({"packing": True, "packing_strategy": "bfd", "max_length": 96}, {}),
        "flat": ({"padding_free": True, "max_length": None}, {}),
        **{trait: TRAITS[trait] for trait in ("sliding window", "logit_scale", "wide vocabulary")},
    },
    "adapters": {"none": PLAIN, "made": ({}, {"lora": "made"}), "given": ({}, {"lora": "given"})},
    "checkpoints": {"none": PLAIN, "gradient": ({"gradient_checkpointing": True}, {})},
}


def _grpo_allowed(chosen: Mapping[str, str]) -> bool:
    """Return whether a row has one meaning, and none of the declared failures.

    The divisor of dapo and cispo over several steps, and the reference of several micro-batches' means, are declared.
    """
    if chosen["loss"] == "cispo" and chosen["level"] == "sequence":
        return False
    return not (chosen["uses"] == "slices" and chosen["loss"] in ("dapo", "cispo"))


def _any(chosen: Mapping[str, str]) -> bool:
    return True


def _rows(
    name: str,
    make: Callable[..., Setup],
    dimensions: Mapping[str, Mapping[str, Value]],
    allowed: Callable[[Mapping[str, str]], bool],
) -> dict[str, Setup]:
    """Return setups that together have every allowed pair of values, by name and number."""
    words: Mapping[str, Sequence[str]] = {one: list(values) for one, values in dimensions.items()}

    def chosen(row: Mapping[str, int]) -> dict[str, str]:
        return {one: words[one][index] for one, index in row.items()}

    sizes = {one: len(values) for one, values in dimensions.items()}
    made = {}
    for number, row in enumerate(pairwise(sizes, lambda one: allowed(chosen(one))), start=1):
        options: dict[str, Any] = {}
        fields: dict[str, Any] = {}
        for dimension, word in chosen(row).items():
            own, meaning = dimensions[dimension][word]
            options |= own
            fields |= meaning
        given = {"scalars": {}, "known_failures": (), "thorough": True, "updates_only": True, **fields}
        given["sheds"] = (*(one for one in MEANINGS if one != "loss_type" or name == "grpo"), "unscored")
        made[f"paired-{name}-{number:02}"] = make(options, **given)
    return made


PAIRED: Mapping[str, Setup] = {
    **_rows("grpo", grpo, GRPO, _grpo_allowed),
    **_rows("rloo", rloo, RLOO, _any),
    **_rows("dpo", dpo, DPO, _any),
    **_rows("sft", sft, SFT, _any),
}
