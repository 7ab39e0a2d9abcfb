"""Accelerate's `Accelerator` by the contracts of loops; every call runs in processes of its own, see `ranked`."""

from __future__ import annotations

import importlib
from collections.abc import Sequence
from typing import Any, Literal

from seatrial.relations.contracts.loops import (
    AccumulatedBatch,
    AccumulationPlan,
    AccumulationSpec,
    Epochs,
    GatheredAs,
    LoaderPlan,
)
from seatrial.targets.common.known import KnownFailure, KnowsFailures, before
from seatrial.targets.common.ranks import call_on_ranks
from seatrial.targets.common.target import find_name

RANKED = "seatrial.targets.accelerate.ranked"
EPOCH_LOST = KnownFailure(
    "the epoch does not reach a sampler of the caller behind the one that divides batches",
    finding="Accelerate: the epoch of a sampler of the caller",
    releases=before("accelerate", "1.7"),
).of("R30.rows/another order in each epoch, a sampler of the caller")
SEED_LOST = KnownFailure(
    "the generator of a shuffle is not seeded by the run",
    finding="Accelerate: the seed of a shuffle",
    releases=before("accelerate", "1.6"),
).of("R30.rows/another order for another seed of the process")
STILL_FILLED = KnownFailure(
    "iterable data are filled up with rows from the beginning although even_batches is False",
    finding="Accelerate: uneven ends of iterable data",
).of("R30.rows/every row once, iterable data, uneven ends")


class _Accelerate(KnowsFailures):
    """What the adapters share."""

    def __init__(self) -> None:
        """Find the class."""
        find_name("accelerate", ["accelerate:Accelerator"])


class Loaders(_Accelerate):
    """Prepared data loaders; see `contracts.loops.RowLoader`."""

    known_failures = (
        KnownFailure(
            "skip_first_batches leaves out batches of one process where the first process reads for all",
            finding="Accelerate: skipped batches of a dispatched loader",
        ).of("R30.rows/resumed epoch, dispatched"),
        EPOCH_LOST,
        SEED_LOST,
        STILL_FILLED,
    )

    def loaded_rows(self, plan: LoaderPlan) -> Sequence[Epochs]:
        found: Sequence[Epochs] = call_on_ranks(f"{RANKED}:loaded", vars(plan), plan.num_ranks)
        return found


class StatefulLoaders(_Accelerate):
    """Loaders whose own state is saved, on torchdata's; see `contracts.loops.RowLoader`."""

    known_failures = (
        KnownFailure(
            "the state goes back by a batch for each process, also where a step takes one batch of all",
            finding="Accelerate: the state of a dispatched loader that splits batches",
        ).of("R30.rows/resumed epoch, dispatched and split"),
        EPOCH_LOST,
        SEED_LOST,
        STILL_FILLED,
    )

    def __init__(self) -> None:
        """Find torchdata, which Accelerate takes where it is asked for state."""
        super().__init__()
        importlib.import_module("torchdata")

    def loaded_rows(self, plan: LoaderPlan) -> Sequence[Epochs]:
        found: Sequence[Epochs] = call_on_ranks(f"{RANKED}:loaded_from_state", vars(plan), plan.num_ranks)
        return found


class Metrics(_Accelerate):
    """`gather_for_metrics`; see `contracts.loops.MetricGather`."""

    known_failures = (
        KnownFailure(
            "rows of the last batch are counted by the length of the data set, not of the sampler",
            finding="Accelerate: metrics of a sampler of part of the data",
        ).of("R30.gathered/tensors, a sampler of part of the data"),
    )

    def gathered_rows(self, plan: LoaderPlan, kind: GatheredAs) -> Sequence[Sequence[int]]:
        found: Sequence[Sequence[int]] = call_on_ranks(
            f"{RANKED}:gathered_for_metrics", {**vars(plan), "kind": kind}, plan.num_ranks
        )
        return found


class Exchanges(_Accelerate):
    """`gather`, `reduce` and `pad_across_processes`; see `contracts.loops.Collectives`."""

    def gathered(self, values: Sequence[Sequence[float]]) -> Sequence[Sequence[float]]:
        return self._exchanged(values, how="gather")

    def reduced(
        self, values: Sequence[Sequence[float]], how: Literal["sum", "mean"]
    ) -> Sequence[Sequence[float]]:
        return self._exchanged(values, how=how)

    def padded(
        self, values: Sequence[Sequence[float]], *, fill: float, first: bool
    ) -> Sequence[Sequence[float]]:
        return self._exchanged(values, how="pad", fill=fill, first=first)

    def _exchanged(self, values: Sequence[Sequence[float]], **options: Any) -> Sequence[Sequence[float]]:
        payload = {"values": [list(one) for one in values], **options}
        found: Sequence[Sequence[float]] = call_on_ranks(f"{RANKED}:exchanged", payload, len(values))
        return found


class Accumulation(_Accelerate):
    """`accumulate`, clipping, the prepared schedule and saved state; see `contracts.loops.AccumulatedTraining`."""

    accumulation_spec = AccumulationSpec()

    def accumulated(self, plan: AccumulationPlan) -> Sequence[Sequence[AccumulatedBatch]]:
        spec = {"rate": self.accumulation_spec.rate, "rate_decay": self.accumulation_spec.rate_decay}
        found = call_on_ranks(f"{RANKED}:accumulated", {**vars(plan), **spec}, plan.num_ranks)
        return [
            [
                AccumulatedBatch(tuple(rows), stepped, tuple(weights), *rest)
                for rows, stepped, weights, *rest in batches
            ]
            for batches in found
        ]


ADAPTERS: dict[str, type[Any]] = {
    "loaders": Loaders,
    "loaders-stateful": StatefulLoaders,
    "metrics": Metrics,
    "exchanges": Exchanges,
    "accumulation": Accumulation,
}
