"""R17.media, R28.media: each answer is that of the row's own image or sound."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from seatrial.relations.law import Excluded, Measure, Relation
from seatrial.relations.laws.run.architectures import (
    MEDIA,
    SUSPECTS,
    architecture_laws,
    needs_architecture,
)
from seatrial.relations.laws.run.tuning import tuned_gradients_error
from seatrial.relations.runs import RunCase, TuningCase, tuning_cases

if TYPE_CHECKING:
    from torch import Tensor

ANSWERS = Relation(
    id="R17.media",
    name="answers-are-in-what-is-shown",
    component="architectures",
    statement="The answer that a row is judged by is that of its own image or sound.",
    catalogue="SB013 SB055 SB071",
    cost="CPU, seconds",
    seeded=False,
)
TUNING = Relation(
    id="R28.media",
    name="tuning-learns-what-is-shown",
    component="architectures",
    statement="Fine-tuning learns and scores each answer under the image or sound that shows it.",
    catalogue="SB013 SB060 SB071",
    cost="CPU, seconds",
    seeded=False,
)


def _wrong_answers(stack: Any, rows: Iterable[tuple[str, str | None, str, Tensor | None]]) -> Measure:
    """Count rows whose answer is not in their media; rows are (place, answer, prompt, image or sound)."""
    wrong, shown = [], set()
    for place, answer, prompt, media in rows:
        right = None if media is None else stack.answer_in(prompt, media)
        shown.add(right)
        if right is None or right != answer:
            wrong.append(f"{place}: {answer!r} for {right!r}")
    if len(shown) < 2:
        wrong.append(f"all show {sorted(map(str, shown))}")
    return Measure.count(wrong, "rows whose answer is not in their image or sound")


@architecture_laws(ANSWERS, MEDIA, "answers")
def answers_are_in_the_media(stack: Any, case: RunCase) -> Measure:
    """Check the answers that a run judges by."""
    rows = case.record(stack).rows()
    return _wrong_answers(stack, ((place, row.answer, row.prompt or "", row.media) for place, _, row in rows))


def _needs_tuning(name: str) -> Excluded:
    return lambda stack: (
        needs_architecture(name)(stack) or (None if hasattr(stack, "short_tuning") else "no short_tuning")
    )


def learned_answers_are_in_the_media(stack: Any, case: TuningCase) -> Measure:
    """Check the answers that fine-tuning learns, and those that it scores."""
    record = case.record(stack)
    rows = ((place, record.lesson(row), row.media) for place, row in record.rows())
    return _wrong_answers(stack, ((place, one.answer, one.prompt, media) for place, one, media in rows))


for _what, _measure in (
    ("answers", learned_answers_are_in_the_media),
    ("raw gradients", tuned_gradients_error),
):
    for _name in MEDIA:
        TUNING.law(
            f"{_name}: {_what}",
            SUSPECTS[_name],
            cases=tuning_cases(policy__model_name=_name),
            excluded=_needs_tuning(_name),
        )(_measure)
