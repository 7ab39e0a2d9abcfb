"""TRL's asynchronous rollouts, its packs of them and a step on them, in the contract's form."""

from __future__ import annotations

import queue
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from functools import partial
from inspect import signature
from types import SimpleNamespace
from typing import Any
from unittest.mock import patch

from seatrial.relations.laws.utilities.async_rollouts import (
    Sample,
    Stepped,
    Term,
    entropy_of,
    logprob_of,
)
from seatrial.targets.trl.asynchronous_rollouts import asynchronous_module, rollout_functions


def _given(samples: Sequence[Sample]) -> list[dict[str, Any]]:
    """Return rows as the queue's data set yields them."""
    import numpy as np

    return [
        {
            "input_ids": np.array(one.ids),
            "completion_mask": np.array(one.mask),
            "old_log_probs": np.array(one.logprobs, dtype=np.float32),
            "advantage": one.advantage,
            "group_id": one.group,
            "metrics": {},
        }
        for one in samples
    ]


def _packed(planners: tuple[Any, Any], samples: Sequence[Sample], parts: int, limit: int | None) -> list[Any]:
    """Return by batch and part its terms and number of tokens."""
    given = _given(samples)
    fixed, limited = planners
    batches = (
        fixed(given, parts, len(given)) if limit is None else limited(given, parts, limit, defaultdict(list))
    )
    return [[_terms(row.pack()) for row in batch] for batch in batches]


def _terms(pack: Mapping[str, Any]) -> tuple[list[Term], int]:
    """Return the terms of a pack, each with the ids that its place sees: a path up to the place itself."""
    columns = {name: value.tolist() for name, value in pack.items()}
    ids, starts = columns["input_ids"], columns["tree_cu_seqlens_q"]
    paths = columns["tree_cu_seqlens_k"]
    seen: dict[int, tuple[int, ...]] = {}
    for number, start in enumerate(starts[:-1]):
        path = columns["tree_kv_index"][paths[number] : paths[number + 1]]
        for place in range(start, starts[number + 1]):
            sees = path[: len(path) - (starts[number + 1] - 1 - place)]
            right = len(sees) == columns["position_ids"][place] + 1
            seen[place] = tuple(ids[one] for one in sees) if right else ()
    rows = zip(columns["token_index"], columns["old_log_probs"], columns["advantages"], strict=True)
    return [(seen[place], columns["shift_labels"][place], old, gain) for place, old, gain in rows], len(ids)


class _Outputs(dict[str, Any]):
    """What a model returns, by names and as attributes."""

    __getattr__ = dict.__getitem__


STEP_NAMES: Mapping[str, str] = {
    "ratio": "ratio",
    "kl": "kl",
    "entropy": "entropy",
    "clip_ratio": "clipped",
    "clip_ratio/region_mean": "clipped",
    "clip_ratio/low_mean": "clipped low",
    "clip_ratio/high_mean": "clipped high",
}
"""What the trainer calls the numbers of the contract."""


def _step(module: Any, samples: Sequence[Sample], clip: tuple[float, float], parts: int) -> Stepped:
    """Return a micro-batch's loss, its gradients and what it logs, with a model that reads the next id alone."""
    import torch
    from torch import nn

    table = torch.tensor([logprob_of(one) for one in range(32)], requires_grad=True)
    entropies = torch.tensor([entropy_of(one) for one in range(32)])

    def model(**inputs: Any) -> _Outputs:
        ids = inputs["shift_labels"] if "shift_labels" in inputs else inputs["labels"][:, 1:]
        return _Outputs(log_probs=table[ids.clamp(min=0)], entropy=entropies[ids.clamp(min=0)])

    given: list[Any] = _given(samples)
    if hasattr(module, "FixedCountBatcher"):
        given = [next(iter(module.FixedCountBatcher(given, 1, len(given))))]
    inputs = module.DataCollatorForRollout(pad_token_id=0).torch_call(given)

    class Bare(module.AsyncGRPOTrainer):  # type: ignore[misc]
        def __init__(self) -> None:
            pass

        def __getattr__(self, name: str) -> float:
            """Return where counters and clocks of the trainer's own begin."""
            if name.startswith("_"):
                return 0.0
            raise AttributeError(name)

    trainer: Any = Bare()
    logged: defaultdict[str, list[Any]] = defaultdict(list)
    trainer.__dict__.update(
        model=nn.Identity(),
        epsilon_low=clip[0],
        epsilon_high=clip[1],
        accelerator=SimpleNamespace(
            num_processes=1, reduce=lambda value, reduction: value, gather=lambda value: value.reshape(-1)
        ),
        current_gradient_accumulation_steps=parts,
        aux_loss_enabled=False,
        _metrics={"train": logged, "eval": defaultdict(list)},
    )
    loss = trainer.compute_loss(model, inputs)
    loss.backward()
    own = {STEP_NAMES[name]: value[-1] for name, value in logged.items() if name in STEP_NAMES}
    gradients = {} if table.grad is None else dict(enumerate(table.grad.tolist()))
    return Stepped(float(loss), gradients, {name: _mean(value) for name, value in own.items()})


def _mean(value: Any) -> float:
    """Return a metric, which may be a sum with its weight."""
    return float(value[0] / value[1]) if isinstance(value, tuple) else float(value)


def _waited(
    module: Any, delays: Sequence[float], ages: Sequence[int], stalest: int
) -> tuple[list[int], float]:
    """Return the rows that the queue's data set yields, and the seconds that it counts as waiting."""
    now = [1000.0]
    rows = iter(range(len(delays)))
    rest = [0.0]

    def get(timeout: float | None = None, **_: Any) -> Any:
        if timeout is not None and rest[0] > timeout:
            now[0] += timeout
            rest[0] -= timeout
            raise queue.Empty
        now[0] += rest[0]
        number = next(rows, None)
        if number is None:
            raise _Over
        rest[0] = delays[number + 1] if number + 1 < len(delays) else 0.0
        return SimpleNamespace(
            **{**_given([Sample((number, 2), (0, 1), (0.0, -1.0), 1.0, number)])[0], "enqueued_at": None},
            model_version=10 - ages[number],
        )

    rest[0] = delays[0]
    clock = SimpleNamespace(**dict.fromkeys(("time", "monotonic", "perf_counter"), lambda: now[0]))
    logged: defaultdict[str, list[Any]] = defaultdict(list)
    wanted = {
        "rollout_queue": SimpleNamespace(get=get, qsize=lambda: int(not rest[0])),
        "model_version_fn": lambda: 10,
        "check_health_fn": lambda _: None,
        "stale_after_s": 1e9,
        "max_staleness": stalest,
        "poll_interval_s": 5.0,
        "metrics": logged,
    }
    takes = signature(module.RolloutQueueDataset.__init__).parameters
    found: list[Any] = []
    with patch.object(module, "time", clock):
        data = module.RolloutQueueDataset(**{name: one for name, one in wanted.items() if name in takes})
        with suppress(_Over):
            found.extend(data)
    waits = [one["metrics"].get("queue_wait_time_s", 0.0) for one in found]
    return [int(one["input_ids"][0]) for one in found], getattr(data, "wait_s", sum(waits))


class _Over(Exception):  # noqa: N818  no error: the end of the rows
    """Raised by a queue whose rows are all taken."""


def functions() -> dict[str, Any]:
    """Return what the installed release has."""
    found: dict[str, Callable[..., Any] | Mapping[str, Any]] = {}
    found |= rollout_functions()
    try:
        trainer = asynchronous_module("async_grpo_trainer")
    except ImportError:
        return found
    planners = (getattr(trainer, "FixedCountBatcher", None), getattr(trainer, "TokenBudgetBatcher", None))
    if None not in planners and hasattr(trainer, "TreeRow"):
        found["packed rollouts"] = partial(_packed, planners)
    if hasattr(trainer, "DataCollatorForRollout"):
        found["asynchronous step"] = partial(_step, trainer)
    if hasattr(trainer, "RolloutQueueDataset"):
        found["asynchronous queue"] = partial(_waited, trainer)
    return found
