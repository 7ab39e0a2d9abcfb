"""The search loop: choose commits, run them, record the results, until there is an answer."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from dataclasses import dataclass, field
from datetime import UTC, datetime
from functools import partial

from seatrial.bisect.evidence_model import Observation, Question
from seatrial.bisect.history import Commit, History
from seatrial.bisect.journal import Journal
from seatrial.bisect.outcomes import Run, RunOutcome
from seatrial.bisect.prober import Probed, Prober, keep_only_evidence
from seatrial.bisect.search import Conclusion, Probe, Search, Stop
from seatrial.bisect.task import Task
from seatrial.errors import BlockedError

_MOST_BLOCKED_IN_A_ROW = 3


class _CancelledError(Exception):
    """The bisect was interrupted; raised in the threads that run commits."""


@dataclass
class Progress:
    """Callbacks for the caller's display."""

    waiting: Callable[[Mapping[int, str]], None] = field(default=lambda states: None)
    """Called while runs are active, with the known state of each by its number (`squeue: PENDING`)."""
    ended: Callable[[Run], None] = field(default=lambda run: None)


class Driver:
    """Runs commits, several at a time if requested, and records each result before the next decision."""

    def __init__(
        self,
        task: Task,
        history: History,
        search: Search,
        prober: Prober,
        journal: Journal,
        runs: list[Run],
        first_number: int,
    ) -> None:
        """Start from the content of the journal.

        Args:
            task: the question.
            history: the commits.
            search: already holds the results of `runs`.
            prober: runs commands.
            journal: open for writing.
            runs: results so far; new ones are appended.
            first_number: of the next run; run directories are never reused.
        """
        self._task, self._history, self._search = task, history, search
        self._prober, self._journal, self.runs = prober, journal, runs
        self._cancelled = threading.Event()
        self._blocked_in_a_row = 0
        self._next_number = first_number
        self._states: dict[int, str] = {}

    def run(self, progress: Progress) -> Conclusion:
        """Search until there is an answer.

        Raises:
            BlockedError: the environment prevents verdicts on several commits in a row.
            KeyboardInterrupt: interrupted; active runs have been stopped and all results are on disk.
        """
        pending: dict[Future[Probed], tuple[int, Probe]] = {}
        with ThreadPoolExecutor(max_workers=self._task.jobs) as pool:
            try:
                while True:
                    conclusion = self._fill(pool, pending)
                    if conclusion is not None and (not pending or conclusion in _FINAL):
                        return conclusion
                    self._collect(pending, progress)
            finally:
                self._cancelled.set()

    def _fill(
        self, pool: ThreadPoolExecutor, pending: dict[Future[Probed], tuple[int, Probe]]
    ) -> Conclusion | None:
        """Start runs until all slots are taken; return the conclusion if the search offers no further run."""
        while len(pending) < self._task.jobs:
            positions = [probe.position for _, probe in pending.values()]
            decision = self._search.decide(positions, self._is_spent())
            if isinstance(decision, Stop):
                return decision.conclusion
            if not isinstance(decision, Probe):
                return None
            number, commit = self._next_number, self._history.commit(decision.position)
            self._next_number += 1
            self._journal.write(
                "started", run=number, commit=commit.sha, time=_now(), information=decision.information
            )
            future = pool.submit(
                self._prober.probe, number, commit.sha, self._wait, partial(self._heartbeat, number)
            )
            pending[future] = (number, decision)
        return None

    def _collect(self, pending: dict[Future[Probed], tuple[int, Probe]], progress: Progress) -> None:
        """Wait for a run to finish and record its result."""
        done: set[Future[Probed]] = set()
        while not done:
            done, _ = wait(pending, timeout=0.2, return_when=FIRST_COMPLETED)
            progress.waiting({number: self._states.get(number, "") for number, _ in pending.values()})
        for future in sorted(done, key=lambda item: pending[item][0]):
            number, probe = pending.pop(future)
            self._states.pop(number, None)
            run = run_of(number, self._history.commit(probe.position), future.result())
            self._journal.write("result", **run.to_json())
            self.runs.append(run)
            record_run(self._search, self._history, run, self._task)
            keep_only_evidence(future.result().run_dir)
            progress.ended(run)
            self._stop_if_all_blocked(run)

    def _stop_if_all_blocked(self, run: Run) -> None:
        self._blocked_in_a_row = self._blocked_in_a_row + 1 if run.outcome is RunOutcome.BLOCKED else 0
        if self._blocked_in_a_row == _MOST_BLOCKED_IN_A_ROW:
            raise BlockedError(
                f"{_MOST_BLOCKED_IN_A_ROW} commits in a row could not be judged, the last because: {run.reason}"
            )

    def _is_spent(self) -> bool:
        """Return whether another run of median length would exceed the budget."""
        if self._task.budget_minutes is None:
            return False
        seconds = sorted(run.seconds for run in self.runs)
        usual = seconds[len(seconds) // 2] if seconds else 0.0
        return sum(seconds) + usual > self._task.budget_minutes * 60

    def _heartbeat(self, number: int, state: str) -> None:
        """Store the state of an active run."""
        self._states[number] = state
        if self._cancelled.is_set():
            raise _CancelledError

    def _wait(self, seconds: float) -> None:
        if self._cancelled.wait(seconds):
            raise _CancelledError


_FINAL = {Conclusion.FOUND, Conclusion.NO_CULPRIT, Conclusion.DRIFT, Conclusion.END_UNTESTABLE}
"""Conclusions that do not wait for active runs."""


def record_run(search: Search, history: History, run: Run, task: Task) -> None:
    """Pass a run's result to the search; a Skip or Blocked run only closes the commit."""
    position = history.position(run.commit)
    if position is None:
        return
    if run.outcome in (RunOutcome.SKIP, RunOutcome.BLOCKED):
        search.set_aside(position)
        return
    failed = run.outcome is RunOutcome.FAIL
    search.record(
        Observation(
            position=position,
            failed=failed,
            value=run.value if task.question is Question.METRIC else None,
            lost=failed and run.value is None and bool(task.checks),
            fingerprint=run.fingerprint,
        )
    )


def run_of(number: int, commit: Commit, probed: Probed) -> Run:
    """Return the record of a finished run."""
    judgement = probed.judgement
    return Run(
        number=number,
        commit=commit.sha,
        outcome=judgement.outcome,
        reason=judgement.reason,
        tree=commit.tree,
        value=judgement.value,
        fingerprint=judgement.fingerprint,
        cause=judgement.cause,
        seconds=round(probed.seconds, 3),
        attempts=probed.attempts,
        evidence=str(probed.run_dir),
        time=_now(),
    )


def _now() -> str:
    return datetime.now(UTC).isoformat(timespec="seconds")
