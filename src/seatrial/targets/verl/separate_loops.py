"""The loops of verl's trainers that sample on other devices: in turn, and one step ahead of the policy."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from importlib.util import find_spec
from types import SimpleNamespace
from typing import Any, ClassVar

from seatrial.relations.contracts.trainer_flow import FlowPlan, FlowRecord
from seatrial.relations.laws.utilities.trainer_flow import WRITES
from seatrial.targets.common.known import KnownFailure, before
from seatrial.targets.common.stand_ins import import_without
from seatrial.targets.common.target import Gone, find_name, release
from seatrial.targets.verl.estimators import UNUSED
from seatrial.targets.verl.trainer_loop import LOOPS, VerlTrainerLoop

UNREAD = (*UNUSED, "openai", "qwen_vl_utils")
AWAITED = "verl.utils.ray_utils:auto_await"
"""What makes a coroutine's function one that is called or awaited."""


async def _nothing() -> None:
    return None


class VerlSeparateLoop(VerlTrainerLoop):
    """`SeparateRayPPOTrainer.fit`."""

    place: ClassVar[str] = "verl.experimental.separation.ray_trainer"
    name: ClassVar[str] = "SeparateRayPPOTrainer"
    order_of_step = ("generate", "update", "sync", "validate", "save")
    """A step's events; weights are saved last."""

    def __init__(self) -> None:
        """Find the class.

        Raises:
            Gone: the release has none.
        """
        super().__init__()
        package = self.place.rpartition(".")[0]
        if find_spec("verl.experimental") is None or find_spec(package) is None:
            raise Gone(f"verl {release('verl')} has no {self.place}")
        import_without(self.place, UNREAD)
        self.trainer = find_name("verl", [f"{self.place}:{self.name}"])
        self.utilities: Mapping[str, Callable[..., Any]] = dict.fromkeys((*LOOPS, WRITES), self._run)

    def _made(self, plan: FlowPlan, record: FlowRecord) -> Any:
        trainer = super()._made(plan, record)
        parts: dict[str, Any] = {
            "global_steps": 0,
            "epoch": 0,
            "max_steps_duration": 0,
            "is_last_step": False,
            "prev_step_profile": False,
            "curr_step_profile": False,
            "next_step_profile": False,
            "last_val_metrics": {},
            "metrics": {},
            "timing_raw": {},
            "reward_tensor": None,
            "reward_extra_infos_dict": {},
        }
        for name, part in parts.items():
            setattr(trainer, name, part)
        return trainer


class VerlOneStepLoop(VerlSeparateLoop):
    """`OneStepOffRayTrainer.fit`, which samples the answers of a step during the step before."""

    place = "verl.experimental.one_step_off_policy.ray_trainer"
    name = "OneStepOffRayTrainer"
    known_failures = (
        *VerlTrainerLoop.known_failures,
        KnownFailure(
            "a checkpoint has the place of the loader after the prompts of the next step, which are lost",
            finding="verl: prompts that are read a step ahead",
        ).of("R31.flow/prompts after a run that was killed"),
        KnownFailure(
            "weights are also sent after an update, while answers of the next step are sampled",
            finding="verl: small functions of older releases",
            releases=before("verl", "0.8"),
        ).of("R31.flow/order of a step"),
    )
    order_of_step = ("sync", "generate", "update", "validate", "save")
    samples_ahead = 1

    def _made(self, plan: FlowPlan, record: FlowRecord) -> Any:
        trainer = super()._made(plan, record)
        generator = trainer.async_rollout_manager.generate_sequences

        async def generate(prompts: Any) -> Any:
            return generator(prompts)

        awaited = find_name("verl", [AWAITED])(generate)
        trainer.async_rollout_manager = SimpleNamespace(
            generate_sequences=awaited, clear_kv_cache=find_name("verl", [AWAITED])(_nothing)
        )
        fit = trainer.fit
        trainer.fit = lambda: asyncio.run(fit())
        return trainer


ADAPTERS: dict[str, type[Any]] = {"separate-loop": VerlSeparateLoop, "one-step-loop": VerlOneStepLoop}
