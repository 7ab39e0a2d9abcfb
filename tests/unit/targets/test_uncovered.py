"""What a release names and no adapter covers is listed and printed, and does not count as judged."""

from collections.abc import Mapping
from typing import Any

import pytest

from seatrial.targets.common.target import ComponentsTarget, Gone, Unavailable
from seatrial.targets.verl import registries


class Target(ComponentsTarget):
    """A target of one adapter."""

    name = "some"
    modules = ()
    packages = ("packaging",)

    def adapters(self) -> Mapping[str, type[Any]]:
        return {"known": dict}

    def uncovered(self) -> Mapping[str, str]:
        return {"loss new": "the release has it, and no adapter covers it"}


def test_what_is_not_covered_is_neither_blocked_nor_judged() -> None:
    found = Target().components()
    assert found["known"] == {}
    assert found["loss new"] == Unavailable(
        "the release has it, and no adapter covers it", blocked=False, uncovered=True
    )


def test_names_of_registries_without_an_adapter(monkeypatch: pytest.MonkeyPatch) -> None:
    """A registry that the release does not have names nothing."""

    def gone() -> tuple[str, ...]:
        raise Gone("no such registry")

    monkeypatch.setattr(registries, "REGISTRIES", {"loss": lambda: ("old", "new"), "kl": gone})
    assert list(registries.uncovered({"loss": frozenset(("old",))})) == ["loss new"]
    assert list(registries.uncovered({})) == ["loss old", "loss new"]


def aggregate(values: list[float], how: str) -> float:
    """Stand for a function of modes that no list names."""
    if how == "mean":
        return sum(values) / len(values)
    if how in ("sum", "total"):
        return sum(values)
    raise ValueError(how)


def loss(values: list[float], how: str) -> float:
    """Stand for a loss that passes a mode on, except for one."""
    return aggregate(values, how="sum") + aggregate(values, how=how)


def test_modes_are_read_from_the_source() -> None:
    """What a function compares an argument with, and what it gives another one."""
    assert registries.compared_texts(aggregate, "how") == ("mean", "sum", "total")
    assert registries.compared_texts(aggregate, "values") == ()
    assert registries.given_texts(loss, "aggregate", "how") == ("sum",)


def test_a_thorough_adapter_that_is_gone_is_named_in_thorough_runs() -> None:
    """An ordinary run does not judge it, and is silent about it."""
    from seatrial.cli.relations import Stacks

    gone = {
        "a": Unavailable("gone"),
        "b": Unavailable("gone", thorough=True),
        "c": Unavailable("x", uncovered=True),
    }
    stacks = Stacks(adapters={}, unavailable=gone)
    assert [verdict.name for verdict in stacks.missing(thorough=False)] == ["a", "c"]
    assert [verdict.name for verdict in stacks.missing(thorough=True)] == ["a", "b", "c"]
    assert [verdict.details.get("uncovered", False) for verdict in stacks.missing(thorough=False)] == [
        False,
        True,
    ]
