"""A stack that the relations check if it is installed, and that Seatrial does not launch."""

from __future__ import annotations

import importlib
import importlib.util
import sys
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from seatrial.errors import BlockedError, UsageError
from seatrial.relations.raised import error_line, place_of
from seatrial.targets.base import Job, JobRequest, TrainingJob
from seatrial.targets.common.fixed_bugs import all_fixed_bugs
from seatrial.targets.common.rank_worker import adapter_package
from seatrial.targets.common.source_trees import add_metadata


class Gone(Exception):  # noqa: N818  no error: a fact about a release
    """Raised if the installed release does not have the adapter's component; the text names it."""


@dataclass(frozen=True)
class Unavailable:
    """Replaces an adapter that cannot be made."""

    reason: str
    blocked: bool = False
    """Whether the environment prevents it; else the installed release does not have the component."""
    package: str | None = None
    """The missing package, if that is all that prevents it."""
    uncovered: bool = False
    """Whether the release has the component, and there is no adapter of it."""
    thorough: bool = False
    """Whether the adapter is judged only if a thorough run is requested, or if it is named."""


def release(package: str) -> str:
    """Return the version of a package as imported, which may be another source tree's than the distribution's.

    One that is not imported, or does not say its version, has that of its distribution; else `not installed`.
    """
    imported = getattr(sys.modules.get(package.replace("-", "_")), "__version__", None)
    if isinstance(imported, str):
        return imported
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


def available(adapters: Mapping[str, type], stack: str = "the stack") -> dict[str, Any]:
    """Return an adapter of each kind, or why there is none.

    Raises:
        BlockedError: there is none at all: the release is too old, or broken at import.
    """
    made: dict[str, Any] = {}
    for name, adapter in adapters.items():
        try:
            made[name] = adapter()
        except Gone as gone:
            made[name] = Unavailable(str(gone), thorough=getattr(adapter, "thorough", False))
        except ModuleNotFoundError as missing:
            if (missing.name or "").startswith(f"{stack.partition(' ')[0]}."):  # of another release
                thorough = getattr(adapter, "thorough", False)
                made[name] = Unavailable(f"{stack} has no {missing.name}", thorough=thorough)
                continue
            made[name] = Unavailable(
                f"the stack imports {missing.name}, which is not installed here: install it with the stack",
                blocked=True,
                package=missing.name,
            )
        except Exception as error:  # noqa: BLE001  reported; an adapter only imports and looks up names here
            made[name] = Unavailable(
                f"cannot be made: {error_line(error)}, at {place_of(error)}", blocked=True
            )
    if made and all(isinstance(one, Unavailable) for one in made.values()):
        # What the environment prevents explains more than what a release does not have.
        first = max(made.values(), key=lambda one: one.blocked)
        raise BlockedError(f"none of the {len(made)} adapters of {stack} can be made here: {first.reason}")
    return made


class ComponentsTarget(ABC):
    """A `seatrial.targets.base.Target` of which only the components are known."""

    name: str
    modules: tuple[str, ...]
    packages: tuple[str, ...]
    relation_seeds: tuple[int, ...] = (0,)
    """A case is a training step of a real trainer."""

    @property
    def adapter_package(self) -> str:
        """The package that the adapters are in; see `seatrial.relations.engine.run_relation`."""
        return adapter_package(type(self).__module__)

    @abstractmethod
    def adapters(self) -> Mapping[str, type[Any]]:
        """Return the adapters by name; the stack itself is imported where one is made."""

    def components(self) -> dict[str, Any]:
        """Return an adapter of each kind; one that the installed release has no component for says so."""
        self.preflight()
        made = available(self.adapters(), f"{self.name} {release(self.packages[0])}")
        for name, adapter in made.items():
            bugs = [bug for bug in all_fixed_bugs() if bug.is_of(self.name, name)]
            if bugs and not isinstance(adapter, Unavailable):
                adapter.excused_bugs = [bug for bug in bugs if name not in bug.shown]
                adapter.shown_bugs = [bug for bug in bugs if name in bug.shown]
        rest = {name: Unavailable(reason, uncovered=True) for name, reason in self.uncovered().items()}
        return {**made, **rest}

    def uncovered(self) -> Mapping[str, str]:
        """Return what the installed release offers and no adapter covers, by name, each with the reason."""
        return {}

    def preflight(self) -> None:
        """Check whether the stack is installed."""
        missing = [name for name in (*self.modules, "torch") if importlib.util.find_spec(name) is None]
        if missing:
            raise BlockedError(
                f"{', '.join(missing)} not installed here: run this command in the environment that has {self.name}"
            )
        add_metadata(self.packages)

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
