"""R12.rotary: rotary embeddings of every kind of scaling are those of its formula."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from seatrial.relations.contracts.rotary import RotaryPlan
from seatrial.relations.law import Measure, Relation
from seatrial.relations.oracles.rotary import turned

BOUND = 1e-4
"""Float32 angles of about a hundred."""
YARN = {"factor": 4.0, "original_max_position_embeddings": 64}
LONG = {
    "short_factor": [1.0, 1.1, 1.2, 1.3, 1.4, 1.5, 1.6, 1.7],
    "long_factor": [1.0, 1.5, 2.0, 3.0, 4.0, 6.0, 8.0, 9.0],
    "original_max_position_embeddings": 64,
}
LLAMA3 = {
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 64,
}


def plan(kind: str, *lengths: int, max_positions: int = 64, **options: Any) -> Callable[..., RotaryPlan]:
    """Return a law's `cases`: rows of these lengths."""
    made = RotaryPlan(kind=kind, options=options, lengths=lengths, max_positions=max_positions)
    return lambda stack, seed, tidy: made


ROTARY = Relation(
    id="R12.rotary",
    name="rotary-embeddings-are-their-formula",
    component="rotary",
    statement="Cosines and sines of every place are those of the kind's formula, after a longer row too.",
    cost="CPU, milliseconds",
    cases=plan("default", 40),
    seeded=False,
)
OTHER = "an option that is ignored, another length, an attention factor that is left out"
KEPT = "frequencies of a longer row that are kept"


@ROTARY.law("plain", OTHER)
@ROTARY.law("linear", OTHER, cases=plan("linear", 40, factor=3.0))
@ROTARY.law("dynamic, a short row", OTHER, cases=plan("dynamic", 40, factor=4.0))
@ROTARY.law("dynamic, a long row", OTHER, cases=plan("dynamic", 100, factor=4.0))
@ROTARY.law("dynamic, a longer row after a long one", KEPT, cases=plan("dynamic", 80, 100, factor=4.0))
@ROTARY.law("dynamic, a short row after a long one", KEPT, cases=plan("dynamic", 100, 40, factor=4.0))
@ROTARY.law("yarn", OTHER, cases=plan("yarn", 100, max_positions=256, **YARN))
@ROTARY.law(
    "yarn, bounds and attention factor",
    OTHER,
    cases=plan("yarn", 100, max_positions=256, beta_fast=8, beta_slow=2, attention_factor=0.9, **YARN),
)
@ROTARY.law("longrope, a short row", OTHER, cases=plan("longrope", 40, max_positions=256, **LONG))
@ROTARY.law("longrope, a long row", OTHER, cases=plan("longrope", 100, max_positions=256, **LONG))
@ROTARY.law(
    "longrope, a short row after a long one", KEPT, cases=plan("longrope", 100, 40, max_positions=256, **LONG)
)
@ROTARY.law("llama3", OTHER, cases=plan("llama3", 100, max_positions=512, **LLAMA3))
def embeddings_are_the_formula(stack: Any, case: RotaryPlan) -> Measure:
    """Compare cosines and sines of every place with the formula."""
    found = []
    for name, one, right in zip(("cosine", "sine"), stack.turned(case), turned(case), strict=True):
        if one.shape != right.shape:
            found.append((float("inf"), f"{name}s of shape {tuple(one.shape)}, due {tuple(right.shape)}"))
            continue
        error_SD = (one.double() - right).abs()
        place, column = divmod(int(error_SD.argmax()), right.shape[1])
        found.append((float(error_SD.max()), f"{name} of place {place}, column {column}"))
    return Measure.largest(found, BOUND, f"{case.kind} rotary embeddings against their formula, difference")
