"""Fixture for laws of the data plane: an own partition, rows to put, and a list of errors."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, TypeVar

from seatrial.relations.cases.case import Case
from seatrial.relations.law import Measure, MeasureCase, Relation

TASKS = ("train", "score")
FIELDS = ("ids", "values", "content")
WAIT_S = 10.0
"""A store that responds at all does so within this time."""
LEASE_S = 0.3
"""Lease of claims in laws that wait for its expiry."""


@dataclass(frozen=True, kw_only=True)
class PlaneCase(Case):
    """A partition's rows."""

    num_groups: int
    group_size: int
    seed: int

    def smaller(self) -> Iterator[PlaneCase]:
        """Yield fewer and smaller groups."""
        for name in ("num_groups", "group_size"):
            if getattr(self, name) > 1:
                yield replace(self, **{name: getattr(self, name) - 1})


@dataclass
class Bench:
    """A store with a partition for one run of a law, and the errors found."""

    stack: Any
    plane: Any
    case: PlaneCase
    partition: str = field(default_factory=lambda: f"law-{uuid.uuid4().hex[:8]}")
    wrong: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        """Register the partition."""
        self.client = self.plane.client()
        self.client.register_partition(self.partition, FIELDS, 4096, TASKS)

    @property
    def samples(self) -> list[str]:
        """Ids of the case's rows, group by group."""
        return [
            f"u{group}_g{row}" for group in range(self.case.num_groups) for row in range(self.case.group_size)
        ]

    def rows(self, samples: Sequence[str], scale: int = 1) -> Any:
        """Return `[N, 3]` rows, different for every sample."""
        import torch

        return torch.tensor([[self.number(sample) * scale, scale, 7] for sample in samples])

    def number(self, sample: str) -> int:
        """Return a sample's number, the same in every law."""
        group, _, row = sample.removeprefix("u").partition("_g")
        return 100 * int(group) + int(row)

    def put(self, samples: Sequence[str], *, client: Any = None, scale: int = 1, **tags: Any) -> None:
        """Put rows of `ids`, with a version, lengths that differ from row to row, and these tags."""
        stamped = [
            {"weight_version": self.number(sample), "input_lengths": 3 + self.number(sample), **tags}
            for sample in samples
        ]
        fields = {"ids": self.rows(samples, scale)}
        (client or self.client).put_samples(list(samples), self.partition, fields, stamped)

    def claim(
        self, batch_size: int = 4096, *, task: str = "train", fields: Sequence[str] = ("ids",), **words: Any
    ) -> Any:
        """Claim what is ready, without waiting."""
        return self.client.claim_meta(
            self.partition, task, list(fields), batch_size, **{"blocking": False, **words}
        )

    def get(self, samples: Sequence[str], name: str = "ids", *, client: Any = None) -> Any:
        """Return one field."""
        return (client or self.client).get_samples(list(samples), self.partition, [name])[name]

    def expect(self, holds: bool, otherwise: str) -> None:
        """Add the message `otherwise` to the errors unless `holds`."""
        if not holds:
            self.wrong.append(otherwise)

    def refused(self, what: str, call: Callable[[], Any], *, waiting: bool = False) -> None:
        """Add an error if a call is accepted, or if it times out and `waiting` is false."""
        try:
            call()
        except TimeoutError as error:
            self.expect(waiting, f"{what}: timed out instead of being refused ({error})")
        except Exception:  # noqa: BLE001  the stack chooses the type of its error
            return
        else:
            self.wrong.append(f"{what}: accepted")

    def expect_rows(self, samples: Sequence[str], what: str, *, client: Any = None, scale: int = 1) -> None:
        """Add an error if the stored rows differ from those put."""
        import torch

        got = self.get(samples, client=client)
        rows = got if isinstance(got, torch.Tensor) and not got.is_nested else torch.stack(list(got))
        self.expect(torch.equal(rows, self.rows(samples, scale)), f"{what}: rows differ from those put")


Check = Callable[[Any], None]
"""Takes a bench and adds errors to it."""
C = TypeVar("C", bound=Check)


def plane_law(relation: Relation, name: str, suspects: str, *, seeded: bool = False) -> Callable[[C], C]:
    """Return a decorator that registers a check as a law on the stack's shared store."""
    return registering(relation.law(name, suspects, cases=make_case, seeded=seeded), _measure_in_store)


def breaking_law(relation: Relation, name: str, suspects: str) -> Callable[[C], C]:
    """Return a decorator for a check that kills parts of its own store; excluded for a store in this process."""
    law = relation.law(name, suspects, cases=make_case, excluded=_in_process, seeded=False)
    return registering(law, _measure_in_store_to_break)


def registering(law: Callable[[MeasureCase], MeasureCase], measure: MeasureCase) -> Callable[[C], C]:
    """Return a decorator that registers `measure(..., check=...)` as the law and returns the check."""

    def register(check: C) -> C:
        law(partial(measure, check=check))
        return check

    return register


def _measure_in_store(stack: Any, case: PlaneCase, *, check: Check) -> Measure:
    bench = Bench(stack, stack.data_plane(), case)
    try:
        check(bench)
    finally:
        bench.plane.client().clear_samples(None, bench.partition)
    return Measure.count(bench.wrong, "errors")


def _measure_in_store_to_break(stack: Any, case: PlaneCase, *, check: Check) -> Measure:
    bench = Bench(stack, stack.data_plane_to_break(), case)
    check(bench)
    return Measure.count(bench.wrong, "errors")


def make_case(stack: Any, seed: int, tidy: bool) -> PlaneCase:
    """Return several groups of several rows; one group of two rows if tidy."""
    if tidy:
        return PlaneCase(num_groups=1, group_size=2, seed=seed)
    return PlaneCase(num_groups=3 + seed % 3, group_size=4, seed=seed)


def _in_process(stack: Any) -> str | None:
    in_process = getattr(stack, "data_plane_in_process", False)
    return "data_plane_in_process=True: the store runs in the process of its clients" if in_process else None
