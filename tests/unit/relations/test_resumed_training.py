"""The laws of trainers that are ended and begun again: a plain trainer obeys, and each planted fault is seen."""

from dataclasses import dataclass
from typing import Any

import pytest
import torch

from seatrial.relations.contracts.resumed_training import TrainedRun, TrainingPlan
from seatrial.relations.engine import run_relation
from seatrial.relations.registry import select
from seatrial.verdict import Outcome

RATE = 0.1


@dataclass
class PlainTrainer:
    """A line fitted by SGD with momentum, its checkpoints and log in memory; a fault is one line that differs."""

    fault: str = ""
    has_dropout: bool = True
    serves_every_example: bool = True

    def train_as_planned(self, plan: TrainingPlan) -> TrainedRun:
        """Take each part from the last checkpoint, with all objects made anew."""
        run = TrainedRun(weights={}, optimizer={}, served={}, rates={}, log=[])
        checkpoint: dict[str, Any] = {}
        for part, end in enumerate((*plan.ends_after, None)):
            checkpoint, run = self._part(plan, checkpoint, run, end, part)
        return run

    def _part(
        self, plan: TrainingPlan, checkpoint: dict[str, Any], run: TrainedRun, end: int | None, part: int
    ) -> tuple[dict[str, Any], TrainedRun]:
        stream = torch.Generator().manual_seed(plan.seed)
        weight, momentum = torch.zeros(3, dtype=torch.float64), torch.zeros(3, dtype=torch.float64)
        first, cursor, served, rates, log = 0, 0, dict(run.served), dict(run.rates), list(run.log)
        if checkpoint:
            weight, first, cursor = checkpoint["weight"].clone(), checkpoint["step"], checkpoint["cursor"]
            if self.fault != "moments lost" and not (
                self.fault == "moments lost the second time" and part > 1
            ):
                momentum = checkpoint["momentum"].clone()
            if self.fault != "streams lost":
                stream.set_state(checkpoint["stream"])
            if self.fault == "cursor in micro-batches":
                cursor *= plan.num_micro_batches
            if self.fault == "epoch begins anew":
                cursor = 0
            if self.fault != "log kept":
                log = [entry for entry in log if entry[1] <= first]
            if self.fault == "log begins anew":
                log = []
        last = plan.num_steps if end is None else end + int(plan.loses_a_step)
        for step in range(first + 1, last + 1):
            examples = tuple(self._example(plan, cursor + place, part) for place in range(plan.batch_size))
            cursor += plan.batch_size
            gradient = sum(self._gradient(weight, one) for one in examples) / plan.batch_size
            if plan.dropout:
                gradient = gradient * (torch.rand(3, generator=stream, dtype=torch.float64) > 0.5)
            done = step - 1 - (first if self.fault == "schedule begins anew" else 0)
            rate = RATE * (1 - done / plan.num_steps if plan.schedule == "linear" else 1.0)
            momentum = 0.9 * momentum + gradient
            weight = weight - rate * momentum
            served[step], rates[step] = examples, rate
            log.append(("loss", step, float(gradient.abs().sum())))
            if step == end:
                checkpoint = {
                    "weight": weight.clone(),
                    "momentum": momentum.clone(),
                    "step": step,
                    "cursor": cursor,
                    "stream": stream.get_state(),
                }
        optimizer = {"momentum": momentum}
        return checkpoint, TrainedRun(
            weights={"weight": weight}, optimizer=optimizer, served=served, rates=rates, log=log
        )

    def _example(self, plan: TrainingPlan, place: int, part: int) -> int:
        epoch, within = divmod(place, plan.num_examples)
        if self.fault == "order of the part" and part:
            epoch = 0
        order = torch.randperm(
            plan.num_examples, generator=torch.Generator().manual_seed(plan.seed * 100 + epoch)
        )
        return int(order[within])

    def _gradient(self, weight: torch.Tensor, example: int) -> torch.Tensor:
        point = torch.tensor([1.0, example, example**2 % 7], dtype=torch.float64) / 7
        return (weight @ point - example % 3) * point


def broken(trainer: PlainTrainer, *, tidy: bool = False) -> list[str]:
    """Return the laws that a trainer breaks."""
    (relation,) = select(["R13.trainer"])
    verdict = run_relation(relation, trainer, seeds=[0], tidy=tidy)
    assert verdict.outcome in (Outcome.PASS, Outcome.FAIL), verdict
    return list(verdict.details.get("laws_broken", []))


def test_a_plain_trainer_obeys() -> None:
    """Bit for bit."""
    assert broken(PlainTrainer()) == []


@pytest.mark.parametrize(
    ("fault", "law"),
    [
        ("moments lost", "state, stopped once"),
        ("moments lost the second time", "state, stopped twice"),
        ("streams lost", "state, with dropout"),
        ("cursor in micro-batches", "state, several micro-batches a step"),
        ("schedule begins anew", "learning rates of a schedule that falls"),
        ("epoch begins anew", "examples, stopped within an epoch"),
        ("order of the part", "examples, stopped in the second epoch"),
        ("log begins anew", "log, stopped once"),
        ("log kept", "log, stopped after a step that was not saved"),
    ],
)
def test_a_planted_fault_is_seen(fault: str, law: str) -> None:
    """By the law about it."""
    assert law in broken(PlainTrainer(fault))


def test_a_second_end_alone_shows_what_the_second_start_loses() -> None:
    """One trap a law."""
    assert broken(PlainTrainer("moments lost the second time")) == ["state, stopped twice"]
    assert broken(PlainTrainer("log kept")) == ["log, stopped after a step that was not saved"]


@pytest.mark.parametrize(
    "fault",
    ["streams lost", "cursor in micro-batches", "schedule begins anew", "order of the part", "log kept"],
)
def test_a_tidy_plan_hides_it(fault: str) -> None:
    """Ended after one step, at one rate, in the first epoch."""
    assert broken(PlainTrainer(fault), tidy=True) == []


def test_a_run_that_serves_an_example_twice_is_seen_though_it_was_not_ended() -> None:
    """The unbroken run is no oracle of its own order."""

    class AlwaysTheFirst(PlainTrainer):
        def _example(self, plan: TrainingPlan, place: int, part: int) -> int:
            return 0

    assert "examples, stopped within an epoch" in broken(AlwaysTheFirst())


def test_plans_become_smaller_by_ends() -> None:
    """A plan that is stopped once is the smallest."""
    plan = TrainingPlan(num_steps=5, ends_after=(2, 3))
    assert [smaller.ends_after for smaller in plan.smaller()] == [(2,), (3,)]
    assert not list(TrainingPlan(num_steps=5, ends_after=(2,)).smaller())
