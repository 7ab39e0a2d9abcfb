"""Setups of trainers whose models have dropout, adapters, routers or another reference than the plain setups."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from seatrial.targets.trl.setup import Setup
from seatrial.targets.trl.setups.options import DROPPING, LIKELIHOOD_LOGGED, cpo, gkd, orpo
from seatrial.targets.trl.setups.preferences import dpo, kto, reward
from seatrial.targets.trl.setups.rollouts import grpo, rloo
from seatrial.targets.trl.setups.shared import OWN_ROUTERS

PRECOMPUTED: Mapping[str, Any] = {"precompute_ref_log_probs": True}
SWITCHED_OFF: Mapping[str, Any] = {"disable_dropout": True}
KEPT: Mapping[str, Any] = {"disable_dropout": False}
"""With a policy that drops next to nothing, and a given reference that would drop much in training mode."""
MADE: Mapping[str, Any] = {"lora": "made", "reference": "base"}
GIVEN: Mapping[str, Any] = {"lora": "given", "reference": "adapted"}
KL: Mapping[str, Any] = {"loss_type": "dapo", "beta": 0.2}
DROPOUT: Mapping[str, Setup] = {
    "dpo": dpo({}),
    "dpo-adapted": dpo({}, **MADE),
    "dpo-precomputed": dpo(PRECOMPUTED, reference="loaded"),
    "kto": kto({}, objective={}),
    "kto-adapted": replace(kto({}, objective={}), **MADE),
    "kto-precomputed": replace(kto(PRECOMPUTED, objective={}), reference="loaded"),
    "reward": reward({}),
    "cpo": cpo({}),
    "orpo": orpo({}),
    "gkd": gkd({}),
    "grpo": grpo({**KL, **SWITCHED_OFF}, beta=0.2),
    "grpo-adapted": grpo({**KL, **SWITCHED_OFF}, beta=0.2, **MADE),
    "rloo": rloo(SWITCHED_OFF),
    "rloo-adapted": rloo(SWITCHED_OFF, **MADE),
}
"""Trainers that switch dropout off, by default or by the option, in the policy, its adapters and the reference."""
OF_THE_REFERENCE: Mapping[str, Setup] = {
    "dpo": dpo(KEPT, **DROPPING),
    "kto": kto(KEPT, objective={}, **DROPPING),
    "gkd": replace(gkd(KEPT), **DROPPING),
}
"""Trainers whose given reference has dropout, which it never uses."""
ADAPTED: Mapping[str, Setup] = {
    "dpo-given": dpo({}, **GIVEN),
    "dpo-given-precomputed": dpo(PRECOMPUTED, **GIVEN),
    "kto-given": replace(kto({}, objective={}), **GIVEN),
    "kto-made-precomputed": replace(kto(PRECOMPUTED, objective={}), **MADE),
    "grpo-given": grpo(KL, beta=0.2, **GIVEN),
    "rloo-given": rloo({}, **GIVEN),
    "rloo-made": rloo({}, **MADE),
}
"""Trainers of adapters: the reference is the model without them, or with those that it is given with."""
EXPERTS: Mapping[str, Setup] = {
    "kto": kto({"router_aux_loss_coef": 0.5}, objective={}, trait="experts"),
    "rloo": rloo({"router_aux_loss_coef": 0.5}, trait="experts"),
    "cpo": cpo({}, trait="experts", model_options=OWN_ROUTERS),
    "orpo": orpo({}, trait="experts", model_options=OWN_ROUTERS),
}


def _of(setup: Setup, **fields: Any) -> Setup:
    """Return a setup that is run for its updates; what is known of its log is other setups'."""
    known = (LIKELIHOOD_LOGGED,) if setup.trainer == "ORPO" else ()
    return replace(setup, thorough=True, updates_only=True, scalars={}, known_failures=known, **fields)


MODELS: Mapping[str, Setup] = {
    **{f"models-{name}-dropout": _of(setup, trait="dropout") for name, setup in DROPOUT.items()},
    **{f"models-{name}-reference-dropout": _of(setup) for name, setup in OF_THE_REFERENCE.items()},
    **{f"models-{name}": _of(setup) for name, setup in ADAPTED.items()},
    **{f"models-{name}-experts": _of(setup) for name, setup in EXPERTS.items()},
}
