"""Worked example of verl's ReMax with agent loops: what a baseline's answer is drawn with."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from types import SimpleNamespace
from typing import Any

import torch

from seatrial.targets.common.offered import undecorated
from seatrial.targets.common.target import find_name
from seatrial.targets.common.worked_rows import Row
from seatrial.targets.verl.asynchronous import stack_module
from seatrial.targets.verl.rewards import objects
from seatrial.targets.verl.rollouts import LOOPS, import_loops

SEPARATE = "verl.experimental.separation.ray_trainer"
PROMPTS = 3
ANSWERS = 2


def _worker(proto: Any) -> Any:
    """Return a worker of agent loops whose answers have the temperature of their request as their reward."""
    import_loops(LOOPS)
    worker: Any = object.__new__(undecorated(find_name("verl", [f"{LOOPS}:AgentLoopWorker"])))
    worker.rollout_config = SimpleNamespace(
        temperature=0.75,
        top_p=1.0,
        top_k=-1,
        repetition_penalty=1.0,
        calculate_log_probs=False,
        val_kwargs=SimpleNamespace(top_p=1.0, top_k=-1, temperature=0.5),
        agent=SimpleNamespace(default_agent_loop="single_turn_agent"),
    )

    async def run(sampling_params: Mapping[str, Any], *_: Any, **__: Any) -> float:
        return float(sampling_params["temperature"])

    def gathered(temperatures: Sequence[float], input_non_tensor_batch: Any = None, **_: Any) -> Any:
        scores = torch.tensor(temperatures)[:, None]
        rows = torch.ones_like(scores).long()
        kept = {key: value for key, value in (input_non_tensor_batch or {}).items() if key == "__do_sample__"}
        return proto.from_dict(
            tensors={"rm_scores": scores, "responses": rows, "response_mask": rows, "attention_mask": rows},
            non_tensors={**kept, "multi_modal_inputs": objects([{}] * len(temperatures))},
            meta_info={"timing": {}},
        )

    worker._run_agent_loop, worker._postprocess = run, gathered
    return worker


def _drawn(of: Any) -> list[list[float]]:
    """Return the temperatures of answers to train on, and of the baselines of their prompts."""
    module = stack_module(SEPARATE)
    proto, worker = find_name("verl", ["verl:DataProto"]), _worker(of)
    trainer: Any = object.__new__(undecorated(module.SeparateRayPPOTrainer))
    made = {"dummy_tensor": torch.zeros(PROMPTS, 1)}
    prompts = proto.from_dict(tensors=made, non_tensors={"raw_prompt": objects(["p", "q", "r"])})
    vars(trainer).update(
        metrics={},
        timing_raw={},
        meta_info={},
        global_steps=1,
        curr_step_profile=False,
        use_rm=False,
        config=SimpleNamespace(
            actor_rollout_ref=SimpleNamespace(rollout=SimpleNamespace(n=ANSWERS)),
            algorithm=SimpleNamespace(adv_estimator=module.AdvantageEstimator.REMAX),
            trainer=SimpleNamespace(balance_batch=False),
        ),
        async_rollout_manager=SimpleNamespace(
            generate_sequences=lambda batch: asyncio.run(worker.generate_sequences(batch))
        ),
        checkpoint_manager=SimpleNamespace(sleep_replicas=lambda: None),
        _get_gen_batch=lambda _: prompts,
    )
    batch = proto.from_dict(
        tensors={"dummy": torch.zeros(PROMPTS, 1)}, non_tensors={"uid": objects(["p", "q", "r"])}
    )
    found = trainer._fit_generate(batch).batch
    return [found["rm_scores"].flatten().tolist(), found["reward_baselines"].tolist()]


ROWS: Sequence[Row] = (
    Row(
        "rollouts",
        "verl:DataProto",
        "answers of ReMax and the greedy ones that are its baselines",
        _drawn,
        [[0.75] * PROMPTS * ANSWERS, [0.0] * PROMPTS * ANSWERS],
        since="0.8.0.dev0",  # where agents answer, those of 0.7 were drawn as the others
    ),
)
