"""TRL's loop of asynchronous rollouts, with a scripted server in place of vLLM."""

from __future__ import annotations

import asyncio
import queue
import sys
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from importlib import import_module
from importlib.util import find_spec
from inspect import signature
from itertools import count, groupby
from types import SimpleNamespace
from typing import Any
from unittest.mock import MagicMock

from seatrial.relations.laws.utilities.async_environments import Acted
from seatrial.relations.laws.utilities.async_rollouts import (
    COPIES,
    Plan,
    Request,
    Rolled,
    Row,
    Turn,
    reward_of,
)
from seatrial.relations.not_served import NotServed
from seatrial.targets.common.target import release
from seatrial.targets.common.tiny import tiny_tokenizer
from seatrial.targets.trl import tools

PLACE = "trl.experimental.async_grpo"
OF_SERVERS = ("aiohttp", "requests")
"""Packages that only send requests to a server."""
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


def asynchronous_module(name: str) -> Any:
    """Return a module of asynchronous GRPO, imported with stand-ins for packages that are not installed.

    Raises:
        ImportError: the release does not have it.
    """
    place = f"{PLACE}.{name}"
    missing: list[str] = []
    try:
        return import_module(place)
    except ModuleNotFoundError as error:
        if error.name not in OF_SERVERS:
            raise
    try:
        missing = [one for one in OF_SERVERS if one not in sys.modules and find_spec(one) is None]
        sys.modules.update({one: MagicMock() for one in missing})
        return import_module(place)
    finally:
        for one in missing:
            del sys.modules[one]


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

    given = {
        **_arguments(tokenizer, prompts, reward),
        "tools": [tools.shout],
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


def _arguments(tokenizer: Any, prompts: Sequence[Any], reward: Callable[..., Any]) -> dict[str, Any]:
    """Return what a loop needs, of releases with each of it."""
    from accelerate import PartialState
    from datasets import Dataset

    PartialState()  # which TRL's loggers need
    return {
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
        "num_generations": COPIES,
        "max_inflight_tasks": COPIES,
    }


async def _until_done(loop: Any, num_prompts: int) -> list[Any]:
    """Return the rows of the first prompts, and stop the loops; releases that do not number them put each in turn."""
    asyncio.set_event_loop(loop._loop)
    stop = loop._stop_event
    running = asyncio.gather(loop._generate_loop(stop_event=stop), loop._score_loop(stop_event=stop))
    found: list[tuple[int, Any]] = []
    for _ in range(PAST):
        while not loop.rollout_buffer.empty():
            one = loop.rollout_buffer.get()
            found.append((getattr(one, "group_id", len(found) // COPIES), one))
        if running.done() or {*range(num_prompts)} <= {number for number, _ in found}:
            break
        await asyncio.sleep(0.01)
    stop.set()
    await running
    return [one for number, one in found if number < num_prompts]


def _row(sample: Any, tokenizer: Any, ends: Sequence[int]) -> Row:
    # Lists in earlier releases, arrays since.
    ids, mask, logprobs = (
        list(map(kind, getattr(sample, name)))
        for name, kind in (("input_ids", int), ("completion_mask", int), ("old_log_probs", float))
    )
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


class _Calling:
    """Answers the first request of a rollout with a call of a word of its own, and the second one with an end."""

    def __init__(self, tokenizer: Any) -> None:
        self.asked: dict[str, str] = {}
        """By word, the prompt that it was said to."""
        self._tokenizer = tokenizer

    def answer(self, payload: Mapping[str, Any]) -> dict[str, Any]:
        """Return what the model says."""
        prompt = self._tokenizer.decode(payload["prompt"])
        text = self._tokenizer.eos_token
        if not any(word in prompt for word in self.asked):
            word = f"word{chr(97 + len(self.asked) // 26)}{chr(97 + len(self.asked) % 26)}"
            self.asked[word] = prompt
            text = tools.Turn("say", (("shout", word),)).text + text
        ids = self._tokenizer(text, add_special_tokens=False)["input_ids"]
        return {"choices": [{"token_ids": ids, "logprobs": {"token_logprobs": [-0.5] * len(ids)}}]}


def _acted(loop_class: Any, num_prompts: int) -> list[Acted]:
    """Run the loops until rollouts are there whose environments return another task with every third reset but one."""
    if "environment_factory" not in signature(loop_class.__init__).parameters:
        raise NotServed(f"asynchronous rollouts of trl {release('trl')} have no environments")
    if int(release("transformers").split(".")[0]) < 5:
        raise NotServed(f"tools of environments need transformers 5, and not {release('transformers')}")
    tokenizer = tiny_tokenizer()
    tools.prepare(tokenizer)
    server, tasks, rewarded = _Calling(tokenizer), count(), {}
    due: dict[str, str] = {}

    def shown(messages: Any) -> str:
        return str(tokenizer.apply_chat_template(messages, tokenize=False, add_generation_prompt=True))

    def word_of(text: str) -> str:
        return next((word for word in server.asked if word in text.lower()), "")

    class Task:
        def reset(self, number: int, **_: Any) -> str | None:
            """Begin a rollout, and return its task."""
            task = next(tasks)
            self._prompt = f"ask{number}" + (f" task{task}" if task % 3 else "")
            return f" task{task}" if task % 3 else None

        def shout(self, text: str) -> str:
            """
            Write a text in capitals.

            Args:
                text: The text.

            Returns:
                The text in capitals.
            """
            due[text] = shown([{"role": "user", "content": self._prompt}])
            return text.upper()

    def reward(prompts: Sequence[Any], completions: Sequence[Any], **_: Any) -> list[float]:
        rewarded.update(
            {
                word_of(tools.text_of(said)): shown(asked)
                for asked, said in zip(prompts, completions, strict=True)
            }
        )
        return [float(place) for place in range(len(completions))]

    class Served(loop_class):  # type: ignore[misc]
        async def _post(self, path: str, payload: Mapping[str, Any], *_: Any, **__: Any) -> Any:
            return server.answer(payload)

    prompts = [[{"role": "user", "content": f"ask{number}"}] for number in range(num_prompts)]
    takes = signature(loop_class.__init__).parameters
    given = {**_arguments(tokenizer, prompts, reward), "environment_factory": Task, "max_tokens": 77}
    loop = Served(**{name: one for name, one in given.items() if name in takes})
    samples = loop._loop.run_until_complete(_until_done(loop, num_prompts))
    loop._loop.close()
    texts = [tokenizer.decode(list(map(int, one.input_ids))) for one in samples]
    return [
        Acted(due.get(word, ""), server.asked.get(word, ""), rewarded.get(word, ""), text)
        for text, word in ((text, word_of(text)) for text in texts)
    ]


def rollout_functions() -> dict[str, Any]:
    """Return what the installed release has."""
    try:
        worker = asynchronous_module("async_rollout_worker")
    except ImportError:
        return {}
    if (loop_class := getattr(worker, "_AsyncRolloutLoop", None)) is None:
        return {}
    return {
        "asynchronous rollouts": partial(_rollouts, loop_class),
        "asynchronous options": SAMPLING,
        "asynchronous environments": partial(_acted, loop_class),
    }
