"""TRL's asynchronous rollouts with a scripted server in place of vLLM, and its packs, in the contract's form."""

from __future__ import annotations

import asyncio
import queue
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from functools import partial
from importlib import import_module
from inspect import signature
from itertools import groupby
from types import SimpleNamespace
from typing import Any
from unittest.mock import patch

from seatrial.relations.laws.utilities.async_rollouts import (
    COPIES,
    Plan,
    Request,
    Rolled,
    Row,
    Sample,
    Stepped,
    Term,
    Turn,
    entropy_of,
    logprob_of,
    reward_of,
)
from seatrial.relations.not_served import NotServed
from seatrial.targets.common.target import release
from seatrial.targets.common.tiny import tiny_tokenizer
from seatrial.targets.trl import tools

PLACE = "trl.experimental.async_grpo"
SAMPLING: Mapping[str, Any] = {
    "max_tokens": 77,
    "temperature": 0.7,
    "top_p": 0.9,
    "top_k": 5,
    "min_p": 0.05,
    "repetition_penalty": 1.1,
}
PAST = 600
"""Polls of the queue of samples, of a hundredth of a second, before a run counts as stuck."""


class _Server:
    """Answers requests with the turns of a plan."""

    def __init__(self, plan: Plan, opened: Sequence[str], tokenizer: Any) -> None:
        self.requests: list[Request] = []
        self._tokenizer = tokenizer
        self._fresh = {text: list(copies) for text, copies in zip(opened, plan, strict=True)}
        self._open: list[tuple[str, Sequence[Turn]]] = []

    def answer(self, payload: Mapping[str, Any]) -> dict[str, Any]:
        """Return the next turn of the rollout that a prompt continues; an end alone if there is none."""
        prompt = self._tokenizer.decode(payload["prompt"])
        turns: Sequence[Turn] = ()
        if self._fresh.get(prompt):
            turns = self._fresh[prompt].pop(0)
        else:
            for found in [one for one in self._open if prompt.startswith(one[0])]:
                self._open.remove(found)
                turns = found[1]
        text = ""
        if turns:
            text = tools.Turn(turns[0].words, tuple(("shout", one) for one in turns[0].arguments)).text
        end = "" if turns and not turns[0].ended else self._tokenizer.eos_token
        ids = self._tokenizer(text + end, add_special_tokens=False)["input_ids"]
        logprobs = [-(len(self.requests) * 64 + place + 1) / 4096 for place in range(len(ids))]
        if turns:
            self._open.append((prompt + text + end, turns[1:]))
            self.requests.append(Request(prompt, text + end, logprobs, dict(payload)))
        return {"choices": [{"token_ids": ids, "logprobs": {"token_logprobs": logprobs}}]}


def _rollouts(loop_class: Any, plan: Plan, limit: int | None) -> Rolled:
    """Run the loops that sample and score until the rows of a plan are there."""
    from accelerate import PartialState
    from datasets import Dataset

    PartialState()  # which TRL's loggers need
    tokenizer = tiny_tokenizer()
    tools.prepare(tokenizer)
    prompts = [[{"role": "user", "content": f"ask{number}"}] for number in range(len(plan))]
    opened = [
        tokenizer.apply_chat_template(one, tokenize=False, add_generation_prompt=True) for one in prompts
    ]
    server = _Server(plan, opened, tokenizer)
    rewarded: list[tuple[int, str]] = []

    def reward(completions: Sequence[Any], number: Sequence[int], **_: Any) -> list[float | None]:
        texts = [tools.text_of(one) for one in completions]
        rewarded.extend(zip(number, texts, strict=True))
        return [reward_of(*pair) for pair in zip(number, texts, strict=True)]

    class Served(loop_class):  # type: ignore[misc]
        async def _post(self, path: str, payload: Mapping[str, Any], *_: Any, **__: Any) -> Any:
            return server.answer(payload)

    given: dict[str, Any] = {
        "model_name": "m",
        "dataset": Dataset.from_list([{"prompt": one, "number": place} for place, one in enumerate(prompts)]),
        "reward_funcs": [reward],
        "processing_class": tokenizer,
        "eos_token_ids": [tokenizer.eos_token_id],
        "rollout_buffer": queue.Queue(),
        "model_version_value": SimpleNamespace(value=3),
        "heartbeat_value": SimpleNamespace(value=0.0),
        "failed_event": None,
        "exception_info_queue": None,
        "metrics_queue": queue.Queue(),
        "tools": [tools.shout],
        "num_generations": COPIES,
        "max_inflight_tasks": COPIES,
        "max_tool_calling_iterations": limit,
        **SAMPLING,
    }
    if missing := set(given) - set(signature(loop_class.__init__).parameters):
        raise NotServed(f"rollouts of trl {release('trl')} take no {', '.join(sorted(missing))}")
    loop = Served(**given)
    samples = loop._loop.run_until_complete(_until_done(loop, len(plan)))
    loop._tool_pool.shutdown()
    loop._loop.close()
    ends = (tokenizer.eos_token_id, tokenizer.pad_token_id)
    return Rolled(
        opened=opened,
        requests=server.requests,
        rows=[_row(one, tokenizer, ends) for one in samples],
        rewarded=[one for one in rewarded if one[1]],
        counts=_counts(given["metrics_queue"], len(plan) * COPIES),
    )


async def _until_done(loop: Any, num_prompts: int) -> list[Any]:
    """Return the rows of the first prompts, and stop the loops."""
    asyncio.set_event_loop(loop._loop)
    stop = loop._stop_event
    running = asyncio.gather(loop._generate_loop(stop_event=stop), loop._score_loop(stop_event=stop))
    found: list[Any] = []
    for _ in range(PAST):
        while not loop.rollout_buffer.empty():
            found.append(loop.rollout_buffer.get())
        if running.done() or {*range(num_prompts)} <= {one.group_id for one in found}:
            break
        await asyncio.sleep(0.01)
    stop.set()
    await running
    return [one for one in found if one.group_id < num_prompts]


def _row(sample: Any, tokenizer: Any, ends: Sequence[int]) -> Row:
    ids, mask = (getattr(sample, name).tolist() for name in ("input_ids", "completion_mask"))
    logprobs = sample.old_log_probs.tolist()
    spans, rest = [], []
    for trained, part in groupby(range(len(ids)), key=lambda place: mask[place]):
        places = list(part)
        if trained:
            spans.append(tokenizer.decode([ids[place] for place in places]))
        else:
            rest += [logprobs[place] for place in places]
    return Row(
        number=int(sample.group_id),
        text=tokenizer.decode(ids),
        spans=spans,
        logprobs=[value for value, on in zip(logprobs, mask, strict=True) if on],
        rest=rest,
        advantage=sample.advantage,
        reward=sample.metrics["reward"],
    )


NAMES: Mapping[str, str] = {
    "rollout/turns_mean": "turns",
    "completions/clipped_ratio": "cut",
    "tools/loop_exhausted_frac": "limited",
    "tools/shout/call_total": "calls",
}
"""What the loop calls the numbers of the contract."""


def _counts(pushed: Any, num_rollouts: int) -> dict[str, float]:
    """Return the sums of the first rollouts: later ones say nothing but an end, in one turn."""
    sums: defaultdict[str, float] = defaultdict(float)
    weights: defaultdict[str, float] = defaultdict(float)
    while not pushed.empty():
        for name, value in pushed.get().items():
            if own := NAMES.get(name):
                sums[own] += value[0] if isinstance(value, tuple) else value
                weights[own] += value[1] if isinstance(value, tuple) else 0
    if "turns" in sums:
        sums["turns"] -= weights["turns"] - num_rollouts
    return dict(sums)


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
    try:
        worker = import_module(f"{PLACE}.async_rollout_worker")
        trainer = import_module(f"{PLACE}.async_grpo_trainer")
    except ImportError:
        return found
    if loop_class := getattr(worker, "_AsyncRolloutLoop", None):
        found |= {"asynchronous rollouts": partial(_rollouts, loop_class), "asynchronous options": SAMPLING}
    planners = (getattr(trainer, "FixedCountBatcher", None), getattr(trainer, "TokenBudgetBatcher", None))
    if None not in planners and hasattr(trainer, "TreeRow"):
        found["packed rollouts"] = partial(_packed, planners)
    if hasattr(trainer, "DataCollatorForRollout"):
        found["asynchronous step"] = partial(_step, trainer)
    if hasattr(trainer, "RolloutQueueDataset"):
        found["asynchronous queue"] = partial(_waited, trainer)
    return found
