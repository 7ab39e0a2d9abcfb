"""R22.whole: what a trainer logs of its steps is what its documentation says, of all micro-batches and processes."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from seatrial.relations.contracts.trainers import (
    LoggedRow,
    Scalar,
    TrainerPlan,
    TrainerRecord,
    TrainerStep,
)
from seatrial.relations.law import Measure, Relation
from seatrial.relations.laws.trainer.updates import (
    MICRO_BATCHED,
    TWO_RANKS,
    WHOLE,
    only_updates,
    stays_in_one_process,
)
from seatrial.relations.not_served import NotServed
from seatrial.relations.oracles.runs import norm_of
from seatrial.relations.oracles.trainer_metrics import Rows, mean_over_parts, scalar
from seatrial.relations.oracles.trainers import advantages, step_oracle
from seatrial.relations.runs import trainer_run
from seatrial.relations.worst import relative_error

BOUND = 1e-3
"""Trainers round what they log to four digits."""

LOGGED = Relation(
    id="R22.whole",
    name="whole-trainer-logs-what-it-says",
    component="whole_trainer",
    statement="Loss, norm and each documented scalar of a step equal the oracle of its rows, however they are split.",
    catalogue="SB058 SB059 SB214 SB278 SB362 SB364 SB367 SB368 SB369 SB371 SB372 SB374 SB381 SB382",
    cost="CPU, the runs of R12.whole",
    cases=MICRO_BATCHED,
)
SUSPECTS = "the last micro-batch alone, padding counted, another mask, values of other weights"


@LOGGED.law("loss, two micro-batches a step", "a sum over micro-batches, the last one's loss")
@LOGGED.law(
    "loss, two processes",
    "the first process alone, a sum over processes",
    cases=TWO_RANKS,
    excluded=stays_in_one_process,
    thorough=True,
)
def loss_equals_oracle(stack: Any, case: TrainerPlan) -> Measure:
    """Compare the logged loss of each step with the oracle."""
    record = trainer_run(stack, case)
    found = []
    for step in record.steps:
        right, logged = step_oracle(stack, record, step).loss, step.logged.get("loss", math.nan)
        error = relative_error(logged, right, 1e-1)
        found.append((error, f"step {step.step}: {logged:.6g}, the oracle's {right:.6g}"))
    return Measure.largest(found, BOUND, "logged loss, relative difference")


@LOGGED.law("gradient norm", "the norm after clipping, or of one process")
def norm_is_of_the_gradients(stack: Any, case: TrainerPlan) -> Measure:
    """Compare the logged norm of each step with that of its raw gradients."""
    found = []
    for step in trainer_run(stack, case).steps:
        right, logged = norm_of(step.update.gradients), step.logged.get("grad_norm", math.nan)
        found.append((relative_error(logged, right), f"step {step.step}: {logged:.6g}, {right:.6g}"))
    return Measure.largest(found, BOUND, "logged gradient norm, relative difference")


def _needs_scalars(stack: Any) -> str | None:
    return None if stack.trainer_spec.scalars else "trainer_spec.scalars is empty"


OF_POLICIES = ("entropy", "entropy after each token", "reference KL", "log-ratio to the reference")
"""What compares distributions of a policy: scalars of their own laws, as releases average them in their own ways."""


def _is_of_policies(definition: Scalar) -> bool:
    return definition.quantity in OF_POLICIES or definition.quantity.startswith("clipped")


def _needs(stack: Any, of_policies: bool) -> str | None:
    found = any(_is_of_policies(one) == of_policies for one in stack.trainer_spec.scalars.values())
    return None if found else "trainer_spec.scalars has none of this kind"


def _needs_others(stack: Any) -> str | None:
    return _needs(stack, False)


def _needs_policies(stack: Any) -> str | None:
    return _needs(stack, True)


@LOGGED.law("scalars, two micro-batches a step", SUSPECTS, excluded=_needs_others)
@LOGGED.law(
    "scalars, two processes",
    "the first process alone",
    cases=TWO_RANKS,
    excluded=lambda stack: _needs_others(stack) or stays_in_one_process(stack),
    thorough=True,
)
def scalars_equal_definitions(stack: Any, case: TrainerPlan) -> Measure:
    """Compare each documented scalar of each step with its definition, but those of `OF_POLICIES`."""
    return _scalars_error(stack, trainer_run(stack, case), (scalar, mean_over_parts), of_policies=False)


@LOGGED.law("entropy, divergence and clipping, two micro-batches a step", SUSPECTS, excluded=_needs_policies)
@LOGGED.law(
    "entropy, divergence and clipping, two processes",
    "the first process alone",
    cases=TWO_RANKS,
    excluded=lambda stack: _needs_policies(stack) or stays_in_one_process(stack),
    thorough=True,
)
def scalars_of_policies_equal_definitions(stack: Any, case: TrainerPlan) -> Measure:
    """Compare entropies, divergences and shares of clipped tokens of each step with their definitions."""
    return _scalars_error(stack, trainer_run(stack, case), (scalar, mean_over_parts), of_policies=True)


@LOGGED.law(
    "means of a step are over all its rows",
    "a mean of the micro-batches' means",
    excluded=lambda stack: _needs_scalars(stack) or only_updates(stack),
)
@LOGGED.law(
    "means of a step are over the rows of both processes",
    "a mean of the processes' means, as over different numbers of tokens",
    cases=TWO_RANKS,
    excluded=lambda stack: _needs_scalars(stack) or stays_in_one_process(stack),
    thorough=True,
)
def means_are_not_of_means(stack: Any, case: TrainerPlan) -> Measure:
    """Compare each mean of each step with that over all its tokens or rows, in one pool."""
    return _scalars_error(stack, trainer_run(stack, case), (scalar,), hows=("mean",))


@LOGGED.law(
    "tables of completions",
    "rows of another step, an order that is not that of the rewards, a column of other rows",
    excluded=lambda stack: None if stack.trainer_spec.logs_rows else "trainer_spec.logs_rows=False",
)
def tables_hold_the_rollouts(stack: Any, case: TrainerPlan) -> Measure:
    """Check that the table of each step has each of its rollouts once, with its rewards and its advantage."""
    record = trainer_run(stack, case)
    wrong = []
    for step in record.steps:
        due = [row for row in record.rollouts if row.weight_version == step.step - 1]
        rows = [row for row in record.logged_rows if row.step == step.step]
        found = [row.rollout for row in rows if row.rollout is not None]
        if len(rows) != len(due) or set(found) != set(due):
            wrong.append(f"step {step.step}: {len(found)} of {len(rows)} rows are of its {len(due)} rollouts")
        estimated = {
            one: value
            for batch in {row.batch for row in due}
            for one, value in advantages(stack, record, batch).items()
        }
        for row in rows:
            if row.rollout is not None and not _is_as_computed(row, estimated[row.rollout]):
                wrong.append(f"step {step.step}: {row.rewards} and {row.advantage:.6g} of {row.rollout}")
    return Measure.count(wrong if record.logged_rows else ["no table"], "rows of tables")


def _is_as_computed(row: LoggedRow, advantage: float) -> bool:
    assert row.rollout is not None
    pairs = [*zip(row.rewards, row.rollout.rewards, strict=True), (row.advantage, advantage)]
    return all(
        one is other if one is None or other is None else relative_error(one, other, 1e-1) <= BOUND
        for one, other in pairs
    )


@LOGGED.law("scalars are logged", "a name that is no longer logged", excluded=_needs_scalars)
def each_scalar_is_logged(stack: Any, case: TrainerPlan) -> Measure:
    """Check that each documented scalar is logged, unless it has no value in the whole run.

    Raises:
        NotServed: only scalars are missing that the release's code does not name.
    """
    record = trainer_run(stack, case)
    judged = judged_scalars(stack, record)
    wrong = {
        name: [name]
        if not any(name in step.logged for step in record.steps)
        and not all(map(math.isnan, step_values(stack, record, definition)))
        else []
        for name, definition in judged.items()
    }
    missing = sorted(stack.trainer_spec.scalars.keys() - judged.keys())
    if missing and not any(wrong.values()):
        raise NotServed(f"the release neither names nor logs {', '.join(missing)}")
    return Measure.count_of_each(wrong, "scalars that are not logged")


def judged_scalars(stack: Any, record: TrainerRecord, *, of_steps: bool = True) -> dict[str, Scalar]:
    """Return the definitions of the scalars that the release has: those that its code names, or that it logs.

    An evaluation may log what steps do not: old reward models have an accuracy there alone.
    """
    spec = stack.trainer_spec
    logged = {name for step in record.steps for name in step.logged}
    if not of_steps:
        logged |= {name for evaluation in record.evaluations for name in evaluation.logged}
    return {
        name: one for name, one in spec.scalars.items() if name in logged or name not in spec.unnamed_scalars
    }


def _scalars_error(
    stack: Any,
    record: TrainerRecord,
    allowed: Sequence[Callable[[Scalar, Rows], float]],
    hows: Sequence[str] = ("mean", "min", "max", "deviation", "total"),
    of_policies: bool | None = None,
) -> Measure:
    """Compare scalars with the nearest of what is allowed: all, or those that are, or are not, `OF_POLICIES`."""
    found = []
    totals: Counter[str] = Counter()
    judged = {
        name: one
        for name, one in judged_scalars(stack, record).items()
        if of_policies is None or _is_of_policies(one) == of_policies
    }
    if not any(definition.how in hows for definition in judged.values()):
        raise NotServed("the release has none of the scalars that this law is about")
    for step in record.steps:
        rows = Rows(stack, record, step.micro_batches, step.step - 1)
        for name, definition in judged.items():
            if definition.how == "total":
                totals[name] += scalar(definition, rows)  # type: ignore[assignment]
            if definition.how in hows:
                right = (
                    [totals[name]] if definition.how == "total" else [of(definition, rows) for of in allowed]
                )
                found.append(_difference(name, step, right))
    return Measure.largest_of_each(
        found, BOUND, "logged scalars against their definitions, relative difference"
    )


@LOGGED.law(
    "loss and scalars, a logging interval of two steps",
    "the last step alone, a sum, values left over from the interval before",
    cases=WHOLE,
)
def interval_is_averaged(stack: Any, case: TrainerPlan) -> Measure:
    """Compare what is logged after two steps with the mean of both steps, or the extremum or total.

    If the first step is logged as well, the interval is the second step alone.
    """
    record = trainer_run(stack, case)
    first = 1 if stack.trainer_spec.logs_first_step else 0
    due = [one.step for one in record.steps if one.step == first or one.step % case.logging_steps == 0]
    logged = [one.step for one in record.steps if "loss" in one.logged]
    found = [("steps", 0.0 if logged == due else math.inf, f"logged after steps {logged}, {due} are due")]
    step, interval = record.steps[case.logging_steps - 1], record.steps[first : case.logging_steps]
    losses = [step_oracle(stack, record, one).loss for one in interval]
    found.append(_difference("loss", step, [math.fsum(losses) / len(losses)]))
    for name, definition in judged_scalars(stack, record).items():
        own = list(step_values(stack, record, definition))[first : case.logging_steps]
        right = [own[-1] if definition.how == "total" else math.fsum(own) / len(own)]
        if definition.how == "mean":
            rows = [part for one in interval for part in one.micro_batches]
            right.append(
                scalar(definition, Rows(stack, record, rows, 0)) if _same_weights(definition) else right[0]
            )
        found.append(_difference(name, step, right))
    return Measure.largest_of_each(found, BOUND, "what is logged of two steps, relative difference")


def _same_weights(definition: Scalar) -> bool:
    """Return whether a quantity does not depend on the weights, so that the rows of both steps have one mean."""
    return definition.quantity in (
        "length",
        "ended length",
        "truncated",
        "reward",
        "first reward",
        "constant group",
    )


def _difference(name: str, step: TrainerStep, right: Sequence[float]) -> tuple[str, float, str]:
    """Return a logged scalar, its difference from the nearest of the values that are documented, and both."""
    logged = step.logged.get(name, math.nan)
    error = min(
        0.0 if math.isnan(value) and name not in step.logged else relative_error(logged, value, 1e-1)
        for value in right
    )
    return name, error, f"{name} of step {step.step}: {logged:.6g}, by its definition {right[0]:.6g}"


def step_values(stack: Any, record: TrainerRecord, definition: Scalar) -> Iterator[float]:
    """Yield a scalar of each step; a total grows."""
    total = 0.0
    for step in record.steps:
        value = scalar(definition, Rows(stack, record, step.micro_batches, step.step - 1))
        total += value
        yield total if definition.how == "total" else value
