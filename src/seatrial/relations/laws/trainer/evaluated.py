"""R33.compared: an evaluation gives the same numbers however its rows reach the trainer."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace
from itertools import product
from typing import Any, Literal

from seatrial.relations.contracts.compared import ComparedPlan
from seatrial.relations.law import Measure
from seatrial.relations.laws.trainer.compared import COMPARED, evaluations, plan
from seatrial.relations.measures.compared import close
from seatrial.relations.not_served import NotServed

FORMS: Sequence[Literal["named", "passed", "passed by name", "streamed"]] = (
    "named",
    "passed",
    "passed by name",
    "streamed",
)
PRECOMPUTED = "precompute_ref_log_probs=True"
"""Variation that gives rows what the reference computes of them."""
TOTALS = re.compile(r"^num_|total")


@COMPARED.law(
    "forms of an evaluation",
    "rows that are prepared twice or not at all, a reference of other rows, metrics of two sets in one",
    cases=plan(evaluates="held out"),
)
def forms_of_an_evaluation(stack: Any, case: ComparedPlan) -> Measure:
    """Compare what an evaluation logs of rows given as one set with that of rows given by name or to `evaluate`."""
    plain = evaluations(stack, case)[-1]
    wrong: dict[str, list[str]] = {name: [] for name in plain if not TOTALS.search(name)}
    found = 0
    names = ("", *({PRECOMPUTED} & stack.compare_spec.neutral.keys()))
    for form, variation in product(FORMS, names):
        try:
            given = evaluations(stack, replace(case, evaluated_as=form, variation=variation))[-1]
        except NotServed:
            continue
        found += 1
        for name, own in wrong.items():
            if not (name in given and close(given[name], plain[name])):
                own.append(f"{form} {variation}: {name} {given.get(name)} for {plain[name]:.5g}")
    if not found:
        raise NotServed("no form is served")
    return Measure.count_of_each(wrong, "metrics that the form of an evaluation changes")
