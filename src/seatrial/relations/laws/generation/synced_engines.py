"""R6, R7, R26 for an engine synced after updates: its weights and log-probabilities are the policy's."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from typing import Any

import torch

from seatrial.relations.cases.case import Case
from seatrial.relations.contracts.syncs import Filters, OpenSync
from seatrial.relations.law import Measure, Relation
from seatrial.relations.records import Sampled
from seatrial.relations.worst import Worst

BOUND = 1e-4
"""Nats, in float32. A model with peaked logits has larger rounding errors."""
FILTERS = (
    Filters(),
    Filters(temperature=0.7),
    Filters(temperature=0.7, top_p=0.8),
    Filters(temperature=1.3, top_k=7),
)
WORDS = (" =7;", " no\n")
"""The environment's messages between turns."""


@dataclass(frozen=True, kw_only=True)
class UpdatesCase(Case):
    """Number of updates, with a sync after each."""

    num_updates: int
    tied: bool
    sent: bool
    seed: int

    def smaller(self) -> Iterator[UpdatesCase]:
        """Yield fewer updates, then an untied head, then weights that are not sent."""
        if self.num_updates > 1:
            yield replace(self, num_updates=self.num_updates - 1)
        if self.tied:
            yield replace(self, tied=False)
        if self.sent:
            yield replace(self, sent=False)

    @property
    def prompts(self) -> list[tuple[int, ...]]:
        """Prompts of unequal length: one repeated, one longer than any cache block."""
        rows = [
            tuple(3 + (self.seed + 7 * row + place) % 30 for place in range(1 + 2 * row)) for row in range(3)
        ]
        long = tuple(3 + (self.seed + place) % 40 for place in range(180))
        return [rows[0], rows[1], rows[2], rows[1], long]


def _make(stack: Any, seed: int, tidy: bool) -> UpdatesCase:
    return UpdatesCase(num_updates=1 if tidy else 2, tied=False, sent=False, seed=seed)


def _make_tied(stack: Any, seed: int, tidy: bool) -> UpdatesCase:
    return replace(_make(stack, seed, tidy), tied=True)


def _make_sent(stack: Any, seed: int, tidy: bool) -> UpdatesCase:
    return replace(_make(stack, seed, tidy), sent=True)


def _make_many(stack: Any, seed: int, tidy: bool) -> UpdatesCase:
    return replace(_make_sent(stack, seed, tidy), num_updates=3 if tidy else 20)


TRAINED = Relation(
    id="R7.trained",
    name="a-synced-engine-has-the-policy",
    component="trained_sync",
    statement="After every update and sync the engine has exactly the policy's weights, in the dtype of the sync.",
    catalogue="SB237 SB260 SB261 SB269 SB289 SB305 SB020",
    cost="CPU, seconds",
    cases=_make,
)
ENGINE = Relation(
    id="R6.engine",
    name="engine-and-policy-agree-after-syncs",
    component="trained_sync",
    statement="After every sync the engine's log-probabilities of its samples are the policy's.",
    catalogue="SB237 SB249 SB262 SB273 SB039 SB038 SB188",
    cost="CPU, seconds",
    cases=_make,
)
ROWS = Relation(
    id="R26.rows",
    name="rows-have-their-own-randomness",
    component="trained_sync",
    statement="Equal prompts in a call get different samples; the same seed repeats them, another seed does not.",
    catalogue="SB040 SB051 SB312",
    cost="CPU, milliseconds",
    cases=_make,
)


@TRAINED.law(
    "the same bits",
    "stale copies taken for live weights, a skipped sync, a version never set",
)
@TRAINED.law(
    "the same bits for a tied model",
    "a head no longer tied to the received embedding",
    cases=_make_tied,
)
@TRAINED.law(
    "the same bits when they are sent",
    "weights received but not loaded, changes left out",
    cases=_make_sent,
)
def same_bits(stack: Any, case: UpdatesCase) -> Measure:
    """After each sync engine and policy have the same tensor names, the same bits and the same version."""
    wrong: list[str] = []
    with closing(stack.open_sync(tied=case.tied, sent=case.sent, filters=Filters())) as opened:
        for _ in range(case.num_updates):
            version = opened.train()
            opened.sync()
            trained, served = opened.trained_tensors(), opened.served_tensors()
            wrong += [f"{name}, on one side only" for name in sorted(trained.keys() ^ served.keys())]
            wrong += [
                f"{name}, version {version}"
                for name in sorted(trained.keys() & served.keys())
                if not torch.equal(trained[name].cpu(), served[name].cpu())
            ]
            if opened.served_version() != version:
                wrong.append(
                    f"the engine reports version {opened.served_version()}, the policy has {version}"
                )
    return Measure.count(wrong, "tensors or versions of the engine that differ from the policy's")


@ENGINE.law(
    "log-probabilities agree",
    "a key-value cache of older weights, weights received but not loaded, "
    "log-probabilities taken before temperature and filters",
)
def logprobs_agree(stack: Any, case: UpdatesCase) -> Measure:
    """The engine's log-probabilities are the policy's under every filter, also for prompts it has cached."""
    worst = Worst(place="none")
    for filters in FILTERS:
        with closing(stack.open_sync(tied=case.tied, sent=case.sent, filters=filters)) as opened:
            for number in range(case.num_updates + 1):
                if number:
                    opened.train()
                    opened.sync()
                rows = opened.sample(case.prompts, seed=case.seed)
                worst.add(_gap(opened, rows), f"after {number} syncs, {filters}")
    return Measure(error=worst.error, bound=BOUND, what=f"nats between engine and policy ({worst.place})")


@ENGINE.law(
    "log-probabilities agree after twenty syncs",
    "errors that accumulate over syncs, one of many syncs skipped",
    cases=_make_many,
    seeded=False,
)
def logprobs_agree_after_many_syncs(stack: Any, case: UpdatesCase) -> Measure:
    """The engine's log-probabilities are the policy's after the first two syncs and after the last of many."""
    worst = Worst(place="none")
    with closing(stack.open_sync(tied=case.tied, sent=case.sent, filters=FILTERS[1])) as opened:
        for number in range(1, case.num_updates + 1):
            opened.train()
            opened.sync()
            if number > 2 and number < case.num_updates:
                continue
            rows = opened.sample(case.prompts, seed=case.seed)
            worst.add(_gap(opened, rows), f"after {number} syncs")
    return Measure(error=worst.error, bound=BOUND, what=f"nats between engine and policy ({worst.place})")


@ENGINE.law(
    "log-probabilities agree over several turns",
    "later turns sampled with other filters, environment tokens shifted by one, "
    "a key-value cache of the previous turn",
    seeded=False,
)
def logprobs_agree_over_turns(stack: Any, case: UpdatesCase) -> Measure | None:
    """Sampled tokens of every turn have the policy's log-probabilities when the episode is scored as one row."""
    worst, num_later = Worst(place="none"), 0
    for filters in FILTERS[1:]:
        with closing(stack.open_sync(tied=case.tied, sent=case.sent, filters=filters)) as opened:
            for number in range(case.num_updates + 1):
                if number:
                    opened.train()
                    opened.sync()
                episodes = opened.converse(case.prompts, WORDS, seed=case.seed + number)
                num_later += sum(0 in one.mask for one in episodes)
                gap = _gap(opened, [one.row for one in episodes], [one.mask for one in episodes])
                worst.add(gap, f"after {number} syncs, {filters}")
    if not num_later:
        return None
    return Measure(
        error=worst.error,
        bound=BOUND,
        what=f"nats between engine and policy, {num_later} rows with a message of the environment ({worst.place})",
    )


def _gap(opened: OpenSync, rows: Sequence[Sampled], masks: Sequence[tuple[int, ...]] | None = None) -> float:
    """Return the largest distance, in nats, between engine and policy at a sampled token; arguments as of `score`."""
    worst = Worst()
    for place, (row, logprobs) in enumerate(zip(rows, opened.score(rows, masks), strict=True)):
        gap_T = (torch.tensor(row.logprobs) - torch.tensor(logprobs)).abs()
        if masks is not None:
            gap_T = gap_T[torch.tensor(masks[place]).bool()]
        worst.add(float(gap_T.max()), f"row {place}")
    return worst.error


def _needs_other_engines(stack: Any) -> str | None:
    return None if getattr(stack, "other_engines", ()) else "other_engines is empty"


@ENGINE.law(
    "log-probabilities agree, other engines",
    "padding that new tokens see, a mask or a cache that keeps its order when rows end, filters not passed on",
    excluded=_needs_other_engines,
    seeded=False,
)
def logprobs_agree_in_other_engines(stack: Any, case: UpdatesCase) -> Measure:
    """Each engine's log-probabilities of one and of several turns are the policy's, after an update and a sync."""
    worst = Worst(place="none")
    for engine in stack.other_engines:
        with closing(
            stack.open_sync(tied=case.tied, sent=case.sent, filters=FILTERS[2], engine=engine)
        ) as opened:
            opened.train()
            opened.sync()
            worst.add(_gap(opened, opened.sample(case.prompts, seed=case.seed)), engine)
            episodes = opened.converse(case.prompts, WORDS, seed=case.seed)
            worst.add(_gap(opened, [one.row for one in episodes], [one.mask for one in episodes]), engine)
    return Measure(error=worst.error, bound=BOUND, what=f"nats between engine and policy ({worst.place})")


@ENGINE.law("top-k is applied", "a filter not passed to the engine")
def top_k_is_applied(stack: Any, case: UpdatesCase) -> Measure | None:
    """A token has at most top_k candidates; more are allowed for ties with the last one (in bfloat16)."""
    with closing(stack.open_sync(tied=case.tied, sent=case.sent, filters=Filters(top_k=3))) as opened:
        rows = opened.sample(case.prompts * 4, seed=case.seed)
    kept = [len(ids) for row in rows for ids in row.kept_ids or ()]
    if not kept:
        return None
    wide = sum(number > 3 for number in kept)
    return Measure(
        error=wide / len(kept), bound=0.25, what=f"share of {len(kept)} tokens drawn from more than 3 ids"
    )


@ROWS.law(
    "rows have their own randomness", "one seed for all rows of a call, a seed not passed to the engine"
)
def rows_have_their_own_randomness(stack: Any, case: UpdatesCase) -> Measure:
    """Equal prompts in a call get different tokens; the same seed repeats them, another seed does not."""
    prompts = [case.prompts[1]] * 6
    wrong = []
    with closing(stack.open_sync(tied=case.tied, sent=case.sent, filters=Filters(temperature=2.0))) as opened:
        first, again, other = (
            [row.ids for row in opened.sample(prompts, seed=seed)]
            for seed in (case.seed, case.seed, case.seed + 1)
        )
    if len(set(first)) < len(first):
        wrong.append("rows of one prompt are equal")
    if first != again:
        wrong.append("the same seed draws other tokens the second time")
    if first == other:
        wrong.append("another seed draws the same tokens")
    return Measure.count(wrong, "draws that do not follow seed and row")


@ROWS.law(
    "other engines draw the same rows",
    "random numbers of another row or place, one number for all tokens of a row, parameters of an earlier call",
    excluded=lambda stack: (
        _needs_other_engines(stack)
        or (None if getattr(stack, "engines_draw_alike", False) else "engines_draw_alike=False")
    ),
    seeded=False,
)
def other_engines_draw_the_same_rows(stack: Any, case: UpdatesCase) -> Measure:
    """Compare the rows that each engine draws with those of the configured one, in two calls with other filters."""
    calls = (FILTERS[1], FILTERS[3])

    def drawn(**engine: str) -> list[tuple[int, ...]]:
        with closing(stack.open_sync(tied=case.tied, sent=case.sent, filters=calls[0], **engine)) as opened:
            return [
                row.ids
                for filters in calls
                for row in opened.sample(case.prompts, seed=case.seed, filters=filters)
            ]

    right = drawn()
    wrong = [
        f"{engine}, row {row}: {given} for {ids}"
        for engine in stack.other_engines
        for row, (given, ids) in enumerate(zip(drawn(engine=engine), right, strict=True))
        if given != ids
    ]
    return Measure.count(wrong, "rows that differ from those of the configured engine")
