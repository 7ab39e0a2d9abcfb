"""Prepared loaders of every process, one after the other in this process; see `contracts.loops.RowLoader`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from seatrial.relations.contracts.loops import Epochs, LoaderPlan
from seatrial.relations.not_served import NotServed
from seatrial.targets.accelerate.known import EPOCH_LOST, NO_BATCH, SEED_LOST, STILL_FILLED
from seatrial.targets.accelerate.ranked import loader_of, new_accelerator, rows_read, sizes_needed
from seatrial.targets.common.known import KnowsFailures
from seatrial.targets.common.target import find_name


class LoadersAlone(KnowsFailures):
    """`prepare_data_loader` with the number and the index of a process as arguments."""

    known_failures = (EPOCH_LOST, NO_BATCH, SEED_LOST, STILL_FILLED)

    def __init__(self) -> None:
        """Find the functions."""
        self._prepare = find_name("accelerate", ["accelerate.data_loader:prepare_data_loader"])
        self._skip = find_name("accelerate", ["accelerate.data_loader:skip_first_batches"])

    def loaded_rows(self, plan: LoaderPlan) -> Sequence[Epochs]:
        if plan.dispatch:
            raise NotServed("one process reads for all of them, which takes several processes")
        if plan.own_draws:
            raise NotServed("processes have other random numbers, which takes several processes")
        new_accelerator()
        return [self._rows_of(plan, rank) for rank in range(plan.num_ranks)]

    def _rows_of(self, plan: LoaderPlan, rank: int) -> Epochs:
        with sizes_needed():
            loader = self._prepare(
                loader_of(vars(plan)),
                num_processes=plan.num_ranks,
                process_index=rank,
                split_batches=plan.split,
                even_batches=plan.even,
                use_seedable_sampler=plan.shuffled_by != "process",
            )
        epochs: list[Any] = []
        for epoch in range(plan.first_epoch, plan.num_epochs):
            if hasattr(loader, "set_epoch"):
                loader.set_epoch(epoch)
            resumes = plan.skip and epoch == plan.first_epoch
            read = self._skip(loader, plan.skip) if resumes else loader
            epochs.append(rows_read(read))
        return epochs
