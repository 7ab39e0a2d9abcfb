"""R31.merged: a model that is merged from the shards of its ranks is the model that was trained."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from seatrial.relations.law import Measure
from seatrial.relations.laws.utilities.numbers import Numbers, without
from seatrial.relations.laws.utilities.plain import difference, relation_of

MERGED = relation_of(
    "merged",
    "merged-shards-are-the-model",
    "Shards of all ranks, merged and read again, have every weight, the settings of generation and the adapter.",
)
TENSORS = "tensors"
SHARDS: Sequence[tuple[int, int]] = ((1, 1), (1, 3))
"""Numbers of copies, and of shards of each: three do not divide the widths of the models."""


@MERGED.law(
    "weights",
    "shards in another order, the last and shorter shard cut, settings of generation of the library",
    excluded=without("merged model"),
    kind="plain",
)
@MERGED.law(
    "weights, a head that is the embedding",
    "a head of random weights, an embedding that is left out",
    excluded=without("merged model"),
    kind="tied",
)
@MERGED.law(
    "weights, a head of values",
    "a head of another class, a head of random weights",
    excluded=without("merged model"),
    kind="classifier",
)
@MERGED.law(
    "weights and adapter",
    "a scale of the default, modules left out, names that the library does not read, the adapter in the base",
    excluded=without("merged model"),
    kind="adapter",
)
@MERGED.law(
    "weights, two copies of the shards",
    "shards of two copies in succession, placements of the wrong dimension",
    excluded=without("merged model"),
    kind="plain",
    shapes=((2, 2),),
)
def merged_shards_are_the_model(
    stack: Any, case: Numbers, kind: str, shapes: Sequence[tuple[int, int]] = SHARDS
) -> Measure:
    """Compare weights and settings that are read from the merged files with the model's."""
    found = []
    for shape in shapes:
        right, given = stack.utilities["merged model"](kind, shape)
        right, given = ({name: one[name] for name in one if name != TENSORS} for one in (right, given))
        error, place = difference(given, right)
        found.append((error, f"{place} of {shape[0]} copies of {shape[1]} shards"))
    return Measure.largest(found, 0.0, f"a merged model of the kind {kind!r} against the model")


@MERGED.law(
    "tensors of the file, a head that is the embedding",
    "the head as a second tensor, which a later library does not tie to the embedding",
    excluded=without("merged model"),
)
def a_tied_head_is_written_once(stack: Any, case: Numbers) -> Measure:
    """Compare the names of the tensors in the merged files with the model's own, each of which is there once."""
    right, given = stack.utilities["merged model"]("tied", SHARDS[0])
    wrong = sorted(set(given[TENSORS]) ^ set(right[TENSORS]))
    return Measure.count(wrong, "tensors that are in the files or in the model alone")
