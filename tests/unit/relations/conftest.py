"""What the tests of refrl's conformance share."""

from collections.abc import Callable, Iterable, Mapping
from typing import Any

import pytest

from seatrial.relations.engine import run_relation
from seatrial.relations.registry import select
from seatrial.relations.runs import sharing_runs
from seatrial.targets.reference.components import ReferenceComponents
from seatrial.verdict import Outcome

Disobeyed = Callable[[Mapping[str, Any], Iterable[str], list[int]], list[str]]


@pytest.fixture(name="disobeyed")
def disobeyed_fixture() -> Disobeyed:
    """Return a function that says which relations a cell breaks, or does not exercise at all."""

    def disobeyed(options: Mapping[str, Any], names: Iterable[str], seeds: list[int]) -> list[str]:
        stack = ReferenceComponents(options)
        with sharing_runs():
            verdicts = [run_relation(relation, stack, seeds=seeds) for relation in select(list(names))]
        # A cell may exclude every law of a run that sets another reduction; no other relation may be without a case.
        unexercised = [v for v in verdicts if not v.num_samples and ".run" not in v.name]
        failed = [v for v in verdicts if v.outcome in (Outcome.FAIL, Outcome.BLOCKED)]
        return [f"{dict(options)}: {v.name}: {v.reason}" for v in [*failed, *unexercised]]

    return disobeyed
