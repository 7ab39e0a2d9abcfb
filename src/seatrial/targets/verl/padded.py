"""verl's batch of what agent loops leave, padded by its worker; see `contracts.utilities`."""

from __future__ import annotations

import asyncio
import sys
import warnings
from collections.abc import Callable, Mapping, Sequence
from importlib.util import find_spec
from inspect import getsource, signature
from types import SimpleNamespace
from typing import Any
from unittest import mock

import torch

from seatrial.relations.contracts.utilities import Rollout
from seatrial.relations.laws.utilities.padded_episodes import P, T
from seatrial.relations.not_served import NotServed
from seatrial.targets.common.known import KnowsFailures
from seatrial.targets.common.offered import undecorated
from seatrial.targets.common.stand_ins import import_without
from seatrial.targets.common.target import Gone, find_name, release
from seatrial.targets.common.tiny import tiny_tokenizer
from seatrial.targets.verl.estimators import UNUSED

LOOPS = "verl.experimental.agent_loop.agent_loop"


FIELDS = {
    "logprobs": "response_logprobs",
    "experts_SLK": "routed_experts",
    "reward": "reward_score",
    "extras": "extra_fields",
}
"""What a row may have in addition to its ids: names of the contract and of the output of a loop."""
MADE = "made"


class VerlPaddedEpisodes(KnowsFailures):
    """`AgentLoopWorker._agent_loop_postprocess` of each row, then `_postprocess` of all.

    Before 0.7 `_run_agent_loop` pads each row, or `_postprocess` alone pads all.
    """

    def __init__(self) -> None:
        """Find the classes.

        Raises:
            Gone: the release has no agent loops.
        """
        if find_spec("verl.experimental") is None:
            raise Gone(f"verl {release('verl')} has no agent loops")
        for module in ("verl.tools.schemas", LOOPS):
            import_without(module, (*UNUSED, "openai", "qwen_vl_utils"))
        self._loops = sys.modules[LOOPS]
        self.worker = undecorated(find_name("verl", [f"{LOOPS}:AgentLoopWorker"]))
        self._output = find_name("verl", [f"{LOOPS}:AgentLoopOutput"])
        self._takes_arrays = "isinstance(output.routed_experts" not in getsource(self._loops)
        self._metrics = find_name("verl", [f"{LOOPS}:AgentLoopMetrics"])
        self.utilities: Mapping[str, Callable[..., Any]] = {"batch of episodes": self._batch}
        if hasattr(self._output, "as_dict"):
            self.utilities = {**self.utilities, "columns of an episode": self._columns}

    def _batch(self, rows: Sequence[Rollout], pad_id: int) -> dict[str, Any]:
        """Return the columns of a batch; of a release whose loops have no extras, those of the rows."""
        worker = object.__new__(self.worker)
        worker.tokenizer = tiny_tokenizer()
        assert worker.tokenizer.pad_token_id == pad_id
        worker.processor, worker.mm_processor_kwargs, worker.server_manager = None, {}, None
        worker.rollout_config = SimpleNamespace(prompt_length=P, response_length=T)
        worker.config = SimpleNamespace(
            actor_rollout_ref=SimpleNamespace(rollout=worker.rollout_config),
            reward_model=SimpleNamespace(enable=True, enable_resource_pool=False),
        )
        worker.reward_loop_worker_handles, worker.distillation_enabled = None, False
        worker.reward_router_address, worker.use_reward_loop, worker.rm_executor = None, False, None
        pad = self._padded if hasattr(self.worker, "_agent_loop_postprocess") else self._run
        found = worker._postprocess([asyncio.run(pad(worker, row)) for row in rows])
        shown = found.batch["attention_mask"].bool()
        objects: Mapping[str, Any] = found.non_tensor_batch
        if "extra_fields" not in self._output.model_fields:
            objects = {
                **objects,
                **{key: [row.extras.get(key) for row in rows] for key in ("source", "only")},
            }
        columns = {name: tensor for name, tensor in found.batch.items() if name != "position_ids"}
        return {
            **columns,
            "positions of shown": [
                row[own].tolist() for row, own in zip(found.batch["position_ids"], shown, strict=True)
            ],
            "turns": [int(one) for one in objects["__num_turns__"]],
            "source": list(objects["source"]),
            "only": list(objects.get("only", [None] * len(rows))),
        }

    def _columns(self, row: Rollout) -> dict[str, Any]:
        """Return the tensors of a row."""
        with warnings.catch_warnings():  # experts are copied from a tensor, of which torch warns
            warnings.simplefilter("ignore")
            found = self._made(row).as_dict()
        return {name: value for name, value in found.items() if isinstance(value, torch.Tensor)}

    def _made(self, row: Rollout) -> Any:
        more = {}
        for name, field in FIELDS.items():
            value = getattr(row, name)
            if field in self._output.model_fields:
                more[field] = dict(value) if name == "extras" else value
                if name == "experts_SLK" and value is not None and self._takes_arrays:
                    more[field] = value.numpy()
            elif value is not None and name != "extras":
                raise NotServed(f"loops of verl {release('verl')} give no {field}")
        return self._output(
            prompt_ids=row.prompt_ids,
            response_ids=row.response_ids,
            response_mask=row.mask,
            num_turns=row.num_turns,
            metrics=self._metrics(),
            **more,
        )

    async def _padded(self, worker: Any, row: Rollout) -> Any:
        output, pad = self._made(row), worker._agent_loop_postprocess
        given = {"validate": False} if "validate" in signature(pad).parameters else {}
        return await pad(output, raw_prompt=[{"role": "user", "content": "?"}], **given)

    async def _run(self, worker: Any, row: Rollout) -> Any:
        output = self._made(row)

        async def run(*_: Any, **__: Any) -> Any:
            return output

        messages = [{"role": "user", "content": "?"}]
        takes_messages = "messages" in signature(worker._run_agent_loop).parameters
        with (
            mock.patch("hydra.utils.instantiate", lambda *_, **__: SimpleNamespace(run=run)),
            mock.patch.dict(self._loops._agent_loop_registry, {MADE: {}}),
        ):
            return await worker._run_agent_loop(
                agent_name=MADE,
                sampling_params={},
                trajectory={"step": 1, "sample_index": 0, "rollout_n": 0, "validate": False},
                **{"messages" if takes_messages else "raw_prompt": messages},
            )


ADAPTERS: dict[str, type[Any]] = {"padded-episodes": VerlPaddedEpisodes}
