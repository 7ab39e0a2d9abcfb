"""The matrix: every combination of refrl's options that its schema allows, and which relations each is in the path of.

An advantage never sees the loss, nor a loss the layout of the rows that it is given: a relation is held on every
combination of the options that its component reads, which is what it would say on the whole product.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from typing import Any

from pydantic import ValidationError

from refrl.config import AdvantageConfig, LossConfig
from seatrial.targets.reference_components import Cell

ADVANTAGE_RELATIONS = ("R5.advantages", "R12.advantages", "R17.advantages", "R27.advantages")
LOSS_RELATIONS = (
    "R1.loss", "R3.loss", "R5.loss", "R9.loss", "R9.metrics", "R11.bandit", "R12.loss", "R22.metrics", "R27.loss",
)  # fmt: skip
PATH_RELATIONS = (
    "R1.step", "R3.step", "R4.packing", "R5.policy", "R10.step", "R12.logprobs", "R15.batch", "R15.clamp", "R27.batch",
    "R27.step",
)  # fmt: skip
LAYOUTS, SCORINGS, SIDES = ("padded", "packed"), ("plain", "chunked"), ("right", "left")
"""The paths from rows to a gradient: layout of the rows, scoring, side of the padding."""


def advantage_configs() -> list[AdvantageConfig]:
    """Return every advantage: estimator and scale, each scale once whether it is named or the estimator's own."""
    found: dict[tuple[str, str], AdvantageConfig] = {}
    for estimator, scale in itertools.product(
        ("grpo", "dr_grpo", "rloo", "reinforce_plus_plus_baseline"), (None, "group", "batch", "none")
    ):
        try:
            config = AdvantageConfig.model_validate({"estimator": estimator, "scale": scale})
        except ValidationError:
            continue
        found.setdefault((estimator, config.resolved_scale), config)
    return list(found.values())


def loss_configs() -> list[LossConfig]:
    """Return every loss: kind, reduction, KL (none; in the loss or the reward), clip, correction, entropy."""
    kls: list[dict[str, Any]] = [
        {"reference_policy_kl_penalty": 0.0},
        *(
            {
                "reference_policy_kl_penalty": 0.1,
                "reference_policy_kl_type": kind,
                "reference_policy_kl_gradient": gradient,
                "kl_in": place,
            }
            for kind, gradient, place in itertools.product(
                ("k1", "k2", "k3"), ("estimator", "k2"), ("loss", "reward")
            )
        ),
    ]
    clips: list[dict[str, Any]] = [
        {"ratio_clip_min": low, "ratio_clip_max": high, "ratio_clip_c": dual}
        for low, high, dual in ((0.2, 0.2, None), (0.1, 0.28, None), (0.2, 0.2, 1.5))
    ]
    found = []
    for kind, reduction, kl, clip, correction, entropy in itertools.product(
        ("ppo_clip", "gspo", "cispo"),
        ("token", "sequence", "fixed_length"),
        kls,
        clips,
        ("none", "truncated", "masked"),
        (0.0, 0.01),
    ):
        options: dict[str, Any] = {
            "kind": kind,
            "reduction": reduction,
            "fixed_length": 24 if reduction == "fixed_length" else None,
            "importance_sampling": correction,
            "importance_sampling_max": 1.2,
            "importance_sampling_min": 0.9,
            "entropy_coefficient": entropy,
        }
        try:
            found.append(LossConfig.model_validate({**options, **kl, **clip}))
        except ValidationError:
            continue
    return found


def path_cells() -> Iterator[Cell]:
    """Yield every way from rows to a gradient, under every kind of loss and reduction."""
    kinds = {(config.kind, config.reduction): config for config in loss_configs()}
    for loss, layout, scoring, side in itertools.product(kinds.values(), LAYOUTS, SCORINGS, SIDES):
        yield Cell(loss=loss, layout=layout, scoring=scoring, padding_side=side)  # type: ignore[arg-type]


def num_combinations() -> int:
    """Return the size of the whole product: advantages x losses x paths."""
    paths = len(LAYOUTS) * len(SCORINGS) * len(SIDES)
    return len(advantage_configs()) * len(loss_configs()) * paths


def num_verdicts() -> int:
    """Return how many times a relation is held against a cell."""
    return (
        len(advantage_configs()) * len(ADVANTAGE_RELATIONS)
        + len(loss_configs()) * len(LOSS_RELATIONS)
        + len(list(path_cells())) * len(PATH_RELATIONS)
    )
