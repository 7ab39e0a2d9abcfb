"""What a relation concludes: laws not exercised, missing packages, declared facts, expected failures, time."""

import math
from collections.abc import Iterator, Mapping
from importlib.metadata import EntryPoint, PackageNotFoundError
from typing import Any, ClassVar

import pytest
import torch

from seatrial.errors import UsageError
from seatrial.relations import NotServed, parametrize_with_relations
from seatrial.relations.engine import SHRINK_SECONDS, run_relation
from seatrial.relations.facts import StackFacts, bound_of, needs_masked_rows
from seatrial.relations.law import Law, Measure, Relation
from seatrial.relations.registry import all_relations, ordered, relations_of_entry_points
from seatrial.verdict import Outcome, Verdict


class Count:
    """A case that can always be smaller by one."""

    def __init__(self, size: int) -> None:
        self.size = size

    def smaller(self) -> Iterator["Count"]:
        """One less."""
        yield Count(self.size - 1)

    def describe(self) -> Mapping[str, Any]:
        """As JSON."""
        return {"size": self.size}


class Stack:
    """An adapter that offers advantages, of a kind."""

    advantage_spec = None

    def advantages(self, rewards_B: Any, prompt_ids_B: Any) -> Any:
        """Never called by these laws."""
        raise AssertionError


def measured(error: float) -> Any:
    """Return a measure function with a bound of 1."""
    return lambda stack, case: Measure(error=error, bound=1.0, what="error")


def raising(error: Exception) -> Any:
    """Return a measure function that raises."""

    def measure(stack: Any, case: Any) -> Measure:
        raise error

    return measure


def law(name: str, measure: Any, **more: Any) -> Law:
    """Return a law over a count."""
    return Law(
        name=name, make=lambda stack, seed, tidy: Count(500), measure=measure, suspects="a suspect", **more
    )


def judged(*laws: Law, stack: Any = None, **more: Any) -> Verdict:
    """Return the verdict of a relation made of laws."""
    relation = Relation(
        id="R99.x", name="x", component="advantages", statement="X.", catalogue=(), cost="none", laws=laws
    )
    return run_relation(relation, stack or Stack(), **more)


GOOD, BAD = law("good", measured(0.0)), law("bad", measured(2.0))


def test_a_law_not_exercised_is_named_and_spoils_the_pass() -> None:
    """One that held is not the whole relation."""
    verdict = judged(GOOD, law("idle", raising(NotServed("no such rows"))))
    assert verdict.outcome is Outcome.SKIPPED
    assert "law 'idle' not exercised (no such rows)" in verdict.reason
    assert "1 law held on 3 cases" in verdict.reason


def test_a_declared_exclusion_passes_and_is_printed() -> None:
    """The stack says so beforehand."""

    class Declares(Stack):
        facts = StackFacts(masked_rows=False)

    verdict = judged(GOOD, law("masked", measured(2.0), excluded=needs_masked_rows), stack=Declares())
    assert verdict.outcome is Outcome.PASS
    assert "law 'masked' not exercised (declared: masked_rows=False)" in verdict.reason
    assert "the stack declares masked_rows=False" in verdict.reason
    assert judged(GOOD, law("masked", measured(2.0), excluded=needs_masked_rows)).outcome is Outcome.FAIL


def test_a_missing_kernel_is_a_violation() -> None:
    """NotImplementedError, as torch raises it for an operator without a kernel, was once taken for "not served"."""

    def missing_kernel(stack: Any, case: Any) -> Measure:
        torch.eye(2).to_sparse().cumsum(0)
        raise AssertionError("unreachable")

    with pytest.raises(NotImplementedError):
        missing_kernel(None, None)
    verdict = judged(GOOD, law("kernel", missing_kernel))
    assert verdict.outcome is Outcome.FAIL
    assert "NotImplementedError" in verdict.reason


def test_a_missing_package_is_blocked_and_a_broken_module_of_its_own_fails() -> None:
    """The remedy is to install it; nothing is said about the stack."""
    missing = ModuleNotFoundError("No module named 'pkg_resources'", name="pkg_resources")
    verdict = judged(GOOD, law("needs", raising(missing)))
    assert verdict.outcome is Outcome.BLOCKED
    assert "pkg_resources" in verdict.reason
    assert "install" in verdict.reason
    own = ImportError("cannot import name", name=Stack.__module__)
    assert judged(GOOD, law("own", raising(own))).outcome is Outcome.FAIL
    assert judged(BAD, law("needs", raising(missing))).outcome is Outcome.FAIL
    asked = ImportError("Tools require the jmespath library. Install it with `pip install no-such-jmespath`.")
    assert "needs no-such-jmespath" in judged(GOOD, law("asked", raising(asked))).reason
    installed = ImportError("pytest is broken: pip install pytest")
    assert judged(GOOD, law("broken", raising(installed))).outcome is Outcome.FAIL
    unknown = PackageNotFoundError("a-tree")  # imported from its source
    assert "needs metadata of a-tree" in judged(GOOD, law("needs", raising(unknown))).reason


def test_what_raises_while_a_case_is_made_is_a_violation() -> None:
    """There is no input to print then."""

    def make(stack: Any, seed: int, tidy: bool) -> Any:
        raise KeyError("train")

    verdict = judged(Law(name="made", make=make, measure=measured(0.0), suspects="a suspect"))
    assert verdict.outcome is Outcome.FAIL
    assert verdict.details["smallest_case"] == {}


def test_shrinking_ends_with_the_time() -> None:
    """A clock that jumps a fourth of the time at every look leaves a handful of steps."""
    now = iter(range(0, 10**6, int(SHRINK_SECONDS / 4)))
    verdict = judged(BAD, clock=lambda: float(next(now)))
    assert 490 < verdict.details["smallest_case"]["size"] < 500
    assert judged(BAD, clock=lambda: 0.0).details["smallest_case"]["size"] == 300


def test_a_violation_is_reported_as_made_where_no_time_is_given() -> None:
    """As for someone who only asks whether, of many releases."""
    assert judged(BAD, shrink_seconds=0.0).details["smallest_case"]["size"] == 500


def test_a_law_without_seeds_is_exercised_once() -> None:
    """Other seeds would make the same case."""
    assert judged(law("once", measured(0.0), seeded=False)).num_samples == 1


class Expecting(Stack):
    """An adapter of a stack with a known violation."""

    expected_failures: ClassVar = {"R99.x/bad": "bug 12, mended in 3.1"}


def test_an_expected_failure_is_green_and_printed() -> None:
    """With its reason; no other law may hide behind it."""
    verdict = judged(GOOD, BAD, stack=Expecting())
    assert verdict.outcome is Outcome.PASS
    assert "law 'bad' broken as expected (bug 12, mended in 3.1)" in verdict.reason
    assert judged(BAD, stack=Expecting()).outcome is Outcome.SKIPPED


def test_a_new_failure_is_red_beside_an_expected_one() -> None:
    """The new one is the one that is told."""
    verdict = judged(BAD, law("worse", measured(3.0)), stack=Expecting())
    assert verdict.outcome is Outcome.FAIL
    assert verdict.details["laws_broken"] == ["worse"]


def test_an_expected_failure_that_holds_is_red() -> None:
    """What is mended must not stay excused."""
    verdict = judged(law("bad", measured(0.0)), stack=Expecting())
    assert verdict.outcome is Outcome.FAIL
    assert "remove the entry" in verdict.reason


def test_an_expected_failure_that_holds_is_reported_where_other_releases_are_judged_too() -> None:
    """A user's commit that mends a declared bug has nothing wrong."""

    class OfAnyRelease(Expecting):
        failures_may_hold = True

    verdict = judged(law("bad", measured(0.0)), stack=OfAnyRelease())
    assert verdict.outcome is Outcome.PASS
    assert "law 'bad' holds, and is declared broken (bug 12, mended in 3.1)" in verdict.reason
    assert verdict.details["laws_fixed"] == ["R99.x/bad"]
    assert judged(BAD, stack=OfAnyRelease()).outcome is not Outcome.FAIL
    assert judged(law("worse", measured(2.0)), stack=OfAnyRelease()).outcome is Outcome.FAIL


def scalars(**errors: float | Mapping[int, float]) -> Law:
    """Return a law of scalars with these errors, or one by seed, of which 1 is allowed."""

    def measure(stack: Any, case: Count) -> Measure:
        found = [
            (name, error if isinstance(error, float) else error.get(case.size, 0.0), f"{name} of step 3")
            for name, error in errors.items()
        ]
        return Measure.largest_of_each(found, 1.0, "logged scalars")

    return Law(
        name="scalars", make=lambda stack, seed, tidy: Count(seed), measure=measure, suspects="a suspect"
    )


class ExpectingScalars(Stack):
    """An adapter of a stack that logs two wrong scalars, one reason for each."""

    expected_failures: ClassVar = {
        "R99.x/scalars::loss": "bug 12",
        "R99.x/scalars::logits/*, logps": "bug 13",
    }


def test_a_second_wrong_scalar_is_told_beside_a_declared_one() -> None:
    """Also one that only another case shows; what is declared is no failure, and stays in the notes."""
    found = judged(scalars(loss=2.0, entropy=3.0, lr=0.0), stack=ExpectingScalars())
    assert found.outcome is Outcome.FAIL
    assert found.reason.startswith("law 'scalars' broken (seed 0): logged scalars, at entropy of step 3: 3,")
    assert "law 'scalars' broken as expected in loss (bug 12)" in found.reason
    assert found.details["parts"] == {"scalars": {"expected": ["loss"], "broken": ["entropy"]}}
    later = judged(scalars(loss=2.0, entropy={2: math.nan}), stack=ExpectingScalars())
    assert later.outcome is Outcome.FAIL
    assert later.details["parts"] == {"scalars": {"expected": ["loss"], "broken": ["entropy"]}}


def test_wrong_scalars_that_are_declared_are_no_failure() -> None:
    """A pattern names several; a declaration of another reason says so by itself."""
    errors = {"loss": 2.0, "logits/chosen": 5.0, "lr": 0.0}
    verdict = judged(GOOD, scalars(**errors), stack=ExpectingScalars())
    assert verdict.outcome is Outcome.PASS
    assert "law 'scalars' broken as expected in loss (bug 12)" in verdict.reason
    assert "law 'scalars' broken as expected in logits/chosen (bug 13)" in verdict.reason
    assert verdict.details["expected_failures"] == {"scalars": "bug 12; bug 13"}


def test_a_declared_scalar_that_holds_is_red_beside_a_broken_one() -> None:
    """One that is not logged excuses nothing and is not fixed; a crash is of no scalar."""
    verdict = judged(scalars(loss=2.0, logps=0.0), stack=ExpectingScalars())
    assert verdict.outcome is Outcome.FAIL
    assert verdict.details["laws_fixed"] == ["R99.x/scalars::logits/*, logps"]
    assert judged(scalars(loss=2.0), stack=ExpectingScalars()).details["laws_fixed"] == []
    crash = law("scalars", raising(KeyError("loss")))
    assert judged(crash, stack=ExpectingScalars()).outcome is Outcome.FAIL


def test_all_wrong_scalars_are_named_in_one_line() -> None:
    """The worst with its place, then the names; a sound law says as little as before."""
    found = judged(scalars(a=2.0, b=4.0, c=3.0, d=2.0, e=0.0))
    assert "at b of step 3: 4, allowed 1; broken are a, b, c and 1 more. Usually" in found.reason
    assert found.details["laws_broken"] == ["scalars"]
    assert judged(scalars(a=0.5, b=0.25)).reason == "1 law held on 3 cases"
    assert judged(scalars(a=0.5, b=0.25)).details["parts"] == {}


def test_a_whole_relation_may_be_expected_to_fail() -> None:
    """One broken law is enough, none is too few."""

    class Whole(Stack):
        expected_failures: ClassVar = {"R99.x": "not ported"}

    assert judged(GOOD, BAD, stack=Whole()).outcome is Outcome.PASS
    assert judged(GOOD, stack=Whole()).outcome is Outcome.FAIL


@pytest.mark.parametrize(
    ("key", "reason", "told"),
    [
        ("R999.no", "because", "no relation 'R999.no'"),
        ("R17.advantages/no such law", "because", "has no law"),
        ("R17.advantages/no such law::loss", "because", "has no law"),
        ("R22.whole/scalars are logged::", "because", "names no part"),
        ("R17.advantages", " ", "has no reason"),
    ],
)
def test_keys_of_expected_failures_are_checked(key: str, reason: str, told: str) -> None:
    """A misspelt key would excuse nothing, and be seen by nobody."""

    class Misspelt(Stack):
        expected_failures: ClassVar = {key: reason}

    with pytest.raises(UsageError, match=told):
        parametrize_with_relations(Misspelt())


def test_bounds_follow_dtype_and_epsilon() -> None:
    """No declaration leaves the exact bound; an epsilon of 1e-8 on a mean over 4 moves it by 2 * 1e-8 / 4."""

    class Declares(Stack):
        facts = StackFacts(epsilon=1e-8)

    class Coarse(Stack):
        facts = StackFacts(dtype="float32")

    assert bound_of(Stack(), 1e-10) == 1e-10
    assert bound_of(Declares(), 1e-10, smallest_count=4) == pytest.approx(1e-10 + 0.5e-8)
    assert bound_of(Coarse(), 1e-10) == pytest.approx(128 * 2.0**-23)


OUTSIDE = Relation(
    id="X1.mine", name="mine", component="advantages", statement="Mine.", catalogue=(), cost="none", laws=()
)
OUTSIDE_GROUP = (OUTSIDE,)


def test_an_installed_package_brings_relations() -> None:
    """One, or several; they come after ours."""
    points = [
        EntryPoint(name="mine", value=f"{__name__}:{attribute}", group="seatrial.relations")
        for attribute in ("OUTSIDE", "OUTSIDE_GROUP")
    ]
    for point in points:
        assert relations_of_entry_points([point]) == [OUTSIDE]
    assert ordered([OUTSIDE, *all_relations()])[-1] is OUTSIDE
    with pytest.raises(UsageError, match="two relations have the id"):
        ordered([OUTSIDE, OUTSIDE])


@pytest.mark.parametrize("value", ["no_such_module:X", f"{__name__}:NOTHING", f"{__name__}:GOOD"])
def test_an_entry_point_that_brings_none_is_named(value: str) -> None:
    """With what to do."""
    with pytest.raises(UsageError, match="mine"):
        relations_of_entry_points([EntryPoint(name="mine", value=value, group="seatrial.relations")])
