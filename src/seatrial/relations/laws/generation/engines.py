"""R19, R26 of an engine where it runs: its random stream goes on from call to call, and an abort ends what it does."""

from __future__ import annotations

import math
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from typing import Any

from seatrial.relations.cases.case import Case
from seatrial.relations.law import Measure, Relation

BEGUN_S = 0.3
"""After so long a generation has begun: one that has not gives up at its first token."""


@dataclass(frozen=True, kw_only=True)
class EngineCase(Case):
    """Prompts that are sampled several times."""

    num_prompts: int
    max_new_tokens: int
    seed: int
    num_calls: int = 3

    def smaller(self) -> Iterator[EngineCase]:
        """Yield fewer prompts."""
        if self.num_prompts > 2:
            yield replace(self, num_prompts=self.num_prompts // 2)

    @property
    def prompts(self) -> list[tuple[int, ...]]:
        """Return prompts of unequal length, the same ones whenever they are asked for."""
        return [
            tuple(3 + (self.seed + row + place) % 30 for place in range(1 + row % 4))
            for row in range(self.num_prompts)
        ]


def _make(stack: Any, seed: int, tidy: bool) -> EngineCase:
    return EngineCase(num_prompts=4, max_new_tokens=10, seed=seed)


def _make_long(stack: Any, seed: int, tidy: bool) -> EngineCase:
    """Return rows that take seconds."""
    return EngineCase(num_prompts=1500, max_new_tokens=200, seed=seed)


def _calls(stack: Any, case: EngineCase) -> list[list[tuple[int, ...]]]:
    engine = stack.open_engine(seed=case.seed)
    try:
        return [
            [row.ids for row in engine.generate(case.prompts, max_new_tokens=case.max_new_tokens)]
            for _ in range(case.num_calls)
        ]
    finally:
        engine.close()


AN_ABORT_ENDS_WHAT_RUNS = Relation(
    id="R19.engine",
    name="an-abort-ends-what-runs",
    component="generation_engine",
    statement="An engine gives up what it generates when it is told to, wherever it runs, and goes on when it may.",
    catalogue="SB050 SB188",
    cost="CPU, seconds",
    cases=_make_long,
    seeded=False,
)
A_STREAM_GOES_ON = Relation(
    id="R26.engine",
    name="a-stream-goes-on",
    component="generation_engine",
    statement="Calls of an engine with one random stream draw different numbers, the same ones from one seed.",
    catalogue="SB051 SB056",
    cost="CPU, milliseconds",
    cases=_make,
)


@A_STREAM_GOES_ON.law(
    "calls draw their own numbers",
    "a stream that is copied to where the engine is, and not brought back",
)
def stream_goes_on(stack: Any, case: EngineCase) -> Measure:
    """Calls with one stream draw numbers of their own, and the same ones whenever it begins again."""
    calls, again = _calls(stack, case), _calls(stack, case)
    alike = [
        f"call {other} draws as call {one}"
        for one in range(len(calls))
        for other in range(one + 1, len(calls))
        if calls[one] == calls[other]
    ]
    alike += [f"call {number} does not repeat" for number, rows in enumerate(calls) if rows != again[number]]
    what = f"calls that draw what others drew, or do not repeat ({(alike or ['none'])[0]})"
    return Measure(error=float(len(alike)), bound=0, what=what)


@AN_ABORT_ENDS_WHAT_RUNS.law(
    "an abort ends what runs",
    "an abort that waits behind what it is to end, an engine that does not look for one",
)
def abort_ends(stack: Any, case: EngineCase) -> Measure:
    """What runs is given up within a few tokens; after `resume` everything is generated to its end."""
    engine = stack.open_engine(seed=case.seed)
    words = {"max_new_tokens": case.max_new_tokens}
    try:
        with ThreadPoolExecutor(1) as aside:
            running = aside.submit(engine.generate, case.prompts, **words)
            time.sleep(BEGUN_S)
            engine.abort()
            given_up = running.result()
        engine.resume()
        whole = engine.generate(case.prompts[:2], **words)
    finally:
        engine.close()
    ended = len(given_up) == case.num_prompts and all(row.finish_reason == "abort" for row in given_up)
    cut = sum(row.finish_reason == "abort" for row in whole)
    longest = max(len(row.ids) for row in given_up)
    what = f"rows cut after `resume`; the abort came after {longest} of {case.max_new_tokens} tokens (inf: too late)"
    return Measure(error=float(cut) if ended else math.inf, bound=0, what=what)
