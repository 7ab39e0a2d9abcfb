"""The pytest hooks of `--affected`."""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Generator, Mapping
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import pytest

from seatrial.collector import paused_collector
from seatrial.pytest_plugin.affected.decide import Decision, audit_report, decide, selection_report
from seatrial.pytest_plugin.affected.fingerprints import PART, Fingerprints, option_values
from seatrial.pytest_plugin.affected.items import (
    MARKER_HELP,
    FixtureKey,
    TestFacts,
    add_fixtures,
    facts_of,
    imported_modules,
    made_of,
    plugin_files,
)
from seatrial.pytest_plugin.affected.learn import Always, Learner
from seatrial.pytest_plugin.affected.observation import Observation
from seatrial.pytest_plugin.affected.store import IMPORTED, Seen, Session, Store, locked
from seatrial.pytest_plugin.affected.watch import FILE, OUT, PY, RUN, Watch
from seatrial.pytest_plugin.affected.windows import Use, Window
from seatrial.pytest_plugin.settings import table

PLUGIN_NAME = "seatrial-affected"
DEFAULT_MAP = ".seatrial/affected.json"
SEEN_KEY = "seatrial_affected_seen"
DECISIONS_KEY = "seatrial_affected_decisions"
_SETTINGS = frozenset({"map", "depends", "env", "plugins_left_out"})


class AffectedPlugin:
    """Selects, watches, learns. With xdist the workers select and watch, and the controller learns."""

    def __init__(
        self, config: pytest.Config, settings: Mapping[str, Any], observation: Observation | None
    ) -> None:
        is_worker = hasattr(config, "workerinput")
        if observation is not None and not is_worker and getattr(config.option, "dist", "no") != "no":
            # Inside a test that itself runs under xdist, the inner controller looks like a worker at first.
            observation.stop()
            observation = None
        options = table(settings, "affected", _SETTINGS)
        config.addinivalue_line("markers", MARKER_HELP)
        self._config = config
        self._root = config.rootpath
        self._observation = observation
        self._map = self._root / str(options.get("map", DEFAULT_MAP))
        self._always = Always(
            config=self._config_file(),
            globs=tuple(options.get("depends", ())),
            env=tuple(options.get("env", ())),
        )
        self._plugins_left_out = frozenset(options.get("plugins_left_out", ()))
        self._started = time.time()
        self._store = Store.load(self._map)
        self._options = option_values(config.option)
        environ = observation.environ if observation else os.environ
        self._fingerprints = Fingerprints(self._root, environ, self._store.known, self._options)
        self._session = Session()
        self._facts: dict[str, TestFacts] = {}
        self._windows: dict[str, Window] = {}
        self._fixtures: dict[FixtureKey, Window] = {}
        self._outcomes: dict[str, str] = {}
        self._ended: set[str] = set()
        self._decisions: dict[str, Decision] = {}
        if observation is None and not is_worker:  # xdist's controller, which collects nothing
            self._note_start()

    def _note_start(self) -> None:
        """Record the bytes of the files that tests depend on, so that a test that only touches one changes nothing."""
        sets = {versions for record in self._store.tests.values() for versions in (record.shared, record.own)}
        found = {name.partition("::")[0] for one in sets for kind, name, _ in one if kind in (PY, PART, FILE)}
        self._fingerprints.note_start(found, self._started)

    def _config_file(self) -> str | None:
        path = self._config.inipath
        inside = path is not None and path.is_relative_to(self._root)
        return path.relative_to(self._root).as_posix() if path is not None and inside else None

    @pytest.hookimpl(trylast=True)
    def pytest_collection_modifyitems(self, config: pytest.Config, items: list[pytest.Item]) -> None:
        """Deselect what no change can affect; tests selected with `-k` always run."""
        with self._paused():
            self._note_start()
        nodeids = [item.nodeid for item in items]
        if config.option.keyword:
            self._decisions = {nodeid: Decision(True, "-k selects it") for nodeid in nodeids}
        else:
            with self._paused():
                relative = Watch(str(self._root), lambda *_: None).relative
                recorded = self._store.tests
                made = {
                    item.nodeid: made_of(item, relative) if item.nodeid in recorded else frozenset()
                    for item in items
                }
                self._decisions = decide(made, self._store.tests, self._fingerprints)
        if config.option.affected_audit:
            return
        dropped = [item for item in items if not self._decisions[item.nodeid].chosen]
        if dropped:
            config.hook.pytest_deselected(items=dropped)
            items[:] = [item for item in items if self._decisions[item.nodeid].chosen]

    def pytest_report_collectionfinish(self) -> list[str]:
        """Report what was selected and why, before the tests run."""
        return self._report()

    def _paused(self) -> AbstractContextManager[None]:
        return self._observation.windows.paused() if self._observation else nullcontext()

    def _report(self) -> list[str]:
        return selection_report(
            self._decisions,
            seeding=not self._store.tests,
            explain=self._config.option.affected_explain,
            audit=self._config.option.affected_audit,
        )

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_runtest_protocol(self, item: pytest.Item) -> Generator[None, Any, Any]:
        """Attribute what is used now to this test."""
        if self._observation is None:
            return (yield)
        windows = self._observation.windows
        self._facts[item.nodeid] = facts_of(item, self._root, windows.watch.relative)
        window = self._windows[item.nodeid] = Window(f"t{len(self._windows)}")
        self._outcomes.pop(item.nodeid, None)
        with windows.open(window):
            return (yield)

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_make_collect_report(self, collector: pytest.Collector) -> Generator[None, Any, Any]:
        """Attribute what runs while a file is collected to the file."""
        observation = self._observation
        path = observation.windows.watch.relative(str(collector.path)) if observation else None
        if observation is None or path is None or not collector.path.is_file():
            return (yield)
        with observation.windows.runs.of_file(path):
            return (yield)

    @pytest.hookimpl(wrapper=True)
    def pytest_fixture_setup(self, fixturedef: Any) -> Generator[None, Any, Any]:
        """Attribute what a shared fixture uses to every test that requests the fixture."""
        if self._observation is None or fixturedef.scope == "function":
            return (yield)
        key = (fixturedef.argname, fixturedef.baseid or "")
        window = self._fixtures.setdefault(key, Window(f"f{len(self._fixtures)}"))
        with self._observation.windows.open(window):
            return (yield)

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtest_teardown(self, item: pytest.Item) -> None:
        """Record the fixtures, while pytest still knows them."""
        if self._observation is not None and item.nodeid in self._facts:
            add_fixtures(item, self._facts[item.nodeid], self._observation.windows.watch.relative)

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Keep the worst outcome of a test's phases."""
        outcome: str = report.outcome
        if outcome == "skipped" and _is_blocked(report):
            outcome = "blocked"
        if outcome == "rerun":
            self._outcomes.pop(report.nodeid, None)
        elif self._outcomes.get(report.nodeid) not in ("failed", "blocked") and (
            outcome != "passed" or report.nodeid not in self._outcomes
        ):
            self._outcomes[report.nodeid] = outcome
        if report.when == "teardown":
            self._ended.add(report.nodeid)

    @pytest.hookimpl(optionalhook=True)
    def pytest_testnodedown(self, node: Any) -> None:
        """Add what an xdist worker observed; a worker that crashed leaves no record, so its tests run again."""
        output = getattr(node, "workeroutput", {})
        if SEEN_KEY in output:
            self._session.add_json(json.loads(output[SEEN_KEY]))
            rows = json.loads(output[DECISIONS_KEY])
            self._decisions = {nodeid: Decision(chosen, why) for nodeid, (chosen, why) in rows.items()}

    def pytest_sessionfinish(self, session: pytest.Session) -> None:
        """Send the observations to the controller, or learn from them."""
        if not self._config.option.collectonly:
            with self._paused(), paused_collector():
                self._finish(session)

    def _finish(self, session: pytest.Session) -> None:
        if self._observation is not None:
            self._gather(self._observation)
        output = getattr(session.config, "workeroutput", None)
        if output is not None:
            output[SEEN_KEY] = json.dumps(self._session.to_json())
            output[DECISIONS_KEY] = json.dumps(
                {nodeid: (d.chosen, d.reason) for nodeid, d in self._decisions.items()}
            )
        else:
            self._learn()

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        """With xdist, report the selection; with --affected-audit, report what it would have missed."""
        if self._observation is None:
            for line in self._report():
                terminalreporter.write_line(line)
        if self._config.option.affected_audit:
            lines = audit_report(self._decisions, self._store.tests, self._outcomes)
            terminalreporter.section("audit of --affected")
            for line in lines:
                terminalreporter.write_line(line)

    def pytest_unconfigure(self) -> None:
        """Stop watching."""
        if self._observation is not None:
            self._observation.stop()

    def _gather(self, observation: Observation) -> None:
        """Collect what each test used: itself, its shared fixtures, its child processes."""
        self._read_children(observation)
        windows, session = observation.windows, self._session
        for nodeid, facts in self._facts.items():
            outcome = self._outcomes.get(nodeid)
            if outcome is None or outcome == "blocked" or nodeid not in self._ended:
                continue
            mine = [
                self._windows[nodeid],
                *(self._fixtures[k] for k in facts.fixtures if k in self._fixtures),
            ]
            session.tests[nodeid] = Seen(
                outcome="passed" if outcome not in ("failed", "skipped") else outcome,
                parts=facts.parts,
                uses=facts.uses.union(*map(_uses_of, [*mine, windows.outside])),
                ran=set().union(*(window.ran for window in mine)),
                hides=any(window.hides for window in mine),
                modules=facts.modules,
                loaded_by=set().union(*(window.loaded_by for window in mine)),
            )
        relative = windows.watch.relative
        session.modules = imported_modules(relative)
        session.search = [path for entry in sys.path if entry and (path := relative(entry)) is not None]
        session.learned, session.loads, session.outputs = windows.learned, windows.loads, windows.outputs
        session.plugins = plugin_files(self._config.pluginmanager, relative, self._plugins_left_out)
        runs = windows.runs
        session.under, session.everywhere = runs.under, set(runs.outside())
        session.opaque = (windows.executed | set(session.modules.values())) - runs.tracked

    def _read_children(self, observation: Observation) -> None:
        for log in observation.folder.glob("*.log"):
            for line in log.read_text(errors="replace").splitlines():
                token, kind, name = json.loads(line)
                if kind == OUT:
                    observation.windows.outputs.add(name)
                elif token in observation.windows.by_token:
                    observation.windows.by_token[token].child_uses.add((kind, name))

    def _learn(self) -> None:
        learner = Learner(self._root, self._session, self._fingerprints, self._always, self._options)
        records = learner.records(self._store.tests, self._started)
        with locked(self._map):
            store = Store.load(self._map)
            gone = [n for n in store.tests if not (self._root / n.partition("::")[0]).exists()]
            store.merge(records, self._fingerprints.known, gone)
            store.save(self._map)


def _uses_of(window: Window) -> set[Use]:
    """Return what was used in a window; a file that another process runs counts as a whole."""
    mine = {(IMPORTED if kind == PY else PY if kind == RUN else kind, name) for kind, name in window.uses}
    return mine | {(PY if kind == RUN else kind, name) for kind, name in window.child_uses}


def _is_blocked(report: pytest.TestReport) -> bool:
    return isinstance(report.longrepr, tuple) and "Skipped: Blocked: " in report.longrepr[2]
