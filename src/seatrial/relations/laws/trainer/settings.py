"""R24.whole: a trainer does what its settings say about order, seeds, evaluation, sampling and dropout."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import torch

from seatrial.relations.contracts.trainers import TrainerPlan, TrainerRecord, TrainerRow, TrainerSpec
from seatrial.relations.law import Measure, Relation
from seatrial.relations.laws.trainer.updates import MICRO_BATCHED, only_updates, plan, samples
from seatrial.relations.runs import trainer_run

EVALUATED = plan(eval_steps=2)
UNEVEN = plan(num_examples=7)

SETTINGS = Relation(
    id="R24.whole",
    name="whole-trainer-follows-its-settings",
    component="whole_trainer",
    statement="Order, seeds, last batches, evaluations, sampling, dropout and the weights kept are as configured.",
    catalogue="SB216 SB217 SB296 SB298 SB390 SB391",
    cost="CPU, a second a run",
    cases=MICRO_BATCHED,
    excluded=only_updates,
)


def _unless(declared: Callable[[TrainerSpec], bool], otherwise: str) -> Callable[[Any], str | None]:
    """Return a law's `excluded`: `otherwise` where the spec does not declare what the law is about."""
    return lambda stack: only_updates(stack) or (None if declared(stack.trainer_spec) else otherwise)


def _served(record: TrainerRecord, stack: Any) -> list[tuple[int, ...]]:
    """Return the prompts of training in the order in which they are served, each run of one prompt once."""
    rows: Sequence[TrainerRow] = (
        record.rollouts if samples(stack) else [row for step in record.steps for row in step.rows]
    )
    prompts = [row.prompt_ids for row in rows]
    return [one for place, one in enumerate(prompts) if place == 0 or prompts[place - 1] != one]


@SETTINGS.law(
    "order of rows",
    "a split that is shuffled once more, or never",
    excluded=_unless(lambda spec: spec.order != "any", "trainer_spec.order='any'"),
)
def rows_have_the_configured_order(stack: Any, case: TrainerPlan) -> Measure:
    """Compare the order of the rows with that of the training split."""
    record = trainer_run(stack, case)
    served = _served(record, stack)
    given = [row.prompt_ids for row in record.split]
    as_given = [given[place % len(given)] for place in range(len(served))]
    wrong = []
    if stack.trainer_spec.order == "as given" and served != as_given:
        wrong.append("rows are in another order than the split's")
    if stack.trainer_spec.order == "shuffled" and served == as_given:
        wrong.append("rows are in the order of the split")
    return Measure.count(wrong, "order of rows")


@SETTINGS.law(
    "seed of the order",
    "a seed that is a constant, one seed for two purposes",
    excluded=_unless(lambda spec: spec.order == "shuffled", "rows are not shuffled"),
    thorough=True,
)
def order_follows_its_seed(stack: Any, case: TrainerPlan) -> Measure:
    """Check that a run with another seed has another order; the same one if the order has its own seed."""
    one, other = (
        _served(trainer_run(stack, replace(case, seed=seed)), stack) for seed in (case.seed, case.seed + 1)
    )
    if stack.trainer_spec.order_has_own_seed:
        return Measure.count(["another seed of the run changes it"] if one != other else [], "order of rows")
    return Measure.count(["another seed leaves it the same"] if one == other else [], "order of rows")


@SETTINGS.law(
    "last micro-batch of an epoch",
    "a short micro-batch that is kept, or dropped",
    cases=UNEVEN,
    excluded=lambda stack: only_updates(stack) or samples(stack),
    thorough=True,
)
def last_micro_batch_is_as_configured(stack: Any, case: TrainerPlan) -> Measure | None:
    """Check that an epoch of 7 rows serves all of them, or leaves the last micro-batch of one row out."""
    if stack.trainer_spec.packs:
        return None
    record = trainer_run(stack, case)
    size = case.num_rows // case.num_micro_batches
    sizes = [len(part) for step in record.steps for part in step.micro_batches]
    epoch = [size] * (case.num_examples // size)
    if not stack.trainer_spec.drops_last and case.num_examples % size:
        epoch.append(case.num_examples % size)
    due = [epoch[place % len(epoch)] for place in range(len(sizes))]
    return Measure.count([] if sizes == due else [f"{sizes}, {due} are due"], "sizes of micro-batches")


@SETTINGS.law(
    "prompts are those of the split",
    "a template with other arguments, prompts cut, not cut or joined",
    excluded=lambda stack: None if samples(stack) else only_updates(stack),
)
def prompts_are_of_the_split(stack: Any, case: TrainerPlan) -> Measure:
    """Check that each prompt that was trained on is one of the split, token for token."""
    record = trainer_run(stack, case)
    known = {row.prompt_ids for row in record.split}
    served = {row.prompt_ids for step in record.steps for row in step.rows}
    served |= {row.prompt_ids for row in record.rollouts}
    wrong = [f"{ids} is no prompt of the split" for ids in sorted(served - known)]
    return Measure.count(wrong if served else ["none"], "prompts")


@SETTINGS.law(
    "generation settings",
    "an option that does not reach the engine, a default of the model's own settings",
    excluded=_unless(lambda spec: bool(spec.sampling), "trainer_spec.sampling is empty"),
)
def generation_is_as_configured(stack: Any, case: TrainerPlan) -> Measure:
    """Compare what each generation is started with to the settings."""
    record = trainer_run(stack, case)
    wrong = [
        f"{name} is {given.get(name)}, {value} is configured"
        for given in record.sampling
        for name, value in stack.trainer_spec.sampling.items()
        if given.get(name) != value
    ]
    return Measure.count(wrong if record.sampling else ["nothing was generated"], "settings of generation")


@SETTINGS.law(
    "dropout",
    "dropout that is switched off in some modules alone, or in all of them",
    excluded=lambda stack: None if stack.trainer_spec.dropout is not None else "dropout is not declared",
)
def dropout_is_as_configured(stack: Any, case: TrainerPlan) -> Measure:
    """Compare the largest probability of dropout in training with the configured one."""
    found, due = trainer_run(stack, case).dropout, stack.trainer_spec.dropout
    return Measure(
        error=abs(found - due), bound=0, what=f"probability of dropout {found}, {due} is configured"
    )


@SETTINGS.law("rows of ids", "packing that is left out, or that is always on", cases=EVALUATED)
def rows_are_flattened_as_configured(stack: Any, case: TrainerPlan) -> Measure:
    """Check that rows hold several examples if they are packed or free of padding, and else one."""
    record, spec = trainer_run(stack, case), stack.trainer_spec
    found = [("training", record.flattened, spec.flattens)]
    found += [("evaluation", one.flattened, spec.evaluation.flattens) for one in record.evaluations]
    wrong = [
        f"{'one example' if due else 'several examples'} in a row of {where}"
        for where, flattened, due in found
        if flattened != due
    ]
    return Measure.count(wrong, "examples of a row")


@SETTINGS.law("width of padded rows", "a multiple that is not rounded up to")
def widths_are_multiples(stack: Any, case: TrainerPlan) -> Measure | None:
    """Check that padded lengths are multiples of the configured number; None where that is 1."""
    multiple = stack.trainer_spec.width_multiple
    if multiple == 1:
        return None
    widths = sorted(trainer_run(stack, case).widths)
    wrong = [f"{width} is no multiple of {multiple}" for width in widths if width % multiple]
    return Measure.count(wrong if widths else ["no width was observed"], "widths of padded rows")


@SETTINGS.law(
    "held-out rows", "the last batch left out, rows repeated to fill it, another batch size", cases=EVALUATED
)
def evaluations_see_every_held_out_row(stack: Any, case: TrainerPlan) -> Measure | None:
    """Check that each evaluation sees each held-out row as often as configured, in batches of the configured size."""
    if stack.trainer_spec.packs:
        return None
    record, spec = trainer_run(stack, case), stack.trainer_spec.evaluation
    due = {row.prompt_ids: spec.copies for row in record.held_out}
    wrong = []
    for one in record.evaluations:
        seen = Counter(row.prompt_ids for part in one.batches for row in part)
        sizes = [len(part) for part in one.batches]
        if dict(seen) != due:
            wrong.append(f"after step {one.step} rows are seen {sorted(seen.values())} times")
        if spec.num_rows is not None and any(size != spec.num_rows for size in sizes[:-1] or sizes):
            wrong.append(f"after step {one.step} batches have {sizes} rows, {spec.num_rows} are due")
    return Measure.count(wrong if record.evaluations else ["no evaluation"], "evaluations of held-out rows")


@SETTINGS.law(
    "weights at the end",
    "the last weights, the best of another metric, the worst",
    cases=plan(eval_steps=1),
    excluded=_unless(lambda spec: spec.best is not None, "trainer_spec.best is None"),
)
def best_weights_are_kept(stack: Any, case: TrainerPlan) -> Measure:
    """Compare the weights at the end with those of the step whose evaluation is best."""
    record, best = trainer_run(stack, case), stack.trainer_spec.best
    values = {one.step: one.logged[best.metric] for one in record.evaluations if one.step}
    step = (max if best.larger else min)(values, key=lambda one: values[one])
    wrong = [
        name
        for name, value in record.weights_at(step).items()
        if not torch.equal(value, record.final_weights[name])
    ]
    return Measure.count(wrong, f"tensors that are not those of step {step}, of {best.metric} {values}")
