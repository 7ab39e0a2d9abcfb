"""Worked examples of verl's trainer that keeps its rows in a queue: sizes, files, prompts that are sampled again."""

from __future__ import annotations

import contextlib
import io
import json
from collections.abc import Callable, Mapping, Sequence
from types import SimpleNamespace
from typing import Any
from unittest import mock

import numpy
import torch

from seatrial.targets.common.offered import undecorated
from seatrial.targets.common.worked_rows import Row
from seatrial.targets.verl.asynchronous import FULLY, stack_module
from seatrial.targets.verl.worked.logged import batch_of
from seatrial.targets.verl.worked.tools import folder, raised

ANY = "verl:DataProto"
BASE = "verl.trainer.ppo.v1.trainer_base"


def _trainer(**parts: Any) -> Any:
    """Return a trainer with some of its parts."""
    trainer = undecorated(stack_module(BASE).PPOTrainer)
    own: Any = type("Made", (trainer,), {})
    own.__abstractmethods__ = frozenset()
    made = object.__new__(own)
    vars(made).update(parts)
    return made


def _multiples(of: Any) -> list[int]:
    """Return multiples of numbers of rows: ranks, mini-batches of a critic, and of an actor after a warmup."""

    def multiple(ranks: int, critic: bool, step: int) -> int:
        config = SimpleNamespace(
            critic=SimpleNamespace(ppo_mini_batch_size=3),
            actor_rollout_ref=SimpleNamespace(
                rollout=SimpleNamespace(n=2), actor=SimpleNamespace(ppo_mini_batch_size=5)
            ),
            trainer=SimpleNamespace(critic_warmup=4),
        )
        return int(
            _trainer(config=config, use_critic=critic, global_steps=step)._get_required_batch_multiple(ranks)
        )

    return [
        multiple(4, critic, step)
        for critic, step in ((False, 4), (False, 3), (True, 3), (True, 4), (True, 5))
    ]


def _masks(of: Any) -> Any:
    return undecorated(stack_module(BASE).PPOTrainer)._lengths_to_mask(torch.tensor([2, 0, 3]), 3).tolist()


def _filters(of: Any) -> list[Any]:
    """Return the metric by which groups are filtered, and what is refused."""

    def metric(model: Mapping[str, bool] | None = None, **options: Any) -> Any:
        reward = SimpleNamespace(**{"enable": False, "enable_resource_pool": False, **(model or {})})
        config = SimpleNamespace(
            algorithm={"filter_groups": options} if options else {},
            reward=SimpleNamespace(reward_model=reward),
        )
        return _trainer(config=config)._resolve_filter_groups_metric()

    on: dict[str, Any] = {"enable": True, "metric": "acc"}
    return [
        metric(),
        metric(enable=False, metric="acc"),
        metric(**on),
        metric({"enable": True, "enable_resource_pool": True}, **on),
        raised(metric, enable=True),
        raised(metric, {"enable": True}, **on),
    ]


def _written(of: Any) -> list[Any]:
    """Return records of a file of texts, with numbers of NumPy, further columns of all rows, and what is no JSON."""
    write = undecorated(stack_module(BASE).PPOTrainer)._write_generations
    root = folder() / "own"
    more = {
        "a": [numpy.float32(0.5), numpy.int64(2)],
        "b": [numpy.bool_(True), numpy.array([1])],
        "short": [1],
    }
    with contextlib.redirect_stdout(io.StringIO()):
        write(["p", "q"], ["ü", "s"], ["g", None], [1.0, 0.0], more, str(root), 7)
        refused = raised(write, ["p"], ["o"], [object()], [1.0], {}, str(root), 8)
    return [[json.loads(line) for line in (root / "7.jsonl").read_text().splitlines()], refused]


class _Queue:
    """A queue of rows with tags, which keeps what it is given."""

    def __init__(self, items: Mapping[str, Any]) -> None:
        self.items, self.calls = items, list[Any]()

    def kv_list(self, partition: str) -> Any:
        """Return tags by key."""
        return {partition: dict(self.items)}

    def kv_batch_get(self, keys: Sequence[str], partition_id: str, **_: Any) -> Any:
        """Return rows."""
        from verl.utils.tensordict_utils import get_tensordict

        self.calls.append(["get", list(keys)])
        return get_tensordict({"ids": torch.arange(len(keys))}, {"global_steps": 0})

    def kv_clear(self, keys: Sequence[str], partition_id: str) -> None:
        """Keep the keys."""
        self.calls.append(["clear", list(keys)])

    def kv_batch_put(
        self, keys: Sequence[str], partition_id: str, tags: Any = None, fields: Any = None
    ) -> None:
        """Keep the tags."""
        self.calls.append(["put", list(keys), tags])


def _reissued(of: Any) -> list[Any]:
    """Return what is sampled again after a resume: prompts that had not ended, without their rows so far."""
    items = {
        "a": {"is_prompt": True, "status": "finished"},
        "b": {"is_prompt": True, "status": "running"},
        "c": {"is_prompt": True, "status": "pending"},
        "a_0_0": {},
        "b_0_0": {},
        "b_1_0": {},
    }
    import verl.utils.tensordict_utils as tables

    module, found = stack_module(BASE), []
    for mode, given in (("separate_async", items), ("sync", items), ("separate_async", {"a": items["a"]})):
        queue, steps = _Queue(given), list[Any]()
        trainer = _trainer(
            trainer_mode=mode,
            global_steps=9,
            agent_loop_manager=SimpleNamespace(
                generate_sequences=lambda batch, steps=steps: steps.append(tables.get(batch, "global_steps"))
            ),
        )
        with mock.patch.object(module, "tq", queue):
            number = trainer._reissue_inflight_prompts()
        found.append([number, queue.calls, steps])
    return found


REISSUED: Sequence[Any] = [
    [
        2,
        [
            ["get", ["b", "c"]],
            ["clear", ["b_0_0", "b_1_0"]],
            ["put", ["b", "c"], [{"is_prompt": True, "status": "pending", "global_steps": 9}] * 2],
        ],
        [9],
    ],
    [0, [], []],
    [0, [], []],
]


def _aggregated(of: Any) -> dict[str, Any]:
    """Return metrics of two steps of two and six rows, by their names: means by rows, sums, ends, maxima, last ones."""
    aggregator = stack_module("verl.trainer.ppo.v1.utils").MetricsAggregator()
    empty = aggregator.get_aggregated_metrics()
    names = (
        *("loss", "a/mean", "a/max", "a/min", "timing_s/gen", "timing_per_token_ms/gen", "actor/lr"),
        *("training/global_step", "total_tokens", "training/off_policy/evicted_samples"),
    )
    for number, rows in ((1.0, 2), (5.0, 6)):
        given: dict[str, Any] = dict.fromkeys(names, number)
        given["tensor"] = torch.tensor(number)
        given |= {"text": "x", "flag": True, "many": torch.ones(2), "numpy": numpy.float32(number)}
        given["global_seqlen/max"], given["global_seqlen/min"] = 10 + number, 4 - number / 5
        given["global_seqlen/minmax_diff"] = 1.0
        given["training/off_policy/evicted_samples_staleness/mean"] = number
        aggregator.add_step_metrics(given, sample_count=rows)
    found = aggregator.get_aggregated_metrics()
    aggregator.reset()
    return {"empty": empty, **found, "again": aggregator.get_aggregated_metrics()}


AGGREGATED: Mapping[str, Any] = {
    "empty": {},
    **dict.fromkeys(("loss", "a/mean", "tensor", "numpy"), 4.0),
    "a/max": 5.0,
    "a/min": 1.0,
    **dict.fromkeys(
        ("timing_s/gen", "timing_per_token_ms/gen", "total_tokens", "training/off_policy/evicted_samples"),
        6.0,
    ),
    **dict.fromkeys(("actor/lr", "training/global_step"), 5.0),
    "global_seqlen/max": 15.0,
    "global_seqlen/min": 3.0,
    "global_seqlen/minmax_diff": 12.0,
    # By the numbers of rows that were left out, 1 and 5.
    "training/off_policy/evicted_samples_staleness/mean": 26 / 6,
    "again": {},
}


def _episodes(of: Any) -> list[Any]:
    """Return advantages of rows of several turns: those of the last turn of each sample count for all its turns."""
    compute = stack_module("verl.trainer.ppo.v1.utils").compute_advantage_for_multi_trajectories
    core = stack_module("verl.trainer.ppo.core_algos")
    batch = batch_of(
        {
            "token_level_rewards": [[9.0, 0.0], [0.0, 3.0], [1.0, 0.0], [5.0, 0.0]],
            "response_mask": [[1.0, 0.0], [0.0, 1.0], [1.0, 1.0], [1.0, 0.0]],
        },
        {"uid": ["u", "u", "u", "u"]},
    )
    keys = ["u_x_0_0", "u_x_0_1", "u_x_1_0", "u_x_2_10"]
    found = compute(batch, keys, core.AdvantageEstimator.GRPO, norm_adv_by_std_in_grpo=False, config=None)
    return [found.batch["advantages"].tolist(), len(found)]


def _locals(of: Any) -> list[Any]:
    """Return statistics of the fully asynchronous aggregator, and what becomes of tasks that fail."""
    import asyncio

    utils = stack_module(f"{FULLY}.detach_utils")

    async def fails() -> None:
        raise ValueError("x")

    async def works() -> int:
        return 3

    async def run() -> Any:
        tasks: set[Any] = set()
        good = utils.safe_create_task(works(), name="good", task_set=tasks)
        bad = utils.safe_create_task(fails(), name="bad", task_set=tasks)
        before = len(tasks)
        await asyncio.gather(good, bad, return_exceptions=True)
        await asyncio.sleep(0)
        return [before, good.get_name(), good.result(), type(bad.exception()).__name__]

    with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()):
        found: list[Any] = asyncio.run(run())
    return found


def _resampled(resample: Callable[..., Any]) -> dict[str, Any]:
    """Return rows that are drawn by their scores, with their columns and notes."""
    scores = [[0.0, 0.0], [3.0, 2.0], [0.0, 0.0], [0.0, 0.0]]
    found: dict[str, Any] = {}
    for method, given in (("pow", scores), ("max_min", [[1.0], [2.0], [3.0], [2.0]])):
        torch.manual_seed(0)
        batch = batch_of(
            {"token_level_scores": given, "ids": [0, 1, 2, 3]},
            {"names": list("abcd")},
            own=list("wxyz"),
            note="n",
        )
        made = resample(batch, method, 2.0)
        ids = made.batch["ids"].tolist()
        found[method] = sorted(set(ids))
        found[f"{method}, columns"] = [
            ["abcd"[row] for row in ids] == made.non_tensor_batch["names"].tolist(),
            ["wxyz"[row] for row in ids] == made.meta_info["own"],
            made.meta_info["note"],
            len(made),
            batch.batch["ids"].tolist(),
        ]
    torch.manual_seed(0)
    often = [
        row
        for _ in range(200)
        for row in resample(
            batch_of({"token_level_scores": [[5.0], [1.0]], "ids": [0, 1]}), "max_random", 2.0
        )
        .batch["ids"]
        .tolist()
    ]
    found["max_random"] = [0.72 < often.count(0) / len(often) < 0.88, raised(resample, batch, "none")]
    return found


RESAMPLED: Mapping[str, Any] = {
    "pow": [1],
    "pow, columns": [True, True, "n", 4, [0, 1, 2, 3]],
    "max_min": [0, 2],
    "max_min, columns": [True, True, "n", 4, [0, 1, 2, 3]],
    "max_random": [True, "ValueError"],
}


ROWS: Sequence[Row] = (
    Row("steps", ANY, "multiples of numbers of rows", _multiples, [20, 4, 12, 60, 60], since="0.9"),
    Row("steps", ANY, "masks of lengths", _masks, [[1, 1, 0], [0, 0, 0], [1, 1, 1]], since="0.9"),
    Row(
        "steps",
        ANY,
        "the metric of filtered groups",
        _filters,
        [None, None, "acc", "acc", "ValueError", "AssertionError"],
        since="0.9",
    ),
    Row(
        "steps",
        ANY,
        "files of texts",
        _written,
        [
            [
                {"input": "p", "output": "ü", "gts": "g", "score": 1.0, "step": 7, "a": 0.5, "b": True},
                {"input": "q", "output": "s", "gts": None, "score": 0.0, "step": 7, "a": 2, "b": [1]},
            ],
            "TypeError",
        ],
        since="0.9",
    ),
    Row("steps", ANY, "prompts that are sampled again", _reissued, REISSUED, since="0.9.1"),
    Row("metrics", ANY, "metrics of several steps", _aggregated, AGGREGATED, since="0.9"),
    Row(
        "rows",
        ANY,
        "advantages of rows of several turns",
        _episodes,
        [[[0.0, 0.0], [0.0, 0.0], [-2.0, -2.0], [2.0, 0.0]], 4],
        since="0.9",
    ),
    Row("asynchronous", ANY, "tasks that fail", _locals, [2, "good", 3, "ValueError"], since="0.9"),
    Row(
        "formulas",
        "verl.trainer.ppo.core_algos:compute_pf_ppo_reweight_data",
        "methods",
        _resampled,
        RESAMPLED,
        since="0.4",
    ),
)
