"""The engine obeys the verdict algebra and finds the smallest input."""

import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

import pytest
import torch

from seatrial.errors import UsageError
from seatrial.relations import NotServed, failure_message, parametrize_with_relations
from seatrial.relations.conclusion import report_once
from seatrial.relations.engine import run_relation
from seatrial.relations.law import Law, Measure, Relation
from seatrial.relations.registry import all_relations, select
from seatrial.verdict import Outcome


@dataclass(frozen=True)
class Numbers:
    """A list of numbers."""

    values: tuple[int, ...]

    def smaller(self) -> Iterator["Numbers"]:
        """Leave one out, or lower one."""
        for index, value in enumerate(self.values):
            yield replace(self, values=self.values[:index] + self.values[index + 1 :])
            if value > 0:
                yield replace(self, values=(*self.values[:index], value - 1, *self.values[index + 1 :]))

    def describe(self) -> Mapping[str, Any]:
        """As JSON."""
        return {"values": list(self.values)}


class Stack:
    """An adapter that offers advantages, of a kind."""

    advantage_spec = None

    def advantages(self, rewards_B: Any, prompt_ids_B: Any) -> Any:
        """Never called by these laws."""
        raise AssertionError


def relation(*laws: Law) -> Relation:
    """Return a relation made of laws."""
    return Relation(
        id="R99.test",
        name="test",
        component="advantages",
        statement="a statement",
        catalogue=("SB001",),
        cost="none",
        laws=laws,
    )


def law(measure: Any, make: Any = lambda stack, seed, tidy: Numbers((3, 9, 4, 8))) -> Law:
    """Return a law over numbers."""
    return Law(name="law", make=make, measure=measure, suspects="the usual suspect")


def measure_of(error: float) -> Measure:
    """Return a measure with bound 1."""
    return Measure(error=error, bound=1.0, what="error")


def refuse(*_: Any) -> Any:
    """Say that the property cannot be exercised."""
    raise NotServed("no such input")


@pytest.mark.parametrize("error", [0.0, 1.0])
def test_a_law_within_its_bound_passes(error: float) -> None:
    """The bound itself is allowed; samples are counted."""
    verdict = run_relation(relation(law(lambda stack, case: measure_of(error))), Stack())
    assert verdict.outcome is Outcome.PASS
    assert verdict.num_samples == 3


@pytest.mark.parametrize("error", [float("nan"), float("inf"), 1.0000001])
def test_what_is_not_within_the_bound_fails_nan_included(error: float) -> None:
    """`error <= bound` is the question, so NaN is no."""
    assert run_relation(relation(law(lambda stack, case: measure_of(error))), Stack()).outcome is Outcome.FAIL


@pytest.mark.parametrize(
    "idle", [law(lambda stack, case: None), law(refuse), law(lambda *_: measure_of(0), make=refuse)]
)
def test_a_relation_that_was_never_exercised_is_skipped(idle: Law) -> None:
    """No evidence is never Pass."""
    assert run_relation(relation(idle), Stack()).outcome is Outcome.SKIPPED
    assert run_relation(relation(), Stack()).outcome is Outcome.SKIPPED


def test_a_missing_component_is_not_requested() -> None:
    """A stack is judged on what it has."""
    assert run_relation(relation(law(lambda *_: measure_of(0))), object()).outcome is Outcome.NOT_REQUESTED


def raising(error: Exception) -> Any:
    """Return a law's function during which this exception is raised by a statement of Python."""

    def broken(*_: Any) -> Any:
        raise error

    return broken


def named(name: str, measure: Any) -> Law:
    """Return a law with this name."""
    return replace(law(measure), name=name)


def test_a_crash_is_reported_once_without_a_cause() -> None:
    """Of laws during which the same line raises, one sentence; a law that is broken comes before it."""
    crash = raising(IndexError("off the\nend"))
    verdict = run_relation(relation(named("one", crash), named("two", crash)), Stack())
    assert verdict.outcome is Outcome.FAIL
    assert re.fullmatch(
        r"raises IndexError: off the end, at tests/unit/relations/test_engine\.py:\d+ "
        r"\(law 'one', seed 0\), and in 1 other law",
        verdict.reason,
    )
    assert verdict.details["laws_broken"] == verdict.details["known_bugs_like_this"] == []
    assert verdict.details["raises"][0]["laws"] == ["one", "two"]
    both = run_relation(relation(named("one", crash), named("bad", lambda *_: measure_of(2))), Stack())
    assert both.details["laws_broken"] == ["bad"]
    assert re.match(r"law 'bad' broken .*Usually: the usual suspect \| raises IndexError", both.reason)


def test_a_crash_of_one_component_is_reported_for_its_first_relation() -> None:
    """Others are Skipped, unless something else is broken there."""
    crash, reported = raising(IndexError("off")), dict[str, str]()
    first, second, worse = (
        report_once(run_relation(relation(*laws), Stack()), reported)
        for laws in (
            [law(crash)],
            [law(crash)],
            [named("one", crash), named("bad", lambda *_: measure_of(2))],
        )
    )
    assert (first.outcome, second.outcome, worse.outcome) == (Outcome.FAIL, Outcome.SKIPPED, Outcome.FAIL)
    assert second.reason == "raises as reported for R99.test test, in 1 law"


@pytest.mark.parametrize(
    "error",
    [
        NotImplementedError(),
        ValueError("padding_free is only supported with flash attention"),
        ValueError("packing is not yet supported"),
    ],
)
def test_a_refusal_in_the_words_of_a_stack_is_no_crash(error: Exception) -> None:
    """Only for a stack that is installed apart; the law is not exercised, and says why."""
    refused = run_relation(relation(law(raising(error))), Stack(), adapter_package="elsewhere")
    assert refused.outcome is Outcome.SKIPPED
    assert f"refused: {type(error).__name__}" in refused.reason
    assert run_relation(relation(law(raising(error))), Stack()).outcome is Outcome.FAIL


def test_other_errors_and_missing_kernels_are_no_refusal() -> None:
    def kernel(stack: Any, case: Any) -> Measure:
        return measure_of(float(torch.eye(2).to_sparse().cumsum(0).sum()))

    for measure in (kernel, raising(ValueError("10 rows for 8 prompts")), raising(KeyError("not supported"))):
        verdict = run_relation(relation(law(measure)), Stack(), adapter_package="elsewhere")
        assert verdict.outcome is Outcome.FAIL


def trainer(rows: int, *, beta: float = 0.1) -> None:
    """What a release offers."""
    sorted(rows)  # type: ignore[call-overload]


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (
            lambda *_: trainer(1, temperature=2),
            r"unexpected keyword.* at .*py:\d+; it takes trainer\(rows: .*beta",
        ),  # type: ignore[call-arg]
        (lambda *_: trainer(), "missing 1 required positional"),  # type: ignore[call-arg]
        (lambda *_: trainer.gone, "has no attribute 'gone'"),  # type: ignore[attr-defined]
    ],
)
def test_a_call_that_does_not_fit_the_release_is_blocked(call: Any, words: str) -> None:
    """With the signature; it says nothing about the stack."""
    verdict = run_relation(relation(law(call)), Stack(), adapter_package=__name__)
    assert verdict.outcome is Outcome.BLOCKED
    assert verdict.reason.startswith("the adapter's call does not fit this release: ")
    assert re.search(words, verdict.reason)
    assert run_relation(relation(law(call)), Stack()).outcome is Outcome.FAIL


def test_the_same_error_inside_the_stack_is_a_crash() -> None:
    verdict = run_relation(
        relation(law(lambda *_: json.dumps({}, indent=object()))),  # type: ignore[call-overload]
        Stack(),
        adapter_package=__name__,
    )
    assert verdict.outcome is Outcome.FAIL
    assert "raises TypeError" in verdict.reason
    assert "at json/" in verdict.reason


def test_a_thorough_law_runs_on_request() -> None:
    """An ordinary run does not count it as not exercised."""
    bad = replace(law(lambda *_: measure_of(2)), thorough=True, name="slow")
    both = relation(law(lambda *_: measure_of(0)), bad)
    assert run_relation(both, Stack()).outcome is Outcome.PASS
    assert run_relation(both, Stack(), thorough=True).outcome is Outcome.FAIL


def test_the_smallest_input_is_reported() -> None:
    """Any number above 5 breaks the law: one 6 is the smallest case."""
    verdict = run_relation(
        relation(law(lambda stack, case: measure_of(2.0 if any(v > 5 for v in case.values) else 0.0))),
        Stack(),
    )
    assert verdict.details["smallest_case"] == {"values": [6]}
    message = failure_message("a statement", verdict)
    for part in ("law 'law' broken", "seed 0", "the usual suspect", '"values": [6]', "SB001"):
        assert part in message


def test_shrinking_keeps_to_the_same_kind_of_violation() -> None:
    """A smaller case that raises instead is another fault."""

    def measure(stack: Any, case: Any) -> Measure:
        if len(case.values) < 2:
            raise ValueError("too few")
        return measure_of(2.0)

    verdict = run_relation(relation(law(measure)), Stack())
    assert len(verdict.details["smallest_case"]["values"]) == 2


def test_every_relation_is_documented_and_about_a_known_component() -> None:
    """Statement, catalogue ids and suspects are what a person reads."""
    relations = all_relations()
    assert len({item.id for item in relations}) == len(relations)
    for item in relations:
        assert item.statement.endswith(".")
        assert all(known.startswith("SB") and len(known) == 5 for known in item.catalogue)
        assert item.laws
        assert all(one.suspects for one in item.laws)


def test_relations_are_chosen_by_number_id_or_name() -> None:
    """R12 means all of R12's."""
    assert {item.id.split(".")[0] for item in select(["R12"])} == {"R12"}
    assert [item.id for item in select(["R12.kl", "kl-equals-oracle"])] == ["R12.kl"]
    with pytest.raises(UsageError, match="no relation 'R999'"):
        select(["R999"])


def test_an_adapter_without_components_is_refused() -> None:
    """A conformance test that collects nothing would be green."""
    with pytest.raises(UsageError, match="no relation applies"):
        parametrize_with_relations(object())
