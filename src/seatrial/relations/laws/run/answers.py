"""R28 of a whole run of supervised fine-tuning: whole answers are learned, each after its own prompt."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from seatrial.relations.law import Law, Measure, Relation
from seatrial.relations.records.tuning import AnswerRow, Lesson, TuningRecord
from seatrial.relations.runs import TuningCase, tuning_cases


def _placed_rows(record: TuningRecord) -> list[tuple[str, AnswerRow]]:
    trained = [(f"step {step.step}", step.rows) for step in record.steps]
    held_out = [(f"held out, step {loss.step}", loss.rows) for loss in record.losses]
    return [
        (f"{place}, row {index}", row)
        for place, rows in (*trained, *held_out)
        for index, row in enumerate(rows)
    ]


def _lessons(record: TuningRecord) -> dict[int, Lesson]:
    return {lesson.prompt_id: lesson for lesson in (*record.lessons, *record.held_out)}


def _answers_are_whole(stack: Any, case: TuningCase) -> Measure:
    """The tokens that train spell the answer, to its last letter, and then the end."""
    record = case.record(stack)
    lessons = _lessons(record)
    wrong = []
    for place, row in _placed_rows(record):
        text = stack.decode(row.ids[:-1])
        if row.ids[-1:] != (record.end_id,) or text != lessons[row.prompt_id].answer:
            wrong.append(f"{place}: {stack.decode(row.ids)!r} for {lessons[row.prompt_id].answer!r}")
        elif row.mask != (1,) * len(row.ids):
            wrong.append(f"{place}: mask {row.mask}")
    return _count(wrong, "rows that train on something else than their answer and its end")


def _prompts_are_their_own(stack: Any, case: TuningCase) -> Measure:
    record = case.record(stack)
    lessons = _lessons(record)
    wrong = [
        f"{place}: {stack.decode(row.prompt_ids)!r} for {lessons[row.prompt_id].prompt!r}"
        for place, row in _placed_rows(record)
        if not stack.decode(row.prompt_ids).endswith(lessons[row.prompt_id].prompt)
        or len({other.prompt_ids for _, other in _placed_rows(record) if other.prompt_id == row.prompt_id})
        > 1
    ]
    return _count(wrong, "rows whose prompt is not the one that their answer belongs to")


def _answers_are_right(stack: Any, case: TuningCase) -> Measure:
    lessons = _lessons(case.record(stack)).values()
    wrong = [
        f"{lesson.answer!r} to {lesson.prompt!r} gets {lesson.reward}"
        for lesson in lessons
        if lesson.reward != 1
    ]
    return _count(wrong if lessons else ["no answer"], "learned answers without full marks of the verifier")


def _rows_follow_the_schedule(stack: Any, case: TuningCase) -> Measure:
    """Steps of the batch's size go through the answers, one epoch after another, each a permutation."""
    record = case.record(stack)
    size, known = record.options["policy.train_global_batch_size"], [one.prompt_id for one in record.lessons]
    steps = record.options["sft.max_num_steps"]
    wrong = [f"step {one.step}: {len(one.rows)} rows" for one in record.steps if len(one.rows) != size]
    if [one.step for one in record.steps] != list(range(1, steps + 1)):
        wrong.append(f"steps {[one.step for one in record.steps]} of {steps}")
    served = [row.prompt_id for step in record.steps for row in step.rows]
    for start in range(0, len(served), len(known)):
        epoch = served[start : start + len(known)]
        if len(set(epoch)) < len(epoch) or not set(epoch) <= set(known):
            wrong.append(f"epoch {start // len(known) + 1}: {epoch}")
    return _count(wrong, "steps and epochs that are not whole")


def _count(wrong: Sequence[str], what: str) -> Measure:
    return Measure(error=float(len(wrong)), bound=0, what=f"{what} ({(list(wrong) or ['none'])[0]})")


def _held_out_is_apart(stack: Any, case: TuningCase) -> Measure:
    record = case.record(stack)
    trained = {row.prompt_id for step in record.steps for row in step.rows}
    both = sorted(trained & {lesson.prompt_id for lesson in record.held_out})
    return _count([f"prompt {one}" for one in both], "held-out prompts that are trained on")


def _law(name: str, measure: Any, suspects: str) -> Law:
    return Law(name=name, make=tuning_cases(), measure=measure, suspects=suspects, seeded=False)


RELATIONS = (
    Relation(
        id="R28.answers",
        name="tuning-learns-whole-answers",
        component="fine_tuning",
        statement="A row of fine-tuning is a prompt, its own right answer and the end token; all of the answer trains.",
        catalogue=("SB001", "SB002", "SB003", "SB013", "SB018", "SB030", "SB055", "SB071", "SB076", "SB122"),
        cost="CPU, seconds",
        laws=(
            _law(
                "answers are whole",
                _answers_are_whole,
                "the end token left out or masked, special tokens between prompt and answer, a cut by length",
            ),
            _law(
                "prompts are their own",
                _prompts_are_their_own,
                "answers sorted or shifted against their prompts",
            ),
            _law(
                "answers are right", _answers_are_right, "another column learned than the verifier asks for"
            ),
            _law(
                "steps are whole",
                _rows_follow_the_schedule,
                "a micro-batch drawn for a batch, the rest of an epoch dropped, one batch for every step",
            ),
            _law("held-out prompts are apart", _held_out_is_apart, "one split for both"),
        ),
    ),
)
