"""R1, R10 and R12 of objectives: supervised and preference training, whole batches against the oracle and in parts."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from typing import Any, Literal

from seatrial.relations.cases.examples import ExampleCase, make_examples
from seatrial.relations.facts import needs_unequal_micro_batches
from seatrial.relations.law import Law, Measure, Relation
from seatrial.relations.laws.loss.micro_batches import Split, pairs, singles, unequal
from seatrial.relations.not_served import NotServed
from seatrial.relations.oracles import objectives as objective_oracles
from seatrial.relations.steps import objective_step
from seatrial.relations.tensors import largest_gradient_difference

GRADIENT_BOUND = 5e-4
"""float32 sums in another order, through a model whose weights are large on purpose; the smallest real bug is 0.05."""
LOSS_BOUND = 1e-3
"""What trainers log they round to four digits."""

FAR = 0.5
"""Nats by which a reference point differs from 0, so that it moves the gradient by more than its bound."""
CANDIDATES = 24

Lengths = Literal["equal", "unequal"]


def _make(lengths: Lengths, **more: Any) -> Callable[[Any, int, bool], ExampleCase]:
    def make(stack: Any, seed: int, tidy: bool) -> ExampleCase:
        return make_examples(
            seed,
            ordinary_ids=stack.ordinary_ids,
            eos_id=stack.eos_id,
            pairs=stack.objective_spec.of_pairs,
            labels=stack.objective_spec.of_labels,
            lengths="equal" if tidy else lengths,
            **more,
        )

    return make


def _make_labelled(desirable: bool) -> Callable[[Any, int, bool], ExampleCase]:
    def make(stack: Any, seed: int, tidy: bool) -> ExampleCase:
        """Return examples of one label alone; tidy ones have both."""
        case = _make("equal", **SMALL)(stack, seed, tidy)
        labelled = tuple(replace(one, desirable=desirable) for one in case.examples)
        return case if tidy else replace(case, examples=labelled)

    return make


def _make_with_point(above: bool) -> Callable[[Any, int, bool], ExampleCase]:
    def make(stack: Any, seed: int, tidy: bool) -> ExampleCase:
        """Return those of many examples that the policy likes best, or least, beside the reference: a point far from 0.

        Raises:
            NotServed: it is not far enough.
        """
        many = _make("equal", num_examples=CANDIDATES, **SMALL)(stack, seed, tidy)
        point_of = objective_oracles.reference_points(stack)
        liked = sorted(many.examples, key=lambda one: point_of([one]))
        case = replace(many, examples=tuple(liked[-4:] if above else liked[:4]))
        point = point_of(case.examples)
        if not ((point > FAR) if above else (point < -FAR)):
            raise NotServed(
                f"of {CANDIDATES} examples none make a reference point far {'above' if above else 'below'} 0"
            )
        return case

    return make


def _without_labels(stack: Any) -> str | None:
    return None if stack.objective_spec.of_labels else f"objective_spec.kind={stack.objective_spec.kind!r}"


def _without_point(stack: Any) -> str | None:
    spec = stack.objective_spec
    return _without_labels(stack) or (None if spec.of_mates else f"reference_point={spec.reference_point!r}")


def depends_on_mates(stack: Any) -> str | None:
    """Return the declaration by which a loss is another in other micro-batches."""
    spec = stack.objective_spec
    return f"objective_spec.reference_point={spec.reference_point!r}" if spec.of_mates else None


def _make_long(stack: Any, seed: int, tidy: bool) -> ExampleCase:
    """Completions lose their ends where the start is kept, and prompts theirs else; no completion is lost whole."""
    limit = stack.objective_spec.max_length
    assert limit is not None
    longest = (limit // 2, limit) if stack.objective_spec.keep == "start" else (2 * limit, limit // 2)
    return _make("unequal", longest_prompt=longest[0], longest_completion=longest[1])(stack, seed, tidy)


def _whole(case: ExampleCase) -> Split:
    return [list(range(len(case.examples)))]


def _gradient_equals_oracle(stack: Any, case: ExampleCase) -> Measure:
    oracle = objective_oracles.objective(stack, case.examples)
    given = objective_step(stack, case.examples, _whole(case)).gradients
    error, name = largest_gradient_difference(given, oracle.gradients)
    return Measure(
        error=error,
        bound=GRADIENT_BOUND,
        what=f"gradient of {name} against the oracle for {stack.objective_spec}, relative difference",
    )


def _loss_equals_oracle(stack: Any, case: ExampleCase) -> Measure:
    oracle = objective_oracles.objective(stack, case.examples)
    loss = objective_step(stack, case.examples, _whole(case)).loss
    return Measure(
        error=abs(loss - oracle.loss) / max(abs(oracle.loss), 1e-1),
        bound=LOSS_BOUND,
        what=f"logged loss {loss:.6g} against the oracle's {oracle.loss:.6g} for {stack.objective_spec}, relative",
    )


def _split(case: ExampleCase, way: Callable[[int], Split]) -> Split | None:
    """Return the split; None where it is no split of this case, or pairs would be of unequal sizes."""
    split = way(len(case.examples))
    sizes = {len(part) for part in split}
    return None if len(split) < 2 or (way is pairs and len(sizes) > 1) else split


def _gradients_add_up(way: Callable[[int], Split]) -> Callable[[Any, ExampleCase], Measure | None]:
    def measure(stack: Any, case: ExampleCase) -> Measure | None:
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

    return measure


def _losses_add_up(way: Callable[[int], Split]) -> Callable[[Any, ExampleCase], Measure | None]:
    def measure(stack: Any, case: ExampleCase) -> Measure | None:
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

    return measure


def _no_dead_tensor(stack: Any, case: ExampleCase) -> Measure:
    """Every parameter of the model that requires a gradient gets one that is finite and not zero."""
    wanted = {name for name, value in stack.objective_model().named_parameters() if value.requires_grad}
    given = objective_step(stack, case.examples, _whole(case)).gradients
    dead = {name for name, value in given.items() if not 0 < float(value.abs().max()) < math.inf}
    wrong = sorted(dead | (wanted ^ set(given)))
    return Measure(
        error=float(len(wrong)),
        bound=0,
        what=f"tensors without a gradient, with one that is zero or not finite, or that should not train ({wrong[:3]})",
    )


def _truncates_nothing(stack: Any) -> str | None:
    return "objective_spec.max_length=None" if stack.objective_spec.max_length is None else None


ACCUMULATION = (
    "a loss that is not divided by the micro-batches, or twice; a mean over each micro-batch's own tokens"
)
SUSPECTS = (
    "a token too many or too few in the sum, a divisor that counts what is not predicted, padding attended to"
)
WAYS = (("one example", singles), ("two examples", pairs))
SMALL = {"longest_prompt": 5, "longest_completion": 6}

RELATIONS = (
    Relation(
        id="R1.objective",
        name="objective-ignores-micro-batches",
        component="objective",
        statement="The raw gradient of a batch of examples is the same however it is split into micro-batches.",
        catalogue=("SB155", "SB156", "SB158", "SB159", "SB175", "SB181", "SB182", "SB211"),
        cost="CPU, seconds",
        laws=(
            *(
                Law(
                    name=f"gradients add up, lengths {lengths}, in micro-batches of {which}",
                    make=_make(lengths, **(SMALL if lengths == "equal" else {})),
                    measure=_gradients_add_up(way),
                    excluded=depends_on_mates,
                    suspects=ACCUMULATION,
                )
                for lengths in ("equal", "unequal")
                for which, way in WAYS
            ),
            Law(
                name="gradients add up, lengths unequal, in micro-batches of unequal numbers of examples",
                make=_make("unequal"),
                measure=_gradients_add_up(unequal),
                excluded=lambda stack: needs_unequal_micro_batches(stack) or depends_on_mates(stack),
                suspects=ACCUMULATION,
            ),
            Law(
                name="logged losses add up, lengths unequal, in micro-batches of one example",
                make=_make("unequal"),
                measure=_losses_add_up(singles),
                excluded=depends_on_mates,
                suspects=ACCUMULATION,
            ),
        ),
    ),
    Relation(
        id="R10.objective",
        name="objective-reaches-every-tensor",
        component="objective",
        statement="Every tensor that should train gets a finite gradient that is not zero, and no other tensor one.",
        catalogue=("SB091", "SB162", "SB191", "SB341", "SB345", "SB351", "SB353"),
        cost="CPU, seconds",
        laws=(
            Law(
                name="no dead tensor",
                make=_make("unequal"),
                measure=_no_dead_tensor,
                suspects="adapters frozen with their base, a detach too much, a model prepared for training twice",
            ),
        ),
    ),
    Relation(
        id="R12.objective",
        name="objective-equals-oracle",
        component="objective",
        statement="Gradient and logged loss of a batch equal the float64 oracle of what the stack says it computes.",
        catalogue=("SB001", "SB007", "SB008", "SB015", "SB095", "SB153", "SB168", "SB211"),
        cost="CPU, seconds",
        laws=(
            Law(
                name="gradient, lengths equal",
                make=_make("equal", **SMALL),
                measure=_gradient_equals_oracle,
                suspects=SUSPECTS,
            ),
            Law(
                name="gradient, lengths unequal",
                make=_make("unequal"),
                measure=_gradient_equals_oracle,
                suspects=SUSPECTS,
            ),
            Law(
                name="gradient, beyond the maximum length",
                make=_make_long,
                measure=_gradient_equals_oracle,
                excluded=_truncates_nothing,
                suspects="truncation from the other side, of padded rows, or of ids without their mask",
            ),
            *(
                Law(
                    name=f"gradient, all examples {what}",
                    make=_make_labelled(desirable),
                    measure=_gradient_equals_oracle,
                    excluded=_without_labels,
                    suspects="a mean of an empty part, each label's mean where one over all examples is due",
                )
                for what, desirable in (("desirable", True), ("undesirable", False))
            ),
            *(
                Law(
                    name=f"gradient, reference point {what}",
                    make=_make_with_point(above),
                    measure=_gradient_equals_oracle,
                    excluded=_without_point,
                    suspects="completions beside their own prompt, a point that is not held to 0, or has a gradient",
                )
                for what, above in (("above 0", True), ("held to 0", False))
            ),
            Law(
                name="logged loss, lengths unequal",
                make=_make("unequal"),
                measure=_loss_equals_oracle,
                suspects="a loss scaled for accumulation and logged as it is, a divisor of the log's own",
            ),
        ),
    ),
)
