"""R17 and R23 of models that see or hear: answers are those of the row's own image or sound, in validations too."""

from __future__ import annotations

from typing import Any

from seatrial.relations.engine import Measure, Relation
from seatrial.relations.laws.run_architectures import SEEN, architecture_law
from seatrial.relations.laws.run_validation import greedy_error
from seatrial.relations.runs import RunCase


def _answers(stack: Any, case: RunCase) -> Measure:
    """A row's answer is what its own image or sound shows, and not all rows have one and the same."""
    record, wrong, shown = case.record(stack), [], set()
    for step in record.steps:
        for index, row in enumerate(step.rows):
            place = f"step {step.step}, row {index}"
            if row.media is None or row.prompt is None:
                wrong.append(f"{place}: nothing to see or hear")
                continue
            right = stack.answer_in(row.prompt, row.media)
            shown.add(right)
            if right != row.answer:
                wrong.append(f"{place}: {row.answer!r} for {right!r}")
    if len(shown) < 2:
        wrong.append(f"all show {sorted(shown)}")
    return Measure(
        error=float(len(wrong)),
        bound=0,
        what=f"rows whose answer is not in their image or sound ({(wrong or ['none'])[0]})",
    )


GREEDY = {"grpo__val_period": 1, "grpo__val_at_start": True, "grpo__val_greedy": True}
RELATIONS = (
    Relation(
        id="R17.media",
        name="answers-are-in-what-is-shown",
        component="architectures",
        statement="The answer that a row is judged by is that of its own image or sound.",
        catalogue=("SB013", "SB055", "SB071"),
        cost="CPU, seconds",
        laws=tuple(architecture_law(name, "answers", _answers) for name in ("sees", "hears")),
    ),
    Relation(
        id="R23.architectures",
        name="own-paths-validate-as-trained",
        component="architectures",
        statement="A greedy validation takes the likeliest token of the step's weights, given the row's own media.",
        catalogue=("SB013", "SB131", "SB390"),
        cost="CPU, seconds",
        laws=tuple(architecture_law(name, "greedy validations", greedy_error, **GREEDY) for name in SEEN),
    ),
)
