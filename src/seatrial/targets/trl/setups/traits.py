"""Setups of trainers on models with traits: each trait with an option, in pairwise sets."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace

from seatrial.targets.common.zoo import ZOO
from seatrial.targets.trl.setup import KnownFailure, Setup
from seatrial.targets.trl.setups.preferences import dpo, kto, reward
from seatrial.targets.trl.setups.rollouts import grpo, rloo
from seatrial.targets.trl.setups.supervised import sft

SPECIAL = ("", "dropout", "attention dropout", "bfloat16")
"""Traits that not every trainer is run on: their gradients are random, or of another precision."""
TRAINERS: Mapping[str, Callable[[str], Setup]] = {
    "sft": lambda trait: sft({}, trait=trait, thorough=True),
    "dpo": lambda trait: dpo({}, trait=trait),
    "kto": lambda trait: kto({}, objective={}, trait=trait, thorough=True),
    "grpo": lambda trait: grpo({"loss_type": "dapo", "beta": 0.2}, beta=0.2, trait=trait),
    "rloo": lambda trait: rloo({}, trait=trait),
    "reward": lambda trait: reward({}, trait=trait, thorough=True),
}
KNOWN: Mapping[tuple[str, str], tuple[KnownFailure, ...]] = {}
"""By trainer and trait, in addition to those of the trainer."""
TRAITS: Mapping[str, Setup] = {
    f"trait-{name}-{trait.replace(' ', '-')}": replace(make(trait), updates_only=True)
    for trait in ZOO
    if trait not in SPECIAL
    for name, make in TRAINERS.items()
}
