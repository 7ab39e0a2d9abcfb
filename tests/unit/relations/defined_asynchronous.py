"""Plain samplers, clients, buffers and balancers, which the laws of `R31` accept."""

from collections import deque
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch

from seatrial.relations.contracts.rollouts import Asked, Part, Prompted, Resumed, Rolled
from seatrial.relations.laws.utilities import agent_prompts
from seatrial.relations.laws.utilities.asynchronous import ASYNCHRONOUS_FUNCTIONS
from seatrial.relations.laws.utilities.older_options import MovedOption
from seatrial.relations.laws.utilities.replay import Drawn, Group
from seatrial.relations.laws.utilities.rollouts import (
    BUDGET,
    PENALTY,
    ROLLOUT_FUNCTIONS,
    TRAINING,
    VALIDATION,
    P,
    T,
)
from seatrial.relations.laws.utilities.servers import SERVER_FUNCTIONS


def rollouts(rows: Sequence[Asked], plan: Mapping[str, Any]) -> Rolled:
    """Return the batch of rows; a token of a prompt is a letter."""
    prompts = [[ord(letter) for letter in row.messages[-1]["content"]] for row in rows]
    columns: dict[str, list[Any]] = {}
    positions = []
    for prompt, row in zip(prompts, rows, strict=True):
        ids, left = list(row.answer[:T]), [0] * (P - len(prompt))
        right = [0] * (T - len(ids))
        one: dict[str, list[Any]] = {
            "prompts": left + prompt,
            "responses": ids + right,
            "input_ids": left + prompt + ids + right,
            "attention_mask": left + [1] * len(prompt + ids) + right,
            "response_mask": [1] * len(ids) + right,
        }
        logprobs = [*row.logprobs[:T], *map(float, right)]
        score = [*([0.0] * (len(ids) - 1)), row.reward, *map(float, right)]
        for name, values in {**one, "rollout_log_probs": logprobs, "rm_scores": score}.items():
            columns.setdefault(name, []).append(values)
        positions.append(list(range(len(prompt + ids))))
    if not plan["rewarded"]:
        del columns["rm_scores"]
    return Rolled(
        prompts=prompts,
        columns={name: torch.tensor(values) for name, values in columns.items()},
        positions=positions,
        sampling=[
            {**(VALIDATION if plan["validates"] else TRAINING), "repetition_penalty": PENALTY} for _ in rows
        ],
        turns=[2] * len(rows),
        asked=[row.messages for row in rows],
        scored=[min(len(row.answer), T) for row in rows],
    )


def prompts_of_agents(
    rows: Sequence[Sequence[Mapping[str, str]]], agents: Sequence[str], plan: Mapping[str, Any]
) -> list[Prompted]:
    """Return the end of each prompt, of which a letter is a token."""
    found = []
    for row, messages in enumerate(rows):
        own = (plan.get("selected") or [None] * len(rows))[row] or plan.get("tools", ())
        text = agent_prompts.written(messages, own, plan["options"].get("think", False))[-plan["limit"] :]
        found.append(Prompted(text, text, len(text)))
    return found


def _prompts_with(**changes: Any) -> tuple[str, Callable[..., Any]]:
    return "prompts of agents", lambda rows, agents, plan: prompts_of_agents(
        rows, agents, {**plan, **changes}
    )


def greedy_rollouts(rows: Sequence[Asked], greedy: Sequence[bool]) -> list[dict[str, Any]]:
    """Return the options of each row's request."""
    return [{"temperature": 0, "top_p": 1.0} if one else dict(TRAINING) for one in greedy]


def answer_in_parts(
    prompt: Sequence[int], parts: Sequence[Part], limit: int | None, resumes: bool
) -> Resumed:
    """Return an answer that is asked for again until it is complete."""
    limit = BUDGET if limit is None else limit
    ids: list[int] = []
    logprobs: list[float] = []
    requests, limits, taken = [], [], []
    for part in parts:
        requests.append([*prompt, *ids])
        limits.append(limit - len(ids))
        taken.append(part)
        ids += part.ids
        logprobs += part.logprobs
        if part.stop != "aborted" or not resumes or len(ids) >= limit:
            break
    return Resumed(
        ids=ids,
        logprobs=logprobs,
        stop="length" if len(ids) >= limit else taken[-1].stop,
        versions=(taken[0].version, taken[-1].version),
        preempted=sum(part.preempted for part in taken),
        requests=requests,
        limits=limits,
        options={"max_tokens": limit},
        released=["server"] * len(taken),
    )


def replay_buffer(groups: Sequence[Group], size: int, plan: Mapping[str, Any]) -> Drawn:
    """Return the oldest finished prompts, as soon as there are enough."""
    cleared: list[str] = []
    refilled: list[int] = []
    spans: list[int] = []
    flat, threshold, trains = 0, plan["threshold"], plan["partition"] == "train"
    for look in range(12):
        states = {
            one.uid: one.states[min(look, len(one.states) - 1)] for one in groups if one.uid not in cleared
        }
        ended = [
            one for one in groups if states.get(one.uid) == "finished" or (not trains and states.get(one.uid))
        ]
        gone = []
        for one in ended:
            span = 5 - one.step + 1
            is_old = trains and threshold is not None and plan["strategy"] == "drop" and span > threshold
            is_flat = trains and plan["filters"] and len(set(one.rewards)) == 1
            spans += [span] if is_old else []
            flat += is_flat
            gone += [one.uid] if is_old or is_flat else []
        cleared += gone
        refilled += [len(gone)] if gone else []
        left = sorted((one for one in ended if one.uid not in gone), key=lambda one: one.step)
        running = [one for one in groups if states.get(one.uid) in ("pending", "running")]
        waits = plan["strategy"] == "wait" and any(5 - one.step + 1 >= (threshold or 99) for one in running)
        if len(left) >= size and not waits:
            break
    chosen = left[:size]
    rows = {f"{one.uid}_{row}_0": one.step for one in chosen for row in range(len(one.rewards))}
    metrics = {"training/filter_groups/evicted_samples": float(flat)}
    if spans:
        name = "training/off_policy/evicted_samples"
        metrics |= {name: float(len(spans)), f"{name}_staleness/mean": sum(spans) / len(spans)}
        metrics |= {f"{name}_staleness/max": float(max(spans)), f"{name}_staleness/min": float(min(spans))}
    cleared += [one.uid for one in chosen]
    return Drawn(list(rows), list(rows.values()), cleared, refilled, look + 1, metrics)


def shared_requests(servers: Sequence[str], operations: Sequence[tuple[str, Any]]) -> list[tuple[str, str]]:
    """Return the server of each request."""
    busy, own, running, given = dict.fromkeys(servers, 0), dict[str, str](), deque[str](), []
    for name, value in operations:
        if name == "acquire":
            server = own.get(value, "")
            if server not in busy:
                server = min(busy, key=busy.__getitem__)
            own[value] = server
            busy[server] += 1
            running.append(server)
            given.append(("acquired", server))
        elif name == "release":
            server = running.popleft() if running else "none"
            if server in busy:
                busy[server] = max(busy[server] - 1, 0)
            given.append(("released", server))
        elif name == "remove":
            del busy[value]
            given.append(("removed", value))
        else:
            busy[value] = 0
            given.append(("added", value))
    return given


def own_policy_loss(columns: Mapping[str, torch.Tensor], size: int) -> list[dict[str, torch.Tensor | None]]:
    """Return what a loss is given of each micro-batch."""
    names = ("logprobs", "old_logprobs", "advantages", "mask", "weights")
    return [
        {name: columns[name][start : start + size] for name in names}
        for start in range(0, len(columns["mask"]), size)
    ]


ASYNCHRONOUS: Mapping[str, Callable[..., Any]] = {
    "own policy loss": own_policy_loss,
    "older options": lambda: [MovedOption("old.steps", "steps", 3, 3)],
    "rollouts": rollouts,
    "rollouts with rewards": rollouts,
    "rollouts of workers": rollouts,
    "greedy rollouts": greedy_rollouts,
    "prompts of agents": prompts_of_agents,
    "answer in parts": answer_in_parts,
    "replay buffer": replay_buffer,
    "shared requests": shared_requests,
    **{one.name: one.right for one in (*ROLLOUT_FUNCTIONS, *ASYNCHRONOUS_FUNCTIONS, *SERVER_FUNCTIONS)},
}


def _changed(name: str, **change: Any) -> tuple[str, Callable[..., Any]]:
    return name, lambda *given: ASYNCHRONOUS[name](*given)._replace(**change)


def _first_server(servers: Sequence[str], operations: Sequence[tuple[str, Any]]) -> list[tuple[str, str]]:
    given = shared_requests(servers, operations)
    return [(name, "a" if name == "acquired" else server) for name, server in given]


def _without_limits(groups: Sequence[Group], size: int, plan: Mapping[str, Any]) -> Drawn:
    return replay_buffer(groups, size, {**plan, "threshold": None, "filters": False})


def _newest_first(groups: Sequence[Group], size: int, plan: Mapping[str, Any]) -> Drawn:
    return replay_buffer([one._replace(step=9 - one.step) for one in groups], size, plan)


ASYNCHRONOUS_RELATIONS = (
    "R31.rollouts",
    "R31.agent_prompts",
    "R31.asynchronous",
    "R31.servers",
    "R31.older",
    "R31.own_losses",
)
ASYNCHRONOUS_FAULTS: Mapping[str, tuple[str, Callable[..., Any]]] = {
    "options under older names": ("older options", lambda: [MovedOption("old.steps", "steps", 3, None)]),
    "arguments of an own loss": (
        "own policy loss",
        lambda columns, size: own_policy_loss({**columns, "mask": columns["advantages"]}, size),
    ),
    "rows of a batch": ("rollouts", lambda rows, plan: rollouts(rows, plan)._replace(turns=[3] * len(rows))),
    "a batch of several workers": (
        "rollouts of workers",
        lambda rows, plan: rollouts(rows[:-1] + rows[:1], plan),
    ),
    "options of sampling of a batch": (
        "rollouts",
        lambda rows, plan: rollouts(rows, {**plan, "validates": False}),
    ),
    "penalty of repetitions of a batch": (
        "rollouts",
        lambda rows, plan: (found := rollouts(rows, plan))._replace(
            sampling=[{**one, "repetition_penalty": 1.0} for one in found.sampling]
        ),
    ),
    "rows that are sampled greedily": (
        "greedy rollouts",
        lambda rows, greedy: greedy_rollouts(rows, [False] * len(rows)),
    ),
    "rewards of a batch": (
        "rollouts with rewards",
        lambda rows, plan: rollouts(rows, {**plan, "rewarded": False}),
    ),
    "times of rollouts": ("times of rollouts", lambda *_: {}),
    "prompts with options of the template": _prompts_with(options={}),
    "prompts with tools, an agent of several turns": _prompts_with(tools=()),
    "prompts with tools, an agent of one turn": _prompts_with(tools=()),
    "prompts with tools of their rows": _prompts_with(selected=None),
    "prompts that are too long": (
        "prompts of agents",
        lambda *given: [one._replace(trained=one.trained[:-1]) for one in prompts_of_agents(*given)],
    ),
    "an answer in parts": (
        "answer in parts",
        lambda prompt, parts, limit, resumes: answer_in_parts(prompt, parts[:1], limit, resumes),
    ),
    "an answer in parts, no limit among its options": (
        "answer in parts",
        lambda *given: (found := answer_in_parts(*given))._replace(limits=[None] * len(found.limits)),
    ),
    "options of an answer in parts": _changed("answer in parts", options={"max_tokens": 15}),
    "an answer that is not resumed": (
        "answer in parts",
        lambda prompt, parts, limit, _: answer_in_parts(prompt, parts, limit, True),
    ),
    "a queue of rows": ("message queue", lambda capacity, operations: [None] * len(operations)),
    "a batch of several prompts' rows": ("assembled batch", lambda *_: {}),
    "metrics of several steps": ("metrics of several steps", lambda steps, _: dict(steps[-1])),
    "metrics of steps with unequally many rows": ("metrics of several weighed steps", lambda *_: {}),
    "rows of a buffer": ("replay buffer", _newest_first),
    "old rows of a buffer": ("replay buffer", _without_limits),
    "waiting for old rows": ("replay buffer", _without_limits),
    "prompts without a difference": ("replay buffer", _without_limits),
    "requests of conversations": ("shared requests", _first_server),
    "limits of a rollouter": ("limits of a rollouter", lambda *_: {}),
    "prompts that a rollouter requests": ("fed prompts", lambda *_: [None]),
}
