"""R19, R26 for a running engine: its random stream continues from call to call, and an abort stops generation."""

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
"""Time after which generation has started; an engine that has not started aborts at its first token."""


@dataclass(frozen=True, kw_only=True)
class EngineCase(Case):
    """Prompts to sample in several calls."""

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
        """Prompts of unequal length, the same for every call."""
        return [
            tuple(3 + (self.seed + row + place) % 30 for place in range(1 + row % 4))
            for row in range(self.num_prompts)
        ]


def _make(stack: Any, seed: int, tidy: bool) -> EngineCase:
    return EngineCase(num_prompts=4, max_new_tokens=10, seed=seed)


def _make_long(stack: Any, seed: int, tidy: bool) -> EngineCase:
    """Return a batch whose generation takes seconds."""
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
    statement="An engine stops generating on abort, in whichever process it runs, and serves again after resume.",
    catalogue="SB050 SB188",
    cost="CPU, seconds",
    cases=_make_long,
    seeded=False,
)
THE_RANDOM_STREAM_CONTINUES = Relation(
    id="R26.engine",
    name="the-random-stream-continues",
    component="generation_engine",
    statement="Successive calls of an engine draw different random numbers, and the same sequence for the same seed.",
    catalogue="SB051 SB056",
    cost="CPU, milliseconds",
    cases=_make,
)


@THE_RANDOM_STREAM_CONTINUES.law(
    "calls draw different numbers",
    "a random state copied to the engine's process and not copied back",
)
def calls_draw_different_numbers(stack: Any, case: EngineCase) -> Measure:
    """Successive calls draw different completions; the same seed repeats the sequence of calls."""
    calls, again = _calls(stack, case), _calls(stack, case)
    alike = [
        f"call {other} draws the same as call {one}"
        for one in range(len(calls))
        for other in range(one + 1, len(calls))
        if calls[one] == calls[other]
    ]
    alike += [
        f"call {number} does not repeat with the same seed"
        for number, rows in enumerate(calls)
        if rows != again[number]
    ]
    return Measure.count(alike, "calls that repeat another call, or do not repeat with the same seed")


@AN_ABORT_ENDS_WHAT_RUNS.law(
    "an abort ends what runs",
    "an abort queued behind the generation it should stop, an engine that never checks for one",
)
def abort_ends_what_runs(stack: Any, case: EngineCase) -> Measure:
    """An abort stops all rows; after `resume` completions are generated to their end."""
    engine = stack.open_engine(seed=case.seed)
    words = {"max_new_tokens": case.max_new_tokens}
    try:
        with ThreadPoolExecutor(1) as aside:
            running = aside.submit(engine.generate, case.prompts, **words)
            time.sleep(BEGUN_S)
            engine.abort()
            aborted = running.result()
        engine.resume()
        whole = engine.generate(case.prompts[:2], **words)
    finally:
        engine.close()
    stopped = len(aborted) == case.num_prompts and all(row.finish_reason == "abort" for row in aborted)
    cut = sum(row.finish_reason == "abort" for row in whole)
    longest = max(len(row.ids) for row in aborted)
    what = (
        "rows aborted after `resume` (inf: the abort did not stop every row); "
        f"the longest row before it has {longest} of {case.max_new_tokens} tokens"
    )
    return Measure(error=float(cut) if stopped else math.inf, bound=0, what=what)
