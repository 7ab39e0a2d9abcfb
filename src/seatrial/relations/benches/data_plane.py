"""What every law of the data plane begins with: a partition of its own, rows to put, and a list of what was wrong."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any

from seatrial.relations.law import Law, Measure

TASKS = ("train", "score")
FIELDS = ("ids", "values", "content")
WAIT_S = 10.0
"""A store that answers at all answers within this time."""
LEASE_S = 0.3
"""Of claims whose end a law waits for."""


@dataclass(frozen=True, kw_only=True)
class PlaneCase:
    """A partition's rows."""

    num_groups: int
    group_size: int
    seed: int

    def smaller(self) -> Iterator[PlaneCase]:
        """Yield fewer and smaller groups."""
        for name in ("num_groups", "group_size"):
            if getattr(self, name) > 1:
                yield replace(self, **{name: getattr(self, name) - 1})

    def describe(self) -> Mapping[str, Any]:
        """Return the case as JSON values."""
        return asdict(self)


@dataclass
class Bench:
    """One law at work on a store."""

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
        """Return `[N, 3]` rows that are their sample's alone."""
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
        """Note what is wrong unless something holds."""
        if not holds:
            self.wrong.append(otherwise)

    def refused(self, what: str, call: Callable[[], Any], *, waiting: bool = False) -> None:
        """Note a call that is taken, or that ends as if rows were merely late (unless it is one that waits)."""
        try:
            call()
        except TimeoutError as error:
            self.expect(waiting, f"{what}: not refused, it waited ({error})")
        except Exception:  # noqa: BLE001  which error it is is the stack's affair
            return
        else:
            self.wrong.append(f"{what}: taken")

    def expect_rows(self, samples: Sequence[str], what: str, *, client: Any = None, scale: int = 1) -> None:
        """Note rows that are not what was put."""
        import torch

        got = self.get(samples, client=client)
        rows = got if isinstance(got, torch.Tensor) and not got.is_nested else torch.stack(list(got))
        self.expect(torch.equal(rows, self.rows(samples, scale)), f"{what}: other rows")


Check = Callable[[Bench], None]


def plane_law(name: str, check: Check, suspects: str, *, seeded: bool = False) -> Law:
    """Return a law on a store that others use too."""
    return Law(name=name, make=make_case, measure=_measure(check), suspects=suspects, seeded=seeded)


def breaking_law(name: str, check: Check, suspects: str) -> Law:
    """Return a law that kills parts of a store of its own; a store in this process excludes it."""
    return Law(
        name=name,
        make=make_case,
        measure=_measure(check, to_break=True),
        suspects=suspects,
        excluded=_in_process,
        seeded=False,
    )


def make_case(stack: Any, seed: int, tidy: bool) -> PlaneCase:
    """Return groups of rows; more than one group and more than one row, unless tidy."""
    if tidy:
        return PlaneCase(num_groups=1, group_size=2, seed=seed)
    return PlaneCase(num_groups=3 + seed % 3, group_size=4, seed=seed)


def _in_process(stack: Any) -> str | None:
    in_process = getattr(stack, "data_plane_in_process", False)
    return "data_plane_in_process=True: the store ends with its clients" if in_process else None


def _measure(check: Check, *, to_break: bool = False) -> Callable[[Any, PlaneCase], Measure]:
    def measure(stack: Any, case: PlaneCase) -> Measure:
        plane = stack.data_plane_to_break() if to_break else stack.data_plane()
        bench = Bench(stack, plane, case)
        try:
            check(bench)
        finally:
            if not to_break:
                plane.client().clear_samples(None, bench.partition)
        found = "; ".join(bench.wrong[:3]) or "none"
        return Measure(error=float(len(bench.wrong)), bound=0, what=f"things that are wrong ({found})")

    return measure
