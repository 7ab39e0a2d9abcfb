"""What verl has between rollouts and training that run at once: queue, batches, metrics and replay buffer."""

from __future__ import annotations

import asyncio
import contextlib
import io
from collections.abc import Callable, Mapping, Sequence
from importlib.util import find_spec
from inspect import signature
from types import SimpleNamespace
from typing import Any
from unittest import mock

import torch

from seatrial.relations.laws.utilities.asynchronous import WEIGHED, Answered
from seatrial.relations.laws.utilities.replay import Drawn, Group
from seatrial.relations.not_served import NotServed
from seatrial.targets.common.offered import undecorated
from seatrial.targets.common.stand_ins import import_without
from seatrial.targets.common.target import Gone, find_name, release
from seatrial.targets.verl.estimators import UNUSED
from seatrial.targets.verl.rewards import objects

FULLY = "verl.experimental.fully_async_policy"
BUFFER = "verl.trainer.ppo.v1.replay_buffer"
STEPS = "verl.trainer.ppo.v1.utils"
P, T = 6, 6
UNREAD = (*UNUSED, "openai", "qwen_vl_utils", "transfer_queue")


def stack_module(name: str, unread: Sequence[str] = UNREAD) -> Any:
    """Import a module of the release.

    Raises:
        Gone: it has none of this name.
    """
    parent, _, _ = name.rpartition(".")
    try:
        known = find_spec(parent) is not None
    except ModuleNotFoundError:
        known = False
    if not known:
        raise Gone(f"verl {release('verl')} has no {name}")
    try:
        return import_without(name, unread)
    except ModuleNotFoundError as error:
        if error.name != name:
            raise
        raise Gone(f"verl {release('verl')} has no {name}") from error


class VerlAsynchronous:
    """`MessageQueue`, `assemble_batch_from_rollout_samples` and `MetricsAggregator` of fully asynchronous training."""

    def __init__(self) -> None:
        """Find the parts."""
        self.queue = undecorated(stack_module(f"{FULLY}.message_queue").MessageQueue)
        self._parts = stack_module(f"{FULLY}.detach_utils")
        self._proto = find_name("verl", ["verl:DataProto", "verl.protocol:DataProto"])
        self.utilities: Mapping[str, Callable[..., Any]] = {"message queue": self._queued}
        if "rollout_status" in signature(self._parts.RolloutSample).parameters:
            self.utilities["assembled batch"] = self._assembled
        if "total_gpus" in signature(self._parts.MetricsAggregator).parameters:
            self.utilities["metrics of several steps"] = self._of_steps

    def _queued(self, capacity: int, operations: Sequence[tuple[str, Any]]) -> list[Any]:
        """Return what each operation gives."""
        return asyncio.run(self._operate(capacity, operations))

    async def _operate(self, capacity: int, operations: Sequence[tuple[str, Any]]) -> list[Any]:
        given: list[Any] = []
        with contextlib.redirect_stdout(io.StringIO()):
            queue = self.queue(SimpleNamespace(), capacity)
            for name, value in operations:
                if name == "put":
                    given.append(await queue.put_sample(value))
                elif name == "get":
                    given.append(list(await asyncio.wait_for(queue.get_sample(), 5)))
                elif name == "clear":
                    given.append(await queue.clear_queue())
                else:
                    found = await queue.get_statistics()
                    own = {one: found[f"total_{one}"] for one in ("produced", "consumed")}
                    assert found["queue_size"] == await queue.get_queue_size()
                    given.append({**own, "dropped": found["dropped_samples"], "size": found["queue_size"]})
        return given

    def _assembled(self, samples: Sequence[Sequence[Answered]]) -> dict[str, Any]:
        """Return the facts of the batch; `order` says which rows are where."""
        made, first = [], 0
        for number, rows in enumerate(samples):
            made.append(
                self._parts.RolloutSample(
                    full_batch=self._batch(rows, first), sample_id=str(number), epoch=0, rollout_status={}
                )
            )
            first += len(rows)
        with contextlib.redirect_stdout(io.StringIO()):
            found = self._parts.assemble_batch_from_rollout_samples(made, None, SimpleNamespace(), None)
        facts = found.meta_info
        return {
            "order": [int(one) for one in found.non_tensor_batch["row"]],
            "tokens": list(facts["global_token_num"]),
            "answers": found.batch["response_mask"].sum(1).tolist(),
            "versions": facts["param_version_diversity"],
            "trajectory versions": [int(one) for one in facts["trajectory_param_versions"]],
            **{
                name: float(value)
                for name, value in facts.items()
                if name.startswith(("fully_async/", "timing_s/"))
            },
        }

    def _batch(self, rows: Sequence[Answered], first: int) -> Any:
        shown = [
            [0] * (P - row.num_prompt) + [1] * (row.num_prompt + row.num_answer) + [0] * (T - row.num_answer)
            for row in rows
        ]
        return self._proto.from_dict(
            tensors={
                "attention_mask": torch.tensor(shown),
                "prompts": torch.ones(len(rows), P, dtype=torch.long),
                "responses": torch.ones(len(rows), T, dtype=torch.long),
            },
            non_tensors={
                "row": objects(range(first, first + len(rows))),
                "min_global_steps": objects([row.first_version for row in rows]),
                "max_global_steps": objects([row.last_version for row in rows]),
            },
            meta_info={
                "metrics": [
                    {"generate_sequences": row.seconds, "tool_calls": row.tool_seconds} for row in rows
                ]
            },
        )

    def _of_steps(self, steps: Sequence[Mapping[str, float]], gpus: int) -> dict[str, float]:
        """Return the metrics of steps; the aggregator is used before, and reset."""
        made = self._parts.MetricsAggregator(total_gpus=gpus)
        with contextlib.redirect_stdout(io.StringIO()):
            made.add_step_metrics({"actor/pg_loss": 99.0}, sample_count=2)
            made.reset()
            for step in steps:
                made.add_step_metrics(dict(step), sample_count=8)
            found = made.get_aggregated_metrics()
        return {name: float(value) for name, value in found.items()}


class VerlReplayBuffer:
    """`ReplayBuffer`, `ReplayBufferAsync` and their trainers' metrics, over a fake of TransferQueue."""

    def __init__(self) -> None:
        """Find the classes."""
        self._buffers = stack_module(BUFFER)
        self._aggregator = stack_module(STEPS).MetricsAggregator
        if not hasattr(self._buffers, "ReplayBufferAsync"):
            raise Gone(f"verl {release('verl')} has no {BUFFER}.ReplayBufferAsync")
        takes = signature(self._buffers.ReplayBuffer).parameters
        needed = ("max_off_policy_threshold", "max_off_policy_strategy", "filter_groups_metric", "refill_fn")
        if not all(name in takes for name in needed):
            raise Gone(f"ReplayBuffer of verl {release('verl')} takes {', '.join(takes)}")
        self.utilities: Mapping[str, Callable[..., Any]] = {
            "replay buffer": self._drawn,
            "metrics of several weighed steps": self._weighed,
        }

    def _weighed(self, steps: Sequence[Mapping[str, float]], counts: Sequence[int]) -> dict[str, float]:
        """Return the metrics that the law defines."""
        made = self._aggregator()
        for step, count in zip(steps, counts, strict=True):
            made.add_step_metrics(dict(step), sample_count=count)
        found = made.get_aggregated_metrics()
        return {name: float(found[name]) for name in WEIGHED}

    def _drawn(self, groups: Sequence[Group], size: int, plan: Mapping[str, Any]) -> Drawn:
        """Return what a buffer gives at step 5."""
        limit = signature(self._buffers.ReplayBuffer).parameters["max_off_policy_threshold"]
        if plan["threshold"] is None and "None" not in str(limit.annotation):
            raise NotServed(
                f"ReplayBuffer of verl {release('verl')} takes no rows without a limit of their age"
            )
        store = _Store(groups, plan["partition"])
        refilled: list[int] = []
        buffer_class = self._buffers.ReplayBufferAsync if plan["asynchronous"] else self._buffers.ReplayBuffer
        options = {
            "trainer_mode": "separate_async" if plan["asynchronous"] else "sync",
            "trainer_config": None,
            "max_off_policy_threshold": plan["threshold"],
            "max_off_policy_strategy": plan["strategy"],
            "sampler_kwargs": {},
            "poll_interval": 0.0,
            "refill_fn": refilled.append,
            "filter_groups_metric": "reward" if plan["filters"] else None,
            "train_batch_size": size,
            "gen_batch_size": 1,
            "max_inflight_gen_batches": 4,
        }
        takes = signature(buffer_class).parameters
        with (
            mock.patch.object(self._buffers, "tq", store),
            mock.patch.object(self._buffers, "KVBatchMeta", SimpleNamespace),
        ):
            buffer = buffer_class(**{name: value for name, value in options.items() if name in takes})
            found, metrics = buffer.sample(5, plan["partition"], size)
        return Drawn(
            keys=list(found.keys),
            steps=[tag["step"] for tag in found.tags],
            cleared=store.cleared,
            refilled=refilled,
            looks=store.looks,
            metrics={
                name: float(value) for name, value in metrics.items() if isinstance(value, (int, float))
            },
        )


class _Store:
    """A fake of TransferQueue: states of prompts change with every look."""

    def __init__(self, groups: Sequence[Group], partition: str) -> None:
        self.groups, self.partition = {one.uid: one for one in groups}, partition
        self.cleared: list[str] = []
        self.looks = 0

    def kv_list(self) -> dict[str, dict[str, dict[str, Any]]]:
        """Return the tags of all prompts and rows; rows of unfinished prompts are there as they come."""
        self.looks += 1
        if self.looks > 12:
            raise TimeoutError("the buffer looked twelve times and had not enough")
        found: dict[str, dict[str, Any]] = {}
        for uid, group in self.groups.items():
            state = group.states[min(self.looks, len(group.states)) - 1]
            if state == "absent" or uid in self.cleared:
                continue
            found[uid] = {"is_prompt": True, "global_steps": group.step, "status": state}
            rows = [f"{uid}_{row}_0" for row in range(len(group.rewards))]
            found |= {key: {"step": group.step} for key in rows if key not in self.cleared}
        return {self.partition: found}

    def kv_clear(self, partition_id: str, keys: Sequence[str]) -> None:
        """Remove keys."""
        assert partition_id == self.partition
        self.cleared += keys

    def kv_batch_get(
        self, keys: Sequence[str], partition_id: str, select_fields: Sequence[str]
    ) -> dict[str, list[torch.Tensor]]:
        """Return the rewards of rows, each at the last of three tokens."""
        assert partition_id == self.partition and list(select_fields) == ["rm_scores"]
        values = [self.groups[key.split("_")[0]].rewards[int(key.split("_")[1])] for key in keys]
        return {"rm_scores": [torch.tensor([0.0, 0.0, value]) for value in values]}


ADAPTERS: dict[str, type[Any]] = {"asynchronous": VerlAsynchronous, "replay-buffer": VerlReplayBuffer}
