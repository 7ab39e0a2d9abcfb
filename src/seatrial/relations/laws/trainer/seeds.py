"""R26.whole: a trainer's run depends on its seed, and on no other random number of the process."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import torch

from seatrial.relations.contracts.trainers import TrainerPlan, TrainerRecord
from seatrial.relations.law import Measure, Relation
from seatrial.relations.laws.trainer.updates import (
    MICRO_BATCHED,
    TWO_RANKS,
    only_updates,
    stays_in_one_process,
)
from seatrial.relations.not_served import NotServed
from seatrial.relations.runs import trainer_run

SEEDS = Relation(
    id="R26.whole",
    name="whole-trainer-repeats-with-its-seed",
    component="whole_trainer",
    statement="Runs with one seed are one run, regardless of what the process drew before.",
    cost="CPU, a second a run",
    cases=MICRO_BATCHED,
    excluded=only_updates,
)


def _pair(stack: Any, case: TrainerPlan) -> tuple[TrainerRecord, TrainerRecord]:
    """Return the runs of a plan in processes that drew other numbers before."""
    return trainer_run(stack, case), trainer_run(stack, replace(case, process_seed=case.process_seed + 1))


@SEEDS.law("first weights", "a head or adapters that are made before the seed is set")
def first_weights_follow_the_seed(stack: Any, case: TrainerPlan) -> Measure:
    """Compare the weights before the first step of two runs with one seed, bit for bit."""
    one, other = _pair(stack, case)
    wrong = [
        name
        for name, value in one.initial_weights.items()
        if name not in other.initial_weights or not torch.equal(value, other.initial_weights[name])
    ]
    return Measure.count(wrong, "tensors that begin with other values in another run with one seed")


@SEEDS.law("rows and last weights", "an order, dropout or a sample drawn from the process's own numbers")
def runs_of_one_seed_are_one(stack: Any, case: TrainerPlan) -> Measure:
    """Compare the rows of each step, and the weights at the end, of two runs with one seed, bit for bit."""
    one, other = _pair(stack, case)
    wrong = [
        f"the rows of step {left.step}"
        for left, right in zip(one.steps, other.steps, strict=True)
        if left.micro_batches != right.micro_batches
    ]
    wrong += [
        name for name, value in one.final_weights.items() if not torch.equal(value, other.final_weights[name])
    ]
    return Measure.count(wrong, "what differs between two runs with one seed")


@SEEDS.law(
    "new tensors of another seed",
    "tensors that are made from a constant seed",
    excluded=lambda stack: (
        only_updates(stack)
        or (None if stack.trainer_spec.initialises else "trainer_spec.initialises is None")
    ),
)
def new_tensors_follow_the_seed(stack: Any, case: TrainerPlan) -> Measure:
    """Check that tensors which the trainer makes have other values with another seed."""
    one, other = (
        trainer_run(stack, replace(case, seed=seed)).initial_weights for seed in (case.seed, case.seed + 1)
    )
    made = [name for name in one if stack.trainer_spec.initialises in name]
    wrong = [name for name in made if torch.equal(one[name], other[name])]
    return Measure.count(
        wrong if made else ["the trainer makes none"], "new tensors that the seed does not change"
    )


@SEEDS.law(
    "processes sample with numbers of their own",
    "one seed in all processes, which sample the same completions for copies of a prompt",
    cases=TWO_RANKS,
    excluded=lambda stack: stays_in_one_process(stack) or only_updates(stack),
    thorough=True,
)
def processes_sample_apart(stack: Any, case: TrainerPlan) -> Measure:
    """Compare the random states with which the processes begin to sample; copies of a prompt may lie in several.

    Raises:
        NotServed: the trainer samples nothing.
    """
    states = trainer_run(stack, case).sampling_states
    if not states:
        raise NotServed("the trainer samples nothing")
    wrong = [f"process {place}" for place, one in enumerate(states) if one in states[:place]]
    return Measure.count(wrong, "processes that sample with the random numbers of another")
