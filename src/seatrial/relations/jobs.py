"""Runs relations in several processes at once."""

from __future__ import annotations

import multiprocessing
from collections.abc import Callable, Hashable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from typing import Any, TypeVar

from seatrial.relations.law import Relation
from seatrial.verdict import Verdict

NameT = TypeVar("NameT", bound=Hashable)

_judged: list[tuple[Callable[..., Verdict], Sequence[tuple[Relation, Any]]]] = []
"""In a worker: the function, and what it is called with."""


def judge_all(
    judge: Callable[[Relation, NameT], Verdict], pairs: Sequence[tuple[Relation, NameT]], num_jobs: int
) -> Iterator[Verdict]:
    """Yield the verdict of each relation and adapter, in their order.

    Workers are forked from this process. One worker judges all relations of an adapter's component, because they share
    runs. Components whose relations take minutes come first.

    Args:
        judge: returns the verdict of a relation on the adapter of this name.
        pairs: relations and names of adapters.
        num_jobs: processes; with 1 this process judges.
    """
    if num_jobs == 1:
        yield from (judge(*pair) for pair in pairs)
        return
    groups: dict[Hashable, list[int]] = {}
    for place, (relation, name) in enumerate(pairs):
        groups.setdefault((name, relation.component), []).append(place)
    longest_first = sorted(
        groups, key=lambda group: not any(_takes_minutes(*pairs[i]) for i in groups[group])
    )
    workers = ProcessPoolExecutor(
        num_jobs, multiprocessing.get_context("fork"), initializer=_judged.append, initargs=((judge, pairs),)
    )
    try:
        found = {group: workers.submit(_judge_group, groups[group]) for group in longest_first}
        for place, (relation, name) in enumerate(pairs):
            group = (name, relation.component)
            yield found[group].result()[groups[group].index(place)]
    finally:
        workers.shutdown(cancel_futures=True)


def _takes_minutes(relation: Relation, _: Hashable) -> bool:
    return "minute" in relation.cost


def _judge_group(places: Sequence[int]) -> list[Verdict]:
    judge, pairs = _judged[-1]
    return [judge(*pairs[place]) for place in places]
