"""Plain loops in several simulated processes, which satisfy the laws of loops; a fault is one line that differs."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import torch
from tests.unit.relations.plain_processes import PlainProcesses
from tests.unit.relations.plain_trackers import PlainTracker

from seatrial.relations.contracts.loops import (
    AccumulatedBatch,
    AccumulationPlan,
    AccumulationSpec,
    Epochs,
    GatheredAs,
    LoaderPlan,
)
from seatrial.relations.oracles.loops import features, local_descent, start


@dataclass
class PlainLoops(PlainTracker, PlainProcesses):
    """Reads, gathers, exchanges and accumulates in lists."""

    accumulation_spec: AccumulationSpec = field(default_factory=AccumulationSpec)

    def loaded_rows(self, plan: LoaderPlan) -> Sequence[Epochs]:
        ranks: list[list[list[list[int]]]] = [[] for _ in range(plan.num_ranks)]
        for epoch in range(plan.first_epoch, plan.num_epochs):
            steps = self._steps(plan, epoch)
            if plan.skip and epoch == plan.first_epoch:
                steps = steps[plan.skip * (2 if self.fault == "skips twice" else 1) :]
            for rank, epochs in enumerate(ranks):
                epochs.append([step[rank] for step in steps if step[rank]])
        return ranks

    def said_lengths(self, plan: LoaderPlan) -> Sequence[Sequence[int]]:
        given = replace(plan, skip=0) if self.fault == "says what it skips" else plan
        ranks = self.loaded_rows(replace(given, even=True) if self.fault == "says the fullest" else given)
        return [[len(batches) for batches in epochs] for epochs in ranks]

    def validated_rows(self, plan: LoaderPlan) -> Sequence[int]:
        steps = self._steps(replace(plan, shuffle=self.fault == "validations are shuffled"), 0)
        return [row for step in steps for batch in step for row in batch][: plan.num_rows]

    def _steps(self, plan: LoaderPlan, epoch: int) -> list[list[list[int]]]:
        """Return the rows of each step by process."""
        rows = list(range(plan.num_drawn))
        if plan.shuffle:
            same = self.fault == "one order for all epochs" or (
                self.fault == "the sampler is not given the epoch" and plan.shuffled_by == "sampler"
            )
            own = self.fault == "a seed of its own" and plan.shuffled_by == "process"
            random.Random((0 if own else plan.seed * 100) + (0 if same else epoch)).shuffle(rows)
        size = plan.rows_of_step
        if plan.drop_last or (self.fault == "the end is dropped" and len(rows) > size):
            rows = rows[: len(rows) - len(rows) % size]
        short = -len(rows) % size
        if plan.even and short and self.fault != "the end is short":
            filled = rows * size
            rows = (
                rows + filled[:short]
                if self.fault != "a row twice"
                else [rows[0], *rows, *filled[: short - 1]]
            )
        each = size // plan.num_ranks
        parts = [rows[at : at + size] for at in range(0, len(rows), size)]
        steps = [[part[rank * each : (rank + 1) * each] for rank in range(plan.num_ranks)] for part in parts]
        if self.fault == "processes swapped":
            steps = [step[::-1] for step in steps]
        return steps

    def gathered_rows(self, plan: LoaderPlan, kind: GatheredAs) -> Sequence[Sequence[int]]:
        kept = plan.num_drawn if self.fault != "filling stays" else plan.num_rows + 1
        if plan.drop_last:
            kept = plan.num_drawn - plan.num_drawn % plan.rows_of_step
        rows = [row for step in self._steps(replace(plan, even=True), 0) for rank in step for row in rank]
        if self.fault == "objects of one process" and kind == "objects":
            rows = rows[: plan.batch_size]
        first = 0 if self.fault == "skips are gathered" else plan.skip * plan.rows_of_step
        return [rows[first:kept]] * plan.num_ranks

    def gathered(self, values: Sequence[Sequence[float]]) -> Sequence[Sequence[float]]:
        order = values[::-1] if self.fault == "gather" else values
        return [[value for one in order for value in one]] * len(values)

    def reduced(self, values: Sequence[Sequence[float]], how: str) -> Sequence[Sequence[float]]:
        divisor = len(values) if (how == "mean") != (self.fault == "reduction") else 1
        return [[sum(each) / divisor for each in zip(*values, strict=True)]] * len(values)

    def padded(
        self, values: Sequence[Sequence[float]], *, fill: float, first: bool
    ) -> Sequence[Sequence[float]]:
        length = max(len(one) for one in values)
        fills = [[0.0 if self.fault == "fill" else fill] * (length - len(one)) for one in values]
        return [[*pad, *own] if first else [*own, *pad] for pad, own in zip(fills, values, strict=True)]

    def _alone(self, plan: AccumulationPlan) -> Sequence[Sequence[AccumulatedBatch]]:
        """Return steps of processes that each train alone for a while."""
        rows = [
            [
                tuple(range(at, at + plan.batch_size))
                for at in range(step * size, (step + 1) * size, plan.batch_size)
            ]
            for _ in range(plan.num_epochs)
            for step in range(plan.num_batches)
            for size in [plan.batch_size * plan.num_ranks]
        ]
        given = replace(plan, local_steps=3) if self.fault == "another mean" else plan
        right = local_descent(self.accumulation_spec, given, rows)
        seen: list[list[AccumulatedBatch]] = [[] for _ in range(plan.num_ranks)]
        for rank, batches in enumerate(seen):
            for step, weights in zip(rows, right, strict=True):
                batches.append(
                    AccumulatedBatch(step[rank], True, tuple(weights[rank].tolist()), 0.0, None, "")
                )
            mean = torch.stack(right[-1]).mean(0).tolist()
            batches.append(AccumulatedBatch((), False, tuple(mean), 0.0, None, ""))
        return seen

    def accumulated(self, plan: AccumulationPlan) -> Sequence[Sequence[AccumulatedBatch]]:
        if plan.local_steps:
            return self._alone(plan)
        spec, rate = self.accumulation_spec, self.accumulation_spec.rate
        weights, gradient, since, steps = torch.tensor(start()), torch.zeros(len(start())), 0, 0
        seen: list[list[AccumulatedBatch]] = [[] for _ in range(plan.num_ranks)]
        for _ in range(plan.num_epochs):
            for number in range(plan.num_batches):
                since += 1
                parts = []
                last_batch = plan.uneven and number == plan.num_batches - 1
                for rank in range(1 if last_batch else plan.num_ranks):
                    at = (number * plan.num_ranks + rank) * plan.batch_size
                    parts.append(tuple(range(at, at + plan.batch_size)))
                    x_BD = torch.tensor([features(row)[0] for row in parts[-1]])
                    y_B = torch.tensor([features(row)[1] for row in parts[-1]])
                    slope = 2 * (x_BD @ weights - y_B) @ x_BD / plan.batch_size
                    divisor = 1 if self.fault == "gradients are summed" else plan.accumulation
                    active = 1 if last_batch and self.fault == "a mean of one" else plan.num_ranks
                    gradient = gradient + slope / divisor / active
                last = plan.steps_at_the_end and number == plan.num_batches - 1 and self.fault != "last step"
                stepped, norm = since == plan.accumulation or last, None
                if stepped:
                    since, steps = 0, steps + 1
                    norm = float(gradient.norm())
                    if plan.max_norm is not None and norm > plan.max_norm and self.fault != "clipping":
                        gradient = gradient * (plan.max_norm / norm)
                    norm = float(gradient.norm()) if self.fault == "norm" else norm
                    if plan.max_value is not None and self.fault != "elements":
                        gradient = gradient.clamp(-plan.max_value, plan.max_value)
                    weights = weights - rate * gradient
                    times = 1 if plan.split != (self.fault == "schedule") else plan.num_ranks
                    if plan.schedule == "epoch":
                        times = number == plan.num_batches - 1 and self.fault != "schedule"
                    rate *= spec.rate_decay**times
                    gradient = torch.zeros_like(gradient)
                    if steps == plan.resumes_after and self.fault == "resume":
                        rate = spec.rate
                elif self.fault == "moves between steps":
                    weights = weights - 1e-3
                kept = (weights.tolist(), rate, None if plan.max_norm is None else norm)
                dtype = "torch.bfloat16" if plan.mixed and self.fault == "dtype" else "torch.float32"
                for rank, rows in enumerate(parts):
                    seen[rank].append(
                        AccumulatedBatch(rows, stepped, tuple(kept[0]), kept[1], kept[2], dtype)
                    )
        if plan.uneven:
            for batches in seen:
                batches.append(AccumulatedBatch((), False, tuple(weights.tolist()), rate, None, ""))
        return seen
