"""Relations of two sides, law by law."""

from __future__ import annotations

from typing import Any

from seatrial.compare.laws import compare_laws
from seatrial.compare.verdicts import APART, BEFORE, BLOCKED, BROKE, FIXED, KIND
from seatrial.verdict import Outcome, Verdict


def relation(name: str, outcome: Outcome = Outcome.PASS, reason: str = "why", **details: Any) -> Verdict:
    return Verdict(name=name, outcome=outcome, reason=reason, num_samples=3, details=details)


def kinds(base: list[Verdict], head: list[Verdict]) -> dict[str, str]:
    found = compare_laws(base, head)
    return {one.name: one.details[KIND] for one in found if one.name != "laws that hold on both"}


def test_exactly_the_laws_that_changed_are_named() -> None:
    base = [relation("dpo: R1.objective add up", laws=["a", "b", "c"], laws_not_exercised={"d": "needs x"})]
    head = [
        relation(
            "dpo: R1.objective add up",
            Outcome.FAIL,
            "law 'b' broken (seed 0): off by 2 | law 'e' broken",
            laws=["a"],
            laws_broken=["b"],
            raises=[{"same": "1", "sentence": "KeyError at x", "laws": ["c"]}],
            laws_not_exercised={"d": "needs x"},
        )
    ]
    assert kinds(base, head) == {"dpo: R1.objective/b": BROKE, "dpo: R1.objective/c": BROKE}
    assert kinds(head, base) == {"dpo: R1.objective/b": FIXED, "dpo: R1.objective/c": FIXED}
    by_name = {one.name: one for one in compare_laws(base, head)}
    assert by_name["dpo: R1.objective/b"].outcome is Outcome.FAIL
    assert by_name["dpo: R1.objective/b"].reason == "HEAD broke this law: law 'b' broken (seed 0): off by 2"
    assert by_name["laws that hold on both"].num_samples == 1


def test_broken_on_both_does_not_fail_and_an_expected_failure_counts_as_broken() -> None:
    base = [relation("R2 x", laws_broken=["b"], expected_failures={"e": "known"})]
    head = [relation("R2 x", Outcome.FAIL, laws_broken=["b", "e"])]
    assert kinds(base, head) == {"R2/b": BEFORE, "R2/e": BEFORE}


def test_a_part_of_a_broken_law_that_head_alone_breaks_is_broken_by_head() -> None:
    """Such as a second logged scalar; one that HEAD fixes beside others leaves the law broken."""
    one = [relation("R2 x", expected_failures={"e": "known"}, parts={"e": {"expected": ["a"], "broken": []}})]
    both = [
        relation(
            "R2 x",
            Outcome.FAIL,
            "law 'e' broken: b is 2",
            laws_broken=["e"],
            expected_failures={"e": "known"},
            parts={"e": {"expected": ["a"], "broken": ["b"]}},
        )
    ]
    [verdict] = compare_laws(one, both)
    assert verdict.outcome is Outcome.FAIL
    assert verdict.reason == "HEAD broke b of this law: law 'e' broken: b is 2"
    assert kinds(both, one) == kinds(both, both) == {"R2/e": BEFORE}


def test_a_law_that_one_side_has_alone_is_not_compared() -> None:
    base = [relation("R3 x", laws=["a"])]
    head = [relation("R3 x", Outcome.FAIL, laws=["a"], laws_broken=["new"])]
    assert kinds(base, head) == {"R3/new": APART}
    assert kinds(head, base) == {"R3/new": APART}


def test_what_is_blocked_at_head_alone_is_blocked() -> None:
    base = [relation("R4 x", laws=["a"]), relation("grpo", Outcome.BLOCKED, "needs vllm")]
    misfit = [{"same": "1", "sentence": "the call does not fit", "laws": ["a"]}]
    head = [
        relation("R4 x", Outcome.BLOCKED, misfits=misfit),
        relation("grpo", Outcome.BLOCKED, "needs vllm"),
        relation("dpo", Outcome.BLOCKED, "needs peft"),
    ]
    assert kinds(base, head) == {"R4/a": BLOCKED, "dpo": BLOCKED}
