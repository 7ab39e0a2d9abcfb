"""Plain splits, exchanges, models and saved loops, which satisfy the laws of loops; a fault is one line."""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from seatrial.relations.contracts.placed import PlacedModel, PlacedPlan
from seatrial.relations.contracts.processes import ExchangePlan, SeedPlan, SplitPart, SplitPlan
from seatrial.relations.contracts.saved_loops import SavedLoop, SavedLoopPlan, SavedLoopStep
from seatrial.relations.oracles.exchanges import expected, leaves, nested, objects_of, types_of


@dataclass
class PlainProcesses:
    """Splits, exchanges, places and saves."""

    fault: str = ""

    def split(self, plan: SplitPlan) -> Sequence[SplitPart]:
        rows, parts = list(range(plan.num_rows)), []
        longest = -(-plan.num_rows // plan.num_ranks)
        cut = 1 if plan.twice and self.fault == "split in place" else 0
        for rank in range(plan.num_ranks):
            part = rows[cut:][rank :: plan.num_ranks] if self.fault == "every second row" else []
            if self.fault != "every second row":
                shortest, more = divmod(plan.num_rows - cut, plan.num_ranks)
                at = rank * shortest + min(rank, more)
                part = rows[cut:][at : at + shortest + (rank < more)]
            if self.fault == "the last row twice" and rank == plan.num_ranks - 1:
                part = [*part, rows[-1]]
            fill = 0 if self.fault == "filled with the first" else rows[-1]
            part = part + [fill] * ((longest - len(part)) if plan.padded else 0)
            parts.append(SplitPart(tuple(part), tuple(part if self.fault == "split in place" else rows)))
        return parts

    def exchanged_nested(self, plan: ExchangePlan) -> Sequence[Mapping[str, Tensor | str]]:
        if plan.how in ("gather objects", "broadcast objects"):
            ranks = [objects_of(rank) for rank in range(plan.num_ranks)]
            sent = ranks[0 if self.fault == "the first sends" else plan.source]
            due = sent if plan.how == "broadcast objects" else [one for own in ranks for one in own]
            if self.fault == "objects of one" and plan.how == "gather objects":
                due = ranks[0]
            return [{"objects": repr(due)}] * plan.num_ranks
        given = (
            ExchangePlan(how=plan.how, num_ranks=plan.num_ranks) if self.fault == "the first sends" else plan
        )
        types = types_of(nested(leaves(0, scalar=plan.how != "concatenate")))
        found = []
        for rank in range(plan.num_ranks):
            values = expected(given, rank)
            if self.fault == "floats" and plan.how == "float32":
                values = {name: value.float() for name, value in values.items()}
            if self.fault == "lists":
                types = types.replace("tuple", "list")
            if self.fault == "transposed" and plan.how == "gather":
                values["0"] = values["0"].T.reshape(values["0"].shape)
            if self.fault == "halved" and plan.how == "mean":
                values["2"] = values["2"] / 2
            found.append({**values, "types": types})
        return found

    def placed(self, plan: PlacedPlan) -> PlacedModel:
        plain = {"weight": torch.arange(4.0) + plan.seed, "buffer": torch.ones(2)}
        outputs = plain["weight"].expand(2, 4)
        kept = dict(plain)
        if self.fault == "a buffer leaves" and plan.placing == "listed":
            del kept["buffer"]
        if self.fault == "a part is not read" and plan.placing == "saved in parts":
            kept["weight"] = kept["weight"] * 0
        if self.fault == "half on disk" and plan.placing == "loaded half to disk":
            outputs = outputs * 0.5
        return PlacedModel(outputs, plain["weight"].expand(2, 4), kept, plain)

    def seeded_draws(self, plan: SeedPlan) -> Sequence[Mapping[str, Sequence[float]]]:
        found = []
        for rank in range(plan.num_ranks):
            own = plan.seed + (rank if plan.own and self.fault != "one for all" else 0)
            fixed = 3 if self.fault == "fixed seed" else own
            drawn = random.random() if self.fault == "not seeded" else random.Random(own).random()
            found.append({"first": [random.Random(fixed).random()], "second": [drawn]})
        return found

    def tried_batch_sizes(self, start: int, fits: int) -> Sequence[int]:
        tried = [start]
        while tried[-1] > (fits // 2 if self.fault == "passes over" else fits):
            tried.append(tried[-1] - 1)
        return tried

    def passes_errors_on(self) -> bool:
        return self.fault != "swallows"

    def saved_loop(self, plan: SavedLoopPlan) -> Sequence[SavedLoop]:
        return [self._loop_of(plan, rank) for rank in range(plan.num_ranks)]

    def _loop_of(self, plan: SavedLoopPlan, rank: int) -> SavedLoop:
        steps, weights, rate = [], torch.zeros(2), 1.0
        resumed, in_epoch = plan.saves_after > 0, plan.num_batches // plan.accumulation
        for step in range(plan.num_epochs * in_epoch):
            again = resumed and step >= plan.saves_after
            epoch = 0 if again and self.fault == "the first order" else step // in_epoch
            rows = list(range(in_epoch))
            random.Random(plan.seed + 10 * epoch + rank).shuffle(rows)
            rate = 1.0 if step == plan.saves_after and resumed and self.fault == "rate" else rate * 0.9
            if step == plan.saves_after and resumed and self.fault == "moments":
                weights = weights * 0.5
            weights = weights + rate * rows[step % in_epoch]
            drawn = random.Random(
                step - (plan.saves_after if again and self.fault == "draws" else 0)
            ).random()
            lost = 0.5 if again and self.fault == "losses" else 0.0
            counted = step + 1 - (plan.saves_after if again and self.fault == "objects" else 0)
            steps.append(
                SavedLoopStep((rows[step % in_epoch],), (rate + lost,), (rate,), (drawn,) * 3, counted)
            )
        return SavedLoop(steps[plan.saves_after :], {"weights": weights})
