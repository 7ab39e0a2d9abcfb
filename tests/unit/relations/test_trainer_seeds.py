"""R26.whole: a plain trainer is that of its seed, and each random number of the process's own breaks a law."""

from dataclasses import replace

import pytest
import torch
from tests.unit.relations.plain_trainers import PlainTrainer

from seatrial.relations.contracts.trainers import TrainerPlan, TrainerRecord
from seatrial.relations.engine import run_relation
from seatrial.relations.registry import select
from seatrial.verdict import Outcome

(SEEDS,) = select(["R26.whole"])


class Seeded(PlainTrainer):
    """A plain trainer whose head is new, with a fault."""

    def __init__(self, fault: str = "") -> None:
        """Declare the head."""
        super().__init__()
        self.own_fault = fault
        self.trainer_spec = replace(self.trainer_spec, initialises="head")

    def trainer_run(self, plan: TrainerPlan) -> TrainerRecord:
        if self.own_fault == "order of the process":
            plan = replace(plan, seed=plan.process_seed)
        record = super().trainer_run(plan)
        seed = {"head of the process": plan.process_seed, "head of a constant": 0}.get(
            self.own_fault, plan.seed
        )
        head = torch.randn(3, generator=torch.Generator().manual_seed(seed))
        states = (7, 7) if self.own_fault == "one state" else tuple(range(plan.num_ranks))
        return replace(
            record, initial_weights={**record.initial_weights, "head": head}, sampling_states=states
        )


def test_a_run_that_follows_its_seed_passes() -> None:
    """Every law is exercised and holds."""
    verdict = run_relation(SEEDS, Seeded(), seeds=[0, 1], thorough=True)
    assert verdict.outcome is Outcome.PASS, verdict.reason
    assert set(verdict.details["laws"]) == {law.name for law in SEEDS.laws}


@pytest.mark.parametrize(
    ("fault", "law"),
    [
        ("head of the process", "first weights"),
        ("order of the process", "rows and last weights"),
        ("head of a constant", "new tensors of another seed"),
        ("one state", "processes sample with numbers of their own"),
    ],
)
def test_a_number_of_the_process_breaks_a_law(fault: str, law: str) -> None:
    """Its own."""
    verdict = run_relation(SEEDS, Seeded(fault), seeds=[0], thorough=True, shrink_seconds=0)
    assert law in verdict.details["laws_broken"]
