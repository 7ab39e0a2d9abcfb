"""The laws of settings from variables: a plain object satisfies them, and each planted fault is seen."""

import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import pytest

from seatrial.relations.contracts.settings import Setting
from seatrial.relations.engine import run_relation
from seatrial.relations.registry import select
from seatrial.verdict import Outcome

(SETTINGS,) = select(["R32.settings"])
FORMS: Mapping[str, Callable[[str], Any]] = {
    "A_STEPS": int,
    "A_ON": lambda text: text.lower() == "true",
    "A_NAME": str,
}


@dataclass
class PlainSettings:
    """An object of three settings; a fault is one line that differs."""

    fault: str = ""
    left: dict[str, Any] = field(default_factory=dict)
    settings: tuple[Setting, ...] = (
        Setting(of="a", variable="A_STEPS", text="4", field="steps", value=4, default=1, given=2),
        Setting(of="a", variable="A_ON", text="true", field="on", value=True, default=False, given=False),
        Setting(
            of="a",
            variable="A_NAME",
            text="x",
            field="name",
            value="x",
            default=None,
            given="y",
            needs={"A_ON": "true"},
        ),
    )

    def settled(
        self, of: str, variables: Mapping[str, str], given: Mapping[str, Any] | None = None
    ) -> Mapping[str, Any]:
        """Return the argument, else the variable, else the default."""
        found: dict[str, Any] = {}
        for one in self.settings:
            variable = one.variable
            if self.fault == "mixed up" and "A_STEPS" in variables and one.field == "name":
                variable = "A_ON"
            found[one.field] = self.left.get(one.field, one.default)
            if variable in variables and not (one.needs and "A_ON" not in variables):
                found[one.field] = self._read(one.variable, variables[variable])
            elif self.fault == "default" and one.field == "on":
                found["on"] = True
            if given and one.field in given and not (self.fault == "overruled" and variable in variables):
                found[one.field] = given[one.field]
                if self.fault == "left":
                    self.left[one.field] = given[one.field]
        return found

    def _read(self, variable: str, text: str) -> Any:
        if self.fault == "capitals" and variable == "A_ON":
            return text == "True"
        return FORMS[variable](text)

    def clear(self) -> None:
        """Remove what an object has left."""
        self.left.clear()


def test_a_plain_object_satisfies_the_laws() -> None:
    """Without a variable of the process's own environment."""
    before = dict(os.environ)
    verdict = run_relation(SETTINGS, PlainSettings())
    assert verdict.outcome is Outcome.PASS, verdict.reason
    assert dict(os.environ) == before


@pytest.mark.parametrize(
    ("fault", "law"),
    [
        ("capitals", "read from variables"),
        ("default", "defaults"),
        ("mixed up", "read together"),
        ("overruled", "arguments go first"),
        ("left", "one after another"),
    ],
)
def test_a_fault_is_seen_by_the_law_about_it(fault: str, law: str) -> None:
    """Others may see it as well."""
    verdict = run_relation(SETTINGS, PlainSettings(fault), shrink_seconds=0)
    assert law in verdict.details["laws_broken"]
