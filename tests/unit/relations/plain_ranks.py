"""A plain trainer of examples in several gloo processes, with places where a fault can be planted."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Any

import torch
import torch.distributed as dist
from tests.unit.relations.plain_objectives import PlainTrainer

from seatrial.relations.cases.examples import Example, ObjectiveSpec
from seatrial.relations.contracts.ranks import Layout
from seatrial.relations.facts import StackFacts
from seatrial.relations.records import StepResult
from seatrial.targets.common.ranks import StepsOnRanks


class PlainRanks(PlainTrainer, StepsOnRanks):
    """Ranks whose gradients are averaged, as DDP does; a loss is therefore multiplied by their number."""

    facts = StackFacts()

    def __init__(self, fault: str = "") -> None:
        super().__init__(ObjectiveSpec(kind="sft"))
        self.fault = fault
        self.rank_arguments = {"fault": fault}

    def objective_rank_step(self, examples: Sequence[Example], layout: Layout, rank: int) -> StepResult:
        """Accumulate over this rank's micro-batches, then average over ranks."""
        own = [[examples[row] for row in part] for part in layout[rank]]
        self.model.zero_grad()
        tokens = torch.tensor(self._count([one for part in own for one in part]))
        local, size = tokens.clone(), dist.get_world_size()
        dist.all_reduce(tokens)
        logged = torch.zeros(())
        for part in own:
            divisor: Any = local if self.fault == "own count" else tokens / size
            if self.fault == "not divided by the micro-batches":
                divisor = divisor / len(own)
            loss = self._loss(part, divisor / size if self.fault == "multiplied twice" else divisor)
            loss.backward()
            logged += loss.detach()
        for name, value in self.model.named_parameters():
            if not (self.fault == "bias left out" and name == "head.bias"):
                dist.all_reduce(value.grad)
                value.grad /= size
        mean = logged.clone()
        dist.all_reduce(mean)
        mean /= size
        total = local if self.fault == "tokens of one rank" else tokens
        return StepResult(
            loss=float(logged if self.fault == "loss of one rank" else mean),
            gradients={name: value.grad for name, value in self.model.named_parameters()},
            metrics={"num_tokens": float(total)},
        )


def refuse(payload: dict[str, Any]) -> None:
    """End as the payload says: the first rank alone, while the other waits for it."""
    from seatrial.relations import NotServed

    if payload["how"] == "not served":
        raise NotServed("by design")
    if dist.get_rank() == 0:
        if payload["how"] == "exit":
            os._exit(3)
        raise ValueError("made for a test")
    dist.barrier()


def double(payload: dict[str, Any]) -> dict[str, Any]:
    """Return the sum over ranks of a number, printing beside."""
    print("not an answer")
    number = torch.tensor(float(payload["number"]))
    dist.all_reduce(number)
    return {"sum": number, "rank": dist.get_rank(), "process": os.getpid()}
