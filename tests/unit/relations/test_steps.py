"""Laws that look at the same step of a trainer share it, as it was when it was taken."""

from collections.abc import Sequence
from dataclasses import dataclass, field

from tests.unit.relations.plain_objectives import PlainTrainer
from torch import Tensor

from seatrial.relations.cases.examples import Example, ExampleCase, ObjectiveSpec, make_examples
from seatrial.relations.engine import run_relation
from seatrial.relations.records import StepResult
from seatrial.relations.registry import select
from seatrial.relations.runs import RunCache, sharing_runs
from seatrial.relations.steps import MAX_KEPT, objective_step
from seatrial.verdict import Outcome

SFT = ObjectiveSpec(kind="sft")


@dataclass
class CountedTrainer(PlainTrainer):
    """Notes what it was asked."""

    asked: list[tuple[object, str]] = field(default_factory=list)

    def objective_step(
        self, examples: Sequence[Example], micro_batches: Sequence[Sequence[int]]
    ) -> StepResult:
        """Train one step."""
        self.asked.append((tuple(examples), repr(micro_batches)))
        return super().objective_step(examples, micro_batches)


@dataclass
class LiveTrainer(PlainTrainer):
    """Returns tensors that its next step overwrites."""

    live: dict[str, Tensor] = field(default_factory=dict)

    def objective_step(
        self, examples: Sequence[Example], micro_batches: Sequence[Sequence[int]]
    ) -> StepResult:
        """Train one step."""
        step = super().objective_step(examples, micro_batches)
        for name, value in step.gradients.items():
            self.live[name] = self.live[name].copy_(value) if name in self.live else value
        return StepResult(loss=step.loss, gradients=self.live)


def made(seed: int) -> ExampleCase:
    """Return examples of a seed."""
    return make_examples(seed, ordinary_ids=range(2, 17), eos_id=1, pairs=False)


def test_laws_of_objectives_take_each_step_once() -> None:
    """Three relations have six laws that begin with the same whole batch."""
    trainer = CountedTrainer(SFT)
    with sharing_runs():
        for relation in select(["R1.objective", "R10.objective", "R12.objective"]):
            assert run_relation(relation, trainer, seeds=[0]).outcome is Outcome.PASS
    assert len(trainer.asked) == len(set(trainer.asked)) > 3


def test_other_trainers_and_other_splits_are_other_steps() -> None:
    """Nothing is taken for another."""
    one, other, case = CountedTrainer(SFT), CountedTrainer(SFT), made(0)
    with sharing_runs():
        for trainer in (one, other, one):
            objective_step(trainer, case.examples, [[0, 1, 2, 3]])
        objective_step(one, case.examples, [[0, 1], [2, 3]])
    objective_step(one, case.examples, [[0, 1], [2, 3]])
    assert (len(one.asked), len(other.asked)) == (3, 1)


def test_the_last_few_are_kept() -> None:
    """Shrinking makes hundreds of cases."""
    trainer, cache = CountedTrainer(SFT), RunCache()
    with sharing_runs(cache):
        for seed in [*range(2 * MAX_KEPT), 0]:
            objective_step(trainer, made(seed).examples, [[0, 1, 2, 3]])
    assert len(cache.steps) == MAX_KEPT
    assert len(trainer.asked) == 2 * MAX_KEPT + 1


def test_a_trainer_that_returns_its_own_gradients_is_not_held_to_them() -> None:
    """They are those of the last step by the time that two are compared."""
    faulty = LiveTrainer(SFT, faults=frozenset({"summed micro-batches"}))
    (relation,) = select(["R1.objective"])
    assert run_relation(relation, faulty, seeds=[0]).outcome is Outcome.FAIL
