"""R18: what a stack declares about itself is true."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from seatrial.relations.cases import Rollout, make_rollout
from seatrial.relations.facts import facts_of
from seatrial.relations.law import Law, Measure, Relation
from seatrial.relations.laws.loss.micro_batches import unequal
from seatrial.relations.tensors import inputs_of, largest_gradient_difference


def _refuses(call: Callable[[], Any]) -> bool:
    """Tell whether a stack refuses an input; how is its own affair."""
    try:
        call()
    except Exception:  # noqa: BLE001  any exception is a refusal, which is what was declared
        return True
    return False


def _make(stack: Any, seed: int, tidy: bool) -> Rollout:
    vocab_size = getattr(stack, "vocab_size", 37)
    return make_rollout(seed, vocab_size=vocab_size, num_prompts=3, num_generations=2)


def _make_long(stack: Any, seed: int, tidy: bool) -> Rollout:
    masked_row = facts_of(stack).masked_rows
    return make_rollout(seed, longest_prompt=20, longest_completion=40, masked_row=masked_row)


def _unless(name: str, value: Any, *methods: str) -> Callable[[Any], str | None]:
    """Return the exclusion of a law about a declaration that the stack does not make, or cannot be held to."""

    def excluded(stack: Any) -> str | None:
        if getattr(facts_of(stack), name) == value:
            return f"{name}={value!r}"
        if not any(hasattr(stack, method) for method in methods):
            return f"it offers none of {', '.join(methods)}"
        return None

    return excluded


def _masked_rows_are_refused(stack: Any, case: Rollout) -> Measure:
    """A batch, a loss or a step that takes a row without a training token must not serve it in silence."""
    calls: dict[str, Callable[[], Any]] = {
        "make_batch": lambda: stack.make_batch(case.rows),
        "policy_loss": lambda: stack.policy_loss(inputs_of(case)),
        "gradients": lambda: stack.gradients(case.rows, [list(range(len(case.rows)))]),
    }
    taken = [name for name, call in calls.items() if hasattr(stack, name) and not _refuses(call)]
    return Measure(
        error=float(len(taken)),
        bound=0,
        what=f"methods that take a fully masked row ({', '.join(taken) or 'none'})",
    )


def _unequal_splits_are_refused(stack: Any, case: Rollout) -> Measure:
    """Micro-batches of unequal sizes are refused, or right after all."""
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


def _length_is_kept(stack: Any, case: Rollout) -> Measure:
    limit = facts_of(stack).max_length
    assert limit is not None
    longest = int(stack.make_batch(case.rows).attention_mask_BS.sum(1).max())
    return Measure(error=float(longest), bound=float(limit), what="tokens of the longest row of a batch")


def _padding_side(stack: Any, case: Rollout) -> Measure:
    mask_BS = stack.make_batch(case.rows).attention_mask_BS.long()
    side = facts_of(stack).padding_side
    sorted_BS = mask_BS.sort(1, descending=side == "right").values
    wrong = int((mask_BS != sorted_BS).any(1).sum())
    return Measure(error=float(wrong), bound=0, what=f"rows that are not padded on the {side}")


def _dtype(stack: Any, case: Rollout) -> Measure:
    loss = stack.policy_loss(inputs_of(case))
    declared = getattr(torch, str(facts_of(stack).dtype))
    return Measure(
        error=float(loss.dtype != declared),
        bound=0,
        what=f"whether the loss is {loss.dtype} and not {declared} (1: it is)",
    )


RELATIONS = (
    Relation(
        id="R18.facts",
        name="declarations-are-held",
        component="facts",
        statement="What a stack declares to exclude it refuses, and what it declares of its batches is so.",
        catalogue=(),
        cost="CPU, milliseconds",
        laws=(
            Law(
                name="masked rows are refused",
                make=_make,
                measure=_masked_rows_are_refused,
                excluded=_unless("masked_rows", True, "make_batch", "policy_loss", "gradients"),
                suspects="rows that a filter empties are trained on all the same",
            ),
            Law(
                name="unequal micro-batches are refused",
                make=_make,
                measure=_unequal_splits_are_refused,
                excluded=_unless("micro_batch_sizes", "any", "gradients"),
                suspects="a last micro-batch that is smaller counts as much as the others",
            ),
            Law(
                name="no row is longer",
                make=_make_long,
                measure=_length_is_kept,
                excluded=_unless("max_length", None, "make_batch"),
                suspects="a limit that is not handed on",
            ),
            Law(
                name="padding side",
                make=_make_long,
                measure=_padding_side,
                excluded=_unless("padding_side", None, "make_batch"),
                suspects="a tokenizer's side that the batch builder does not share",
            ),
            Law(
                name="dtype of the loss",
                make=_make_long,
                measure=_dtype,
                excluded=_unless("dtype", None, "policy_loss"),
                suspects="an autocast, a cast that is left out",
            ),
        ),
    ),
)
