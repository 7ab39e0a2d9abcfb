"""The pytest plugin `seatrial`: tracker, lanes, selection of affected tests, functional tests.

Every pytest run in an environment with Seatrial imports this module: it imports only pytest, and registers a part of
the plugin only if the project or the command line uses it. No module of this package may be named `tracker`: importing
it would replace the fixture of that name.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from pathlib import Path

    from seatrial.pytest_plugin.affected.observation import Observation
    from seatrial.pytest_plugin.lanes import Lane
    from seatrial.pytest_plugin.tracking import Tracker

_LANES: pytest.StashKey[list[Lane]] = pytest.StashKey()
_OBSERVATION: pytest.StashKey[Observation] = pytest.StashKey()
_SETTINGS: pytest.StashKey[Any] = pytest.StashKey()


def pytest_addoption(parser: pytest.Parser, pluginmanager: pytest.PytestPluginManager) -> None:
    """Add the plugin's options, and the flags of the project's lanes."""
    from seatrial.pytest_plugin.settings import read_settings

    group = parser.getgroup("seatrial", "Seatrial: tracker, lanes, selection")
    group.addoption(
        "--tracker-results",
        metavar="FILE",
        help="write the session's result to this file even if no test tracks anything "
        "(default: tests/unit/unit_results.json, written if a test uses `tracker`)",
    )
    group.addoption(
        "--tracker-baseline",
        metavar="REVISION|DIR",
        help="fail tests whose tracked numbers are outside the range of earlier sessions of that commit; "
        "the sessions come from this project's history, or from a folder of result files",
    )
    group.addoption(
        "--tracker-baseline-shift",
        metavar="SD",
        type=float,
        help="standard deviations that the runs must be able to detect, or the verdict is Blocked (default: 6)",
    )
    group.addoption(
        "--affected",
        *_testmon_alias(pluginmanager),
        dest="affected",
        action="store_true",
        help="run only tests that a change since their last run can affect; the first run creates the map",
    )
    group.addoption(
        "--affected-explain", action="store_true", help="as --affected, and print the reason for every test"
    )
    group.addoption(
        "--affected-audit",
        action="store_true",
        help="run all tests, and report which ones --affected would have missed",
    )
    group.addoption(
        "--functional-dir",
        metavar="DIR",
        help="keep the runs of *.functional.yaml tests here (default: pytest's temporary folder)",
    )
    # pytest determines its root directory before it loads plugins, so the project's settings are available here.
    config: Any = pluginmanager.get_plugin("pytestconfig")
    config.stash[_SETTINGS] = read_settings(config.rootpath)
    config.stash[_LANES] = []
    if "lanes" in config.stash[_SETTINGS]:
        from seatrial.pytest_plugin.lanes import add_options, parse_lanes

        config.stash[_LANES] = parse_lanes(config.stash[_SETTINGS])
        add_options(group, config.stash[_LANES])


def _testmon_alias(pluginmanager: pytest.PytestPluginManager) -> list[str]:
    """Return `--testmon` as a second name of `--affected` if it is used and testmon is not installed."""
    config: Any = pluginmanager.get_plugin("pytestconfig")
    if "--testmon" not in config.invocation_params.args:
        return []
    from importlib.util import find_spec

    return [] if find_spec("testmon") else ["--testmon"]


@pytest.hookimpl(tryfirst=True)
def pytest_load_initial_conftests(early_config: pytest.Config) -> None:
    """With --affected, start watching before the first conftest is imported."""
    options = early_config.known_args_namespace
    if not (options.affected or options.affected_explain or options.affected_audit):
        return
    # xdist's controller runs no test; its workers get the same options.
    spreads = getattr(options, "numprocesses", None) or getattr(options, "dist", "no") != "no"
    if not (options.help or options.version or (spreads and "PYTEST_XDIST_WORKER" not in os.environ)):
        from seatrial.pytest_plugin.affected.observation import Observation

        early_config.stash[_OBSERVATION] = Observation(early_config.rootpath)


def pytest_configure(config: pytest.Config) -> None:
    """Register the parts that this session needs."""
    from seatrial.pytest_plugin.session import PLUGIN_NAME, SessionRecord
    from seatrial.pytest_plugin.settings import default_results, table

    manager = config.pluginmanager
    record = None
    chosen = config.option.tracker_results
    settings = table(config.stash[_SETTINGS], "tracker", frozenset({"results", "sessions"}))
    declared = settings.get("results")
    default = config.rootpath / declared if declared else default_results(config.rootpath)
    path = config.invocation_params.dir / chosen if chosen else None
    if not hasattr(config, "workerinput"):
        record = SessionRecord(config, path, default, settings.get("sessions"))
        manager.register(record, PLUGIN_NAME)
    if config.option.tracker_baseline is not None:
        from seatrial.pytest_plugin import baseline

        history = (path or default).parent / (path or default).stem
        checker = baseline.TrackerBaseline(config, config.option.tracker_baseline, history)
        manager.register(checker, baseline.PLUGIN_NAME)
    if config.stash[_LANES]:
        from seatrial.pytest_plugin import lanes

        manager.register(lanes.LanesPlugin(config, config.stash[_LANES], record), lanes.PLUGIN_NAME)
    option = config.option
    if option.affected or option.affected_explain or option.affected_audit:
        from seatrial.pytest_plugin.affected import plugin as affected

        observation = config.stash.get(_OBSERVATION, None)
        selecting = affected.AffectedPlugin(config, config.stash[_SETTINGS], observation)
        manager.register(selecting, affected.PLUGIN_NAME)


def pytest_collect_file(file_path: Path, parent: pytest.Collector) -> pytest.Collector | None:
    """Collect functional tests."""
    if not file_path.name.endswith(".functional.yaml"):
        return None
    from seatrial.pytest_plugin.functional import FunctionalFile

    return FunctionalFile.from_parent(parent, path=file_path)


@pytest.fixture
def tracker(request: pytest.FixtureRequest) -> Iterator[Tracker]:
    """Track metrics, memory and elapsed time of this test."""
    from seatrial.pytest_plugin.tracking import Tracker

    with Tracker(request.node) as active:
        yield active
