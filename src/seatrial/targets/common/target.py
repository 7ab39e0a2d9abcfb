"""A stack that the relations check if it is installed, and that Seatrial does not launch."""

from __future__ import annotations

import importlib
import importlib.util
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from seatrial.errors import BlockedError, UsageError
from seatrial.targets.base import Job, JobRequest, TrainingJob


class Gone(Exception):  # noqa: N818  no error: a fact about a release
    """Raised if the installed release does not have the adapter's component; the text names it."""


@dataclass(frozen=True)
class Unavailable:
    """Replaces an adapter whose component the installed release does not have."""

    reason: str


def release(package: str) -> str:
    """Return the installed version of a distribution; `not installed` where there is none."""
    try:
        return version(package)
    except PackageNotFoundError:
        return "not installed"


def find_name(package: str, places: Sequence[str]) -> Any:
    """Return the first of `module:name` that the installed release has.

    Raises:
        Gone: it has none of them.
    """
    for place in places:
        module, _, name = place.partition(":")
        try:
            found = getattr(importlib.import_module(module), name, None)
        except ModuleNotFoundError as error:
            if not module.startswith(error.name or ""):
                raise
            continue
        if found is not None:
            return found
    names = ", ".join(place.replace(":", ".") for place in places)
    raise Gone(f"{package} {release(package)} has no {names}")


def available(adapters: Mapping[str, type]) -> dict[str, Any]:
    """Return an adapter of each kind, or why the installed release has none.

    Raises:
        BlockedError: a package is missing that the stack imports.
    """
    made: dict[str, Any] = {}
    for name, adapter in adapters.items():
        try:
            made[name] = adapter()
        except Gone as gone:
            made[name] = Unavailable(str(gone))
        except ModuleNotFoundError as missing:
            raise BlockedError(
                f"the stack imports {missing.name}, which is not installed here: install it with the stack"
            ) from missing
    return made


class ComponentsTarget(ABC):
    """A `seatrial.targets.base.Target` of which only the components are known."""

    name: str
    modules: tuple[str, ...]
    packages: tuple[str, ...]
    relation_seeds: tuple[int, ...] = (0,)
    """A case is a training step of a real trainer."""

    @abstractmethod
    def adapters(self) -> Mapping[str, type[Any]]:
        """Return the adapters by name; the stack itself is imported where one is made."""

    def components(self) -> dict[str, Any]:
        """Return an adapter of each kind; one that the installed release has no component for says so."""
        self.preflight()
        return available(self.adapters())

    def preflight(self) -> None:
        """Check whether the stack is installed."""
        missing = [name for name in (*self.modules, "torch") if importlib.util.find_spec(name) is None]
        if missing:
            raise BlockedError(
                f"{', '.join(missing)} not installed here: run this command in the environment that has {self.name}"
            )

    def check_overrides(self, overrides: Sequence[str]) -> None:
        """Refuse all: there is no run to override."""
        if overrides:
            raise UsageError(f"--target {self.name} takes no overrides: it has relations alone")

    def expected_origins(self) -> Mapping[str, Path]:
        """Return an empty mapping: the stack may be installed anywhere."""
        return {}

    def given_model(self, overrides: Sequence[str]) -> Path | None:
        """Return None: the adapters create their own models."""
        return None

    def make_model(self, output: Path, seed: int) -> Job:
        """Refuse; see `job`."""
        raise UsageError(self._no_runs())

    def job(self, request: JobRequest) -> TrainingJob:
        """Refuse: no run of this stack is known."""
        raise UsageError(self._no_runs())

    def _no_runs(self) -> str:
        return f"target {self.name} has relations and no runs: seatrial relations --target {self.name}"
