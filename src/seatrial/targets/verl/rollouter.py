"""verl's balancer of requests, and its fully asynchronous rollouter; see `laws.utilities.servers`."""

from __future__ import annotations

import asyncio
import contextlib
import io
import sys
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from types import SimpleNamespace
from typing import Any

import torch

from seatrial.targets.common.offered import undecorated
from seatrial.targets.common.stand_ins import StandIn
from seatrial.targets.common.target import Gone, find_name, release
from seatrial.targets.verl.asynchronous import FULLY, stack_module
from seatrial.targets.verl.rewards import objects


class VerlBalancer:
    """`GlobalRequestLoadBalancer`."""

    def __init__(self) -> None:
        """Find the class."""
        name = "GlobalRequestLoadBalancer"
        stack_module("verl.workers.rollout.llm_server")
        places = [f"verl.workers.rollout.{module}:{name}" for module in ("router", "llm_server")]
        self.balancer = undecorated(find_name("verl", places))
        if isinstance(sys.modules.get("cachetools"), StandIn):
            raise ModuleNotFoundError("No module named 'cachetools'", name="cachetools")
        self.utilities: Mapping[str, Callable[..., Any]] = {"shared requests": self._shared}

    def _shared(self, servers: Sequence[str], operations: Sequence[tuple[str, Any]]) -> list[tuple[str, str]]:
        """Return what each operation did, and to which server."""
        balancer = self.balancer(servers={name: f"handle of {name}" for name in servers})
        given: list[tuple[str, str]] = []
        running: deque[str] = deque()
        for name, value in operations:
            if name == "acquire":
                server, handle = balancer.acquire_server(value)
                assert handle == f"handle of {server}"
                running.append(server)
                given.append(("acquired", server))
            elif name == "release":
                server = running.popleft() if running else "none"
                balancer.release_server(server)
                given.append(("released", server))
            elif name == "remove":
                balancer.remove_servers([value])
                given.append(("removed", value))
            else:
                balancer.add_servers({value: f"handle of {value}"})
                given.append(("added", value))
        return given


class VerlRollouter:
    """`FullyAsyncRollouter` without its workers: a queue and a loader that are fakes."""

    def __init__(self) -> None:
        """Find the class.

        Raises:
            Gone: the rollouter of this release has other parts.
        """
        module = stack_module(f"{FULLY}.fully_async_rollouter")
        self.rollouter = undecorated(module.FullyAsyncRollouter)
        needed = ("set_max_required_samples", "_should_pause_generation", "reset_staleness", "_feed_samples")
        missing = [name for name in needed if not hasattr(self.rollouter, name)]
        if missing:
            raise Gone(f"FullyAsyncRollouter of verl {release('verl')} has no {', '.join(missing)}")
        self.utilities: Mapping[str, Callable[..., Any]] = {
            "limits of a rollouter": lambda plan: asyncio.run(self._limits(plan)),
            "fed prompts": lambda *given: asyncio.run(self._fed(*given)),
        }

    async def _limits(self, plan: Mapping[str, Any]) -> dict[str, Any]:
        """Return the limits of a plan, whether the rollouter pauses, and what it counts after a sync of weights."""
        made, waiting = object.__new__(self.rollouter), [0]

        async def statistics() -> dict[str, int]:
            return {"queue_size": waiting[0]}

        async def size() -> int:
            return waiting[0]

        lock = asyncio.Lock()
        parts: dict[str, Any] = {
            "lock": lock,
            "condition": asyncio.Condition(lock),  # in place of the event, before 0.8
            "_resume_event": asyncio.Event(),
            "config": SimpleNamespace(
                async_training=SimpleNamespace(trigger_parameter_sync_step=plan["steps of a sync"])
            ),
            "required_samples": plan["rows"],
            "staleness_threshold": plan["staleness"],
            "total_rollout_steps": plan["all rows"],
            "concurrent_samples_per_replica": 16,
            "llm_server_manager": SimpleNamespace(
                get_active_server_count=lambda: 2, get_replicas=lambda: [None] * 2
            ),
            # The servers of releases without a manager of their own for them.
            "async_rollout_manager": SimpleNamespace(server_handles=[None] * 2),
            "message_queue_client": SimpleNamespace(
                get_statistics=statistics,
                get_queue_size=size,
                get_statistics_sync=lambda: {"queue_size": waiting[0]},
            ),
            "active_tasks": set(),
            "paused": False,
            "_active_count_history": deque(),
            "_step_samples_history": deque(),
            "_STEP_HISTORY_SIZE": 8,
            "_step_generated_samples": 0,
            "_completed_steps": 0,
            "idle_start_time": 0.0,
            "step_start_time": time.time(),
        }
        for name, part in parts.items():
            setattr(made, name, part)
        made._compute_rollout_resource_utilization = lambda: 0.0
        with contextlib.redirect_stdout(io.StringIO()):
            await made.set_max_required_samples()
            pauses, after = [], []
            for waiting[0], old in plan["counts"]:
                made.staleness_samples = old
                pauses.append(await made._should_pause_generation())
                made.active_tasks = set(range(old))
                await made.reset_staleness()
                after.append(made.staleness_samples)
        return {
            "rows at once": made.max_required_samples,
            "steps": made.total_train_steps,
            "pauses": pauses,
            "after a sync": after,
        }

    async def _fed(self, prompts: Sequence[int], copies: int, all_rows: int) -> list[Any]:
        """Return the prompts of what the rollouter puts in its queue."""
        made = object.__new__(self.rollouter)

        def batches() -> Iterator[dict[str, Any]]:
            for prompt in prompts:
                yield {"index": torch.tensor([prompt]), "raw_prompt": objects([f"prompt {prompt}"])}

        rollout = SimpleNamespace(n=copies, multi_turn=SimpleNamespace(enable=False))
        parts: dict[str, Any] = {
            "config": SimpleNamespace(
                actor_rollout_ref=SimpleNamespace(rollout=rollout),
                trainer=SimpleNamespace(total_epochs=all_rows),
            ),
            "train_dataloader": _Loader(batches),
            "total_rollout_steps": all_rows,
            "global_steps": 1,
            "pending_queue": asyncio.Queue(),
        }
        for name, part in parts.items():
            setattr(made, name, part)
        with contextlib.redirect_stdout(io.StringIO()):
            await made._feed_samples()
        found: list[Any] = []
        while not made.pending_queue.empty():
            row = made.pending_queue.get_nowait()
            found.append(None if row is None else row.full_batch.batch["index"].tolist())
        return found


class _Loader:
    """Gives the prompts of an epoch again each time."""

    def __init__(self, batches: Callable[[], Iterator[dict[str, Any]]]) -> None:
        self.batches = batches

    def __iter__(self) -> Iterator[dict[str, Any]]:
        return self.batches()


ADAPTERS: dict[str, type[Any]] = {"balancer": VerlBalancer, "rollouter": VerlRollouter}
