"""R31.trainer_tools: what a trainer logs, keeps, decides and reads of options, each against a plain definition."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import torch

from seatrial.relations.laws.utilities.numbers import Numbers
from seatrial.relations.laws.utilities.plain import Arguments, Plain, add_laws, relation_of

TRAINER_TOOLS = relation_of(
    "trainer_tools",
    "tools-of-a-trainer-are-their-definitions",
    "Logs have what was logged, checkpoints what was asked for, and options, tools and schedules are what they say.",
)
LOGGED: Sequence[tuple[int, Mapping[str, Any]]] = (
    (0, {"val-core/gsm8k/acc/mean@1": 0.25}),
    (1, {"actor/loss": -0.125, "critic/score/mean": 1, "name": "text"}),
    (7, {"actor/loss": 1e-9, "training/global_step": 7}),
)
"""Steps of a run, and what each logs."""


def tracked(project: str, experiment: str, steps: Sequence[tuple[int, Mapping[str, Any]]]) -> dict[str, Any]:
    """Return the file of a run, its records, and the lines that a console shows, which have numbers alone."""
    lines = [
        [f"step:{step}", *(f"{name}:{value!r}" for name, value in own.items() if not isinstance(value, str))]
        for step, own in steps
    ]
    return {
        "file": f"{project}/{experiment}.jsonl",
        "records": [{"step": step, "data": dict(own)} for step, own in steps],
        "console": [" - ".join(line) for line in lines],
    }


PARTS = ("model", "optimizer", "extra", "hf_model")
CONTENTS: Sequence[Mapping[str, Sequence[str]] | None] = (
    None,
    {"save_contents": ["model"], "load_contents": ["model", "optimizer", "extra"]},
    {"save_contents": ["optimizer", "hf_model"], "load_contents": ["extra"]},
    {"save_contents": ["extra"], "load_contents": ["hf_model", "optimizer"]},
    {"load_contents": ["model"]},
)
"""Options of checkpoints; None and what is missing is the default."""
BY_DEFAULT = ("model", "optimizer", "extra")


def contents(options: Mapping[str, Sequence[str]] | None) -> dict[str, list[str]]:
    """Return the parts that a checkpoint saves, and those that it loads."""
    given = options or {}
    return {
        name: [part for part in PARTS if part in given.get(f"{name}_contents", BY_DEFAULT)]
        for name in ("save", "load")
    }


ENDS: Sequence[tuple[str, float, float, float, float]] = (
    ("first", 100.0, 30.0, 60.0, 0.0),
    ("first", 80.0, 30.0, 60.0, 0.0),
    ("first", 100.0, 30.0, 60.0, 15.0),
    ("first", -5.0, 30.0, 60.0, 0.0),
    ("first", 50.0, 0.0, 60.0, 0.0),
    ("second", 100.0, 30.0, 60.0, 0.0),
    ("second", 80.0, 30.0, 60.0, 0.0),
    ("second", 100.0, 30.0, 60.0, 15.0),
    ("none", 80.0, 30.0, 60.0, 0.0),
)
"""Whose machine ends, seconds until then, and those of the longest step, of a save, and to spare."""


def saves_before_the_end(owner: str, left: float, step: float, save: float, spare: float) -> bool:
    """Return whether there is no time for a further step and a save."""
    if owner == "none" or (owner == "first" and (left <= 0 or step <= 0)):
        return False
    return left <= step + save + spare


POLICIES = ("default", "fixed_ratio", "static_fully_async")
LEAST, MOST, DOWN = 0.02, 0.1, 0.02
"""Of verl: bounds of the ratio's way up, and its way down."""
RECENT, CHANGE, SAMPLE = 3, 10.0, 1000.0
"""Of verl: changes that it averages, and seconds of a change and of a sample before there was one."""
Cycle = Mapping[str, Any]
"""What a policy is given of a step."""


def decisions(policy: str, ratio: float, only: bool, cycles: Sequence[Cycle]) -> list[list[Any]]:
    """Return of each step whether it is left, samples to wait for, whether it is entered again, and the ratio.

    The ratio of `default` follows the samples that were waited for: up by their share within bounds, and down where
    there was no wait. A policy enters again where samples are missing; `default` where the time that they take is more
    than that of a change.
    """
    ratio = 1.0 if only else ratio
    found: list[list[Any]] = []
    changes: list[float] = []
    seconds = SAMPLE
    for one in cycles:
        needed = one["samples"] * one["collections"]
        waited, times = sum(one["waited"]), sum(one["times"])
        gap = ratio * needed - (one["generated"] - one["expected"])
        if policy == "static_fully_async":
            again = False
        elif only:
            again = True
        elif policy == "fixed_ratio" or gap <= 0:
            again = gap > 0
        else:
            if times > 0 and waited > 0:
                seconds = times / waited
            recent = changes[-RECENT:]
            again = gap * seconds > (sum(recent) / len(recent) if recent else CHANGE)
        samples = 0 if policy == "static_fully_async" else int(needed * ratio)
        found.append([True, samples, again])
        if policy == "default" and not only:
            if one["change"] > 0:
                changes.append(one["change"])
            ratio = min(1.0, ratio + min(MOST, max(LEAST, waited / needed))) if waited else ratio - DOWN
        found[-1].append(float(ratio))
    return found


def _cycles(case: Numbers) -> Iterable[Arguments]:
    def cycle(waited: Sequence[int], times: Sequence[float], generated: int, change: float) -> Cycle:
        return {
            "samples": 8,
            "collections": 3,
            "waited": waited,
            "times": times,
            "generated": generated,
            "expected": 24,
            "change": change,
        }

    plans = (
        [
            cycle([0, 0], [0.0, 0.0], 25, 3.0),
            cycle([1, 0], [2.0, 0.1], 26, 0.0),
            cycle([8, 8], [9.0, 7.0], 24, 40.0),
        ],
        [
            cycle([4, 4], [0.4, 0.4], 24, 30.0),
            cycle([0, 0], [5.0, 5.0], 24, 20.0),
            cycle([2, 0], [0.1, 0.0], 90, 1.0),
        ],
        [cycle([1, 0], [1e-3, 0.0], 30, 0.5)] * 12,
    )
    for policy in POLICIES:
        for only in (False, True):
            for ratio in (0.3, 0.5):
                for plan in plans:
                    yield policy, ratio, only, plan


def renamed(values: Mapping[str, Any], prefix: str) -> dict[str, Any]:
    """Return the values by names with the prefix, once."""
    return {name if name.startswith(prefix) else prefix + name: value for name, value in values.items()}


def united(one: Mapping[str, Any], other: Mapping[str, Any]) -> dict[str, Any]:
    """Return both."""
    return {**one, **other}


NESTED: Sequence[Mapping[str, Any]] = (
    {"a": 1, "b": {"c": [1, {"d": 2}], "e": None}, "f": "text"},
    {"a": {"b": {"c": {"d": 0.5}}}},
    {},
)


def overridden(values: Mapping[str, Any], changes: Mapping[str, Any]) -> dict[str, Any]:
    """Return nested values with changes, which leave all else."""
    found = dict(values)
    for name, change in changes.items():
        found[name] = overridden(values[name], change) if isinstance(change, Mapping) else change
    return found


TOOL_NAMES = ("search", "search_again", None)
"""Names that a tool is given; None leaves that of its function."""


def described(name: str | None) -> dict[str, Any]:
    """Return what a model is given of the tool `look_up(city: str, days: int = 3)`."""
    return {
        "name": name or "look_up",
        "description": "Look up the weather.",
        "parameters": {
            "city": {"type": "string", "description": "Where."},
            "days": {"type": "integer", "description": "How many days."},
        },
        "required": ["city"],
        "called": "Zürich 3",
    }


def results_as_text(results: Sequence[str], names: Sequence[str]) -> str:
    """Return the results of tools in the format of gpt-oss, and the start of an answer."""
    parts = [
        f"<|start|>functions.{name} to=assistant<|channel|>commentary<|message|>{result}<|end|>"
        for result, name in zip(results, names, strict=True)
    ]
    return "".join(parts) + "<|start|>assistant"


def order(number: int, shuffled: bool, seed: int | None) -> dict[str, Any]:
    """Return whether rows come in order, each once, with its seed again, and with another seed or none too."""
    return {
        "rows": list(range(number)),
        "in order": not shuffled,
        "again": True if not shuffled or seed is not None else None,
        "of another seed": not shuffled if seed is not None else None,
    }


def counted(one: torch.Tensor, other: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
    """Return how many shown values of each row differ."""
    rows = zip(one.tolist(), other.tolist(), mask.tolist(), strict=True)
    return torch.tensor(
        [
            sum(bool(shown) and mine != theirs for mine, theirs, shown in zip(*row, strict=True))
            for row in rows
        ]
    )


def _differences(case: Numbers) -> Iterable[Arguments]:
    stream = case.generator()
    one = torch.randint(9, (4, 7), generator=stream)
    other = torch.where(torch.rand(4, 7, generator=stream) < 0.5, one, one + 1)
    yield one, other, torch.randint(2, (4, 7), generator=stream)
    yield one, other, torch.ones(4, 7, dtype=torch.long)


def waits(rate: float, most: float | None, requests: Sequence[tuple[float, float]]) -> list[float]:
    """Return when each request, of which the time and the tokens are given, gets its tokens; the bucket starts full."""
    size = most or rate
    tokens, now, found = size, 0.0, []
    for time, wanted in requests:
        start = max(now, time)
        tokens, now = min(size, tokens + (start - now) * rate), start
        if wanted > tokens:
            now += (wanted - tokens) / rate
            tokens = wanted
        tokens -= wanted
        found.append(now)
    return found


REQUESTS: Sequence[tuple[float, float | None, Sequence[tuple[float, float]]]] = (
    (2.0, None, [(0.0, 1.0)] * 5),
    (2.0, 6.0, [(0.0, 5.0), (1.0, 1.0), (1.0, 4.0)]),
    (0.5, 1.0, [(0.0, 1.0), (10.0, 1.0), (10.0, 0.5)]),
)

SCORES = (-2.0, 0.5, 0.5, 1.0, 3.0, 0.0)
"""Of rows that are resampled by their scores, many times over."""


def resampled(scores: Sequence[float], method: str, power: float) -> tuple[bool, dict[str, float]]:
    """Return whether rows stay whole, and the share of each score: its weight by PF-PPO (arXiv 2409.06957)."""
    best, worst = max(scores), min(scores)
    weight: dict[str, Callable[[float], float]] = {
        "pow": lambda score: abs(score) ** power,
        "max_min": lambda score: float(score in (best, worst)),
        "max_random": lambda score: 0.4 if score == best else 0.1,
    }
    weights = [weight[method](score) for score in scores]
    shares = {str(score): 0.0 for score in scores}
    for score, own in zip(scores, weights, strict=True):
        shares[str(score)] += own / sum(weights)
    return True, shares


TRAINER_TOOL_FUNCTIONS = (
    Plain(
        name="tracked",
        law="what a run logs",
        suspects="another step, values that are rounded, a file of another run",
        cases=lambda case: [("project", "a run", LOGGED), ("other", "b", LOGGED[1:])],
        right=tracked,
    ),
    Plain(
        name="contents of checkpoints",
        law="what checkpoints save and load",
        suspects="contents to save for those to load, a default in place of what is given",
        cases=lambda case: [(options,) for options in CONTENTS],
        right=contents,
    ),
    Plain(
        name="saved before the end",
        law="saves before a machine ends",
        suspects="minutes for seconds, time to spare that is left out",
        cases=lambda case: ENDS,
        right=saves_before_the_end,
    ),
    Plain(
        name="decisions of a schedule",
        law="decisions of schedules of rollouts",
        suspects="samples of one collection, waits of all samples, a ratio without its bounds",
        cases=_cycles,
        right=decisions,
        bound=1e-9,
    ),
    Plain(
        name="renamed",
        law="names with a prefix",
        suspects="a prefix twice",
        cases=lambda case: [({"a": 1, "val/b": 2, "valid": 3}, "val/"), ({"a": 1}, "")],
        right=renamed,
    ),
    Plain(
        name="united",
        law="facts of two batches",
        suspects="one side's values lost",
        cases=lambda case: [({"a": 1, "b": [2]}, {"b": [2], "c": None}), ({}, {"a": 0})],
        right=united,
    ),
    Plain(
        name="namespaces",
        law="nested values by name",
        suspects="a level that stays a dictionary",
        cases=lambda case: [(values,) for values in NESTED],
        right=lambda values: json.loads(json.dumps(values)),
    ),
    Plain(
        name="regular values",
        law="options as plain values",
        suspects="lists within lists, numbers as text",
        cases=lambda case: [(values,) for values in NESTED],
        right=lambda values: json.loads(json.dumps(values)),
    ),
    Plain(
        name="overridden",
        law="a configuration with changes",
        suspects="a level that is replaced as a whole",
        cases=lambda case: [
            ({"a": 1, "b": {"c": 2, "d": {"e": 3, "f": 4}}}, {"a": 5, "b": {"d": {"e": 6}}}),
            ({"a": {"b": 1}}, {}),
        ],
        right=overridden,
    ),
    Plain(
        name="tool of a function",
        law="tools of functions",
        suspects="the function's name for the tool's, an argument without its type",
        cases=lambda case: [(name,) for name in TOOL_NAMES],
        right=described,
    ),
    Plain(
        name="results as text",
        law="results of tools as text",
        suspects="the name of another tool, results in another order",
        cases=lambda case: [(["7", "{}"], ["weather", "time"]), (["a b"], ["x"])],
        right=results_as_text,
    ),
    Plain(
        name="resampled rows",
        law="rows that are resampled by their scores",
        suspects="weights of another power, columns of other rows, scores without their sign",
        cases=lambda case: (
            [(SCORES, "pow", 1.0), (SCORES, "pow", 2.0)]
            + [(SCORES, method, 1.0) for method in ("max_min", "max_random")]
        ),
        right=resampled,
        bound=0.03,  # four deviations of a share in 6,000 draws
    ),
    Plain(
        name="order of rows",
        law="the order of rows of a run",
        suspects="a seed that is not used, also if it is 0, an order without shuffling",
        cases=lambda case: [(9, False, 3), (9, True, 3), (9, True, 0), (9, True, None)],
        right=order,
    ),
    Plain(
        name="differences of tokens",
        law="tokens that differ",
        suspects="padding counts, equal tokens count",
        cases=_differences,
        right=counted,
    ),
    Plain(
        name="waits of requests",
        law="waits of a limit of requests",
        suspects="a bucket that starts empty or has no bound, a wait of all tokens",
        cases=lambda case: REQUESTS,
        right=waits,
        bound=1e-6,
    ),
)
add_laws(TRAINER_TOOLS, TRAINER_TOOL_FUNCTIONS)
