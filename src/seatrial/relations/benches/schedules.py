"""Runs a random schedule of producers and consumers with crashes, delays and retries, and accounts for every row.

The case's seed determines the order of calls, so a schedule can be replayed. A participant crashes between two calls:
a producer leaves a group half written, a consumer never releases its claim. Tests of stores in separate processes
cover a kill within a call.
"""

from __future__ import annotations

import random
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field

from seatrial.relations.benches.data_plane import LEASE_S, Bench

NUM_PRODUCERS, NUM_CONSUMERS = 3, 3
CRASH, REPEAT, DELAY = 0.05, 0.15, 0.02
"""Probabilities that a participant crashes after a call, repeats it, or makes it after a pause of one lease."""


@dataclass
class Ledger:
    """What happened to every sample."""

    put: list[str] = field(default_factory=list)
    trained: Counter[str] = field(default_factory=Counter)
    dropped: dict[str, str] = field(default_factory=dict)
    """Reason by sample."""
    cleared: set[str] = field(default_factory=set)

    def errors(self, left: set[str]) -> list[str]:
        """Return what does not add up, given the samples still served at the end."""
        wrong = [
            f"{sample} was trained on {times} times" for sample, times in self.trained.items() if times > 1
        ]
        wrong += [
            f"{sample} was both dropped and trained on" for sample in self.dropped if self.trained[sample]
        ]
        accounted = {*self.trained, *self.dropped, *left}
        wrong += [f"{sample} is lost" for sample in self.put if sample not in accounted]
        wrong += [
            f"{sample} is still served after it was trained on or dropped"
            for sample in left & self.finished()
        ]
        return wrong

    def finished(self) -> set[str]:
        """Return the samples that were trained on or dropped."""
        return {*self.trained, *self.dropped}


def play(bench: Bench) -> list[str]:
    """Run the case's schedule to its end and return the errors of the ledger."""
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
        if stream.random() < CRASH:
            running.pop(name)
            if name.startswith("c"):
                running[name] = _consume(bench, ledger, stream)  # replaced by a new consumer
    time.sleep(1.2 * LEASE_S)  # leases of crashed consumers expire
    return ledger.errors(_drain(bench))


def _produce(bench: Bench, ledger: Ledger, producer: int, stream: random.Random) -> Iterator[None]:
    """Put groups, whole or in two halves; sometimes repeat a call, as a producer does after a lost reply."""
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
    """Claim, acknowledge, drop or train, clear; the consumer may crash after each."""
    client = bench.plane.client()
    while True:
        meta = client.claim_meta(bench.partition, "train", ["ids"], 5, blocking=False, lease_s=LEASE_S)
        yield
        samples = list(meta.sample_ids)
        if not samples:
            continue
        try:
            bench.expect_rows(samples, "claimed by a consumer", client=client)
            yield
            client.acknowledge(meta)
        except Exception:  # noqa: BLE001  the lease expired: others claimed or cleared the rows
            yield
            continue
        # No other participant runs before the next yield, as in a trainer's step.
        drop = [sample for sample in samples if stream.random() < 0.2]
        ledger.dropped.update((sample, "stale") for sample in drop)
        ledger.trained.update(sample for sample in samples if sample not in drop)
        yield
        for _ in range(1 + (stream.random() < REPEAT)):
            client.clear_samples(samples, bench.partition)
            ledger.cleared.update(samples)
            yield


def _drain(bench: Bench) -> set[str]:
    """Return all samples that are still served."""
    left: set[str] = set()
    while True:
        got = set(bench.claim(3).sample_ids)
        if got <= left:  # nothing, or nothing new
            return left
        left |= got
