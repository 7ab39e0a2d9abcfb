"""R34.worked: the stack's own functions give the results that were worked out by hand."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from torch import Tensor

from seatrial.relations.cases.case import Case
from seatrial.relations.contracts.worked import SUBJECTS, Refused, WorkedExample
from seatrial.relations.law import Measure, Relation
from seatrial.relations.not_served import NotServed

SHOWN = 100
"""Characters of a value in a message."""
CLOSE = 1e-6
"""Largest relative error of a number; functions compute in float32 and float64."""


@dataclass(frozen=True, kw_only=True)
class SubjectCase(Case):
    """One subject of the worked examples."""

    subject: str


WORKED = Relation(
    id="R34.worked",
    name="functions-give-worked-results",
    component="worked_examples",
    statement="The stack's own functions give the results that were worked out by hand, edges and refusals included.",
    cost="CPU, seconds",
    seeded=False,
)


def agrees(found: Any, right: Any) -> bool:
    """Return whether a result is the right one; tensors and arrays count as lists, and numbers may be rounded."""
    if isinstance(found, Tensor | np.ndarray):
        found = found.tolist()
    if isinstance(right, Mapping):
        return (
            isinstance(found, Mapping)
            and found.keys() == right.keys()
            and all(agrees(found[name], value) for name, value in right.items())
        )
    if isinstance(right, list | tuple):
        return isinstance(found, list | tuple) and len(found) == len(right) and all(map(agrees, found, right))
    if isinstance(right, float) and isinstance(found, float | int) and not isinstance(found, bool):
        return (math.isnan(right) and math.isnan(found)) or math.isclose(
            found, right, rel_tol=CLOSE, abs_tol=1e-9
        )
    return type(found) is type(right) and bool(found == right)


def mistake(example: WorkedExample) -> str | None:
    """Call the function of an example, and return what is wrong with the result; None if it is right."""
    try:
        found = example.call()
    except (NotServed, ImportError):
        raise
    except Exception as error:  # noqa: BLE001  the stack chooses the type of its error
        said = " ".join(str(error).split())
        if isinstance(example.right, Refused) and example.right.words in said:
            return None
        found = f"{type(error).__name__}: {said}"
    else:
        if not isinstance(example.right, Refused) and agrees(found, example.right):
            return None
    return f"{example.name}: {str(found)[:SHOWN]}, right is {str(example.right)[:SHOWN]}"


def part_of(example: WorkedExample) -> str:
    """Return what declarations call an example: its name without the commas that would separate names of parts."""
    return example.name.replace(", ", " ")


def _results_are_right(stack: Any, case: SubjectCase) -> Measure:
    """Call each function on each of its examples; each is a part of the law."""
    examples = stack.worked_examples(case.subject)
    if not examples:
        raise NotServed(f"the stack has no worked examples of {case.subject}")
    wrong: dict[str, list[str]] = {}
    left_out: list[str] = []
    for example in examples:
        try:
            said = mistake(example)
        except NotServed as error:
            left_out.append(f"{example.name}: {error}")
        else:
            wrong.setdefault(part_of(example), []).extend([] if said is None else [said])
    if len(left_out) == len(examples):
        raise NotServed(f"none of the {len(examples)} worked examples is served: {left_out[0]}")
    what = f"wrong results of {len(examples) - len(left_out)} worked examples"
    return replace(Measure.count_of_each(wrong, what), left_out=left_out)


def _case_of(subject: str) -> Any:
    return lambda stack, seed, tidy: SubjectCase(subject=subject)


def _without(subject: str) -> Any:
    """Return a law's `excluded`: the declaration of a stack that names its subjects, and not this one."""
    return lambda stack: (
        None
        if subject in getattr(stack, "worked_subjects", SUBJECTS)
        else f"worked examples without {subject}"
    )


for _subject, _what in SUBJECTS.items():
    WORKED.law(
        _subject,
        f"an edge, an order or an option of {_what}",
        cases=_case_of(_subject),
        excluded=_without(_subject),
    )(_results_are_right)
