"""verl's registered estimators of advantages as its trainer calls them, whichever release is installed."""

from __future__ import annotations

import inspect
import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar

import torch
from torch import Tensor

from seatrial.relations.contracts.estimators import EstimatorInputs, EstimatorSpec
from seatrial.targets.common.known import KnownFailure, KnowsFailures, before
from seatrial.targets.common.stand_ins import import_without
from seatrial.targets.common.target import Gone, find_name, release
from seatrial.targets.verl.registries import CORE, compared_texts
from seatrial.targets.verl.rewards import objects

NUM_PROMPT_TOKENS = 2
UNUSED = (
    "torchdata",
    "cachetools",
    "uvicorn",
    "fastapi",
    "starlette",
    "aiohttp",
    "pylatexenc",
    "transfer_queue",
)
"""Packages that the trainer imports for loading data and serving, and that its advantages do not use."""
OUTCOMES = "R12.estimator/advantages of outcomes"
EQUAL = f"{OUTCOMES}, a group of equal rewards"
CLOSE = f"{OUTCOMES}, rewards close together"
ALONE = f"{OUTCOMES}, rows that are alone in their group"


@dataclass(frozen=True, kw_only=True)
class RegisteredEstimator:
    """An estimator of `ADV_ESTIMATOR_REGISTRY` with options."""

    name: str
    spec: EstimatorSpec
    known: Sequence[KnownFailure] = ()


UNSCALED_IGNORED = KnownFailure(
    "norm_adv_by_std_in_grpo=False is not passed to the estimator: groups are scaled all the same",
    finding="verl: norm_adv_by_std_in_grpo that only grpo reads",
)
SMALL_DIVISOR = KnownFailure(
    "the variance of a group has a floor: groups of close rewards have small advantages",
    finding="verl: a floor under the variance of a group",
    releases=before("verl", "0.8"),
).of(CLOSE)
UNMASKED = KnownFailure(
    "errors and values of tokens that do not train are in the sums of those before them",
    finding="verl: small functions of older releases",
    releases=before("verl", "0.5"),
).of("R3.estimator/values and log-probabilities of masked tokens")
NONZERO = KnownFailure(
    "rows are scaled by the number of rewards that are not 0, not by that of rows whose group has a gradient",
    finding="verl: the scale of GPG",
)
CUT_RETURNS = KnownFailure(
    "a token that does not train ends the sum of rewards: what comes before it has no return",
    finding="verl: REINFORCE++ and tokens that do not train",
    releases=before("verl", "0.9"),
).of(
    OUTCOMES,
    EQUAL,
    "R12.estimator/advantages of rewards of tokens",
    "R12.estimator/returns of rewards of tokens",
)
NOT_CALLABLE = KnownFailure(
    "the trainer passes an argument that the estimator does not take",
    finding="verl: token baselines that the trainer cannot call",
    releases=before("verl", "0.8"),
).of("R3.estimator", "R5.estimator", "R12.estimator", "R27.estimator")
ESTIMATORS: Mapping[str, RegisteredEstimator] = {
    "gae": RegisteredEstimator(
        name="gae",
        spec=EstimatorSpec(kind="gae", gamma=0.9, lam=0.8, whitened=True),
        known=[UNMASKED],
    ),
    "grpo": RegisteredEstimator(name="grpo", spec=EstimatorSpec(kind="grpo", alone="score")),
    "grpo-unscaled": RegisteredEstimator(
        name="grpo", spec=EstimatorSpec(kind="grpo", alone="score", scaled=False)
    ),
    "grpo_vectorized": RegisteredEstimator(
        name="grpo_vectorized",
        spec=EstimatorSpec(kind="grpo", alone="score", dtype="float32"),
        known=[SMALL_DIVISOR],
    ),
    "grpo_vectorized-unscaled": RegisteredEstimator(
        name="grpo_vectorized",
        spec=EstimatorSpec(kind="grpo", alone="score", scaled=False, dtype="float32"),
        known=[UNSCALED_IGNORED.of(OUTCOMES, EQUAL, CLOSE, ALONE)],
    ),
    "grpo_passk": RegisteredEstimator(name="grpo_passk", spec=EstimatorSpec(kind="passk")),
    "grpo_passk-unscaled": RegisteredEstimator(
        name="grpo_passk", spec=EstimatorSpec(kind="passk", scaled=False)
    ),
    "gdpo": RegisteredEstimator(
        name="gdpo",
        spec=EstimatorSpec(kind="gdpo", alone="score", weights=(1.0, 0.5), whitened=True, dtype="float32"),
    ),
    "gdpo-unscaled": RegisteredEstimator(
        name="gdpo",
        spec=EstimatorSpec(
            kind="gdpo", alone="score", weights=(1.0, 0.5), whitened=True, scaled=False, dtype="float32"
        ),
        known=[UNSCALED_IGNORED.of(OUTCOMES, EQUAL, ALONE)],
    ),
    "reinforce_plus_plus": RegisteredEstimator(
        name="reinforce_plus_plus",
        spec=EstimatorSpec(kind="reinforce_plus_plus", gamma=0.9, whitened=True),
        known=[CUT_RETURNS],
    ),
    "reinforce_plus_plus_baseline": RegisteredEstimator(
        name="reinforce_plus_plus_baseline",
        spec=EstimatorSpec(kind="reinforce_plus_plus_baseline", alone="score", whitened=True),
    ),
    "rloo": RegisteredEstimator(name="rloo", spec=EstimatorSpec(kind="rloo", alone="score")),
    "rloo_vectorized": RegisteredEstimator(
        name="rloo_vectorized", spec=EstimatorSpec(kind="rloo", alone="zero")
    ),
    "opo": RegisteredEstimator(name="opo", spec=EstimatorSpec(kind="opo", alone="score")),
    "remax": RegisteredEstimator(name="remax", spec=EstimatorSpec(kind="remax")),
    "gpg": RegisteredEstimator(name="gpg", spec=EstimatorSpec(kind="gpg"), known=[NONZERO.of(EQUAL)]),
    "optimal_token_baseline": RegisteredEstimator(
        name="optimal_token_baseline",
        # For rows of one turn, as its documentation says; the next one is for rows of several.
        spec=EstimatorSpec(kind="token_baseline", inner_masks=False),
        known=[NOT_CALLABLE],
    ),
    "tir_optimal_token_baseline": RegisteredEstimator(
        name="tir_optimal_token_baseline",
        spec=EstimatorSpec(kind="token_baseline"),
        known=[NOT_CALLABLE],
    ),
}


class VerlEstimator(KnowsFailures):
    """`compute_advantage` of the trainer with a registered estimator; see `contracts.TokenAdvantages`."""

    estimator: ClassVar[RegisteredEstimator]
    estimator_spec: EstimatorSpec

    def __init__(self) -> None:
        """Find the function and the batch that it takes."""
        trainer = import_without("verl.trainer.ppo.ray_trainer", UNUSED)
        self.compute = trainer.compute_advantage
        if self.estimator.name not in _names(trainer):
            raise Gone(f"verl {release('verl')} has no estimator {self.estimator.name}")
        # Its own variable: some releases else look for a GPU.
        os.environ.setdefault("VERL_FORCE_DEVICE", "cpu")
        self.batch_class = find_name("verl", ["verl:DataProto", "verl.protocol:DataProto"])
        self._takes = inspect.signature(self.compute).parameters
        if not re.search(r"[\"']response_mask[\"']", inspect.getsource(trainer)):
            # All tokens that are shown train: before 0.4 answers have no output of tools.
            self.estimator_spec = replace(self.estimator_spec, inner_masks=False)
        if not self.estimator_spec.scaled and "norm_adv_by_std_in_grpo" not in self._takes:
            raise Gone(f"compute_advantage of verl {release('verl')} always scales groups")

    def token_advantages(self, inputs: EstimatorInputs) -> tuple[Tensor, Tensor]:
        from omegaconf import OmegaConf

        spec = self.estimator_spec
        B = len(inputs.prompt_ids_B)
        batch = self.batch_class.from_dict(
            tensors={
                "token_level_rewards": inputs.rewards_BT.clone(),
                "response_mask": inputs.mask_BT.clone(),
                "values": inputs.values_BT.clone(),
                "old_log_probs": inputs.logprobs_BT.clone(),
                "sum_pi_squared": inputs.squared_probabilities_BT.clone(),
                **({"reward_baselines": inputs.baselines_B.clone()} if spec.kind == "remax" else {}),
                "prompts": torch.ones(B, NUM_PROMPT_TOKENS, dtype=torch.long),
                "responses": torch.ones_like(inputs.mask_BT, dtype=torch.long),  # read before 0.4.1
                "attention_mask": torch.cat(
                    [torch.ones(B, NUM_PROMPT_TOKENS, dtype=torch.long), _shown(inputs.mask_BT)], dim=1
                ),
            },
            non_tensors={
                "uid": objects([f"prompt-{prompt}" for prompt in inputs.prompt_ids_B.tolist()]),
                **{name: objects(rewards.tolist()) for name, rewards in inputs.components.items()},
            },
        )
        config = OmegaConf.create(
            {
                "gamma": spec.gamma,
                "lam": spec.lam,
                "norm_adv_by_std_in_grpo": spec.scaled,
                "use_pf_ppo": False,
                "gdpo_reward_keys": list(inputs.components),
                "gdpo_reward_weights": list(spec.weights) or None,
            }
        )
        newer = {"norm_adv_by_std_in_grpo": spec.scaled, "config": config}
        found = self.compute(
            batch,
            adv_estimator=self.estimator.name,
            gamma=spec.gamma,
            lam=spec.lam,
            **{name: value for name, value in newer.items() if name in self._takes},
        )
        return found.batch["advantages"], found.batch["returns"]


def _names(trainer: Any) -> set[str]:
    """Return the names of estimators: of the registry, before 0.4.1 of an enumeration."""
    try:
        return set(find_name("verl", [f"{CORE}:ADV_ESTIMATOR_REGISTRY"]))
    except Gone:
        named = getattr(trainer, "AdvantageEstimator", None)
        return (
            {one.value for one in named}
            if named
            else set(compared_texts(trainer.compute_advantage, "adv_estimator"))
        )


def _shown(mask_BT: Tensor) -> Tensor:
    """Return 1 on the tokens up to the last that trains: those between are a tool's output."""
    return (mask_BT.flip(1).cumsum(1).flip(1) > 0).long()


def _adapter(name: str) -> type[VerlEstimator]:
    own = ESTIMATORS[name]
    return type(
        f"Verl_{name}",
        (VerlEstimator,),
        {
            "__doc__": f"`compute_advantage` with `{name}`.",
            "estimator": own,
            "estimator_spec": own.spec,
            "known_failures": tuple(own.known),
        },
    )


ADAPTERS: dict[str, type[Any]] = {f"estimator-{name}": _adapter(name) for name in ESTIMATORS}
