"""R31.batches: operations on a batch of tensors, objects and facts about it give what a loop over rows gives."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import torch

from seatrial.relations.contracts.utilities import Batch
from seatrial.relations.law import Measure, Relation
from seatrial.relations.laws.utilities.numbers import Numbers, without
from seatrial.relations.laws.utilities.plain import difference, relation_of

NUM_ROWS = 6
BATCHES: Relation = relation_of(
    "batches",
    "operations-on-batches-keep-tensors-objects-and-facts",
    "Each operation on a batch gives the rows, the types and the facts about the batch that a loop over rows gives.",
)
FORMS = ("tensors and objects", "tensors alone", "objects alone")
"""Of a batch; an adapter whose batches have fewer names them in `batch_forms`."""


def made_batch(case: Numbers, form: str = FORMS[0], num_rows: int = NUM_ROWS, start: int = 0) -> Batch:
    """Return a batch of columns of several types; objects are texts, dictionaries and lists of unequal lengths."""
    generator = torch.Generator().manual_seed(case.seed + start)
    rows = range(start, start + num_rows)
    tensors = {
        "ids": torch.tensor([[2**24 + 1 + 10 * row + place for place in range(4)] for row in rows]).reshape(
            -1, 4
        ),
        "reward": torch.randn(num_rows, generator=generator),
        "half": torch.randn(num_rows, 2, generator=generator).bfloat16(),
        "done": torch.rand(num_rows, generator=generator) < 0.5,
    }
    objects: dict[str, list[Any]] = {
        "text": [f"row {row}" for row in rows],
        "info": [{"answer": str(row), "score": row / 2} for row in rows],
        "turns": [list(range(1 + row % 3)) for row in rows],
    }
    facts = {"temperature": 0.7, "global_steps": 3, "names": ["a", "b"]}
    return Batch(
        tensors={} if form == "objects alone" else tensors,
        objects={} if form == "tensors alone" else objects,
        facts=facts,
    )


def at_places(batch: Batch, places: Sequence[int]) -> Batch:
    """Return the rows at places, with the facts."""
    tensors = {name: values[list(places)] for name, values in batch.tensors.items()}
    objects = {name: [values[place] for place in places] for name, values in batch.objects.items()}
    return Batch(tensors, objects, batch.facts)


def num_rows_of(batch: Batch) -> int:
    """Return the number of rows."""
    columns: list[Any] = [*batch.tensors.values(), *batch.objects.values()]
    return len(columns[0])


def named(batch: Batch, tensors: Iterable[str], objects: Iterable[str], facts: Iterable[str]) -> Batch:
    """Return a batch with the columns and facts of some names."""
    return Batch(
        {name: batch.tensors[name] for name in tensors},
        {name: batch.objects[name] for name in objects},
        {name: batch.facts[name] for name in facts},
    )


def _concat(batches: Sequence[Batch], *_: Any) -> list[Batch]:
    """Return all rows; `metrics` of the batches, dictionaries or lists of them, become lists by name."""
    first = batches[0]
    metrics: dict[str, list[Any]] = {}
    for batch in batches:
        own = batch.facts.get("metrics", [])
        for one in own if isinstance(own, list) else [own]:
            for name, value in one.items():
                metrics.setdefault(name, []).append(value)
    facts = {name: value for batch in batches for name, value in batch.facts.items() if name != "metrics"}
    return [
        Batch(
            {name: torch.cat([batch.tensors[name] for batch in batches]) for name in first.tensors},
            {name: [value for batch in batches for value in batch.objects[name]] for name in first.objects},
            facts | ({"metrics": metrics} if metrics else {}),
        )
    ]


def _union(batches: Sequence[Batch]) -> list[Batch]:
    one, other = batches
    parts = [(getattr(one, part) | getattr(other, part)) for part in ("tensors", "objects", "facts")]
    return [Batch(*parts)]


def _renamed(batches: Sequence[Batch], old: Sequence[str], new: Sequence[str]) -> list[Batch]:
    names = dict(zip(old, new, strict=True))
    (batch,) = batches
    tensors = {names.get(name, name): values for name, values in batch.tensors.items()}
    return [Batch(tensors, batch.objects, batch.facts)]


def _popped(batches: Sequence[Batch], *names: Sequence[str]) -> list[Batch]:
    (batch,) = batches
    parts: Sequence[Mapping[str, Any]] = (batch.tensors, batch.objects, batch.facts)
    rest = [[name for name in part if name not in own] for part, own in zip(parts, names, strict=True)]
    return [named(batch, *names), named(batch, *rest)]


def _split(batches: Sequence[Batch], size: int) -> list[Batch]:
    (batch,) = batches
    starts = range(0, num_rows_of(batch), size)
    return [at_places(batch, range(start, min(start + size, num_rows_of(batch)))) for start in starts]


def _padded(batches: Sequence[Batch], count: int, which: str) -> list[Batch]:
    (batch,) = batches
    own = list(range(num_rows_of(batch)))
    return [at_places(batch, own + [0 if which == "first" else len(own) - 1] * count)]


def _columns_unfolded(batches: Sequence[Batch], count: int, names: Sequence[str]) -> list[Batch]:
    """Return each row as several, which share the columns of some names and repeat the others."""
    (batch,) = batches
    repeated = at_places(batch, [row for row in range(num_rows_of(batch)) for _ in range(count)])
    tensors = dict(repeated.tensors)
    for name in names:
        parts = [torch.chunk(row, count) for row in batch.tensors[name]]
        tensors[name] = torch.stack([part for row in parts for part in row])
    return [Batch(tensors, repeated.objects, batch.facts)]


def _iterated(batches: Sequence[Batch], size: int, epochs: int) -> list[Batch]:
    (batch,) = batches
    starts = range(0, num_rows_of(batch), size)
    return [at_places(batch, range(start, start + size)) for _ in range(epochs) for start in starts]


RIGHT: Mapping[str, Callable[..., list[Batch]]] = {
    "same": lambda batches, *_: [batches[0]],
    "select": lambda batches, *names: [named(batches[0], *names)],
    "pop": _popped,
    "rename": _renamed,
    "places": lambda batches, places: [at_places(batches[0], places)],
    "mask": lambda batches, mask: [at_places(batches[0], [row for row, on in enumerate(mask) if on])],
    "slice": lambda batches, *ends: [
        at_places(batches[0], list(range(num_rows_of(batches[0])))[slice(*ends)])
    ],
    "reorder": lambda batches, places: [at_places(batches[0], places)],
    "repeat": lambda batches, count, interleaved: [
        at_places(batches[0], [row for row in range(num_rows_of(batches[0])) for _ in range(count)])
        if interleaved
        else at_places(batches[0], list(range(num_rows_of(batches[0]))) * count)
    ],
    "repeat rows": lambda batches, counts: [
        at_places(batches[0], [row for row, count in enumerate(counts) for _ in range(count)])
    ],
    "concat": _concat,
    "union": _union,
    "chunk": lambda batches, count: _split(batches, num_rows_of(batches[0]) // count),
    "split": _split,
    "pad": _padded,
    "unfold columns": _columns_unfolded,
    "iterate": _iterated,
}
"""Each operation by its definition: (batches, *arguments) -> batches; `same` takes a way there and back."""
OPERATIONS: Sequence[tuple[str, str, str, Sequence[tuple[Any, ...]], Sequence[str]]] = (
    ("columns and facts of some names", "select", "facts kept that are not named, objects lost",
     [(["ids", "reward"], ["text"], ["temperature"]), (["done"], [], [])], FORMS[:1]),
    ("columns and facts taken out", "pop", "what is taken out stays, facts of all",
     [(["ids"], ["text", "info"], ["names"]), (["half", "done"], [], [])], FORMS[:1]),
    ("a renamed column", "rename", "a copy under both names", [(["ids"], ["input_ids"])], FORMS[:2]),
    ("several renamed columns", "rename", "the first alone", [(["ids", "half"], ["input_ids", "h"])], FORMS[:2]),
    ("rows at places", "places", "an order of objects that is not that of tensors", [([4, 1, 1, 0],), ([5],)], FORMS),
    ("rows of a mask", "mask", "a mask taken for places",
     [([True, False, True, True, False, False],), ([False] * 6,)], FORMS),
    ("slices", "slice", "a step left out, a negative end",
     [(1, 4, None), (None, None, 2), (-3, -1, None), (2, None, 3), (3, 3, None)], FORMS),
    ("reordered rows", "reorder", "objects in their old order", [([5, 3, 1, 0, 2, 4],)], FORMS[:2]),
    ("repeated rows", "repeat", "facts lost, objects tiled and tensors interleaved",
     [(3, True), (2, False), (1, True)], FORMS),
    ("rows repeated unequally", "repeat rows", "a row of no copies, the counts of other rows",
     [([2, 0, 1, 3, 1, 0],), ([1] * 6,)], FORMS),
    ("equal parts", "chunk", "objects split at other places than tensors, facts lost",
     [(1,), (2,), (3,), (6,)], FORMS),
    ("parts of a size", "split", "the rest lost, facts lost", [(2,), (4,), (6,)], FORMS),
    ("padded rows", "pad", "the other end's row, objects not padded", [(2, "first"), (3, "last")], FORMS[:2]),
    ("columns unfolded", "unfold columns", "parts of another row", [(2, ["ids"]), (4, ["ids"])], FORMS[:2]),
    ("iterated", "iterate", "facts lost, an epoch left out", [(2, 1), (3, 2), (6, 1)], FORMS[:1]),
    ("there and back as another type", "same", "types or facts lost on the way", [("tensordict",)], FORMS[:1]),
    ("sent to another process", "same", "types lost in bytes", [("bytes",)], FORMS),
    ("sent to another process as arrays", "same", "types lost in bytes", [("arrays",)], FORMS),
    ("saved and loaded", "same", "facts lost", [("disk",)], FORMS),
    ("folded and unfolded", "same", "rows in another order", [("fold", 2), ("fold", 3)], FORMS[:1]),
    ("from one dictionary", "same", "objects taken for tensors", [("dictionary",)], FORMS),
)  # fmt: skip
"""Name of the law, operation, suspects, arguments of each case, and forms of the batch."""


def _copied(batch: Batch) -> Batch:
    return Batch(dict(batch.tensors), dict(batch.objects), dict(batch.facts))


def _wrong(stack: Any, operation: str, batches: Sequence[Batch], arguments: tuple[Any, ...]) -> list[str]:
    """Return where a stack's result differs from the definition."""
    right = RIGHT[operation]([_copied(one) for one in batches], *arguments)
    given = stack.utilities["batch operation"](operation, [_copied(one) for one in batches], *arguments)
    error, place = difference([one._asdict() for one in given], [one._asdict() for one in right])
    return [f"{operation} {arguments}: {place}"] if error else []


ONE_METRIC: Sequence[Any] = ({"loss": 1.0}, {"loss": 2.5})
SEVERAL_METRICS: Sequence[Any] = ([{"loss": 1.0}, {"loss": 3.0}], [{"loss": 2.0}])


@BATCHES.law("rows of several batches", "objects of one batch", excluded=without("batch operation"))
@BATCHES.law(
    "metrics and facts of several batches",
    "metrics of one batch alone, facts of the first",
    excluded=without("batch operation"),
    more=True,
    both=(ONE_METRIC, SEVERAL_METRICS),
)
def batches_are_joined(
    stack: Any, case: Numbers, more: bool = False, both: Sequence[Sequence[Any]] = ((None, None),)
) -> Measure:
    """Compare joined batches of unequal numbers of rows, with metrics as a dictionary, as a list, and none."""
    wrong = []
    for form in getattr(stack, "batch_forms", FORMS):
        for metrics in both:
            batches = [made_batch(case, form, 4), made_batch(case, form, 3, start=40)]
            for batch, own in zip(batches, metrics, strict=True):
                if own is not None:
                    batch.facts["metrics"] = own
            if more:
                batches[1].facts["more"] = "of the second"
            wrong += _wrong(stack, "concat", batches, ())
    return Measure.count(wrong, "batches that are wrong")


@BATCHES.law(
    "columns of two batches",
    "an equal column that counts as another, facts of one",
    excluded=without("batch operation"),
)
def columns_are_joined(stack: Any, case: Numbers) -> Measure:
    """Compare united batches that share an equal column, an object and a fact."""
    one = made_batch(case)
    first = named(one, ["ids", "done"], ["text", "turns"], ["temperature"])
    second = named(one, ["ids", "reward", "half"], ["text", "info"], ["temperature", "names"])
    return Measure.count(_wrong(stack, "union", [first, second], ()), "batches that are wrong")


@BATCHES.law(
    "columns that differ are refused",
    "a column overwritten without a word",
    excluded=without("batch operation"),
)
def different_columns_are_refused(stack: Any, case: Numbers) -> Measure:
    """Check that two batches with another tensor, object or fact of the same name cannot be united."""
    wrong = []
    for part, name, other in (
        ("tensors", "reward", torch.zeros(NUM_ROWS)),
        ("objects", "text", ["other"] * NUM_ROWS),
        ("facts", "temperature", 1.0),
    ):
        batches = [made_batch(case), made_batch(case)]
        getattr(batches[1], part)[name] = other
        try:
            stack.utilities["batch operation"]("union", batches)
        except (AssertionError, ValueError):
            continue
        wrong.append(f"another {name}")
    return Measure.count(wrong, "columns that are united although they differ")


def operation_is_right(
    stack: Any, case: Numbers, operation: str, arguments: Sequence[tuple[Any, ...]], forms: Sequence[str]
) -> Measure:
    """Compare an operation on batches of several forms with its definition."""
    wrong = []
    own_forms = getattr(stack, "batch_forms", FORMS)
    for form, own in itertools.product([form for form in forms if form in own_forms], arguments):
        wrong += [f"{form}, {one}" for one in _wrong(stack, operation, [made_batch(case, form)], own)]
    return Measure.count(wrong, "batches that are wrong")


for law, operation, suspects, arguments, forms in OPERATIONS:
    BATCHES.law(
        law,
        suspects,
        excluded=without("batch operation"),
        operation=operation,
        arguments=arguments,
        forms=forms,
    )(operation_is_right)
