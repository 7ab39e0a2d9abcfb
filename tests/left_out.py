"""Leaves the nightly tests out of a run unless `-m` names them, and lists them by file in the run's last lines."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any

import pytest

MARK = "nightly"
HEADER = "left out: nightly tests (make nightly)"


def is_nightly(config: pytest.Config) -> bool:
    """Return whether a run is one of nightly tests."""
    return MARK in config.getoption("-m")


class LeftOut:
    """A plugin of the process that reports, and of each worker."""

    def __init__(self) -> None:
        """Begin with none."""
        self._names: list[str] = []

    def pytest_collection_modifyitems(self, config: pytest.Config, items: list[pytest.Item]) -> None:
        """Deselect the nightly tests."""
        if is_nightly(config):
            return
        nightly = [item for item in items if item.get_closest_marker(MARK)]
        if nightly:
            self._names = [item.nodeid for item in nightly]
            config.hook.pytest_deselected(items=nightly)
            items[:] = [item for item in items if not item.get_closest_marker(MARK)]

    def pytest_sessionfinish(self, session: pytest.Session) -> None:
        """Have a worker hand the names to the process that reports."""
        if hasattr(session.config, "workeroutput"):
            session.config.workeroutput["left_out"] = self._names

    @pytest.hookimpl(optionalhook=True)
    def pytest_testnodedown(self, node: Any) -> None:
        """Take the names from a worker; all workers collect the same tests."""
        self._names = getattr(node, "workeroutput", {}).get("left_out", self._names)

    def pytest_terminal_summary(self, terminalreporter: Any) -> None:
        """List them."""
        if self._names:
            terminalreporter.section(HEADER)
            for line in lines(self._names):
                terminalreporter.write_line(line)


def lines(names: Sequence[str]) -> list[str]:
    """Return a line for each file with the number of its tests that are left out, and one with the sum."""
    counts = Counter(name.partition("::")[0] for name in names)
    return [*(f"{count:5d}  {file}" for file, count in sorted(counts.items())), f"{len(names):5d}  in all"]
