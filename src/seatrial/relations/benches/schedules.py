"""A random schedule of producers and consumers on a data plane, with deaths, delays and repeats, and its ledger.

The order of calls is drawn from the case's seed alone, so that the seed replays it. A participant dies between two
calls: a producer leaves a group half written, a consumer keeps a claim that it never ends. What a real process does
when it is killed inside a call is held by the tests of the stores that live in processes of their own.
"""

from __future__ import annotations

import random
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field

from seatrial.relations.benches.data_plane import LEASE_S, Bench

NUM_PRODUCERS, NUM_CONSUMERS = 3, 3
DEATH, REPEAT, DELAY = 0.05, 0.15, 0.02
"""How likely a step is a participant's last, is done twice, or comes after a pause of a lease's length."""


@dataclass
class Ledger:
    """What became of every sample."""

    put: list[str] = field(default_factory=list)
    trained: Counter[str] = field(default_factory=Counter)
    dropped: dict[str, str] = field(default_factory=dict)
    """With the reason."""
    cleared: set[str] = field(default_factory=set)

    def errors(self, left: set[str]) -> list[str]:
        """Return what does not add up, given the samples that a last consumer was served."""
        wrong = [
            f"{sample} was trained on {times} times" for sample, times in self.trained.items() if times > 1
        ]
        wrong += [f"{sample} was dropped and trained on" for sample in self.dropped if self.trained[sample]]
        accounted = {*self.trained, *self.dropped, *left}
        wrong += [f"{sample} was put, and is lost" for sample in self.put if sample not in accounted]
        wrong += [
            f"{sample} is served after it was trained on or dropped" for sample in left & self.finished()
        ]
        return wrong

    def finished(self) -> set[str]:
        """Return samples that are trained on or dropped."""
        return {*self.trained, *self.dropped}


def play(bench: Bench) -> list[str]:
    """Play the case's schedule to its end, and return what is wrong with the ledger."""
    stream, ledger = random.Random(bench.case.seed), Ledger()
    running: dict[str, Iterator[None]] = {
        **{f"p{number}": _produce(bench, ledger, number, stream) for number in range(NUM_PRODUCERS)},
        **{f"c{number}": _consume(bench, ledger, stream) for number in range(NUM_CONSUMERS)},
    }
    while any(name.startswith("p") for name in running):
        name = stream.choice(sorted(running))
        if stream.random() < DELAY:
            time.sleep(LEASE_S)
        try:
            next(running[name])
        except StopIteration:
            del running[name]
            continue
        if stream.random() < DEATH:
            running.pop(name)
            if name.startswith("c"):
                running[name] = _consume(bench, ledger, stream)  # a new one takes its place
    time.sleep(1.2 * LEASE_S)  # what the dead hold comes back
    return ledger.errors(_drain(bench))


def _produce(bench: Bench, ledger: Ledger, producer: int, stream: random.Random) -> Iterator[None]:
    """Put groups: one call a group, or one for each half; sometimes the same call again, as after a lost answer."""
    for group in range(bench.case.num_groups):
        samples = [f"u{10 * producer + group}_g{row}" for row in range(bench.case.group_size)]
        half = stream.choice([len(samples), max(1, len(samples) // 2)])
        for part in (samples[:half], samples[half:]):
            if not part:
                continue
            ledger.put += part
            bench.put(part)
            yield
            if stream.random() < REPEAT and not set(part) & ledger.cleared:
                bench.put(part)
                yield


def _consume(bench: Bench, ledger: Ledger, stream: random.Random) -> Iterator[None]:
    """Claim, drop some, acknowledge, train, clear; each a step after which this one may die."""
    client = bench.plane.client()
    while True:
        meta = client.claim_meta(bench.partition, "train", ["ids"], 5, blocking=False, lease_s=LEASE_S)
        yield
        samples = list(meta.sample_ids)
        if not samples:
            continue
        try:
            bench.expect_rows(samples, "in the hands of a consumer", client=client)
            yield
            client.acknowledge(meta)
        except Exception:  # noqa: BLE001  the time was over: others have the rows, or have cleared them
            yield
            continue
        # From here to the next yield nothing can come between, as in a trainer's step.
        drop = [sample for sample in samples if stream.random() < 0.2]
        ledger.dropped.update((sample, "stale") for sample in drop)
        ledger.trained.update(sample for sample in samples if sample not in drop)
        yield
        for _ in range(1 + (stream.random() < REPEAT)):
            client.clear_samples(samples, bench.partition)
            ledger.cleared.update(samples)
            yield


def _drain(bench: Bench) -> set[str]:
    """Return what a last consumer is served."""
    left: set[str] = set()
    while True:
        got = set(bench.claim(3).sample_ids)
        if got <= left:  # nothing, or nothing new
            return left
        left |= got
