"""The pytest plugin `seatrial`: tracker, lanes, affected-test selection, functional tests.

This module is imported by every pytest run of an environment that has Seatrial: it imports nothing but pytest,
and registers a part of the plugin only when the project or the command line asks for it. No module of this
package may be called `tracker`: importing it would put the module in the place of the fixture.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from seatrial.pytest_plugin.lanes import Lane
    from seatrial.pytest_plugin.tracking import Tracker

_LANES: pytest.StashKey[list[Lane]] = pytest.StashKey()
_SETTINGS: pytest.StashKey[Any] = pytest.StashKey()


def pytest_addoption(parser: pytest.Parser, pluginmanager: pytest.PytestPluginManager) -> None:
    """Add the plugin's options, and the flags of the lanes that the project declares."""
    from seatrial.pytest_plugin.settings import read_settings

    group = parser.getgroup("seatrial", "Seatrial: tracker, lanes, selection")
    group.addoption(
        "--tracker-results",
        metavar="FILE",
        help="write the session's result here even if no test tracks anything "
        "(default: tests/unit/unit_results.json, written when a test uses `tracker`)",
    )
    # pytest settles its root directory before it loads plugins; only then can the project be asked.
    config: Any = pluginmanager.get_plugin("pytestconfig")
    config.stash[_SETTINGS] = read_settings(config.rootpath)
    config.stash[_LANES] = []
    if "lanes" in config.stash[_SETTINGS]:
        from seatrial.pytest_plugin.lanes import add_options, parse_lanes

        config.stash[_LANES] = parse_lanes(config.stash[_SETTINGS])
        add_options(group, config.stash[_LANES])


def pytest_configure(config: pytest.Config) -> None:
    """Register the parts that this run needs."""
    from seatrial.pytest_plugin.session import PLUGIN_NAME, SessionRecord
    from seatrial.pytest_plugin.settings import default_results, table

    manager = config.pluginmanager
    record = None
    if not hasattr(config, "workerinput"):
        asked = config.option.tracker_results
        declared = table(config.stash[_SETTINGS], "tracker", frozenset({"results"})).get("results")
        default = config.rootpath / declared if declared else default_results(config.rootpath)
        path = config.invocation_params.dir / asked if asked else None
        record = SessionRecord(config, path, default)
        manager.register(record, PLUGIN_NAME)
    if config.stash[_LANES]:
        from seatrial.pytest_plugin import lanes

        manager.register(lanes.LanesPlugin(config, config.stash[_LANES], record), lanes.PLUGIN_NAME)


@pytest.fixture
def tracker(request: pytest.FixtureRequest) -> Iterator[Tracker]:
    """Track metrics, memory and the elapsed time of this test."""
    from seatrial.pytest_plugin.tracking import Tracker

    with Tracker(request.node) as active:
        yield active
