"""The laws of fine-tuning hold on refrl, and evidence that is changed by hand breaks the one that is about it."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from seatrial.relations.engine import first_violation, run_relation
from seatrial.relations.records.tuning import AnswerRow, TuningRecord
from seatrial.relations.registry import own_relations, select
from seatrial.relations.runs import RunCache, sharing_runs
from seatrial.targets.reference.components import ReferenceComponents
from seatrial.verdict import Outcome

pytestmark = pytest.mark.usefixtures("forked_processes")

SOUND = ReferenceComponents()
CACHE = RunCache()
CHAT = {
    "policy.tokenizer.chat_template": "byte",
    "data.system_prompt": "Be brief.",
    "policy.max_total_sequence_length": 96,
}
CODE = {
    "data.task": "code_print",
    "data.task_args": {"limit": 20, "num_operators": 3},
    "data.verifier": "code_output",
    "policy.max_total_sequence_length": 96,
}


@pytest.mark.parametrize("relation", [one for one in own_relations() if one.component == "fine_tuning"])
@pytest.mark.parametrize(
    "options",
    [
        pytest.param({}, id="plain text"),
        pytest.param(CHAT, id="chat"),
        pytest.param(CODE, id="programs", marks=pytest.mark.nightly),
    ],
)
def test_refrl_obeys(relation, options: dict[str, Any]) -> None:
    """Every law is exercised, also under a chat template, and where the answer is a program."""
    verdict = run_relation(relation, ReferenceComponents(options), seeds=[0])
    assert verdict.outcome is Outcome.PASS, verdict.reason


def _rows(change: Callable[[AnswerRow], AnswerRow]) -> Callable[[TuningRecord], TuningRecord]:
    """Return a change of every row that trains."""

    def changed(record: TuningRecord) -> TuningRecord:
        steps = [replace(step, rows=tuple(change(row) for row in step.rows)) for step in record.steps]
        return replace(record, steps=tuple(steps))

    return changed


def _first_step(**fields: Any) -> Callable[[TuningRecord], TuningRecord]:
    return lambda record: replace(record, steps=(replace(record.steps[0], **fields), *record.steps[1:]))


CHANGES: dict[str, tuple[Callable[[TuningRecord], TuningRecord], str]] = {
    "no end": (
        _rows(lambda row: replace(row, ids=row.ids[:-1], mask=row.mask[:-1])),
        "R28.answers/answers are whole",
    ),
    "masked end": (
        _rows(lambda row: replace(row, mask=(*row.mask[:-1], 0))),
        "R28.answers/answers are whole",
    ),
    "other prompts": (
        _rows(lambda row: replace(row, prompt_ids=row.prompt_ids[:-1])),
        "R28.answers/answers follow their own prompts",
    ),
    "wrong answers": (
        lambda record: replace(record, lessons=tuple(replace(one, reward=0.5) for one in record.lessons)),
        "R28.answers/answers are right",
    ),
    "half a batch": (
        lambda record: replace(
            record, steps=tuple(replace(step, rows=step.rows[:2]) for step in record.steps)
        ),
        "R28.answers/steps are whole",
    ),
    "trained on held-out": (
        lambda record: replace(record, held_out=record.lessons),
        "R28.answers/held-out prompts do not train",
    ),
    "another loss": (_first_step(metrics={"loss": 1.0}), "R28.updates/logged scalars"),
    "a loss early": (
        lambda record: replace(record, losses=record.losses[1:]),
        "R28.updates/loss of held-out answers",
    ),
    "a moved weight": (
        lambda record: replace(
            record,
            final_weights={name: value + 1e-3 for name, value in record.final_weights.items()},
        ),
        "R28.updates/only updates move weights",
    ),
}


@pytest.mark.parametrize("name", CHANGES)
def test_changed_evidence_breaks_its_law(name: str) -> None:
    """By name: another law that breaks as well is no proof of this one."""
    change, law = CHANGES[name]

    class Changed(ReferenceComponents):
        def short_tuning(self, options, *, seed):
            with sharing_runs(CACHE):
                return change(super().short_tuning(options, seed=seed))

    (relation,) = select([law.partition("/")[0]])
    alone = replace(relation, laws=tuple(one for one in relation.laws if relation.key(one) == law))
    assert first_violation(alone, SOUND, seeds=[0]) is None
    violation = first_violation(alone, Changed(), seeds=[0])
    assert violation is not None
    assert violation.raised is None, violation.raised
