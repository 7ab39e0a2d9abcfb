"""R18.configurations: classes of options that keep their values hold, and each fault breaks its law."""

import copy
import dataclasses
import re
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any, Literal

import pytest

from seatrial.relations.contracts.configurations import OlderForm, OptionClass
from seatrial.relations.engine import run_relation
from seatrial.relations.laws.options.configurations import (
    CONFIGURATIONS,
    documented_default,
    other_value,
    same_default,
)
from seatrial.targets.common.option_classes import fields_of, option_class
from seatrial.verdict import Outcome

SHARED: list[int] = [1]


@dataclasses.dataclass
class Plain:
    """Options.

    Args:
        rate (`float`, *optional*, defaults to `0.5`):
            The rate.
        steps (`int`):
            How many steps there are at most.
            Defaults to 3.
        kind (`str`):
            What it is.
    """

    rate: float = 0.5
    steps: int = 3
    kind: Literal["mean", "sum"] = "mean"
    sizes: list[int] = dataclasses.field(default_factory=lambda: [1, 2])
    rotary: dict[str, Any] = dataclasses.field(
        default_factory=lambda: {"base": 8.0, "part": 0.5, "type": "plain"}
    )


def _reloaded(value: Any, fault: str) -> Any:
    found = type(value)(**copy.deepcopy(fields_of(value)))
    if fault == "lost":
        found.kind = "mean"
    if fault == "written over":
        found.rotary["part"] = 0.5
    if fault == "written into":
        value.sizes.append(0)
    return found


class Same(list):  # type: ignore[type-arg]
    """A list that a copy shares."""

    def __deepcopy__(self, memo: Any) -> "Same":
        return self


def _made(fault: str, **options: Any) -> Plain:
    if fault == "clipped":
        options = {**options, "rate": min(options.get("rate", 0.5), 0.1)} if "rate" in options else options
    base, width = options.pop("base", None), options.pop("width", None)
    made = Plain(**options)
    if base is not None and fault != "ignored":
        made.rotary["base"] = base
    if width is not None and fault != "dropped":
        made.steps = width
    if fault == "shared" and "sizes" not in options:
        made.sizes = SHARED
    if fault == "one copy":
        made.sizes = Same(made.sizes)
    return made


class Library:
    """One class of options."""

    def __init__(self, fault: str = "", allowed: Mapping[str, str] | None = None) -> None:
        self.fault, self.allowed = fault, allowed or {}

    @property
    def option_classes(self) -> Sequence[OptionClass]:
        found = option_class(
            Plain,
            options=fields_of,
            reload=partial(_reloaded, fault=self.fault),
            make=partial(_made, self.fault),
        )
        assert found is not None
        steps = {"steps": "4"} if self.fault == "documented otherwise" else {}
        older = [OlderForm(older={"base": 4.0}, newer={"rotary": {"base": 4.0}})]
        return [
            dataclasses.replace(
                found, documented={**found.documented, **steps}, older=older, keywords={"width": [3, 7]}
            )
        ]

    def options_allowed(self, law: str) -> Mapping[str, str]:
        return self.allowed


def test_a_library_that_keeps_its_values_holds() -> None:
    """Every law; and an option that a law leaves out is not judged."""
    assert run_relation(CONFIGURATIONS, Library(), seeds=[0]).outcome is Outcome.PASS
    left_out = Library("clipped", {"Plain.rate": "it is clipped"})
    assert run_relation(CONFIGURATIONS, left_out, seeds=[0]).outcome is Outcome.PASS


@pytest.mark.parametrize(
    ("fault", "law"),
    [
        ("clipped", "each option is kept"),
        ("lost", "saved and loaded"),
        ("written over", "saved and loaded"),
        ("ignored", "older names"),
        ("dropped", "older keywords"),
        ("shared", "defaults are not shared"),
        ("one copy", "copies"),
        ("written into", "objects stay"),
        ("documented otherwise", "documented defaults"),
    ],
)
def test_each_fault_breaks_its_law(fault: str, law: str) -> None:
    """Of values given, saved, by older names, shared, copied, kept and documented."""
    verdict = run_relation(CONFIGURATIONS, Library(fault), seeds=[0], shrink_seconds=0)
    assert verdict.details["laws_broken"] == [law]


def test_documented_defaults_are_read() -> None:
    """In the line of the type, in the text below it, and nowhere else."""
    (found,) = Library().option_classes
    assert found.documented == {"rate": "0.5", "steps": "3"}
    assert found.values == {"kind": ["mean", "sum"], "rate": [0.25], "steps": [3]}
    assert documented_default("by default the mean") is None


@pytest.mark.parametrize(
    ("text", "value", "same"),
    [("1e-5", 0.00001, True), ("8", 8.0, True), ("False", True, False), ('"sum"', "sum", True), ("sum", "mean", False),
     ("None", 3, True), ("the mean", 3, True), ("-1", 1, False)],
)  # fmt: skip
def test_documented_defaults_are_compared(text: str, value: Any, same: bool) -> None:
    """Numbers as numbers, words as words; what is no plain value is the default."""
    assert same_default(text, value) is same


def test_other_values_are_of_the_same_type() -> None:
    """None where no other one is known."""
    given = [
        other_value(name, value) for name, value in {"a": True, "b_id": 9, "c": 8, "d": 0.0, "e": "x"}.items()
    ]
    assert given == [False, 10, 16, 0.25, None]
    assert other_value("kind", "mean", ["mean", "sum"]) == "sum"
    assert other_value("rotary", {"base": 8.0, "places": 4, "type": "plain"}) == {
        "base": 4.0,
        "places": 4,
        "type": "plain",
    }
    assert other_value("names", {"a": 0, "b": "c"}) is None
    assert re.fullmatch(r"\[1, 1\]", str(other_value("sizes", [1])))
