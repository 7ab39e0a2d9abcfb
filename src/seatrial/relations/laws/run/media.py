"""R17, R23 and R28 of models that see or hear: answers are those of the row's own image or sound, wherever it goes."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from seatrial.relations.law import Law, Measure, Relation
from seatrial.relations.laws.run.architectures import BOTH, SEEN, SUSPECTS, architecture_law, without
from seatrial.relations.laws.run.tuning import tuned_gradients_error
from seatrial.relations.laws.run.validation import greedy_error
from seatrial.relations.runs import RunCase, TuningCase, tuning_cases

if TYPE_CHECKING:
    from torch import Tensor


Judged = Iterable[tuple[str, str | None, str, "Tensor | None"]]
"""Of each row: where it stands, its answer, its prompt, its image or sound."""


def _not_shown(stack: Any, rows: Judged) -> Measure:
    """Each answer is what the row's own image or sound shows, and not all rows show one and the same."""
    wrong, shown = [], set()
    for place, answer, prompt, media in rows:
        right = None if media is None else stack.answer_in(prompt, media)
        shown.add(right)
        if right is None or right != answer:
            wrong.append(f"{place}: {answer!r} for {right!r}")
    if len(shown) < 2:
        wrong.append(f"all show {sorted(map(str, shown))}")
    return Measure(
        error=float(len(wrong)),
        bound=0,
        what=f"rows whose answer is not in their image or sound ({(wrong or ['none'])[0]})",
    )


def _answers(stack: Any, case: RunCase) -> Measure:
    """The answers that a run judges by."""
    return _not_shown(
        stack,
        (
            (f"step {step.step}, row {index}", row.answer, row.prompt or "", row.media)
            for step in case.record(stack).steps
            for index, row in enumerate(step.rows)
        ),
    )


def _learned(stack: Any, case: TuningCase) -> Measure:
    """The answers that fine-tuning learns, and those that it scores."""
    record = case.record(stack)
    lessons = {lesson.prompt_id: lesson for lesson in (*record.lessons, *record.held_out)}
    rows = [(f"step {step.step}", row) for step in record.steps for row in step.rows]
    rows += [(f"losses after step {one.step}", row) for one in record.losses for row in one.rows]
    return _not_shown(
        stack,
        (
            (place, lessons[row.prompt_id].answer, lessons[row.prompt_id].prompt, row.media)
            for place, row in rows
        ),
    )


def _tuned_law(name: str, what: str, measure: Any) -> Law:
    def excluded(stack: Any) -> str | None:
        return without(name)(stack) or (None if hasattr(stack, "short_tuning") else "no short_tuning")

    return Law(
        name=f"{name}: {what}",
        make=tuning_cases(policy__model_name=name),
        measure=measure,
        excluded=excluded,
        seeded=False,
        suspects=SUSPECTS[name],
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
        laws=tuple(architecture_law(name, "answers", _answers) for name in BOTH),
    ),
    Relation(
        id="R28.media",
        name="tuning-learns-what-is-shown",
        component="architectures",
        statement="Fine-tuning learns and scores each answer under the image or sound that shows it.",
        catalogue=("SB013", "SB060", "SB071"),
        cost="CPU, seconds",
        laws=(
            *(_tuned_law(name, "answers", _learned) for name in BOTH),
            *(_tuned_law(name, "raw gradients", tuned_gradients_error) for name in BOTH),
        ),
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
