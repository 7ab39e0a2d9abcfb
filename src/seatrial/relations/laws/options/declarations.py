"""R18: what a stack declares about itself is true."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from seatrial.relations.cases import Rollout, make_rollout
from seatrial.relations.facts import facts_of
from seatrial.relations.law import Measure, Relation
from seatrial.relations.laws.loss.micro_batches import unequal
from seatrial.relations.tensors import inputs_of, largest_gradient_difference


def _make(stack: Any, seed: int, tidy: bool) -> Rollout:
    vocab_size = getattr(stack, "vocab_size", 37)
    return make_rollout(seed, vocab_size=vocab_size, num_prompts=3, num_generations=2)


def _make_long(stack: Any, seed: int, tidy: bool) -> Rollout:
    masked_row = facts_of(stack).masked_rows
    return make_rollout(seed, longest_prompt=20, longest_completion=40, masked_row=masked_row)


def _unless(name: str, value: Any, *methods: str) -> Callable[[Any], str | None]:
    """Return the exclusion of a law about a declaration that the stack does not make, or that cannot be checked."""

    def excluded(stack: Any) -> str | None:
        if getattr(facts_of(stack), name) == value:
            return f"{name}={value!r}"
        if not any(hasattr(stack, method) for method in methods):
            return f"it offers none of {', '.join(methods)}"
        return None

    return excluded


FACTS = Relation(
    id="R18.facts",
    name="declarations-are-true",
    component="facts",
    statement="A stack refuses what it declares to exclude, and its batches are as declared.",
    cost="CPU, milliseconds",
    cases=_make_long,
)


@FACTS.law(
    "masked rows are refused",
    "rows that a filter empties are trained on all the same",
    cases=_make,
    excluded=_unless("masked_rows", True, "make_batch", "policy_loss", "gradients"),
)
def masked_rows_are_refused(stack: Any, case: Rollout) -> Measure:
    """Check that batches, losses and steps refuse a row without a training token."""
    calls: dict[str, Callable[[], Any]] = {
        "make_batch": lambda: stack.make_batch(case.rows),
        "policy_loss": lambda: stack.policy_loss(inputs_of(case)),
        "gradients": lambda: stack.gradients(case.rows, [list(range(len(case.rows)))]),
    }
    taken = [name for name, call in calls.items() if hasattr(stack, name) and not _refuses(call)]
    return Measure.count(taken, "methods that accept a fully masked row")


@FACTS.law(
    "masked rows leave the loss a number",
    "a mean over the tokens of a row that has none",
    cases=_make,
    excluded=_unless("masked_rows", True, "policy_loss"),
)
def masked_rows_leave_a_number(stack: Any, case: Rollout) -> Measure:
    """Check that a loss of rows of which one has no training token is refused, or finite."""
    given: list[Any] = []
    if _refuses(lambda: given.append(stack.policy_loss(inputs_of(case)))):
        return Measure(error=0.0, bound=0.0, what="a fully masked row, refused")
    finite = bool(torch.isfinite(given[0]).all())
    return Measure(
        error=not finite, bound=0, what=f"whether a fully masked row gives a loss of {given[0]} (1: it does)"
    )


def _refuses(call: Callable[[], Any]) -> bool:
    """Return whether a stack refuses an input, with any exception."""
    try:
        call()
    except Exception:  # noqa: BLE001  any exception is a refusal, which is what was declared
        return True
    return False


@FACTS.law(
    "unequal micro-batches are refused",
    "a last micro-batch that is smaller counts as much as the others",
    cases=_make,
    excluded=_unless("micro_batch_sizes", "any", "gradients"),
)
def unequal_micro_batches_are_refused(stack: Any, case: Rollout) -> Measure:
    """Check that micro-batches of unequal sizes are refused, or are right after all."""
    whole = stack.gradients(case.rows, [list(range(len(case.rows)))]).gradients
    given: list[Any] = []
    if _refuses(lambda: given.append(stack.gradients(case.rows, unequal(len(case.rows))).gradients)):
        return Measure(error=0.0, bound=0.0, what="unequal micro-batches, refused")
    error, name = largest_gradient_difference(given[0], whole)
    return Measure(
        error=error,
        bound=2e-5,
        what=f"gradient of {name} in unequal micro-batches, which the stack did not refuse",
    )


@FACTS.law(
    "no row is longer", "a limit that is not passed on", excluded=_unless("max_length", None, "make_batch")
)
def length_is_kept(stack: Any, case: Rollout) -> Measure:
    """Check that no row of a batch is longer than the declared maximum."""
    limit = facts_of(stack).max_length
    assert limit is not None
    longest = int(stack.make_batch(case.rows).attention_mask_BS.sum(1).max())
    return Measure(error=longest, bound=limit, what="tokens of the longest row of a batch")


@FACTS.law(
    "padding side",
    "a tokenizer's side that the batch builder does not share",
    excluded=_unless("padding_side", None, "make_batch"),
)
def padding_side_is_as_declared(stack: Any, case: Rollout) -> Measure:
    """Check that rows are padded on the declared side."""
    mask_BS = stack.make_batch(case.rows).attention_mask_BS.long()
    side = facts_of(stack).padding_side
    sorted_BS = mask_BS.sort(1, descending=side == "right").values
    wrong = int((mask_BS != sorted_BS).any(1).sum())
    return Measure(error=wrong, bound=0, what=f"rows that are not padded on the {side}")


@FACTS.law(
    "dtype of the loss",
    "an autocast, a cast that is left out",
    excluded=_unless("dtype", None, "policy_loss"),
)
def dtype_is_as_declared(stack: Any, case: Rollout) -> Measure:
    """Check that the loss has the declared dtype."""
    loss = stack.policy_loss(inputs_of(case))
    declared = getattr(torch, str(facts_of(stack).dtype))
    return Measure(
        error=loss.dtype != declared,
        bound=0,
        what=f"whether the loss is {loss.dtype} and not {declared} (1: it is)",
    )
