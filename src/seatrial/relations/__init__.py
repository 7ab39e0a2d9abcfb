"""Relations: laws of RL post-training, called on a stack's components.

@parametrize_with_relations(MyStack())
def test_conformance(relation):
    relation()
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from seatrial.relations.not_served import NotServed

if TYPE_CHECKING:
    from seatrial.verdict import Verdict


__all__ = ["NotServed", "failure_message", "parametrize_with_relations"]


def parametrize_with_relations(
    *stacks: Any, names: Sequence[str] = (), seeds: Sequence[int] | None = None
) -> Callable[[Any], Any]:
    """Return a pytest decorator: the test gets `relation`, once per relation that a stack has the component for.

    Calling `relation()` passes, skips with the reason (a relation that could not be exercised), or fails with the
    law that was broken, the smallest input that breaks it, and the usual cause. Relations about components that the
    stack does not offer are left out. Violations that a stack names in `expected_failures` do not fail the test; one
    that it names and that no longer happens does.

    Raises:
        seatrial.errors.UsageError: a name is unknown, in `expected_failures` too, or no stack offers any component.
    """
    import pytest

    from seatrial.errors import UsageError
    from seatrial.relations.contracts import COMPONENTS
    from seatrial.relations.expected import check_expected_failures
    from seatrial.relations.registry import all_relations, select
    from seatrial.relations.runs import RunCache

    cache = RunCache()
    for stack in stacks:
        check_expected_failures(stack, all_relations())
    cases = [
        pytest.param(_Conformance(relation, stack, seeds, cache), id=f"{type(stack).__name__}-{relation.id}")
        for stack in stacks
        for relation in select(names)
        if isinstance(stack, COMPONENTS[relation.component])
    ]
    if not cases:
        raise UsageError(
            "no relation applies: the adapters offer none of the components "
            f"({', '.join(COMPONENTS)}); see seatrial.relations.contracts"
        )
    return pytest.mark.parametrize("relation", cases)


class _Conformance:
    """One relation on one stack, to be called by a test."""

    def __init__(self, relation: Any, stack: Any, seeds: Sequence[int] | None, cache: Any) -> None:
        self._relation, self._stack, self._seeds, self._cache = relation, stack, seeds, cache

    def __call__(self) -> Verdict:
        """Run the relation; fail or skip the test as its verdict says."""
        import pytest

        from seatrial.relations.engine import DEFAULT_SEEDS, run_relation
        from seatrial.relations.runs import sharing_runs
        from seatrial.verdict import Outcome

        with sharing_runs(self._cache):
            verdict = run_relation(self._relation, self._stack, seeds=self._seeds or DEFAULT_SEEDS)
        if verdict.outcome is Outcome.SKIPPED:
            pytest.skip(verdict.reason)
        if verdict.outcome is not Outcome.PASS:
            pytest.fail(failure_message(self._relation.statement, verdict), pytrace=False)
        return verdict

    def __repr__(self) -> str:
        """Return the relation's id."""
        return str(self._relation.id)


def failure_message(statement: str, verdict: Verdict) -> str:
    """Return the law that was broken and by how much, the relation, the input and the usual causes, one a line."""
    import json

    broken, *others = verdict.reason.split(" | ")
    lines = [broken, f"in {verdict.name}: {statement}", *others]
    if "smallest_case" in verdict.details:
        lines.append(f"smallest input found: {json.dumps(verdict.details['smallest_case'], default=str)}")
    if verdict.details.get("known_bugs_like_this"):
        known = verdict.details["known_bugs_like_this"]
        lines.append(f"known bugs that break it: {', '.join(known)} (seatrial explain {known[0]})")
    return "\n".join(lines)
