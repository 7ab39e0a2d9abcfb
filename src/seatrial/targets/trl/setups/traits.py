"""Setups of trainers on models with traits: each trait with an option, in pairwise sets."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace

from seatrial.targets.common.known import KnownFailure
from seatrial.targets.common.zoo import ZOO
from seatrial.targets.trl.setup import Setup
from seatrial.targets.trl.setups.preferences import dpo, kto, reward
from seatrial.targets.trl.setups.rollouts import grpo, rloo
from seatrial.targets.trl.setups.supervised import sft

SPECIAL = ("", "dropout", "attention dropout", "bfloat16")
"""Traits that not every trainer is run on: their gradients are random, or of another precision."""
TRAINERS: Mapping[str, Callable[[str], Setup]] = {
    "sft": lambda trait: sft({}, trait=trait, thorough=True),
    "dpo": lambda trait: dpo({}, trait=trait),
    "grpo": lambda trait: grpo({"loss_type": "dapo", "beta": 0.2}, beta=0.2, trait=trait),
}
"""That are run on every trait."""
OTHERS: Mapping[str, Callable[[str], Setup]] = {
    "kto": lambda trait: kto({}, objective={}, trait=trait, thorough=True),
    "rloo": lambda trait: rloo({}, trait=trait),
    "reward": lambda trait: reward({}, trait=trait, thorough=True),
}
"""That are run on the traits of `OF_OTHERS`; they share most of their code with the former."""
OF_OTHERS = ("learned positions", "head with layers", "head with a bias")
GRADIENTS = ("R12.whole/gradient, two micro-batches a step", "R12.whole/gradient, one micro-batch a step")
# Logits of another model: every scalar is another, and no part of a law is named.
SCALARS = (
    "R22.whole/scalars, two micro-batches a step",
    "R22.whole/entropy, divergence and clipping, two micro-batches a step",
    "R22.whole/loss and scalars, a logging interval of two steps",
)
LOSS = "R22.whole/loss, two micro-batches a step"
HEAD = KnownFailure(
    "the layers of the model's head before its last one are left out",
    finding="TRL: heads with layers of their own",
).of(*GRADIENTS, "R12.whole/gradients are finite and not zero", *SCALARS)
POSITIONS = KnownFailure(
    "positions of a left-padded prompt count its padding", finding="TRL: learned positions of padded prompts"
).of(*GRADIENTS, *SCALARS)
EPOCH_END = "R12.whole/gradient, an epoch that ends within a step"


def _and(known: KnownFailure, *laws: str) -> KnownFailure:
    return known.of(*known.laws, *laws)


KNOWN: Mapping[tuple[str, str], KnownFailure] = {
    ("grpo", "learned positions"): _and(POSITIONS, LOSS),
    ("rloo", "learned positions"): POSITIONS,
    **{(name, "head with layers"): _and(HEAD, LOSS, EPOCH_END) for name in ("sft", "dpo", "kto")},
    **{(name, "token types"): _and(HEAD, LOSS, EPOCH_END) for name in ("sft", "dpo")},
    **{("grpo", trait): _and(HEAD, LOSS) for trait in ("head with layers", "token types")},
    ("rloo", "head with layers"): HEAD,
}
"""What is known to be broken by a trainer on a trait."""


def _setup(name: str, trait: str, make: Callable[[str], Setup]) -> Setup:
    """Return the setup of a trainer on a trait, with what is known of both alone; it is run for its updates."""
    known = KNOWN.get((name, trait))
    return replace(make(trait), updates_only=True, known_failures=() if known is None else (known,))


TRAITS: Mapping[str, Setup] = {
    f"trait-{name}-{trait.replace(' ', '-')}": _setup(name, trait, make)
    for trait in ZOO
    if trait not in SPECIAL
    for name, make in {**TRAINERS, **(OTHERS if trait in OF_OTHERS else {})}.items()
}
