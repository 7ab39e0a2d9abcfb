"""R1, R10 and R12 of objectives: supervised and preference training, against the oracle and in micro-batches."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any, Literal

from seatrial.relations.cases.examples import ExampleCase, make_examples
from seatrial.relations.facts import needs_unequal_micro_batches
from seatrial.relations.law import Measure, Relation
from seatrial.relations.laws.loss.micro_batches import Split, pairs, singles, unequal
from seatrial.relations.not_served import NotServed
from seatrial.relations.oracles import objectives as objective_oracles
from seatrial.relations.steps import objective_step
from seatrial.relations.tensors import largest_gradient_difference

GRADIENT_BOUND = 5e-4
"""float32 sums in another order, in a model with large weights; the smallest real bug is 0.05."""
LOSS_BOUND = 1e-3
"""Trainers round what they log to four digits."""
FAR = 0.5
"""Nats by which a reference point differs from 0, so that it moves the gradient by more than its bound."""
CANDIDATES = 24
Lengths = Literal["equal", "unequal"]


def _examples(stack: Any, seed: int, tidy: bool, lengths: Lengths = "unequal", **more: Any) -> ExampleCase:
    return make_examples(
        seed,
        ordinary_ids=stack.ordinary_ids,
        eos_id=stack.eos_id,
        pairs=stack.objective_spec.of_pairs,
        labels=stack.objective_spec.of_labels,
        lengths="equal" if tidy else lengths,
        **more,
    )


def _short_examples(stack: Any, seed: int, tidy: bool, **more: Any) -> ExampleCase:
    return _examples(stack, seed, tidy, "equal", longest_prompt=5, longest_completion=6, **more)


def _examples_of_one_label(stack: Any, seed: int, tidy: bool, desirable: bool) -> ExampleCase:
    """Return examples that all have one label; tidy ones have both labels."""
    case = _short_examples(stack, seed, tidy)
    labelled = tuple(replace(one, desirable=desirable) for one in case.examples)
    return case if tidy else replace(case, examples=labelled)


def _examples_with_reference_point(stack: Any, seed: int, tidy: bool, above: bool) -> ExampleCase:
    """Return, of many examples, those that the policy prefers most, or least, relative to the reference.

    Raises:
        NotServed: their reference point is not far enough from 0.
    """
    many = _short_examples(stack, seed, tidy, num_examples=CANDIDATES)
    point_of = objective_oracles.reference_points(stack)
    sorted_examples = sorted(many.examples, key=lambda one: point_of([one]))
    case = replace(many, examples=tuple(sorted_examples[-4:] if above else sorted_examples[:4]))
    point = point_of(case.examples)
    if not ((point > FAR) if above else (point < -FAR)):
        raise NotServed(
            f"of {CANDIDATES} examples none make a reference point far {'above' if above else 'below'} 0"
        )
    return case


def _long_examples(stack: Any, seed: int, tidy: bool) -> ExampleCase:
    """Return completions longer than the limit if truncation keeps the start, prompts if it keeps the end."""
    limit = stack.objective_spec.max_length
    assert limit is not None
    longest = (limit // 2, limit) if stack.objective_spec.keep == "start" else (2 * limit, limit // 2)
    return _examples(stack, seed, tidy, longest_prompt=longest[0], longest_completion=longest[1])


def _without_labels(stack: Any) -> str | None:
    return None if stack.objective_spec.of_labels else f"objective_spec.kind={stack.objective_spec.kind!r}"


def _without_point(stack: Any) -> str | None:
    spec = stack.objective_spec
    return _without_labels(stack) or (None if spec.of_mates else f"reference_point={spec.reference_point!r}")


def depends_on_mates(stack: Any) -> str | None:
    """Return the declaration by which the loss depends on how a batch is split."""
    spec = stack.objective_spec
    return f"objective_spec.reference_point={spec.reference_point!r}" if spec.of_mates else None


def _truncates_nothing(stack: Any) -> str | None:
    return "objective_spec.max_length=None" if stack.objective_spec.max_length is None else None


ACCUMULATION = (
    "a loss that is not divided by the micro-batches, or twice; a mean over each micro-batch's own tokens"
)
SUSPECTS = (
    "a token too many or too few in the sum, a divisor that counts what is not predicted, padding attended to"
)

MICRO_BATCHES = Relation(
    id="R1.objective",
    name="objective-ignores-micro-batches",
    component="objective",
    statement="The raw gradient of a batch of examples is the same however it is split into micro-batches.",
    catalogue="SB155 SB156 SB158 SB159 SB175 SB181 SB182",
    cost="CPU, seconds",
    cases=_examples,
    excluded=depends_on_mates,
)

GRADIENTS = Relation(
    id="R10.objective",
    name="objective-reaches-every-tensor",
    component="objective",
    statement="Every tensor that should train gets a finite gradient that is not zero, and no other tensor one.",
    catalogue="SB091 SB162 SB191 SB341 SB345 SB351 SB353",
    cost="CPU, seconds",
    cases=_examples,
)

FORMULA = Relation(
    id="R12.objective",
    name="objective-equals-oracle",
    component="objective",
    statement="Gradient and logged loss of a batch equal the float64 oracle of the declared objective.",
    catalogue="SB001 SB007 SB008 SB015 SB095 SB153 SB168",
    cost="CPU, seconds",
    cases=_examples,
)


def gradients_add_up(stack: Any, case: ExampleCase, way: Callable[[int], Split]) -> Measure | None:
    """Compare the raw gradient of the split batch with that of the whole one."""
    split = _split(case, way)
    if split is None:
        return None
    together = objective_step(stack, case.examples, _whole(case)).gradients
    given = objective_step(stack, case.examples, split).gradients
    error, name = largest_gradient_difference(given, together)
    return Measure(
        error=error,
        bound=GRADIENT_BOUND,
        what=f"gradient of {name}, split into {[len(part) for part in split]} examples, relative difference",
    )


def _split(case: ExampleCase, way: Callable[[int], Split]) -> Split | None:
    """Return the split; None if it is one part, or if pairs would have unequal sizes."""
    split = way(len(case.examples))
    sizes = {len(part) for part in split}
    return None if len(split) < 2 or (way is pairs and len(sizes) > 1) else split


def _whole(case: ExampleCase) -> Split:
    return [list(range(len(case.examples)))]


for lengths, cases in (("equal", _short_examples), ("unequal", _examples)):
    for which, way in (("one example", singles), ("two examples", pairs)):
        MICRO_BATCHES.law(
            f"gradients add up, lengths {lengths}, in micro-batches of {which}",
            ACCUMULATION,
            cases=cases,
            way=way,
        )(gradients_add_up)
MICRO_BATCHES.law(
    "gradients add up, lengths unequal, in micro-batches of unequal numbers of examples",
    ACCUMULATION,
    excluded=lambda stack: needs_unequal_micro_batches(stack) or depends_on_mates(stack),
    way=unequal,
)(gradients_add_up)


@MICRO_BATCHES.law(
    "logged losses add up, lengths unequal, in micro-batches of one example",
    ACCUMULATION,
    way=singles,
)
def logged_losses_add_up(stack: Any, case: ExampleCase, way: Callable[[int], Split]) -> Measure | None:
    """Compare the logged loss of the split batch with that of the whole one."""
    split = _split(case, way)
    if split is None:
        return None
    together = objective_step(stack, case.examples, _whole(case)).loss
    given = objective_step(stack, case.examples, split).loss
    return Measure(
        error=abs(given - together) / max(abs(together), 1e-1),
        bound=LOSS_BOUND,
        what=f"logged loss {given:.6g}, split into {[len(part) for part in split]} examples, and {together:.6g}",
    )


@GRADIENTS.law(
    "no dead tensor",
    "adapters frozen with their base, a detach too much, a model prepared for training twice",
)
def every_tensor_has_a_gradient(stack: Any, case: ExampleCase) -> Measure:
    """Check that exactly the trainable parameters get a gradient, finite and not zero."""
    wanted = {name for name, value in stack.objective_model().named_parameters() if value.requires_grad}
    given = objective_step(stack, case.examples, _whole(case)).gradients
    dead = {name for name, value in given.items() if not 0 < float(value.abs().max()) < math.inf}
    wrong = sorted(dead | (wanted ^ set(given)))
    return Measure.count(
        wrong, "tensors without a gradient, with one that is zero or not finite, or that should not train"
    )


@FORMULA.law("gradient, lengths equal", SUSPECTS, cases=_short_examples)
@FORMULA.law("gradient, lengths unequal", SUSPECTS)
@FORMULA.law(
    "gradient, beyond the maximum length",
    "truncation from the other side, of padded rows, or of ids without their mask",
    cases=_long_examples,
    excluded=_truncates_nothing,
)
@FORMULA.law(
    "gradient, beyond the maximum length, lengths equal",
    "truncation from the other side, where no padding is in its way",
    cases=lambda stack, seed, tidy: _long_examples(stack, seed, True),
    excluded=_truncates_nothing,
)
def gradient_equals_oracle(stack: Any, case: ExampleCase) -> Measure:
    """Compare the raw gradient of a batch with the float64 oracle."""
    oracle = objective_oracles.objective(stack, case.examples)
    given = objective_step(stack, case.examples, _whole(case)).gradients
    error, name = largest_gradient_difference(given, oracle.gradients)
    return Measure(
        error=error,
        bound=GRADIENT_BOUND,
        what=f"gradient of {name} against the oracle for {stack.objective_spec}, relative difference",
    )


for what, desirable in (("desirable", True), ("undesirable", False)):
    FORMULA.law(
        f"gradient, all examples {what}",
        "a mean of an empty part, each label's mean where one over all examples is due",
        cases=partial(_examples_of_one_label, desirable=desirable),
        excluded=_without_labels,
    )(gradient_equals_oracle)


for what, above in (("above 0", True), ("clipped to 0", False)):
    FORMULA.law(
        f"gradient, reference point {what}",
        "completions paired with their own prompt, a point that is not clipped to 0, or has a gradient",
        cases=partial(_examples_with_reference_point, above=above),
        excluded=_without_point,
    )(gradient_equals_oracle)


@FORMULA.law(
    "logged loss, lengths unequal",
    "a loss scaled for accumulation and logged as it is, another divisor in the log",
)
def logged_loss_equals_oracle(stack: Any, case: ExampleCase) -> Measure:
    """Compare the logged loss of a batch with the float64 oracle."""
    oracle = objective_oracles.objective(stack, case.examples)
    loss = objective_step(stack, case.examples, _whole(case)).loss
    return Measure(
        error=abs(loss - oracle.loss) / max(abs(oracle.loss), 1e-1),
        bound=LOSS_BOUND,
        what=f"logged loss {loss:.6g} against the oracle's {oracle.loss:.6g} for {stack.objective_spec}, relative",
    )
