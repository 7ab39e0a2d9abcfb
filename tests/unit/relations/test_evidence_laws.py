"""Laws of prompts, precision, validations, commands and files: wrong evidence breaks the one that is about it."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from seatrial.relations.contracts.command import Ended
from seatrial.relations.engine import first_violation
from seatrial.relations.records.run import RunRecord, RunRow, StepRecord
from seatrial.relations.registry import select
from seatrial.relations.runs import RunCache, sharing_runs
from seatrial.targets.reference.components import ReferenceComponents

pytestmark = pytest.mark.usefixtures("forked_processes")

CACHE = RunCache()
SOUND = ReferenceComponents()


def _holds(law: str, stack: Any) -> bool:
    (relation,) = select([law.partition("/")[0]])
    alone = replace(relation, laws=tuple(one for one in relation.laws if relation.key(one) == law))
    assert alone.laws, law
    with sharing_runs(CACHE):
        violation = first_violation(alone, stack, seeds=[0])
    assert violation is None or violation.raised is None, violation.raised
    return violation is None


def _rows(change: Callable[[RunRow], RunRow]) -> Callable[[RunRecord], RunRecord]:
    def changed(record: RunRecord) -> RunRecord:
        steps = [replace(step, rows=tuple(change(row) for row in step.rows)) for step in record.steps]
        return replace(record, steps=tuple(steps))

    return changed


def _steps(change: Callable[[StepRecord], StepRecord]) -> Callable[[RunRecord], RunRecord]:
    return lambda record: replace(record, steps=tuple(change(step) for step in record.steps))


def _wide_reference(record: RunRecord) -> RunRecord:
    start = record.reference_weights_start
    return replace(
        record, reference_weights_start=start and {name: value.float() for name, value in start.items()}
    )


def _rounded(record: RunRecord) -> RunRecord:
    weights = {name: value.bfloat16().float() for name, value in record.initial_weights.items()}
    return replace(record, initial_weights=weights)


CHANGES: dict[str, Callable[[RunRecord], RunRecord]] = {
    "R16.run/the first token": _rows(lambda row: replace(row, prompt_ids=row.prompt_ids[1:])),
    "R16.run/the prompt's text": _rows(lambda row: replace(row, prompt_ids=row.prompt_ids[:-2])),
    "R16.run/a template": _rows(lambda row: replace(row, prompt_ids=row.prompt_ids[:-1])),
    "R16.run/a template with a system turn": _rows(lambda row: replace(row, prompt_ids=row.prompt_ids[4:])),
    "R20.run/loaded as stored": _rounded,
    "R20.run/scores of long packs": _rows(
        lambda row: replace(row, old_logprobs=tuple(logprob - 0.5 for logprob in row.old_logprobs))
    ),
    "R20.run/a reference in bfloat16": _wide_reference,
    "R17.run_filters/several generation batches": _steps(lambda step: replace(step, discarded_rows=())),
    "R22.run/metrics of a step, of several generation batches": _steps(
        lambda step: replace(step, metrics={**step.metrics, "reward": 0.123})
    ),
    "R26.run/no two rows of several generation batches share numbers": _steps(
        lambda step: replace(step, discarded_rows=(*step.discarded_rows, *step.discarded_rows[:1]))
    ),
    "R22.run/lengths of a validation": lambda record: replace(
        record,
        validations=tuple(
            replace(one, metrics={**one.metrics, "truncation_rate": 2.0}) for one in record.validations
        ),
    ),
    "R23.schedule/when due, every second step": lambda record: replace(record, validations=()),
    "R23.schedule/when due, at both ends": lambda record: replace(record, validations=record.validations[:1]),
    "R23.schedule/equal weights, equal validations": lambda record: replace(
        record,
        validations=tuple(
            replace(one, rows=one.rows[: len(record.validations) - number])
            for number, one in enumerate(record.validations)
        ),
    ),
    "R23.schedule/greedy": lambda record: replace(
        record,
        validations=tuple(
            replace(one, sampled=tuple((prompt, ids[::-1]) for prompt, ids in one.sampled))
            for one in record.validations
        ),
    ),
}


@pytest.mark.parametrize("law", CHANGES)
def test_changed_evidence_of_a_run_breaks_its_law(law: str) -> None:
    """The run as it is obeys."""

    class Changed(ReferenceComponents):
        def short_run(self, options, *, seed):
            return CHANGES[law](super().short_run(options, seed=seed))

    assert _holds(law, SOUND)
    assert not _holds(law, Changed())


def test_weights_that_lose_small_updates_are_seen() -> None:
    """An optimizer that rounds its own weights to bfloat16 after each update."""

    class Rounding(ReferenceComponents):
        def short_run(self, options, *, seed):
            record = super().short_run(options, seed=seed)
            if options.get("policy.precision") != "bfloat16":
                return record
            steps = [
                replace(
                    step,
                    updates=tuple(
                        replace(update, weights_after=record.initial_weights) for update in step.updates
                    ),
                )
                for step in record.steps
            ]
            return replace(record, steps=tuple(steps))

    assert _holds("R20.run/updated in float32", SOUND)
    assert not _holds("R20.run/updated in float32", Rounding())


def test_a_sampler_of_another_precision_is_seen() -> None:
    """A copy in the type of the file."""

    class Wide(ReferenceComponents):
        def sampler_dtypes(self, options):
            return dict.fromkeys(super().sampler_dtypes(options), "float32")

    assert _holds("R20.run/the sampler's precision", SOUND)
    assert not _holds("R20.run/the sampler's precision", Wide())


def test_a_tied_head_that_is_left_as_it_was_is_seen() -> None:
    """A head that is exported next to its embedding, of other weights."""

    class Untied(ReferenceComponents):
        def resumable_run(self, options, **how):
            left = super().resumable_run(options, **how)
            head = left.exported["model.embed_tokens.weight"] + 1
            return replace(left, exported={**left.exported, "lm_head.weight": head})

    assert _holds("R21.export/weights of a tied model", SOUND)
    assert not _holds("R21.export/weights of a tied model", Untied())


class _Files(ReferenceComponents):
    """Reads files, and changes what it read."""

    def __init__(self, change: Callable[[Any], Any], **chosen: Any) -> None:
        super().__init__()
        self._change, self._chosen = change, chosen

    def read_prompts(self, path: Path, **how: Any) -> Any:
        read = super().read_prompts(path, **{**how, **self._chosen})
        return self._change(read)


FILES: dict[str, _Files] = {
    "R14.files/every row of JSONL": _Files(lambda read: replace(read, train=read.train[:-1])),
    "R14.files/every row of Parquet": _Files(lambda read: replace(read, train=read.train[::-1])),
    "R14.files/every row of Arrow": _Files(
        lambda read: replace(read, train=[replace(one, answer=one.answer + ".0") for one in read.train])
    ),
    "R14.files/every row of a folder of parts": _Files(
        lambda read: replace(read, train=[replace(one, prompt_id=0) for one in read.train])
    ),
    "R14.files/repeated prompts": _Files(lambda read: replace(read, train=[*read.train, read.train[0]])),
    "R14.files/held-out rows": _Files(lambda read: replace(read, train=[*read.train, *read.held_out])),
    "R14.files/shared prompts are refused": _Files(lambda read: read, drop_shared=True),
    "R14.files/shared prompts are dropped": _Files(
        lambda read: replace(read, train=[*read.train, *read.held_out])
    ),
}


@pytest.mark.parametrize("law", FILES)
def test_a_file_that_is_not_read_whole_is_seen(law: str) -> None:
    """In every form."""
    assert _holds(law, SOUND)
    assert not _holds(law, FILES[law])


class _Commands(ReferenceComponents):
    def effective_options(self, overrides):
        return super().effective_options(overrides[:-1]) if len(overrides) > 1 else Ended(status=0, output="")

    def run_command(self, overrides):
        return Ended(status=int(not overrides), output="")

    def effective_defaults(self):
        return {**super().effective_defaults(), "policy.generation.top_p": 0.9}


@pytest.mark.parametrize(
    "law",
    [
        "R18.command/wrong options are refused",
        "R18.command/the last override counts",
        "R18.command/a failure is reported",
        "R18.command/a success is reported",
        "R18.defaults/documented values",
    ],
)
def test_a_command_that_does_not_tell_is_seen(law: str) -> None:
    """And a default that changed. That refrl's own holds is asked in `test_reference.py`."""
    assert not _holds(law, _Commands())
