"""The mutants and tests of another project's harness, with their counterparts here (`harness.yaml`)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from typing import Any

from seatrial.packaged import read_table


@dataclass(frozen=True, kw_only=True)
class HarnessMutant:
    """One of the 42 one-line mutants that the harness was tested with."""

    theirs: str
    """The part of the code that is changed."""
    part: str
    killed_there: bool
    """Whether any of their tests failed."""
    ours: str
    """Id of the mutant that transcribes it to refrl."""


@dataclass(frozen=True, kw_only=True)
class HarnessTest:
    """One of the 43 tests of the harness."""

    test: str
    ours: tuple[str, ...]
    """Relations by id, and tests of ours as `file::name` under `tests/`; `*` is the whole file."""
    note: str = ""


@cache
def harness_mutants() -> tuple[HarnessMutant, ...]:
    """Return the 42 mutants, survivors first."""
    return tuple(HarnessMutant(**fields) for fields in _data()["mutants"])


@cache
def harness_tests() -> tuple[HarnessTest, ...]:
    """Return the 43 tests, file by file."""
    return tuple(HarnessTest(**{**fields, "ours": tuple(fields["ours"])}) for fields in _data()["tests"])


def _data() -> Mapping[str, Any]:
    data: Mapping[str, Any] = read_table("seatrial.faults", "harness.yaml")
    return data
