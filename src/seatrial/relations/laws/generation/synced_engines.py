"""R6, R7, R26 of an engine between updates: its weights are the policy's, and so is what it says of what it samples."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass, replace
from typing import Any

import torch

from seatrial.relations.cases.case import Case
from seatrial.relations.contracts.syncs import Filters
from seatrial.relations.law import Measure, Relation

BOUND = 1e-4
"""Nats, in float32; a peaked model rounds more than a flat one."""
FILTERS = (
    Filters(),
    Filters(temperature=0.7),
    Filters(temperature=0.7, top_p=0.8),
    Filters(temperature=1.3, top_k=7),
)
WORDS = (" =7;", " no\n")
"""What an environment writes between turns."""


@dataclass(frozen=True, kw_only=True)
class UpdatesCase(Case):
    """Updates, a sync after each."""

    num_updates: int
    tied: bool
    sent: bool
    seed: int

    def smaller(self) -> Iterator[UpdatesCase]:
        """Yield fewer updates, then a head of its own."""
        if self.num_updates > 1:
            yield replace(self, num_updates=self.num_updates - 1)
        if self.tied:
            yield replace(self, tied=False)
        if self.sent:
            yield replace(self, sent=False)

    @property
    def prompts(self) -> list[tuple[int, ...]]:
        """Return prompts of unequal length, one of them twice, one longer than a block of any cache."""
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
    name="after-a-sync-the-engine-has-the-policy",
    component="trained_sync",
    statement="After every update and sync the engine computes with the policy's bits, in the type that travels.",
    catalogue="SB237 SB260 SB261 SB269 SB289 SB305 SB020",
    cost="CPU, seconds",
    cases=_make,
)
ENGINE = Relation(
    id="R6.engine",
    name="engine-and-policy-agree-after-syncs",
    component="trained_sync",
    statement="After every sync the engine's log-probabilities of what it samples are the policy's.",
    catalogue="SB237 SB249 SB262 SB273 SB039 SB038 SB188",
    cost="CPU, seconds",
    cases=_make,
)
ROWS = Relation(
    id="R26.rows",
    name="rows-draw-their-own",
    component="trained_sync",
    statement="Equal prompts of a call get samples of their own; a seed gives the same ones again, another others.",
    catalogue="SB040 SB051 SB312",
    cost="CPU, milliseconds",
    cases=_make,
)


@TRAINED.law(
    "the same bits",
    "copies shared as if they were live, a sync that is skipped, a version that is never set",
)
@TRAINED.law(
    "the same bits of a tied model",
    "a head that is no longer tied to the embedding that arrived",
    cases=_make_tied,
)
@TRAINED.law(
    "the same bits when they are sent",
    "weights that arrived and were not loaded, changes that were left out",
    cases=_make_sent,
)
def same_bits(stack: Any, case: UpdatesCase) -> Measure:
    """Every tensor of the engine is the policy's after each sync, and no name stands on one side alone."""
    wrong: list[str] = []
    with closing(stack.open_sync(tied=case.tied, sent=case.sent, filters=Filters())) as opened:
        for _ in range(case.num_updates):
            version = opened.train()
            opened.sync()
            trained, served = opened.trained_tensors(), opened.served_tensors()
            wrong += [f"{name}, on one side alone" for name in sorted(trained.keys() ^ served.keys())]
            wrong += [
                f"{name}, version {version}"
                for name in sorted(trained.keys() & served.keys())
                if not torch.equal(trained[name].cpu(), served[name].cpu())
            ]
            if opened.served_version() != version:
                wrong.append(f"the engine says version {opened.served_version()}, the policy has {version}")
    return Measure.count(wrong, "tensors or versions of the engine that are not the policy's")


@ENGINE.law(
    "log-probabilities agree",
    "keys and values of older weights, weights that arrived and were not loaded, "
    "log-probabilities from before temperature and filters",
)
def agree(stack: Any, case: UpdatesCase) -> Measure:
    """The engine's log-probabilities are the policy's, under every filter, with prompts that it has seen before."""
    worst, where = 0.0, "none"
    for filters in FILTERS:
        with closing(stack.open_sync(tied=case.tied, sent=case.sent, filters=filters)) as opened:
            for number in range(case.num_updates + 1):
                if number:
                    opened.train()
                    opened.sync()
                rows = opened.sample(case.prompts, seed=case.seed)
                for row, logprobs in zip(rows, opened.score(rows), strict=True):
                    differences = torch.tensor(row.logprobs) - torch.tensor(logprobs)
                    error = float(differences.abs().max())
                    if not error <= worst:  # a NaN is the worst of all
                        worst, where = error, f"after {number} syncs, {filters}"
    return Measure(error=worst, bound=BOUND, what=f"nats between engine and policy ({where})")


@ENGINE.law(
    "log-probabilities agree after twenty syncs",
    "errors that add up from sync to sync, a sync of many that is left out",
    cases=_make_many,
    seeded=False,
)
def agree_late(stack: Any, case: UpdatesCase) -> Measure:
    """They are the policy's after the first syncs and after the last of many, too."""
    worst, where = 0.0, "none"
    with closing(stack.open_sync(tied=case.tied, sent=case.sent, filters=FILTERS[1])) as opened:
        for number in range(1, case.num_updates + 1):
            opened.train()
            opened.sync()
            if number > 2 and number < case.num_updates:
                continue
            rows = opened.sample(case.prompts, seed=case.seed)
            for row, logprobs in zip(rows, opened.score(rows), strict=True):
                error = float((torch.tensor(row.logprobs) - torch.tensor(logprobs)).abs().max())
                if not error <= worst:
                    worst, where = error, f"after {number} syncs"
    return Measure(error=worst, bound=BOUND, what=f"nats between engine and policy ({where})")


@ENGINE.law(
    "log-probabilities agree over several turns",
    "later turns sampled with other filters, tokens of the environment shifted by one, "
    "keys and values of the turn before",
    seeded=False,
)
def agree_over_turns(stack: Any, case: UpdatesCase) -> Measure | None:
    """Those of the tokens that were sampled, in each turn of an episode that is scored as one row."""
    worst, where, num_later = 0.0, "none", 0
    for filters in FILTERS[1:]:
        with closing(stack.open_sync(tied=case.tied, sent=case.sent, filters=filters)) as opened:
            for number in range(case.num_updates + 1):
                if number:
                    opened.train()
                    opened.sync()
                episodes = opened.converse(case.prompts, WORDS, seed=case.seed + number)
                scored = opened.score([one.row for one in episodes], [one.mask for one in episodes])
                for episode, logprobs in zip(episodes, scored, strict=True):
                    mask_T = torch.tensor(episode.mask).bool()
                    num_later += int(0 in episode.mask)
                    differences_T = torch.tensor(episode.row.logprobs) - torch.tensor(logprobs)
                    error = float(differences_T[mask_T].abs().max())
                    if not error <= worst:
                        worst, where = error, f"after {number} syncs, {filters}"
    if not num_later:
        return None
    return Measure(
        error=worst,
        bound=BOUND,
        what=f"nats between engine and policy over turns, {num_later} rows with an answer ({where})",
    )


@ENGINE.law("top-k holds", "a filter that is not handed to the engine")
def filters_hold(stack: Any, case: UpdatesCase) -> Measure | None:
    """No token has more candidates than top-k allows, but for those that tie with the last one (in bfloat16)."""
    with closing(stack.open_sync(tied=case.tied, sent=case.sent, filters=Filters(top_k=3))) as opened:
        rows = opened.sample(case.prompts * 4, seed=case.seed)
    kept = [len(ids) for row in rows for ids in row.kept_ids or ()]
    if not kept:
        return None
    wide = sum(number > 3 for number in kept)
    return Measure(
        error=wide / len(kept), bound=0.25, what=f"share of {len(kept)} tokens drawn from more than 3 ids"
    )


@ROWS.law("rows draw their own", "one seed for all rows of a call, a seed that is not handed to the engine")
def own_draws(stack: Any, case: UpdatesCase) -> Measure:
    """Equal prompts of a call get other tokens, a seed gives the same ones again, and another seed others."""
    prompts = [case.prompts[1]] * 6
    wrong = []
    with closing(stack.open_sync(tied=case.tied, sent=case.sent, filters=Filters(temperature=2.0))) as opened:
        first, again, other = (
            [row.ids for row in opened.sample(prompts, seed=seed)]
            for seed in (case.seed, case.seed, case.seed + 1)
        )
    if len(set(first)) < len(first):
        wrong.append("rows of one prompt are the same")
    if first != again:
        wrong.append("one seed draws other tokens the second time")
    if first == other:
        wrong.append("another seed draws the same tokens")
    return Measure.count(wrong, "draws that are not the seed's and the row's own")
