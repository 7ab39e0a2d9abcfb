"""Laws of what a run leaves and of what a configuration names fail where a stack breaks them, and hold for refrl."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import cache
from typing import Any

import pytest

from seatrial.relations.contracts.left import LeftRun
from seatrial.relations.engine import run_relation
from seatrial.relations.registry import select
from seatrial.relations.runs import sharing_runs
from seatrial.targets.reference.components import ReferenceComponents
from seatrial.verdict import Outcome

pytestmark = pytest.mark.usefixtures("forked_processes")

Change = Callable[[LeftRun], LeftRun]


@cache
def left(options: tuple[tuple[str, Any], ...], seed: int) -> LeftRun:
    """Return what refrl's own run leaves, made once."""
    return ReferenceComponents().left_run(dict(options), seed=seed)


class Leaves(ReferenceComponents):
    """refrl, with what its runs leave changed."""

    def __init__(self, change: Change) -> None:
        super().__init__()
        self.change = change

    def left_run(self, options: Mapping[str, Any], *, seed: int) -> LeftRun:
        """Return what was left, changed."""
        return self.change(left(tuple(sorted(options.items())), seed))


def broken(relation: str, stack: Any) -> str:
    """Return what a relation says of a stack; empty where it passes."""
    with sharing_runs():
        verdict = run_relation(select([relation])[0], stack, seeds=[0])
    return "" if verdict.outcome is Outcome.PASS else verdict.reason


def without_zeros(found: LeftRun) -> LeftRun:
    """Leave zeros out of the log."""
    series = {name: tuple(one for one in points if one[1]) for name, points in found.series.items()}
    return replace(found, series=series)


def backwards(found: LeftRun) -> LeftRun:
    """Turn seconds round."""
    series = {
        name: tuple((step, -value if name.startswith("timing/") else value) for step, value in points)
        for name, points in found.series.items()
    }
    return replace(found, series=series)


def cut(found: LeftRun) -> LeftRun:
    """Log phases under the first part of their names."""
    series = {
        name.removesuffix("/total") if "prepare" in name else name: points
        for name, points in found.series.items()
    }
    return replace(found, series=series)


@pytest.mark.parametrize(
    ("relation", "law", "change"),
    [
        ("R22.left", "every scalar", without_zeros),
        ("R22.left", "seconds", backwards),
        ("R22.left", "documented series", cut),
        ("R22.left", "rows on disk", lambda found: replace(found, rows=found.rows[::-1])),
        (
            "R22.left",
            "failures of the verifier",
            lambda found: replace(found, rows=tuple(replace(row, judged=True) for row in found.rows)),
        ),
        ("R22.left", "the record of the run", lambda found: replace(found, seed=0)),
        (
            "R21.left",
            "nothing else is left",
            lambda found: replace(found, modes={**found.modes, "checkpoints/.final.x1/": 0o755}),
        ),
        (
            "R21.left",
            "readable",
            lambda found: replace(found, modes={**found.modes, "checkpoints/final/": 0o700}),
        ),
        ("R21.left", "the tokenizer is exported", lambda found: replace(found, exported_ids=())),
    ],
)
def test_what_a_run_left_is_held_to_what_it_did(relation: str, law: str, change: Change) -> None:
    """Each law sees its own fault."""
    assert f"law '{law}' broken" in broken(relation, Leaves(change))


@pytest.mark.parametrize("relation", ["R22.left", "R21.left"])
def test_what_refrl_leaves_is_right(relation: str) -> None:
    """With the same runs, unchanged."""
    assert broken(relation, Leaves(lambda found: found)) == ""


class Careless(ReferenceComponents):
    """refrl, with options of own parts tested for truth, names folded and one stream for all purposes."""

    def options_of_own_part(self, kind: str, options: Mapping[str, Any]) -> Mapping[str, Any]:
        """Drop what is zero, false or empty."""
        return super().options_of_own_part(kind, {name: value for name, value in options.items() if value})

    def takes(self, options: Mapping[str, Any]) -> bool:
        """Take everything."""
        return True

    def drawn(self, seed: int, purpose: str, step: int, num: int) -> Sequence[int]:
        """Draw without the purpose."""
        return super().drawn(seed, "", step, num)


@pytest.mark.parametrize(
    ("relation", "law"),
    [
        ("R18.own", "options arrive"),
        ("R18.names", "typos are refused"),
        ("R18.names", "sizes that do not divide"),
        ("R26.streams", "streams are independent"),
    ],
)
def test_carelessness_is_seen(relation: str, law: str) -> None:
    """Of a configuration and of streams."""
    assert f"law '{law}' broken" in broken(relation, Careless())


class Overlapping(ReferenceComponents):
    """refrl, with a held-out prompt that is trained on and programs that are not learned."""

    def task_splits(self, task: Any, *, num_train: int, num_held_out: int, seed: int) -> Any:
        """Put the first held-out prompt in place of the first one to train on, and learn answers."""
        train, held_out = super().task_splits(task, num_train=num_train, num_held_out=num_held_out, seed=seed)
        both = [[replace(one, target=one.answer) for one in part] for part in (train, held_out)]
        return [both[1][0], *both[0][1:]], both[1]


@pytest.mark.parametrize(
    ("relation", "law"),
    [
        ("R14.tasks", "splits cover the task"),
        pytest.param("R17.tasks", "learned completions are right", marks=pytest.mark.nightly),
    ],
)
def test_a_task_that_is_not_what_it_says_is_seen(relation: str, law: str) -> None:
    """Of splits and of what fine-tuning learns."""
    assert f"law '{law}' broken" in broken(relation, Overlapping())
