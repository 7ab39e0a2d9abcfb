"""R31.asynchronous: what is between rollouts and training that run at once loses no row, and counts each of them."""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import torch

from seatrial.relations.laws.utilities.numbers import Numbers
from seatrial.relations.laws.utilities.plain import Plain, add_laws, relation_of

ASYNCHRONOUS = relation_of(
    "asynchronous",
    "rows-between-rollouts-and-training-are-kept-and-counted",
    "Queues and buffers give each finished row once, the oldest first, and what is said of a batch is of its rows.",
)


class Answered(NamedTuple):
    """A row that a rollout left, of one prompt."""

    seconds: float
    tool_seconds: float
    first_version: int
    last_version: int
    """Of the weights that its first and last tokens are of."""
    num_prompt: int
    num_answer: int


def _queued(capacity: int, operations: Sequence[tuple[str, Any]]) -> list[Any]:
    """Return what each operation on a queue gives; a full queue loses its oldest row."""
    held: deque[Any] = deque()
    given: list[Any] = []
    counts = {"produced": 0, "consumed": 0, "dropped": 0}
    for name, value in operations:
        if name == "put":
            full = len(held) >= capacity
            if full:
                held.popleft()
            held.append(value)
            counts["produced"] += 1
            counts["dropped"] += full
            given.append(not full)
        elif name == "get":
            one = held.popleft()
            counts["consumed"] += 1
            given.append([one, len(held)])
        elif name == "clear":
            held.clear()
            given.append(None)
        else:
            given.append({**counts, "size": len(held)})
    return given


def _operations(case: Numbers) -> list[tuple[Any, ...]]:
    generator, found = case.generator(), []
    for capacity in (1, 3, 8):
        operations: list[tuple[str, Any]] = []
        size = 0
        for number in range(24):
            gets = size > 0 and bool(torch.rand((), generator=generator) < 0.4)
            operations.append(("get", None) if gets else ("put", f"row {number}"))
            size = size - 1 if gets else min(size + 1, capacity)
            if number in (9, 17):
                operations.append(("count", None))
            if number == 13:
                operations.append(("clear", None))
                size = 0
        found.append((capacity, [*operations, ("count", None)]))
    return found


def _answered(case: Numbers) -> list[tuple[Any, ...]]:
    generator = case.generator()
    found = []
    for sizes in ((2, 3), (1,), (2, 2, 2)):
        samples = []
        for size in sizes:
            draws = torch.randint(1, 6, (size, 6), generator=generator).tolist()
            samples.append(
                [
                    Answered(draw[0] / 4, draw[1] / 8, draw[2], draw[2] + draw[3] - 1, draw[4], draw[5])
                    for draw in draws
                ]
            )
        found.append((samples,))
    return found


def _assembled(samples: Sequence[Sequence[Answered]]) -> dict[str, Any]:
    """Return the facts of a batch that is made of several prompts' rows."""
    rows = [row for sample in samples for row in sample]
    seconds = [row.seconds for row in rows]
    tools = [row.tool_seconds for row in rows]
    spans = [row.last_version - row.first_version for row in rows]
    times = torch.tensor(seconds, dtype=torch.float64)
    partial = sum(span != 0 for span in spans)
    return {
        "order": list(range(len(rows))),
        "tokens": [row.num_prompt + row.num_answer for row in rows],
        "answers": [row.num_answer for row in rows],
        "versions": len({row.last_version for row in rows}),
        "trajectory versions": [row.last_version for row in rows],
        "fully_async/processing_time/avg": sum(seconds) / len(rows),
        "fully_async/processing_time/max": max(seconds),
        "fully_async/processing_time/min": min(seconds),
        "fully_async/processing_time/tp50": float(times.quantile(0.5)),
        "fully_async/processing_time/tp95": float(times.quantile(0.95)),
        "fully_async/processing_time/tp99": float(times.quantile(0.99)),
        "timing_s/agent_loop/tool_calls/max": max(tools),
        "timing_s/agent_loop/tool_calls/min": min(tools),
        "timing_s/agent_loop/tool_calls/mean": sum(tools) / len(tools),
        "fully_async/partial/total_partial_num": float(partial),
        "fully_async/partial/partial_ratio": partial / len(rows),
        "fully_async/partial/max_partial_span": float(max(spans)),
    }


def _steps(case: Numbers) -> list[tuple[Any, ...]]:
    generator = case.generator()
    found = []
    for number in (1, 2, 4):
        draws = (torch.randint(1, 64, (number, 9), generator=generator) / 8).tolist()
        found.append(
            (
                [
                    {
                        "critic/score/mean": draw[0],
                        "response_length/max": draw[1],
                        "response_length/min": draw[2],
                        "timing_s/gen": draw[3],
                        "timing_s/step": draw[3] + draw[4],
                        "perf/total_num_tokens": draw[5],
                        "perf/time_per_step": draw[6],
                        "perf/throughput": draw[5] / draw[6],
                        "training/global_step": float(step),
                        "global_seqlen/max": draw[7] + draw[8],
                        "global_seqlen/min": draw[7],
                        "global_seqlen/minmax_diff": draw[8],
                        "actor/pg_loss": draw[8] - 4,
                    }
                    for step, draw in enumerate(draws)
                ],
                4,
            )
        )
    return found


def _of_steps(steps: Sequence[Mapping[str, float]], gpus: int) -> dict[str, float]:
    """Return the metrics of steps of equally many rows between two updates of the sampler's weights."""

    def of(name: str) -> list[float]:
        return [step[name] for step in steps]

    tokens, seconds = sum(of("perf/total_num_tokens")), sum(of("perf/time_per_step"))
    largest, smallest = max(of("global_seqlen/max")), min(of("global_seqlen/min"))
    return {
        "critic/score/mean": sum(of("critic/score/mean")) / len(steps),
        "response_length/max": max(of("response_length/max")),
        "response_length/min": min(of("response_length/min")),
        "timing_s/gen": sum(of("timing_s/gen")),
        "timing_s/step": sum(of("timing_s/step")),
        "perf/total_num_tokens": tokens,
        "perf/time_per_step": seconds,
        "perf/throughput": tokens / (seconds * gpus),
        "training/global_step": steps[-1]["training/global_step"],
        "global_seqlen/max": largest,
        "global_seqlen/min": smallest,
        "global_seqlen/minmax_diff": largest - smallest,
        "actor/pg_loss": sum(of("actor/pg_loss")) / len(steps),
        "fully_async/trainer/idle_ratio": sum(of("timing_s/gen")) / sum(of("timing_s/step")),
    }


WEIGHED = (
    "critic/score/mean", "actor/pg_loss", "response_length/max", "response_length/min", "timing_s/gen",
    "timing_s/step", "perf/total_num_tokens", "training/global_step", "global_seqlen/minmax_diff",
)  # fmt: skip
"""Names whose values over steps of unequally many rows are defined."""


def _weighed(steps: Sequence[Mapping[str, float]], counts: Sequence[int]) -> dict[str, float]:
    """Return the same of steps of unequally many rows, whose means are weighed by them."""

    def of(name: str) -> list[float]:
        return [step[name] for step in steps]

    def mean(name: str) -> float:
        return sum(value * count for value, count in zip(of(name), counts, strict=True)) / sum(counts)

    largest, smallest = max(of("global_seqlen/max")), min(of("global_seqlen/min"))
    return {
        "critic/score/mean": mean("critic/score/mean"),
        "actor/pg_loss": mean("actor/pg_loss"),
        "response_length/max": max(of("response_length/max")),
        "response_length/min": min(of("response_length/min")),
        "timing_s/gen": sum(of("timing_s/gen")),
        "timing_s/step": sum(of("timing_s/step")),
        "perf/total_num_tokens": sum(of("perf/total_num_tokens")),
        "training/global_step": steps[-1]["training/global_step"],
        "global_seqlen/minmax_diff": largest - smallest,
    }


ASYNCHRONOUS_FUNCTIONS = (
    Plain(
        name="message queue",
        law="a queue of rows",
        suspects="the newest row lost of a full queue, the last row given first, rows counted twice",
        cases=_operations,
        right=_queued,
    ),
    Plain(
        name="assembled batch",
        law="a batch of several prompts' rows",
        suspects="versions of the first token for those of the last, times of one prompt, rows in another order",
        cases=_answered,
        right=_assembled,
        bound=1e-6,
    ),
    Plain(
        name="metrics of several steps",
        law="metrics of several steps",
        suspects="a mean of extremes, a throughput that is a mean, times of the last step",
        cases=_steps,
        right=_of_steps,
        bound=1e-9,
    ),
    Plain(
        name="metrics of several weighed steps",
        law="metrics of steps with unequally many rows",
        suspects="a mean of means, a mean of extremes, weights of another step",
        cases=lambda case: [
            (steps, [3 * (number % 3) + 1 for number in range(len(steps))]) for steps, _ in _steps(case)
        ],
        right=_weighed,
        bound=1e-9,
    ),
)
add_laws(ASYNCHRONOUS, ASYNCHRONOUS_FUNCTIONS)
