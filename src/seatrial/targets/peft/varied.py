"""Types of PEFT with one option, or a pair, at other values than the defaults; all for a thorough run."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

from seatrial.targets.common.known import KnownFailure
from seatrial.targets.peft import known as known_failures
from seatrial.targets.peft import known_merges
from seatrial.targets.peft.bases import TASKS, Trait
from seatrial.targets.peft.kinds import PeftAdapters
from seatrial.targets.peft.known_tokens import TIED_TOKENS
from seatrial.targets.peft.nets import NETS
from seatrial.targets.peft.variants import COMMON, OWN, TAKES

BREAKS: Mapping[str, Sequence[KnownFailure]] = {
    "adalora-rslora": [known_failures.ADALORA_RSLORA],
    **{f"{name}-all-biases": [known_failures.TRAINS_FOR_INFERENCE] for name in TAKES["all-biases"].split()},
    "glora-saved-head": [known_failures.SAVED_IN_A_MIXED_BATCH],
    "road-saved-head": [known_failures.SAVED_IN_A_MIXED_BATCH],
    "hira-rank-pattern": [known_failures.HIRA_RANKS],
    "ln-tuning-saved-head": [known_failures.SAVED_STAYS_WRAPPED],
    "frod-transposed": [known_failures.FROD_TRANSPOSED],
    "oft-conv2": [known_failures.OFT_CONVOLUTION],
    "oft-constrained": [known_failures.OFT_CONSTRAINED],
    "oft-constrained-shared": [known_failures.OFT_CONSTRAINED],
    **{f"{name}-conv2-circular": [known_merges.CIRCULAR] for name in ("adalora", "hira", "loha", "lokr")},
    "boft-conv2": [known_merges.BOFT_CHECKS],
    "boft-conv2-of-one": [known_merges.BOFT_CHECKS],
    "hira-scaled-embedding": [known_merges.HIRA_SCALED],
    "psoft-lowrank": [known_failures.DERIVED_IN_BFLOAT16],
    "psoft-lowrank-steps": [known_failures.DERIVED_IN_BFLOAT16],
    "trainable-tokens-tied": TIED_TOKENS,
    "supertuning-derived-indices": [known_failures.DERIVED_IN_BFLOAT16],
}
"""What a variant is known to break in addition to its type, by its name."""


class _Varied(PeftAdapters):
    """See `contracts.adapters.VariedAdapters`."""

    plain_type: ClassVar[type[PeftAdapters]]

    def unvaried(self) -> PeftAdapters:
        return self.plain_type()


def varied(types: Mapping[str, type[Any]]) -> dict[str, type[PeftAdapters]]:
    """Return the variants of types by name, the type's name first."""
    found = {}
    for suffix, names in TAKES.items():
        for name in names.split():
            found[f"{name}-{suffix}"] = _varied(types[name], COMMON[suffix], f"{name}-{suffix}")
    for name, variants in OWN.items():
        for suffix, options in variants.items():
            found[f"{name}-{suffix}"] = _varied(types[name], options, f"{name}-{suffix}")
    return found


def _varied(plain: type[PeftAdapters], options: Mapping[str, Any], name: str) -> type[PeftAdapters]:
    given = dict(options)
    trait: Trait = given.pop("trait", plain.kind.trait)
    dropout: str | None = given.pop("dropout", plain.kind.dropout)
    if "feedforward_modules" in plain.kind.options and "target_modules" in given:
        given.setdefault("feedforward_modules", [])
    if "init_ia3_weights" in plain.kind.options and "init_weights" in given:
        given["init_ia3_weights"] = given.pop("init_weights")
    kind = dataclasses.replace(
        plain.kind,
        options={**plain.kind.options, **given},
        trait=trait,
        dropout=dropout,
        spec=_spec_of(plain, given, trait),
    )
    return type(
        f"{plain.kind.config}Varied",
        (_Varied, plain),
        {
            "plain_type": plain,
            "kind": kind,
            "known_failures": (
                *plain.known_failures,
                *BREAKS.get(name, ()),
                *known_failures.moving(given),
            ),
            "thorough": True,
            "__module__": __name__,
        },
    )


def _spec_of(plain: type[PeftAdapters], given: Mapping[str, Any], trait: Trait) -> Any:
    """Return what a variant claims, by what its options are about."""
    spec = plain.kind.spec
    refuses, more = list(spec.refuses), list(spec.also_trains)
    changed: dict[str, Any] = {}
    if given.get("modules_to_save"):
        refuses.append("two at once")
        more += [f"{module}.modules_to_save" for module in given["modules_to_save"]]
    if given.get("bias", "none") != "none":
        more.append("bias")
        changed["disables_all"] = False
    if given.get("init_weights", True) in (False, "uniform"):
        changed["starts_as_base"] = False
        changed["rescales_dropout"] = None  # what is added is too large for layers to add up
    if "embed_tokens" in (given.get("target_modules") or ()):
        changed["drops_all"] = False  # embeddings have no dropout
    if trait in TASKS:
        refuses.append("two at once")  # of which each has a head
        more.append("modules_to_save")
        changed["closed_form"] = False
    if trait in NETS:
        refuses.append("checkpointing")
        changed["closed_form"] = False  # the oracle has none of their factors
    if given.get("para") or given.get("r") == 3:
        changed["starts_as_base"] = (
            False  # DeFT removes a part of the weight; HRA needs pairs of equal vectors
        )
    if given.get("config_A_B") == "none":
        changed["weights"] = frozenset()  # biases alone
    return dataclasses.replace(spec, refuses=tuple(refuses), also_trains=tuple(more), **changed)
