"""TRL's asynchronous rollouts with a scripted server in place of vLLM, and its packs, in the contract's form."""

from __future__ import annotations

import asyncio
import queue
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from importlib import import_module
from inspect import signature
from itertools import groupby
from types import SimpleNamespace
from typing import Any

from seatrial.relations.laws.utilities.async_rollouts import (
    COPIES,
    Plan,
    Request,
    Rolled,
    Row,
    Sample,
    Term,
    Turn,
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


def _packed(planners: tuple[Any, Any], samples: Sequence[Sample], parts: int, limit: int | None) -> list[Any]:
    """Return by batch and part its terms and number of tokens."""
    import numpy as np

    given = [
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
    return found
