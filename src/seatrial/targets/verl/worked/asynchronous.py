"""Worked examples of verl's asynchronous trainers: versions, checkpoints, samples of a queue, switches of engines."""

from __future__ import annotations

import asyncio
import contextlib
import io
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from types import SimpleNamespace
from typing import Any

from seatrial.targets.common.offered import undecorated
from seatrial.targets.common.worked_rows import Row
from seatrial.targets.verl.asynchronous import FULLY, stack_module

ANY = "verl:DataProto"


def made_part(name: str, **parts: Any) -> Any:
    """Return a trainer or a rollouter of the fully asynchronous policy with some of its parts."""
    module = {"FullyAsyncTrainer": "fully_async_trainer", "FullyAsyncRollouter": "fully_async_rollouter"}[
        name
    ]
    made = object.__new__(undecorated(getattr(stack_module(f"{FULLY}.{module}"), name)))
    vars(made).update(parts)
    return made


def quiet(call: Callable[..., Any], *arguments: Any, **options: Any) -> Any:
    with contextlib.redirect_stdout(io.StringIO()):
        found = call(*arguments, **options)
        return asyncio.run(found) if asyncio.iscoroutine(found) else found


def _stale(of: Any) -> list[Any]:
    """Return how many rows were sampled before the current version, of two batches, and what is logged of them."""
    trainer = made_part("FullyAsyncTrainer", current_param_version=3, stale_trajectory_processed=0)
    metrics: dict[str, Any] = {}
    for versions in ([3, 2, 1], [3, 3, 0]):
        notes = {"trajectory_param_versions": versions, "fully_async/a": 1, "timing_s/b": 2, "other": 3}
        trainer._collect_metrics_from_samples(SimpleNamespace(meta_info=notes), metrics)
    return [metrics]


def _queued(of: Any) -> list[Any]:
    """Return what a batch is made of: as many samples as are needed, those before the end of a queue, the wait."""
    import ray

    module = stack_module(f"{FULLY}.fully_async_trainer")
    taken: list[Any] = []

    def assembled(samples: Any, tokenizer: Any, config: Any, balance: Any) -> Any:
        taken.append([list(samples), balance is not None])
        return SimpleNamespace(meta_info={})

    async def get_sample() -> Any:
        return (ray.cloudpickle.dumps(left.popleft()), len(left)) if left else (None, 0)

    async def size() -> int:
        return 1

    found: list[Any] = []
    own = module.assemble_batch_from_rollout_samples
    module.assemble_batch_from_rollout_samples = assembled
    try:
        for given, balanced, dynamic in (("abcd", True, False), ("abcd", False, True), ("ab", False, False)):
            left: deque[str] = deque(given)
            trainer = made_part(
                "FullyAsyncTrainer",
                required_samples=3,
                dynamic_schedule_enabled=dynamic,
                message_queue_client=SimpleNamespace(get_sample=get_sample, get_queue_size=size),
                config=SimpleNamespace(trainer=SimpleNamespace(balance_batch=balanced)),
                tokenizer=None,
                _balance_batch=print,
                _step_wait_times=[],
                _step_wait_samples=[],
            )
            epoch, batch = quiet(trainer._get_samples_from_queue)
            named = batch is not None and "fully_async/total_wait_time" in batch.meta_info
            found.append([epoch, named, len(left), len(trainer._step_wait_times), trainer._step_wait_samples])
    finally:
        module.assemble_batch_from_rollout_samples = own
    return [found, taken]


def _validated(of: Any) -> list[Any]:
    """Return which versions are validated after a sync, and by whom."""
    logged: list[Any] = []

    class _Remote:
        @staticmethod
        async def remote() -> dict[str, int]:
            return {"val": 1}

    async def own() -> None:
        logged.append("trainer")

    trainer = made_part(
        "FullyAsyncTrainer",
        rollouter=SimpleNamespace(do_validate=_Remote),
        logger=SimpleNamespace(log=lambda data, step: logged.append([data, step])),
        config=SimpleNamespace(
            trainer=SimpleNamespace(test_freq=2),
            async_training=SimpleNamespace(use_trainer_do_validate=False),
        ),
    )
    trainer._trainer_side_validate = own
    for step, version, first in ((1, 0, False), (1, 0, True), (2, 2, False), (1, 1, False), (1, 2, False)):
        trainer.local_trigger_step, trainer.current_param_version = step, version
        quiet(trainer._fit_validate, first)
    trainer.config.async_training.use_trainer_do_validate = True
    quiet(trainer._fit_validate)
    return logged


def _used(of: Any) -> list[Any]:
    """Return the share of places that were used, by the seconds that each number of tasks ran, of two spans."""
    import time

    rollouter = made_part(
        "FullyAsyncRollouter",
        active_tasks={1, 2},
        max_concurrent_samples=4,
        _active_count_history=[],
    )
    own, found = time.time, []
    for history in (
        [(0.0, 4, 4), (2.0, 2, 4), (6.0, 0, 2), (6.0, 9, 9)],
        [(0.0, 0, 0)],
        [(0.0, 8, 4), (10.0, 0, 0)],
    ):
        rollouter._active_count_history = list(history)
        time.time = lambda: 10.0
        try:
            found.append(round(quiet(rollouter._compute_rollout_resource_utilization), 5))
        finally:
            time.time = own
        found.append(rollouter._active_count_history)
    return found


# 4 of 4 for 2 s, 2 of 4 for 4 s, none for 0 s, and 9 of 9 for 4 s: (8 + 8 + 36) / (8 + 16 + 36).
USED = [round(52 / 60, 5), [(10.0, 2, 4)], 0.0, [(10.0, 2, 4)], 1.0, [(10.0, 2, 4)]]


def _streamed(of: Any) -> dict[str, Any]:
    """Return what becomes of five samples if two may run at a time, and the queue drops one."""
    import ray

    running, most = [0], [0]
    put: list[Any] = []

    async def generated(batch: Any) -> Any:
        running[0] += 1
        most[0] = max(most[0], running[0])
        await asyncio.sleep(0.001)
        running[0] -= 1
        return batch

    async def put_sample(sample: Any) -> bool:
        put.append(None if sample is None else ray.cloudpickle.loads(sample))
        return len(put) != 2

    async def statistics() -> dict[str, int]:
        return {"queue_size": 0}

    class _Rows:
        def __init__(self) -> None:
            self.rows = 2
            self.non_tensor_batch: dict[str, Any] = {}

        def __len__(self) -> int:
            return self.rows

    async def run() -> dict[str, Any]:
        module = stack_module(f"{FULLY}.fully_async_rollouter")
        rollouter = made_part(
            "FullyAsyncRollouter",
            paused=False,
            lock=asyncio.Lock(),
            _resume_event=asyncio.Event(),
            active_tasks=set(),
            pending_queue=asyncio.Queue(),
            max_concurrent_samples=2,
            max_queue_size=99,
            max_required_samples=99,
            required_samples=1,
            staleness_threshold=0,
            staleness_samples=0,
            total_generated_samples=0,
            dropped_stale_samples=0,
            processed_sample_count=0,
            _step_generated_samples=0,
            _active_count_history=[],
            message_queue_client=SimpleNamespace(put_sample=put_sample, get_statistics=statistics),
            async_rollout_manager=SimpleNamespace(generate_sequences_single=generated),
        )
        rollouter._resume_event.set()
        for number in range(5):
            rollouter.pending_queue.put_nowait(
                module.RolloutSample(full_batch=_Rows(), sample_id=f"s{number}", epoch=0, rollout_status={})
            )
        rollouter.pending_queue.put_nowait(None)
        await rollouter._processor_worker()
        return {
            "made": rollouter.total_generated_samples,
            "of the step": rollouter._step_generated_samples,
            "dropped": rollouter.dropped_stale_samples,
            "processed": rollouter.processed_sample_count,
            "running": len(rollouter.active_tasks),
        }

    with contextlib.redirect_stdout(io.StringIO()):
        counts = asyncio.run(run())
    names = sorted(sample.sample_id for sample in put)
    uids = [set(sample.full_batch.non_tensor_batch["uid"]) == {f"uid_{sample.sample_id}"} for sample in put]
    return {**counts, "most": most[0], "names": names, "uids": uids}


STREAMED: Mapping[str, Any] = {
    "made": 4,
    "of the step": 4,
    "dropped": 1,
    "processed": 5,
    "running": 0,
    "most": 2,
    "names": [f"s{number}" for number in range(5)],
    "uids": [True] * 5,
}


def _messages(of: Any) -> list[Any]:
    """Return what a queue gives: the oldest sample is dropped, validations apart, and none after it is shut."""
    queue_class = undecorated(stack_module(f"{FULLY}.message_queue").MessageQueue)

    async def run() -> list[Any]:
        queue = (
            queue_class(None, max_queue_size=2) if "config" in queue_class.__init__.__annotations__ else None
        )
        queue = queue or queue_class(SimpleNamespace(), 2)
        found: list[Any] = [await queue.put_sample(name) for name in "abc"]
        await queue.put_validate("v")
        await queue.put_validate("w")
        found += [await queue.get_validate() for _ in range(3)]
        found.append((await queue.get_memory_usage())["queue_samples"])
        found.append(await queue.get_sample())
        waiting = [asyncio.ensure_future(queue.get_sample()) for _ in range(2)]
        await asyncio.sleep(0)
        await queue.shutdown()
        found += await asyncio.gather(*waiting)
        found.append(await queue.get_statistics())
        return found

    found: list[Any] = quiet(run)
    return found


def _versions(of: Any) -> list[list[int]]:
    """Return local steps and versions of weights, which are sent after three steps."""
    trainer = made_part(
        "FullyAsyncTrainer",
        global_steps=1,
        local_trigger_step=1,
        trigger_parameter_sync_step=3,
        current_param_version=0,
    )
    found = []
    for _ in range(7):
        quiet(trainer._fit_update_local_step)
        found.append([trainer.local_trigger_step, trainer.current_param_version])
    return found


def _saves(of: Any) -> list[list[int]]:
    """Return the versions that are saved: by a number of versions, each once, and the last one if that is forced."""
    found = []
    for frequency, force in ((2, False), (0, True), (3, True)):
        saved: list[int] = []
        trainer = made_part(
            "FullyAsyncTrainer",
            last_ckpt_version=0,
            timing_raw={},
            max_steps_duration=0,
            config=SimpleNamespace(trainer=SimpleNamespace(esi_redundant_time=0, save_freq=frequency)),
        )
        trainer._save_checkpoint = lambda trainer=trainer, saved=saved: saved.append(
            trainer.current_param_version
        )
        for version in (0, 1, 2, 2, 3, 4, 5):
            trainer.current_param_version = version
            quiet(trainer._fit_save_checkpoint)
        quiet(trainer._fit_save_checkpoint, force=force)
        found.append(saved)
    return found


ROWS: Sequence[Row] = (
    Row(
        "asynchronous",
        ANY,
        "rows of earlier versions",
        _stale,
        [
            {
                "fully_async/count/stale_trajectory_processed": 3,
                "fully_async/count/current_param_version": 3,
                "fully_async/a": 1,
                "timing_s/b": 2,
            }
        ],
        since="0.4",
    ),
    Row(
        "asynchronous",
        ANY,
        "samples of a queue",
        _queued,
        [
            [[0, True, 1, 1, [0]], [0, True, 1, 1, [2]], [None, False, 0, 0, []]],
            [[["a", "b", "c"], True], [["a", "b", "c"], False]],
        ],
        since="0.9",
    ),
    Row(
        "asynchronous",
        ANY,
        "versions that are validated",
        _validated,
        [[{"val": 1}, 0], [{"val": 1}, 2], "trainer"],
        since="0.8",
    ),
    Row("asynchronous", ANY, "places that were used", _used, USED, since="0.4"),
    Row("asynchronous", ANY, "samples in a stream", _streamed, STREAMED, since="0.9"),
    Row(
        "asynchronous",
        ANY,
        "messages of a queue",
        _messages,
        [
            *(True, True, False, "v", "w", None, 2, ("b", 1), ("c", 0), None),
            {
                "queue_size": 0,
                "total_produced": 3,
                "total_consumed": 2,
                "dropped_samples": 1,
                "max_queue_size": 2,
            },
        ],
        since="0.4",
    ),
    Row(
        "asynchronous",
        ANY,
        "versions of weights",
        _versions,
        [[2, 0], [3, 0], [1, 1], [2, 1], [3, 1], [1, 2], [2, 2]],
        since="0.4",
    ),
    Row("asynchronous", ANY, "versions that are saved", _saves, [[2, 4], [], [3, 5]], since="0.4"),
)
