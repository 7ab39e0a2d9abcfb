"""Accelerate's `Accelerator` by the contracts of loops; every call runs in processes of its own, see `ranked`."""

from __future__ import annotations

import importlib
from collections.abc import Mapping, Sequence
from typing import Any, Literal

from torch import Tensor

from seatrial.relations.contracts.loop_histories import LoopHistory, MicroBatch, SeenCall
from seatrial.relations.contracts.loops import (
    AccumulatedBatch,
    AccumulationPlan,
    AccumulationSpec,
    Epochs,
    GatheredAs,
    LoaderPlan,
)
from seatrial.relations.contracts.processes import ExchangePlan, SeedPlan, SplitPart, SplitPlan
from seatrial.relations.contracts.saved_loops import SavedLoop, SavedLoopPlan, SavedLoopStep
from seatrial.targets.accelerate.alone import LoadersAlone
from seatrial.targets.accelerate.functions import Functions
from seatrial.targets.accelerate.known import (
    EPOCH_LOST,
    FILLED_FULL,
    LEFT_WITHIN,
    LENGTHS_OF_ITERABLE,
    NO_BATCH,
    SEED_LOST,
    SKIPPED_EPOCH,
    STILL_FILLED,
)
from seatrial.targets.accelerate.models import Models
from seatrial.targets.accelerate.settings import SettingsOfVariables
from seatrial.targets.accelerate.trackers import TRACKERS
from seatrial.targets.common.known import KnownFailure, KnowsFailures
from seatrial.targets.common.ranks import call_on_ranks
from seatrial.targets.common.target import find_name

RANKED = "seatrial.targets.accelerate.ranked"
SAVED = "seatrial.targets.accelerate.saved"
HISTORIES = "seatrial.targets.accelerate.histories"
SHARED = "seatrial.targets.accelerate.shared"
PRELOAD = ("torch", "accelerate")


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
        NO_BATCH,
        SEED_LOST,
        STILL_FILLED,
        LENGTHS_OF_ITERABLE,
    )

    def loaded_rows(self, plan: LoaderPlan) -> Sequence[Epochs]:
        return _on_ranks(f"{RANKED}:loaded", plan)

    def said_lengths(self, plan: LoaderPlan) -> Sequence[Sequence[int]]:
        return _on_ranks(f"{RANKED}:said_lengths", plan)


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
        return _on_ranks(f"{RANKED}:loaded_from_state", plan)


class Metrics(_Accelerate):
    """`gather_for_metrics`; see `contracts.loops.MetricGather`."""

    known_failures = (
        KnownFailure(
            "rows of the last batch are counted by the length of the data set, not of the sampler",
            finding="Accelerate: metrics of a sampler of part of the data",
        ).of("R30.gathered/tensors, a sampler of part of the data"),
        KnownFailure(
            "a sampler that leaves out batches does not say how many rows a step has",
            finding="Accelerate: metrics of a resumed epoch",
        ).of("R30.gathered/tensors, in a resumed epoch"),
    )

    def gathered_rows(self, plan: LoaderPlan, kind: GatheredAs) -> Sequence[Sequence[int]]:
        return _on_ranks(f"{RANKED}:gathered_for_metrics", plan, kind=kind)


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


class Splits(_Accelerate):
    """`split_between_processes`; see `contracts.processes.ProcessSplits`."""

    known_failures = (
        KnownFailure(
            "values of the caller's dictionary are replaced by the part of the process",
            finding="Accelerate: a dictionary that is split",
        ).of(
            "R30.split/dictionaries of lists stay",
            "R30.split/dictionaries of lists, filled, stay",
            "R30.split/dictionaries of tensors stay",
        ),
        KnownFailure(
            "a list is added to a tuple, which raises",
            finding="Accelerate: a dictionary that is split",
        ).of("R30.split/tuples, filled"),
        FILLED_FULL,
    )

    def split(self, plan: SplitPlan) -> Sequence[SplitPart]:
        found = _on_ranks(f"{SHARED}:split", plan)
        return [SplitPart(tuple(rows), tuple(given)) for rows, given in found]


class NestedExchanges(_Accelerate):
    """Exchanges of nested containers and of objects; see `contracts.processes.NestedExchanges`."""

    def exchanged_nested(self, plan: ExchangePlan) -> Sequence[Mapping[str, Tensor | str]]:
        return _on_ranks(f"{SHARED}:exchanged_nested", plan)


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


class Seeds(_Accelerate):
    """`set_seed`; see `contracts.processes.SeededDraws`."""

    def seeded_draws(self, plan: SeedPlan) -> Sequence[Mapping[str, Sequence[float]]]:
        return _on_ranks(f"{SHARED}:seeded_draws", plan)


class BatchSizes(_Accelerate):
    """`find_executable_batch_size`; see `contracts.processes.ExecutableBatchSize`."""

    def tried_batch_sizes(self, start: int, fits: int) -> Sequence[int]:
        from accelerate.utils import find_executable_batch_size

        tried: list[int] = []

        def step(batch_size: int) -> None:
            tried.append(batch_size)
            if batch_size > fits:
                raise RuntimeError("DefaultCPUAllocator: can't allocate memory")

        find_executable_batch_size(step, starting_batch_size=start)()
        return tried

    def passes_errors_on(self) -> bool:
        from accelerate.utils import find_executable_batch_size

        def step(batch_size: int) -> None:
            raise RuntimeError(f"an error of a batch of {batch_size}")

        try:
            find_executable_batch_size(step, starting_batch_size=8)()
        except RuntimeError as error:
            return "a batch of 8" in str(error)
        return False


class SavedState(_Accelerate):
    """`save_state` and `load_state` into new objects; see `contracts.saved_loops.SavedLoops`."""

    def saved_loop(self, plan: SavedLoopPlan) -> Sequence[SavedLoop]:
        return [
            SavedLoop(
                [
                    SavedLoopStep(tuple(rows), tuple(losses), tuple(rates), tuple(draws), counted)
                    for rows, losses, rates, draws, counted in steps
                ],
                tensors,
            )
            for steps, tensors in _on_ranks(f"{SAVED}:saved_loop", plan)
        ]


class Histories(_Accelerate):
    """Any sequence of calls; see `contracts.loop_histories.LoopHistories`."""

    known_failures = (LEFT_WITHIN, SKIPPED_EPOCH)

    def performed(self, history: LoopHistory) -> Sequence[Sequence[SeenCall]]:
        found = _on_ranks(f"{HISTORIES}:performed", history, calls=[one._asdict() for one in history.calls])
        return [
            [
                SeenCall(
                    **{
                        **one,
                        "batches": [MicroBatch(tuple(rows), *rest) for rows, *rest in one.get("batches", ())],
                    }
                )
                for one in calls
            ]
            for calls in found
        ]


def _on_ranks(function: str, plan: Any, **more: Any) -> Sequence[Any]:
    """Call a function with a plan; more than two processes are forked, which saves their imports."""
    found: Sequence[Any] = call_on_ranks(
        function, {**vars(plan), **more}, plan.num_ranks, PRELOAD if plan.num_ranks > 2 else ()
    )
    return found


ADAPTERS: dict[str, type[Any]] = {
    "loaders": Loaders,
    "loaders-stateful": StatefulLoaders,
    "loaders-alone": LoadersAlone,
    "metrics": Metrics,
    "exchanges": Exchanges,
    "exchanges-nested": NestedExchanges,
    "splits": Splits,
    "models": Models,
    "seeds": Seeds,
    "batch-sizes": BatchSizes,
    "saved-state": SavedState,
    "accumulation": Accumulation,
    "histories": Histories,
    **TRACKERS,
    "functions": Functions,
    "settings": SettingsOfVariables,
}
