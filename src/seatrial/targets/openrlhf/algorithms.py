"""OpenRLHF's KL estimates and controllers, its log-probabilities and advantages, whichever release is installed."""

from __future__ import annotations

import inspect
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
from types import SimpleNamespace
from typing import Any, ClassVar

import torch
from torch import Tensor

from seatrial.relations.contracts.controllers import ControllerPlan
from seatrial.relations.contracts.estimators import EstimatorInputs, EstimatorSpec
from seatrial.relations.facts import StackFacts
from seatrial.relations.not_served import NotServed
from seatrial.targets.common.known import KnowsFailures
from seatrial.targets.common.target import Gone, release
from seatrial.targets.openrlhf.parts import part


class OpenRLHFKL(KnowsFailures):
    """`compute_approx_kl`, with its own gradient and with that of the reverse KL."""

    facts = StackFacts(dtype="float32")

    def __init__(self) -> None:
        """Find the estimator, and whether it has the second gradient."""
        self.compute = part("models.utils").compute_approx_kl
        kinds = ("k1", "k2", "k3")
        self.kl_names = {kind: (kind, kind) for kind in kinds}
        if "unbiased_gradient" in inspect.signature(self.compute).parameters:
            self.kl_names |= {f"{kind}, unbiased gradient": (kind, "k2") for kind in kinds}

    def kl_estimate(self, logprobs_BT: Tensor, ref_logprobs_BT: Tensor, kind: str) -> Tensor:
        name, _, unbiased = kind.partition(", ")
        options = {"unbiased_gradient": True} if unbiased else {}
        found: Tensor = self.compute(logprobs_BT, ref_logprobs_BT, kl_estimator=name, **options)
        return found


class OpenRLHFController:
    """`AdaptiveKLController` and `FixedKLController`; see `contracts.controllers.KLController`."""

    def __init__(self) -> None:
        """Find the classes."""
        module = part("trainer.ppo_utils.kl_controller")
        self.adaptive, self.fixed = module.AdaptiveKLController, module.FixedKLController

    def kl_coefficients(self, plan: ControllerPlan) -> Sequence[float]:
        adaptive = plan.kind == "adaptive"
        controller = (
            self.adaptive(plan.coefficient, plan.target, plan.horizon)
            if adaptive
            else self.fixed(plan.coefficient)
        )
        found = []
        for divergence, size in plan.updates:
            controller.update(divergence, size)
            found.append(float(controller.value))
        return found


class OpenRLHFTokenLogprobs:
    """`log_probs_from_logits`, of the logits that predict the ids; it divides them by the temperature in place."""

    def __init__(self) -> None:
        """Find the function."""
        self.compute = part("models.utils").log_probs_from_logits

    def token_logprobs(
        self, logits_BSV: Tensor, completion_ids_BT: Tensor, prompt_lens_B: Tensor, temperature: float
    ) -> Tensor:
        places_BT = prompt_lens_B[:, None] - 1 + torch.arange(completion_ids_BT.shape[1])
        places_BT = places_BT.clamp(max=logits_BSV.shape[1] - 1)
        logits_BTV = logits_BSV.gather(1, places_BT[..., None].expand(-1, -1, logits_BSV.shape[-1]))
        found: Tensor = self.compute(logits_BTV, completion_ids_BT, temperature=temperature)
        return found


class OpenRLHFEstimator(KnowsFailures):
    """`compute_advantages_and_returns` of the experience maker; see `contracts.TokenAdvantages`.

    It takes one reward for each row, and groups of one size.
    """

    estimator: ClassVar[str]
    estimator_spec: ClassVar[EstimatorSpec]

    def __init__(self) -> None:
        """Find the experience maker; before 0.11 its options have other names."""
        self.maker_class = part("trainer.ppo_utils.experience_maker").RemoteExperienceMaker
        self.experience_class = part("trainer.ppo_utils.experience").Experience
        source = inspect.getsource(self.maker_class.compute_advantages_and_returns)
        if "args.algo.advantage.estimator" not in source:
            raise Gone(f"openrlhf {release('openrlhf')} has other options of advantages")
        if f'"{self.estimator}"' not in source:
            raise Gone(f"openrlhf {release('openrlhf')} has no estimator {self.estimator}")

    def token_advantages(self, inputs: EstimatorInputs) -> tuple[Tensor, Tensor]:
        mask_BT, rewards_BT = inputs.mask_BT.bool(), inputs.rewards_BT
        ends_B = (mask_BT * torch.arange(1, mask_BT.shape[1] + 1)).argmax(1)
        rewards_B = rewards_BT.gather(1, ends_B[:, None])[:, 0]
        if not torch.equal(rewards_BT.sum(1), rewards_B):
            raise NotServed("a row has one reward")
        order = inputs.prompt_ids_B.argsort(stable=True)
        sizes = set(Counter(inputs.prompt_ids_B.tolist()).values())
        if len(sizes) != 1:
            raise NotServed("groups have one size")
        maker = object.__new__(self.maker_class)
        maker.strategy = SimpleNamespace(args=self._options(sizes.pop()))
        maker.advantage_estimator = self.estimator
        maker.kl_ctl = SimpleNamespace(value=0.0)
        # Rows come in two experiences and in another order than that of their prompts, which `index` says.
        places = order.argsort()
        parts = torch.arange(len(order)).chunk(2)
        given = [self._experience(inputs, rewards_B, rows, places) for rows in parts]
        found = maker.compute_advantages_and_returns(given)
        return torch.cat([one.advantages for one in found]), torch.cat([one.returns for one in found])

    def _experience(self, inputs: EstimatorInputs, rewards_B: Tensor, rows: Tensor, places: Tensor) -> Any:
        mask_BT = inputs.mask_BT[rows]
        return self.experience_class(
            action_mask=mask_BT.bool(),
            values=torch.where(mask_BT.bool(), inputs.values_BT[rows], 0.0),
            kl=torch.zeros_like(inputs.values_BT[rows]),
            rewards=rewards_B[rows].clone(),
            response_length=mask_BT.sum(1),
            truncated=torch.zeros(len(rows)),
            index=[int(places[row]) for row in rows],
            info={},
        )

    def _options(self, size: int) -> Any:
        spec = self.estimator_spec
        return _Options(
            rollout=SimpleNamespace(n_samples_per_prompt=size),
            algo=SimpleNamespace(
                advantage=SimpleNamespace(
                    estimator=self.estimator, gamma=spec.gamma, lambd=spec.lam, no_std_norm=False
                )
            ),
            reward=_Options(clip_range=None),
        )


class _Options(SimpleNamespace):
    """Options of which those that are not set are None: penalties are off."""

    def __getattr__(self, name: str) -> Any:
        return None


ESTIMATORS: Mapping[str, EstimatorSpec] = {
    "gae": EstimatorSpec(
        kind="gae",
        gamma=0.9,
        lam=0.8,
        whitened=True,
        whitened_unbiased=False,
        inner_masks=False,
        dtype="float32",
    ),
    "reinforce": EstimatorSpec(
        kind="reinforce_plus_plus",
        gamma=0.9,
        whitened=True,
        whitened_unbiased=False,
        inner_masks=False,
        dtype="float32",
    ),
    "reinforce_baseline": EstimatorSpec(
        kind="reinforce_plus_plus_baseline", whitened=True, whitened_unbiased=False, dtype="float32"
    ),
    "rloo": EstimatorSpec(kind="rloo"),
    "group_norm": EstimatorSpec(kind="grpo", epsilon=1e-9),
    "dr_grpo": EstimatorSpec(kind="grpo", scaled=False),
}


def _adapter(name: str) -> type[OpenRLHFEstimator]:
    return type(
        f"OpenRLHF_{name}",
        (OpenRLHFEstimator,),
        {
            "__doc__": f"`compute_advantages_and_returns` with `{name}`.",
            "estimator": name,
            "estimator_spec": replace(ESTIMATORS[name], unequal_groups=False),
        },
    )


ADAPTERS: dict[str, type[Any]] = {
    "kl": OpenRLHFKL,
    "kl-controller": OpenRLHFController,
    "token-logprobs": OpenRLHFTokenLogprobs,
    **{f"estimator-{name}": _adapter(name) for name in ESTIMATORS},
}
