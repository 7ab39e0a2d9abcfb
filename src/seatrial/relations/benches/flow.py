"""Fixture for laws of the rollout flow: an empty store with a simulated clock, rows to put, and a list of errors."""

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
"""Seconds of the store's simulated clock."""


@dataclass(frozen=True, kw_only=True)
class FlowCase(Case):
    """Number and size of groups, and the seed of their order."""

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
    """A store for one run of a law, and the errors found."""

    stack: Any
    case: FlowCase
    wrong: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        """Open the store."""
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
        """Return `[N, 3]` rows, different for every sample."""
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
        """Add the message `otherwise` to the errors unless `holds`."""
        if not holds:
            self.wrong.append(otherwise)

    def equal(self, found: Any, expected: Any, what: str) -> None:
        """Add an error if a value is not the expected one."""
        self.expect(found == expected, f"{what}: {found}, expected {expected}")

    def refused(self, what: str, call: Callable[[], Any]) -> None:
        """Add an error if a call is accepted."""
        try:
            call()
        except Exception:  # noqa: BLE001  the stack chooses the type of its error
            return
        self.wrong.append(f"{what}: accepted")

    def expect_rows(
        self, samples: Sequence[str], what: str, *, partition: str = PARTITION, scale: int = 1
    ) -> None:
        """Add an error if the stored rows differ from those put."""
        import torch

        got = self.client.get_samples(list(samples), partition, ["ids"])["ids"]
        self.expect(torch.equal(got, self.rows(samples, scale)), f"{what}: rows differ from those put")


def made_meta(bench: FlowBench, samples: Sequence[str] | None = None, partition: str = PARTITION) -> Any:
    """Return a meta whose tags and lengths are derived from its samples' numbers."""
    chosen = bench.samples if samples is None else samples
    tags = [{"weight_version": bench.number(sample)} for sample in chosen]
    return bench.stack.flow_meta(partition, chosen, tags, [3 + bench.number(sample) for sample in chosen])


def expect_aligned(bench: FlowBench, meta: Any, samples: Sequence[str], what: str) -> None:
    """Add an error if a meta of `made_meta` does not have these samples with their own tags and lengths."""
    bench.equal(list(meta.sample_ids), list(samples), what)
    numbers = [bench.number(sample) for sample in samples]
    bench.equal([dict(tags).get("weight_version") for tags in meta.tags or ()], numbers, f"tags of {what}")
    bench.equal(list(meta.sequence_lengths or ()), [3 + number for number in numbers], f"lengths of {what}")


def flow_law(relation: Relation, name: str, suspects: str) -> Callable[[C], C]:
    """Return a decorator that registers a check as a law on an empty store; every seed makes another case."""
    return registering(relation.law(name, suspects, cases=make_flow_case), _measure_flow)


def _measure_flow(stack: Any, case: FlowCase, *, check: Check) -> Measure:
    bench = FlowBench(stack, case)
    check(bench)
    return Measure.count(bench.wrong, "errors")


def make_flow_case(stack: Any, seed: int, tidy: bool) -> FlowCase:
    """Return groups whose number and size depend on the seed."""
    if tidy:
        return FlowCase(num_groups=4, group_size=2, seed=seed)
    return FlowCase(num_groups=5 + seed % 3, group_size=2 + (seed + 1) % 3, seed=seed)
