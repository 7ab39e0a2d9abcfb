"""What a stack declares about itself: inputs that it excludes by design, and the precision that it computes in.

A declaration (attribute `facts` of an adapter) is printed with every verdict, takes the excluded input out of the
laws, and is itself held by the relation `declarations-are-true`.
"""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Any, Literal


@dataclass(frozen=True, kw_only=True)
class StackFacts:
    """Facts of a stack; the defaults exclude nothing."""

    micro_batch_sizes: Literal["any", "equal"] = "any"
    """`equal`: the rows of an optimizer batch go through the model in micro-batches of one size."""
    masked_rows: bool = True
    """False: a row without any training token is refused, or never made."""
    ends_inside: bool = True
    """False: no token follows an end token in a row, as where every row is one turn."""
    trains: Literal["all", "last"] = "all"
    """Which assistant turns of a conversation train."""
    max_length: int | None = None
    """Tokens of prompt plus completion beyond which a batch builder truncates; None truncates nothing."""
    padding_side: Literal["right", "left"] | None = None
    """Where a batch builder pads; None says nothing."""
    epsilon: float = 0.0
    """What the stack adds to the denominators of its means (tokens of a batch or of a row)."""
    decays: Literal["all", "matrices"] = "all"
    """What weight decay shrinks: every trainable tensor, or those of two dimensions and more."""
    dtype: Literal["float64", "float32", "bfloat16", "float16"] | None = None
    """What losses and log-probabilities are computed in; None is the dtype of the inputs."""


MACHINE_EPSILON = {"float64": 2.0**-52, "float32": 2.0**-23, "bfloat16": 2.0**-7, "float16": 2.0**-10}
ROUNDINGS = 64
"""A sum of n terms of random sign rounds by about sqrt(n) units; n is at most a few hundred, three stages follow."""


def facts_of(stack: Any) -> StackFacts:
    """Return what a stack declares; the defaults where it declares nothing."""
    facts = getattr(stack, "facts", None)
    return facts if isinstance(facts, StackFacts) else StackFacts()


def describe_facts(stack: Any) -> dict[str, Any]:
    """Return the declarations that differ from the defaults, by name."""
    facts, default = facts_of(stack), StackFacts()
    return {
        item.name: getattr(facts, item.name)
        for item in fields(facts)
        if getattr(facts, item.name) != getattr(default, item.name)
    }


def bound_of(stack: Any, exact: float, *, smallest_count: float = 1.0) -> float:
    """Return the bound of a relative error that is `exact` for a stack that declares neither dtype nor epsilon.

    A mean over n with a denominator n + epsilon is off by epsilon / n at most, with n the smallest count of the case;
    a computation in a coarser dtype rounds by `ROUNDINGS` of its units. Two such results are compared: both double.
    """
    facts = facts_of(stack)
    rounding = 0.0 if facts.dtype is None else ROUNDINGS * MACHINE_EPSILON[facts.dtype]
    return max(exact, 2 * rounding) + 2 * facts.epsilon / max(smallest_count, 1.0)


def needs_masked_rows(stack: Any) -> str | None:
    """Return the declaration that excludes rows without a training token, or None."""
    return None if facts_of(stack).masked_rows else "masked_rows=False"


def needs_ends_inside(stack: Any) -> str | None:
    """Return the declaration that excludes tokens after an end token, or None."""
    return None if facts_of(stack).ends_inside else "ends_inside=False"


def needs_unequal_micro_batches(stack: Any) -> str | None:
    """Return the declaration that excludes micro-batches of unequal sizes, or None."""
    return None if facts_of(stack).micro_batch_sizes == "any" else "micro_batch_sizes='equal'"
