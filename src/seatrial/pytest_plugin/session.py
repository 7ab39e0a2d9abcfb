"""The session as a whole: its reports, its exit status if something was blocked, its result file."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from seatrial.pytest_plugin.results import TestResult

PLUGIN_NAME = "seatrial-session"
WORKER_KEY = "seatrial_deselected"
"""Under this key an xdist worker sends the controller the counts of deselected tests, by reason."""


class SessionRecord:
    """Collects the results; exists in the process that reports (with xdist, the controller)."""

    def __init__(
        self, config: pytest.Config, results_path: Path | None, default_path: Path, kept_sessions: Any = None
    ) -> None:
        if kept_sessions is not None and (type(kept_sessions) is not int or kept_sessions < 1):
            raise pytest.UsageError(
                f"tool.seatrial.tracker.sessions must be a number of sessions, not {kept_sessions!r}"
            )
        self._kept_sessions: int | None = kept_sessions
        self._config = config
        self._is_requested = results_path is not None
        self._is_tracked = self._is_requested
        self._path = results_path or default_path
        self._reports: list[pytest.TestReport] = []
        self._start = datetime.now()
        self._collected = 0
        self._blocked: list[str] = []
        self._deselected: Counter[str] = Counter()
        self._written = False
        self._results: list[TestResult] = []

    def block(self, what: str) -> None:
        """Record that the environment prevented something that was requested; the exit status becomes 3."""
        self._blocked.append(what)

    def leave_out(self, counts: Counter[str]) -> None:
        """Record how many tests were deselected, by reason."""
        self._deselected.update(counts)

    def pytest_sessionstart(self) -> None:
        """Remove an earlier session's result if the tests are collected in other processes."""
        if self._is_requested or getattr(self._config.option, "dist", "no") != "no":
            self._begin()

    @pytest.hookimpl(tryfirst=True)
    def pytest_collection_modifyitems(self, items: list[pytest.Item]) -> None:
        """Remove it if a test uses the tracker: if this session crashes, no old result may look like its own."""
        if any("tracker" in getattr(item, "fixturenames", ()) for item in items):
            self._begin()

    def pytest_collectreport(self, report: pytest.CollectReport) -> None:
        """Remove it if tests cannot be collected: some of them may use the tracker."""
        if report.failed:
            self._begin()

    def _begin(self) -> None:
        self._is_tracked = True
        if self._writes() and not self._config.option.collectonly:
            self._write(None, "the session has not finished")

    def pytest_collection_finish(self, session: pytest.Session) -> None:
        """Count the tests that will run."""
        self._collected = max(self._collected, len(session.items))

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Store each report until the session ends."""
        self._reports.append(report)

    @pytest.hookimpl(optionalhook=True)
    def pytest_testnodedown(self, node: Any) -> None:
        """Add the counts of an xdist worker; all workers collect the same tests, so the largest count is right."""
        for reason, count in getattr(node, "workeroutput", {}).get(WORKER_KEY, {}).items():
            self._deselected[reason] = max(self._deselected[reason], count)

    @pytest.hookimpl(optionalhook=True)
    def pytest_xdist_node_collection_finished(self, ids: Sequence[str]) -> None:
        """Count the tests that xdist's workers collected."""
        self._collected = max(self._collected, len(ids))

    @pytest.hookimpl(trylast=True)
    def pytest_sessionfinish(self, session: pytest.Session) -> None:
        """Determine the exit status, and write the result if there is one."""
        needs_results = self._writes() or any(report.user_properties for report in self._reports)
        has_blocked = bool(self._blocked) or any(report.outcome == "skipped" for report in self._reports)
        if needs_results or has_blocked:
            from seatrial.pytest_plugin.results import fold

            self._results = fold(self._reports)
        # Fail and an interruption keep their status; Pass and "nothing ran" become Blocked.
        may_change = session.exitstatus in (pytest.ExitCode.OK, pytest.ExitCode.NO_TESTS_COLLECTED)
        if may_change and (self._blocked or self._blocked_tests() or self._blocked_metrics()):
            from seatrial.verdict import EXIT_BLOCKED

            session.exitstatus = EXIT_BLOCKED
        if self._config.option.collectonly and not self._is_requested:
            return
        if self._writes() or any(result.record is not None for result in self._results):
            self._write(int(session.exitstatus), self._note())

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        """Report what was deselected, what was blocked, where the result is, and which values are not finite."""
        for reason, count in sorted(self._deselected.items()):
            terminalreporter.write_line(f"seatrial: {count} left out: {reason}")
        blocked = self._blocked + [
            f"{result.nodeid}: {result.reason.removeprefix('Blocked: ')}" for result in self._blocked_tests()
        ]
        blocked += self._blocked_metrics()
        if blocked:
            terminalreporter.section("Blocked", sep="=", yellow=True, bold=True)
            for line in blocked:
                terminalreporter.write_line(line)
        if any(result.verdicts is not None for result in self._results):
            self._report_verdicts(terminalreporter)
        self._report_baseline(terminalreporter)
        if self._written:
            self._report_results(terminalreporter)

    def _report_verdicts(self, terminalreporter: pytest.TerminalReporter) -> None:
        from seatrial.pytest_plugin.functional import metric_table
        from seatrial.verdict import Verdict

        for result in self._results:
            if result.verdicts is not None:
                verdicts = [Verdict.from_json(data) for data in result.verdicts]
                width = max(80, terminalreporter._tw.fullwidth)
                terminalreporter.write_line(f"{result.nodeid}: {result.outcome}")
                terminalreporter.write_line(metric_table("Metric Checks", verdicts, width))

    def _report_results(self, terminalreporter: pytest.TerminalReporter) -> None:
        from seatrial.pytest_plugin.results import not_finite

        tracked = sum(result.record is not None for result in self._results)
        terminalreporter.write_line(f"seatrial: {tracked} tests with tracked metrics, in {self._path}")
        for line in not_finite(self._results):
            terminalreporter.write_line(f"seatrial: not finite: {line}", yellow=True)

    def _blocked_tests(self) -> list[TestResult]:
        return [result for result in self._results if result.outcome == "blocked"]

    def _blocked_metrics(self) -> list[str]:
        return [
            f"{result.nodeid}: metric {verdict['name']} {verdict['reason']}"
            for result in self._results
            for verdict in result.baseline
            if verdict["outcome"] == "Blocked"
        ]

    def _report_baseline(self, terminalreporter: pytest.TerminalReporter) -> None:
        outcomes = Counter(verdict["outcome"] for result in self._results for verdict in result.baseline)
        if outcomes:
            words = ", ".join(f"{count} {outcome}" for outcome, count in sorted(outcomes.items()))
            terminalreporter.write_line(f"seatrial: tracked metrics compared with the baseline: {words}")

    def _writes(self) -> bool:
        return self._is_requested or (self._is_tracked and self._path.exists())

    def _note(self) -> str:
        if self._config.option.collectonly:
            return "only collected: no test was run"
        if not self._results:
            left_out = sum(self._deselected.values())
            return f"no test ran: {self._collected} selected, {left_out} left out"
        return ""

    def _write(self, exit_status: int | None, note: str) -> None:
        from seatrial.pytest_plugin import results

        content = results.build(
            self._results,
            exit_status=exit_status,
            start_time=self._start,
            root=self._config.rootpath,
            collected=self._collected,
            deselected=self._deselected,
            coverage=_coverage(self._config),
            note=note,
        )
        finished = exit_status is not None
        is_kept = finished and (self._is_requested or any(r.record is not None for r in self._results))
        name = results.history_name(self._start) if is_kept else None
        results.write(content, self._path, name, self._kept_sessions or results.MAX_HISTORY)
        self._written = finished


def _coverage(config: pytest.Config) -> float | None:
    """Return the total percent of pytest-cov; None if it did not measure."""
    plugin = config.pluginmanager.get_plugin("_cov")
    total = getattr(plugin, "cov_total", None)
    return None if total is None else float(total)
