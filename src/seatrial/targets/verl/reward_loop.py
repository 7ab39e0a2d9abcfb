"""verl's rewards as its trainer takes them: managers of the reward loop, and the KL penalty in the reward."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Iterable, Mapping, Sequence
from types import SimpleNamespace
from typing import Any, ClassVar

import torch
from torch import Tensor

from seatrial.relations.contracts.named_metrics import MetricPart, MetricSpec
from seatrial.relations.facts import StackFacts
from seatrial.relations.not_served import NotServed
from seatrial.targets.common.known import KnownFailure, KnowsFailures
from seatrial.targets.common.stand_ins import import_without
from seatrial.targets.common.target import Gone, find_name, release
from seatrial.targets.common.tiny import tiny_tokenizer
from seatrial.targets.verl.estimators import UNUSED
from seatrial.targets.verl.rewards import BUFFER, LONGEST, PENALTY, VerlOverlongReward, VerlReward

MANAGERS = "verl.experimental.reward_loop.reward_manager"
PACKAGES: Mapping[str, str] = {
    MANAGERS: "get_reward_manager_cls",
    "verl.experimental.reward.reward_loop": "get_reward_loop_manager_cls",
}
"""With what returns a manager by its name; the second one to 0.6."""
MODULES: Mapping[str, str] = {"rate_limited": "limited"}
"""Of managers, by their registered names where they are others."""
BETA = 0.2
MULTIPLIED = KnownFailure(
    "the KL is multiplied by the mask: NaN in padding reaches the rewards",
    finding="verl: NaN in padding and the KL in the reward",
)


def loop_manager(name: str) -> Any:
    """Return the class of a manager of the reward loop, by its registered name.

    Raises:
        Gone: the release has none of this name.
    """
    for package, function in PACKAGES.items():
        place = f"{package}.{MODULES.get(name, name)}"
        try:
            import_without(place, (*UNUSED, "aiohttp"))
        except ModuleNotFoundError as error:
            if not f"{place}.".startswith(f"{error.name}."):
                raise
            continue
        return find_name("verl", [f"{package}:{function}"])(name)
    raise Gone(f"verl {release('verl')} has no {MANAGERS}.{MODULES.get(name, name)}")


def made_manager(manager_class: Any, **options: Any) -> Any:
    """Return a manager; before 0.8 it takes the loop that runs for its own."""

    async def make() -> Any:
        return manager_class(**options)

    return asyncio.new_event_loop().run_until_complete(make())


def assembled(manager_class: Any, batch: Any, scores: Sequence[float]) -> Tensor:
    """Return rewards of tokens; before 0.8 the agent loop puts scores at the ends of rows, as is done here."""
    if hasattr(manager_class, "assemble_rm_scores"):
        own: Tensor = manager_class.assemble_rm_scores(batch, scores)
        return own
    shown_BT = batch.batch["attention_mask"][:, -batch.batch["responses"].shape[1] :]
    rewards_BT = torch.zeros(shown_BT.shape)
    rewards_BT[torch.arange(len(scores)), shown_BT.sum(1) - 1] = torch.tensor(scores)
    return rewards_BT


class VerlLoopReward(VerlReward):
    """`NaiveRewardManager` of the reward loop, row by row, with the rule of GSM8K."""

    manager_name: ClassVar[str] = "naive"
    own_options: ClassVar[Mapping[str, Any]] = {}

    def __init__(self) -> None:
        """Find the manager and the container of its rows."""
        from omegaconf import OmegaConf

        self._manager_class = loop_manager(self.manager_name)
        self.batch_class = find_name("verl", ["verl:DataProto", "verl.protocol:DataProto"])
        self.tokenizer = tiny_tokenizer(padding_side="right")
        kwargs = {"reward_kwargs": dict(self.own_options)}
        config = OmegaConf.create({"reward": kwargs, "reward_model": kwargs})
        own = made_manager(self._manager_class, config=config, tokenizer=self.tokenizer, compute_score=None)
        self.manager = lambda batch: self._rewards(own, batch)

    def _rewards(self, manager: Any, batch: Any) -> Tensor:
        """Return rewards of tokens: each row is scored by itself, and the scores are put at the ends of rows."""
        found = [
            manager.loop.run_until_complete(manager.run_single(batch[place : place + 1]))
            for place in range(len(batch))
        ]
        scores = [float(one["reward_score"]) for one in found]
        return assembled(self._manager_class, batch, scores)


class VerlLoopOverlongReward(VerlLoopReward):
    """`DAPORewardManager` of the reward loop, with a buffer for overlong rows."""

    manager_name = "dapo"
    own_options: ClassVar[Mapping[str, Any]] = {
        "max_resp_len": LONGEST,
        "overlong_buffer_cfg": {"enable": True, "len": BUFFER, "penalty_factor": PENALTY, "log": False},
    }

    def reward_cases(self) -> Iterable[tuple[Any, str, float]]:
        """See `VerlOverlongReward`."""
        return VerlOverlongReward.reward_cases(self)  # type: ignore[arg-type]


class VerlKLInReward(KnowsFailures):
    """`apply_kl_penalty` of the trainer: what it logs, and the sum of what it takes off the rewards."""

    facts = StackFacts(epsilon=1e-8, dtype="float32")
    metric_specs: Mapping[str, MetricSpec] = {
        "actor/reward_kl_penalty": MetricSpec(quantity="ref_k1", over="row_means", rows="all"),
        "taken off": MetricSpec(quantity="ref_k1", how="sum"),
    }
    known_failures: ClassVar[Sequence[KnownFailure]] = (
        MULTIPLIED.of("R22.named/means and sums, anything in the padding::taken off"),
    )

    def __init__(self) -> None:
        """Find the function and the batch that it takes."""
        trainer = import_without("verl.trainer.ppo.ray_trainer", UNUSED)
        self.compute: Any = getattr(trainer, "apply_kl_penalty", None)
        if self.compute is None or "multi_turn" in inspect.signature(self.compute).parameters:
            raise Gone(f"verl {release('verl')} has no apply_kl_penalty of a mask of responses")
        self.batch_class = find_name("verl", ["verl:DataProto", "verl.protocol:DataProto"])

    def named_metrics(self, ranks: Sequence[Sequence[MetricPart]]) -> dict[str, float]:
        if len(ranks) != 1 or len(ranks[0]) != 1:
            raise NotServed("the batch of a step is in one process, and whole")
        inputs = ranks[0][0].inputs
        scores_BT = torch.zeros_like(inputs.mask_BT)
        batch = self.batch_class.from_dict(
            tensors={
                "responses": torch.ones_like(inputs.mask_BT, dtype=torch.long),
                "response_mask": inputs.mask_BT.clone(),
                "attention_mask": torch.ones_like(inputs.mask_BT, dtype=torch.long),
                "token_level_scores": scores_BT,
                "old_log_probs": inputs.logprobs_BT.detach(),
                "ref_log_prob": inputs.ref_logprobs_BT,
            },
            non_tensors={},
        )
        controller = SimpleNamespace(value=BETA, update=lambda **_: None)
        found, metrics = self.compute(batch, kl_ctrl=controller, kl_penalty="kl")
        taken = float((scores_BT - found.batch["token_level_rewards"]).sum()) / BETA
        return {**{name: float(value) for name, value in metrics.items()}, "taken off": taken}


ADAPTERS: dict[str, type[Any]] = {
    "reward-loop": VerlLoopReward,
    "reward-loop-dapo": VerlLoopOverlongReward,
    "kl-in-reward": VerlKLInReward,
}
