"""Lanes: the test configurations of a project, declared in its `pyproject.toml`.

A lane is a marker that is closed until its flag opens it. Tests with the marker of a closed lane are deselected; if a
lane with mode `only` is open, so are tests without the marker of an open `only` lane. This gives the four
configurations of NeMo RL's testing guide, and a test with the markers of two backends runs if both are open.
"""

from __future__ import annotations

import argparse
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import pytest

from seatrial.pytest_plugin.needs import Assets, Needs, parse_assets, parse_needs
from seatrial.pytest_plugin.settings import refuse_unknown

if TYPE_CHECKING:
    from seatrial.pytest_plugin.session import SessionRecord

PLUGIN_NAME = "seatrial-lanes"
MISSING_KEY = "seatrial_lanes_missing"
"""Under this key xdist's controller sends its workers what is missing, so that it is checked once."""
_KEYS = frozenset({"flag", "marker", "mode", "needs", "help", "prepare", "assets"})


@dataclass(frozen=True, kw_only=True)
class Lane:
    """One test configuration."""

    name: str
    flag: str
    """Command line option that opens it."""
    marker: str
    only: bool
    """If true, an open lane deselects every test without its marker; otherwise it adds its tests to the others."""
    needs: Needs
    assets: Assets | None
    """The files that its tests read, and the command that creates them."""
    help: str

    @property
    def dest(self) -> str:
        """Name of the parsed option."""
        return "seatrial_lane_" + self.name


def parse_lanes(settings: Mapping[str, Any]) -> list[Lane]:
    """Read the tables `[tool.seatrial.lanes.NAME]`.

    Raises:
        pytest.UsageError: names the lane, the key and the allowed values.
    """
    tables = settings.get("lanes", {})
    if not isinstance(tables, dict):
        raise pytest.UsageError(f"tool.seatrial.lanes must be a table of lanes, not {tables!r}")
    return [_parse_lane(name, data) for name, data in tables.items()]


def _parse_lane(name: str, data: Any) -> Lane:
    where = f"tool.seatrial.lanes.{name}"
    if not isinstance(data, dict):
        raise pytest.UsageError(f"{where} must be a table, not {data!r}")
    refuse_unknown(data, _KEYS, where)
    mode = data.get("mode", "include")
    if mode not in ("include", "only"):
        raise pytest.UsageError(f"{where}.mode must be 'include' or 'only', not {mode!r}")
    suffix = "-only" if mode == "only" else ""
    flag = data.get("flag", f"--{name.replace('_', '-')}{suffix}")
    marker = data.get("marker", name)
    if not isinstance(flag, str) or not flag.startswith("--") or len(flag) < 3:
        raise pytest.UsageError(f"{where}.flag must be an option such as '--{name}', not {flag!r}")
    if not isinstance(marker, str) or not marker.isidentifier():
        raise pytest.UsageError(f"{where}.marker must be the name of a marker, not {marker!r}")
    return Lane(
        name=name,
        flag=flag,
        marker=marker,
        only=mode == "only",
        needs=parse_needs(data.get("needs", {}), f"{where}.needs"),
        assets=parse_assets(data, where),
        help=str(data.get("help", f"tests marked {marker!r}")),
    )


def add_options(group: pytest.OptionGroup, lanes: Iterable[Lane]) -> None:
    """Add the flag of each lane.

    Raises:
        pytest.UsageError: another option has the same name.
    """
    for lane in lanes:
        text = ("run only " if lane.only else "also run ") + lane.help
        try:
            group.addoption(lane.flag, action="store_true", default=False, dest=lane.dest, help=text)
        except (ValueError, argparse.ArgumentError) as error:
            raise pytest.UsageError(f"tool.seatrial.lanes.{lane.name}.flag: {error}") from error


class LanesPlugin:
    """Deselects the tests of closed lanes, and blocks those of open lanes whose needs are not met."""

    def __init__(self, config: pytest.Config, lanes: list[Lane], record: SessionRecord | None) -> None:
        self._lanes = lanes
        self._open = [lane for lane in lanes if config.getoption(lane.dest)]
        self._record = record
        self.left_out: Counter[str] = Counter()
        for lane in lanes:
            config.addinivalue_line("markers", f"{lane.marker}: {lane.help} (opened by {lane.flag})")
        received = getattr(config, "workerinput", {}).get(MISSING_KEY)
        self._missing: dict[str, list[str]] = self._look_up(config) if received is None else received
        if record is not None:
            for name, problems in self._missing.items():
                record.block(f"lane {name}: {'; '.join(problems)}")

    def _look_up(self, config: pytest.Config) -> dict[str, list[str]]:
        found = {}
        for lane in self._open:
            problems = lane.needs.missing()
            if not problems and lane.assets is not None:
                problems = lane.assets.problems(config.rootpath, may_run=not config.option.collectonly)
            if problems:
                found[lane.name] = problems
        return found

    def pytest_report_header(self) -> str:
        """Return which lanes are open."""
        words = [f"{lane.name} ({'open' if lane in self._open else 'closed'})" for lane in self._lanes]
        return f"lanes: {', '.join(words)}"

    @pytest.hookimpl(optionalhook=True)
    def pytest_configure_node(self, node: Any) -> None:
        """Send an xdist worker what is missing."""
        node.workerinput[MISSING_KEY] = self._missing

    def pytest_collection_modifyitems(self, config: pytest.Config, items: list[pytest.Item]) -> None:
        """Deselect tests of closed lanes through pytest's own hook, and count them by reason."""
        kept, dropped = [], []
        for item in items:
            reason = self._reason_against(item)
            if reason is None:
                kept.append(item)
            else:
                dropped.append(item)
                self.left_out[reason] += 1
        if dropped:
            config.hook.pytest_deselected(items=dropped)
            items[:] = kept
        if self._record is not None:
            self._record.leave_out(self.left_out)

    def _reason_against(self, item: pytest.Item) -> str | None:
        carried = [lane for lane in self._lanes if item.get_closest_marker(lane.marker) is not None]
        closed = [lane for lane in carried if lane not in self._open]
        if closed:
            flags = " ".join(lane.flag for lane in closed)
            return f"lane {' + '.join(lane.name for lane in closed)} is closed; {flags} opens it"
        only = [lane for lane in self._open if lane.only]
        if only and not any(lane in only for lane in carried):
            return f"not in lane {' or '.join(lane.name for lane in only)}, which {only[0].flag} asked for"
        return None

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtest_setup(self, item: pytest.Item) -> None:
        """Block a test if its lane's needs are not met."""
        if not self._missing:
            return
        for lane in self._open:
            if lane.name in self._missing and item.get_closest_marker(lane.marker) is not None:
                pytest.skip(f"Blocked: lane {lane.name}: {'; '.join(self._missing[lane.name])}")

    def pytest_sessionfinish(self, session: pytest.Session) -> None:
        """Send the controller the counts of tests that this worker deselected."""
        from seatrial.pytest_plugin.session import WORKER_KEY

        output = getattr(session.config, "workeroutput", None)
        if output is not None:
            output[WORKER_KEY] = {**output.get(WORKER_KEY, {}), **self.left_out}
