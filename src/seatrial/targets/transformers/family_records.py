"""Families of causal language models with logits on record; see `contracts.recorded`."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from functools import cache, cached_property
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import torch
from packaging.version import Version

from seatrial.relations.contracts.families import ModelForm
from seatrial.relations.not_served import NotServed
from seatrial.relations.raised import error_line
from seatrial.targets.common.known import KnowsFailures
from seatrial.targets.common.target import Gone, release
from seatrial.targets.transformers.families import VOCABULARY
from seatrial.targets.transformers.family_options import FamilyOptions
from seatrial.targets.transformers.family_table import FAMILIES

RECORD = Path(__file__).with_name("recorded.json")
OLDEST = "4.57"
"""The oldest release whose logits the record has."""
OPTIONS = ("rope_", "partial_rotary_factor")
"""Beginnings of the names of options on record."""


@cache
def record() -> Mapping[str, Mapping[str, Sequence[Any]]]:
    """Return by family and option the oldest release with these projections, and the projections."""
    found: Mapping[str, Mapping[str, Sequence[Any]]] = json.loads(RECORD.read_text(encoding="utf-8"))
    return found


def rows() -> list[list[int]]:
    """Return the rows of the record."""
    rng = np.random.default_rng(11)
    return [[int(token) for token in rng.integers(3, VOCABULARY, size=size)] for size in (13, 6, 10)]


class FamilyRecord(KnowsFailures):
    """A family with logits on record."""

    thorough = True
    family: ClassVar[str]

    def __init__(self) -> None:
        """Find the family in the installed release."""
        if Version(release("transformers")) < Version(OLDEST):
            raise Gone(f"the record begins with transformers {OLDEST}")
        kind = type("Optioned", (FamilyOptions,), {"family": self.family})
        self._options = kind()

    @cached_property
    def recorded(self) -> Mapping[str, Sequence[float]]:
        installed = Version(release("transformers"))
        own = record().get(self.family, {}).items()
        return {name: values for name, (oldest, *values) in own if installed >= Version(oldest)}

    def option_names(self) -> list[str]:
        """Return the options that are recorded, of those that the release has."""
        return [
            "",
            *(name for name in self._options.option_names if name.startswith(OPTIONS) and "&" not in name),
        ]

    def projections(self, name: str) -> Sequence[float]:
        if name and name not in self._options.option_names:
            raise NotServed(f"no option {name}")
        model = self._options.with_option(name)
        try:
            with torch.no_grad():
                logits = [one.double() for one in model.family_logits(rows(), ModelForm())]
        except RuntimeError as error:
            raise NotServed(error_line(error)) from error
        found = []
        for one in logits:
            places = torch.arange(one.numel(), dtype=torch.float64).view_as(one)
            found.append(float((one * torch.cos(1.3 * places)).sum()) * (2 / one.numel()) ** 0.5)
        return [*found, float(torch.cat(logits).square().mean().sqrt())]


def _adapter(family: str) -> type[FamilyRecord]:
    return type(
        f"Recorded_{family}",
        (FamilyRecord,),
        {"__doc__": f"The family {family} on record.", "family": family},
    )


ADAPTERS: dict[str, type[Any]] = {
    f"recorded-{family}": _adapter(family) for family in record() if family in FAMILIES
}
