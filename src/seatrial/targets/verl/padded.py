"""verl's batch of what agent loops leave, padded by its worker; see `contracts.utilities`."""

from __future__ import annotations

import asyncio
import warnings
from collections.abc import Callable, Mapping, Sequence
from importlib.util import find_spec
from inspect import signature
from types import SimpleNamespace
from typing import Any

import torch

from seatrial.relations.contracts.utilities import Rollout
from seatrial.relations.laws.utilities.padded_episodes import P, T
from seatrial.targets.common.stand_ins import import_without
from seatrial.targets.common.target import Gone, find_name, release
from seatrial.targets.common.tiny import tiny_tokenizer
from seatrial.targets.verl.estimators import UNUSED

LOOPS = "verl.experimental.agent_loop.agent_loop"


class VerlPaddedEpisodes:
    """`AgentLoopWorker._agent_loop_postprocess` of each row, then `_postprocess` of all."""

    def __init__(self) -> None:
        """Find the classes.

        Raises:
            Gone: workers of this release pad a batch in another form.
        """
        if find_spec("verl.experimental") is None:
            raise Gone(f"verl {release('verl')} has no agent loops")
        for module in ("verl.tools.schemas", LOOPS):
            import_without(module, (*UNUSED, "openai", "qwen_vl_utils"))
        self.worker = find_name("verl", [f"{LOOPS}:AgentLoopWorker"])
        if not isinstance(self.worker, type):
            raise Gone(f"agent loops of verl {release('verl')} are actors of Ray")
        self._output = find_name("verl", [f"{LOOPS}:AgentLoopOutput"])
        self._metrics = find_name("verl", [f"{LOOPS}:AgentLoopMetrics"])
        pad = getattr(self.worker, "_agent_loop_postprocess", None)
        if pad is None:
            raise Gone(f"agent loops of verl {release('verl')} are padded in another form")
        self._validates = "validate" in signature(pad).parameters
        self.utilities: Mapping[str, Callable[..., Any]] = {"batch of episodes": self._batch}
        if hasattr(self._output, "as_dict"):
            self.utilities = {**self.utilities, "columns of an episode": self._columns}

    def _batch(self, rows: Sequence[Rollout], pad_id: int) -> dict[str, Any]:
        """Return the columns of a batch."""
        worker = object.__new__(self.worker)
        worker.tokenizer = tiny_tokenizer()
        assert worker.tokenizer.pad_token_id == pad_id
        worker.processor, worker.mm_processor_kwargs = None, {}
        worker.rollout_config = SimpleNamespace(prompt_length=P, response_length=T)
        worker.reward_loop_worker_handles, worker.distillation_enabled = None, False
        found = worker._postprocess([asyncio.run(self._padded(worker, row)) for row in rows])
        shown = found.batch["attention_mask"].bool()
        objects = found.non_tensor_batch
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
        return self._output(
            prompt_ids=row.prompt_ids,
            response_ids=row.response_ids,
            response_mask=row.mask,
            response_logprobs=row.logprobs,
            routed_experts=row.experts_SLK,
            reward_score=row.reward,
            num_turns=row.num_turns,
            metrics=self._metrics(),
            extra_fields=dict(row.extras),
        )

    async def _padded(self, worker: Any, row: Rollout) -> Any:
        output = self._made(row)
        given = {"validate": False} if self._validates else {}
        prompt = [{"role": "user", "content": "?"}]
        return await worker._agent_loop_postprocess(output, raw_prompt=prompt, **given)


ADAPTERS: dict[str, type[Any]] = {"padded-episodes": VerlPaddedEpisodes}
