"""verl's iterators of mini-batches over the rows of a step, with a seed, over several epochs."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from seatrial.relations.contracts.loops import Epochs, LoaderPlan
from seatrial.relations.not_served import NotServed
from seatrial.targets.common.target import find_name


class VerlMiniBatches:
    """`DataProto.make_iterator`: a batch is that of all processes, and is then divided; see `contracts.RowLoader`."""

    def __init__(self) -> None:
        """Find the class."""
        self.batch_class = find_name("verl", ["verl:DataProto", "verl.protocol:DataProto"])

    def loaded_rows(self, plan: LoaderPlan) -> Sequence[Epochs]:
        if (
            plan.split
            or plan.dispatch
            or plan.iterable
            or plan.drawn is not None
            or plan.skip
            or plan.first_epoch
        ):
            raise NotServed("the rows of a step are a list in one process, and are read from the beginning")
        if plan.shuffled_by != "generator" or plan.batched_by != "loader" or plan.own_draws:
            raise NotServed("order and batches are those of the given seed and size")
        size, whole = plan.rows_of_step, plan.num_rows // plan.rows_of_step
        if plan.num_rows % size and not plan.drop_last:
            raise NotServed("a step's rows fill its mini-batches, as the code asserts")
        batches = self.batches(whole * size, plan)
        found = [batches[epoch * whole : (epoch + 1) * whole] for epoch in range(plan.num_epochs)]
        if sum(map(len, found)) != len(batches):
            raise AssertionError(f"{len(batches)} mini-batches in {plan.num_epochs} epochs of {whole}")
        own = plan.batch_size
        return [
            [[batch[rank * own : (rank + 1) * own] for batch in epoch] for epoch in found]
            for rank in range(plan.num_ranks)
        ]

    def batches(self, num_rows: int, plan: LoaderPlan) -> list[list[int]]:
        """Return the rows of each mini-batch of all epochs."""
        batch = self.batch_class.from_dict(tensors={"row": torch.arange(num_rows)})
        found = batch.make_iterator(
            mini_batch_size=plan.rows_of_step,
            epochs=plan.num_epochs,
            seed=plan.seed,
            dataloader_kwargs={"shuffle": plan.shuffle},
        )
        return [one.batch["row"].tolist() for one in found]


class VerlMiniBatchesOfTensorDict(VerlMiniBatches):
    """`make_iterator` of `tensordict_utils`, by which its engines read mini-batches."""

    def __init__(self) -> None:
        """Find the functions."""
        self.make = find_name("verl", ["verl.utils.tensordict_utils:get_tensordict"])
        self.iterate = find_name("verl", ["verl.utils.tensordict_utils:make_iterator"])

    def batches(self, num_rows: int, plan: LoaderPlan) -> list[list[int]]:
        found = self.iterate(
            self.make({"row": torch.arange(num_rows)}),
            mini_batch_size=plan.rows_of_step,
            epochs=plan.num_epochs,
            seed=plan.seed,
            dataloader_kwargs={"shuffle": plan.shuffle},
        )
        return [one["row"].tolist() for one in found]


ADAPTERS: dict[str, type[Any]] = {
    "mini-batches": VerlMiniBatches,
    "mini-batches-of-tensordict": VerlMiniBatchesOfTensorDict,
}
