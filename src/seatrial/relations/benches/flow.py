"""What every law of the flow of rollouts begins with: an empty store, made rows, and a list of what was wrong."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from seatrial.relations.benches.data_plane import C, Check, registering
from seatrial.relations.cases.case import Case
from seatrial.relations.law import Measure, Relation

FIELDS = ("ids", "values", "content", "input_ids", "input_lengths", "prev_logprobs")
PARTITION = "rollouts"
LEASE_S = 10.0
"""Of the store's own clock: nobody waits for it."""


@dataclass(frozen=True, kw_only=True)
class FlowCase(Case):
    """Groups of rows in an order of their own."""

    num_groups: int
    group_size: int
    seed: int

    def smaller(self) -> Iterator[FlowCase]:
        """Yield fewer and smaller groups."""
        for name, least in (("num_groups", 4), ("group_size", 2)):
            if getattr(self, name) > least:
                yield replace(self, **{name: getattr(self, name) - 1})


@dataclass
class FlowBench:
    """One law at work."""

    stack: Any
    case: FlowCase
    wrong: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        """Open a store."""
        self.store = self.stack.flow_store()
        self.client = self.store.client()
        self.stream = random.Random(self.case.seed)

    @property
    def samples(self) -> list[str]:
        """Ids of the case's rows, group by group."""
        return [
            f"u{group}_g{row}" for group in range(self.case.num_groups) for row in range(self.case.group_size)
        ]

    def register(self, partition: str = PARTITION, *, num_samples: int = 4096, **words: Any) -> None:
        """Register a partition for `train` and `score`."""
        self.client.register_partition(partition, FIELDS, num_samples, ("train", "score"), **words)

    def number(self, sample: str) -> int:
        """Return a sample's number."""
        group, _, row = sample.removeprefix("u").partition("_g")
        return 100 * int(group) + int(row)

    def rows(self, samples: Sequence[str], scale: int = 1) -> Any:
        """Return `[N, 3]` rows that are their sample's alone."""
        import torch

        return torch.tensor([[self.number(sample) * scale, scale, 7] for sample in samples])

    def put(self, samples: Sequence[str], partition: str = PARTITION, *, scale: int = 1, **tags: Any) -> None:
        """Put rows of `ids`, tagged with their number."""
        stamped = [{"weight_version": self.number(sample), **tags} for sample in samples]
        self.client.put_samples(list(samples), partition, {"ids": self.rows(samples, scale)}, stamped)

    def claim(
        self, most: int = 4096, *, task: str = "train", partition: str = PARTITION, **words: Any
    ) -> Any:
        """Claim what is ready, without waiting."""
        chosen = {"blocking": False, "lease_s": LEASE_S, **words}
        return self.client.claim_meta(partition, task, ["ids"], most, **chosen)

    def expect(self, holds: bool, otherwise: str) -> None:
        """Note what is wrong unless something holds."""
        if not holds:
            self.wrong.append(otherwise)

    def equal(self, found: Any, due: Any, what: str) -> None:
        """Note a value that is not the one that is due."""
        self.expect(found == due, f"{what}: {found} for {due}")

    def refused(self, what: str, call: Callable[[], Any]) -> None:
        """Note a call that is taken."""
        try:
            call()
        except Exception:  # noqa: BLE001  which error it is is the stack's affair
            return
        self.wrong.append(f"{what}: taken")

    def expect_rows(
        self, samples: Sequence[str], what: str, *, partition: str = PARTITION, scale: int = 1
    ) -> None:
        """Note rows that are not what was put."""
        import torch

        got = self.client.get_samples(list(samples), partition, ["ids"])["ids"]
        self.expect(torch.equal(got, self.rows(samples, scale)), f"{what}: other rows")


def made_meta(bench: FlowBench, samples: Sequence[str] | None = None, partition: str = PARTITION) -> Any:
    """Return a meta whose tags and lengths are its samples' numbers."""
    chosen = bench.samples if samples is None else samples
    tags = [{"weight_version": bench.number(sample)} for sample in chosen]
    return bench.stack.flow_meta(partition, chosen, tags, [3 + bench.number(sample) for sample in chosen])


def expect_aligned(bench: FlowBench, meta: Any, samples: Sequence[str], what: str) -> None:
    bench.equal(list(meta.sample_ids), list(samples), what)
    numbers = [bench.number(sample) for sample in samples]
    bench.equal([dict(tags).get("weight_version") for tags in meta.tags or ()], numbers, f"tags of {what}")
    bench.equal(list(meta.sequence_lengths or ()), [3 + number for number in numbers], f"lengths of {what}")


def flow_law(relation: Relation, name: str, suspects: str) -> Callable[[C], C]:
    """Return a decorator that makes a law of a check; every seed makes another case."""
    return registering(relation.law(name, suspects, cases=make_flow_case), _measure_flow)


def _measure_flow(stack: Any, case: FlowCase, *, check: Check) -> Measure:
    bench = FlowBench(stack, case)
    check(bench)
    return Measure.count(bench.wrong, "errors")


def make_flow_case(stack: Any, seed: int, tidy: bool) -> FlowCase:
    """Return groups of rows in a store of their own."""
    if tidy:
        return FlowCase(num_groups=4, group_size=2, seed=seed)
    return FlowCase(num_groups=5 + seed % 3, group_size=2 + (seed + 1) % 3, seed=seed)
