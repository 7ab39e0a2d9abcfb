"""One bisect, from its question in the journal to its answer; can be resumed."""

from __future__ import annotations

import json
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import asdict, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from seatrial.bisect.answer import Answer, answer_of
from seatrial.bisect.drive import Driver, Progress, record_run
from seatrial.bisect.evidence_model import Question
from seatrial.bisect.git import git, path_factors, read_history
from seatrial.bisect.history import suspect_weights
from seatrial.bisect.journal import BAD, GOOD, NAME, SKIP, Entry, Journal, Mark, read_journal, write_git_log
from seatrial.bisect.launchers import end_leftover, make_launcher
from seatrial.bisect.outcomes import Run, RunOutcome
from seatrial.bisect.private_repo import UserRepository, open_private
from seatrial.bisect.prober import Prober, save_carried
from seatrial.bisect.search import Search
from seatrial.bisect.task import Task
from seatrial.bisect.trees import Trees
from seatrial.errors import UsageError
from seatrial.files import write_whole

_REPOSITORY = "repo.git"


def new_state(base: Path, task: Task, repository: Path | None = None) -> Path:
    """Create the directory of a new bisect and write the question into its journal.

    Args:
        base: where bisects are kept.
        task: the question.
        repository: private repository that was opened below `base` to resolve names; it is moved into the directory.

    Raises:
        UsageError: the directory would be inside the user's checkout.
    """
    name = f"{Path(task.repository).name}-{datetime.now(UTC):%Y%m%d-%H%M%S-%f}-{task.bad[:8]}"
    state = base / name
    if state.is_relative_to(Path(task.repository).resolve()):
        raise UsageError(
            f"--state {base} is inside the checkout {task.repository}, which is never written to; choose another place"
        )
    save_carried(Path(task.repository), task.carry, state / "carry")
    with Journal(state / NAME) as journal:
        journal.write("question", version=1, time=_now(), task=task.to_json())
    if repository is not None:
        repository.replace(state / _REPOSITORY)
    return state


def read_task(entries: Sequence[Entry], path: Path) -> Task:
    """Return the question of a journal.

    Raises:
        UsageError: the journal contains none.
    """
    task: dict[str, Any] | None = None
    for entry in entries:
        if entry.record is not None and entry.record["kind"] == "question":
            task = dict(entry.record["task"])
        elif entry.record is not None and entry.record["kind"] == "changed" and task is not None:
            task.update(entry.record["task"])
    if task is not None:
        return Task.from_json(task)
    raise UsageError(f"{path} contains no question; give the journal that `seatrial bisect` printed")


def change_task(state: Path, changes: Mapping[str, Any]) -> None:
    """Write changed settings into a journal; a resumed bisect uses them.

    Raises:
        UsageError: the changed question is not valid.
        BlockedError: another process uses the journal.
    """
    if changes:
        with Journal(state / NAME) as journal:
            task = read_task(read_journal(state / NAME), state / NAME)
            replace(task, **changes).validate()
            journal.write("changed", time=_now(), task=dict(changes))


class Session:
    """One bisect with its journal open; use as a context manager."""

    def __init__(self, state: Path, environment: Mapping[str, str], marks: Sequence[Mark] = ()) -> None:
        """Open the state directory and read what is known.

        Args:
            state: directory that `new_state` created.
            environment: of this process.
            marks: from a `git bisect log`, to replay into a new journal.

        Raises:
            UsageError, BlockedError: the journal or the repository cannot be used.
        """
        self.state = state
        self.journal = Journal(state / NAME)
        try:
            entries = read_journal(state / NAME)
            self.task = read_task(entries, state / NAME)
            self._user = UserRepository(Path(self.task.repository))
            self.repository = open_private(self._user, state / _REPOSITORY)
            self.history, self.note = read_history(
                self.repository,
                self.task.good,
                self.task.bad,
                first_parent=self.task.first_parent,
                paths=self.task.paths,
            )
            factors = path_factors(self.repository, self.history, self.task.prior_paths)
            weights = suspect_weights(self.history, factors)
            self.search = Search(self.history, self.task.question, self.task.settings(), weights)
            self._end_leftovers(entries)
            self.runs = self._known_runs(entries, marks)
            numbers = [int(e.record["run"]) for e in entries if e.record and e.record["kind"] == "started"]
            self._first_number = 1 + max(numbers, default=0)
            attempt = sum(entry.record is not None and entry.record["kind"] == "opened" for entry in entries)
            self.journal.write("opened", time=_now(), attempt=attempt)
            self._trees = Trees(
                self.repository, state / f"work-{attempt}", max(self.task.most_trees, self.task.jobs)
            )
            launcher = make_launcher(
                self.task.launcher,
                options=self.task.launch_options,
                environment={**environment, **self.task.variables},
                poll_seconds=self.task.poll_seconds,
            )
            self._prober = Prober(self.task, self._trees, self.repository, state, launcher, environment)
        except BaseException:
            self.journal.close()
            raise

    def __enter__(self) -> Session:
        """Return the session."""
        return self

    def __exit__(self, *error: object) -> None:
        """Close the journal."""
        self.journal.close()

    def run(self, progress: Progress, keep_state: bool = False) -> Answer:
        """Search until there is an answer, and write `result.json` and `bisect.log`.

        Raises:
            BlockedError: the environment prevents verdicts.
            KeyboardInterrupt: interrupted; the journal can be resumed.
        """
        try:
            driver = Driver(
                self.task,
                self.history,
                self.search,
                self._prober,
                self.journal,
                self.runs,
                self._first_number,
            )
            conclusion = driver.run(progress)
            answer = answer_of(self.task, self.search, self.runs, conclusion)
            self.journal.write("stopped", time=_now(), conclusion=conclusion.value, sentence=answer.sentence)
            self._write_result(answer)
        finally:
            self._write_git_log()
            if not keep_state:
                self._trees.discard_all()
        if not keep_state:
            shutil.rmtree(self.repository, ignore_errors=True)
        return answer

    def _end_leftovers(self, entries: Sequence[Entry]) -> None:
        """Stop what a killed process of ours left running, and remove its checkouts."""
        records = [entry.record for entry in entries if entry.record is not None]
        ended = {record["number"] for record in records if record["kind"] == "result"}
        for record in records:
            if record["kind"] == "started" and record["run"] not in ended:
                for run_dir in (self.state / "runs").glob(f"{record['run']:04d}-*"):
                    end_leftover(run_dir)
                    end_leftover(run_dir / "prepare")
        for old in self.state.glob("work-*"):
            shutil.rmtree(old, ignore_errors=True)

    def _known_runs(self, entries: Sequence[Entry], marks: Sequence[Mark]) -> list[Run]:
        """Pass the results in the journal and the marks to the search; Blocked runs are tried again."""
        runs: list[Run] = []
        for mark in marks:
            for run in self._marked(mark, -1 - len(runs), "replayed from the log"):
                self.journal.write("result", **run.to_json())
                runs.append(run)
        for entry in entries:
            if entry.mark is not None:
                runs += self._marked(entry.mark, -1 - len(runs), "marked by hand in the journal")
            elif entry.record is not None and entry.record["kind"] == "result":
                runs.append(Run.from_json(entry.record))
        skipped = {run.commit for run in runs if run.outcome is RunOutcome.SKIP}
        for run in runs:
            if run.outcome is RunOutcome.SKIP or (
                run.commit not in skipped and run.outcome is not RunOutcome.BLOCKED
            ):
                record_run(self.search, self.history, run, self.task)
        return runs

    def _marked(self, mark: Mark, number: int, reason: str) -> list[Run]:
        """Return the runs that a mark represents; GOOD and BAD themselves are verified by running them."""
        outcome = {GOOD: RunOutcome.PASS, BAD: RunOutcome.FAIL, SKIP: RunOutcome.SKIP}[mark.word]
        if self.task.question is Question.METRIC and outcome is not RunOutcome.SKIP:
            raise UsageError(
                f"`git bisect {mark.word}` gives no value, and --metric needs values; replay it with --check"
            )
        names = [sha for name in mark.names for sha in self._commits_of(name)]
        claims = {self.history.good.sha, self.task.good} if mark.word == GOOD else {self.task.bad}
        return [
            Run(number=number, commit=sha, outcome=outcome, reason=reason, time=_now())
            for sha in names
            if mark.word == SKIP or sha not in claims
        ]

    def _commits_of(self, name: str) -> list[str]:
        if ".." in name:
            return git(self.repository, "rev-list", *(name.split()), "--").split()
        return [self._user.resolve(name, "marked commit", self.repository)]

    def _write_result(self, answer: Answer) -> None:
        belief = self.search.belief()
        data = {
            "schema": 1,
            "task": self.task.to_json(),
            "answer": {
                **asdict(answer),
                "conclusion": answer.conclusion.value,
                "exit_code": answer.exit_code,
            },
            "commits": [
                {"commit": commit.sha, "subject": commit.subject, "probability": float(probability)}
                for commit, probability in zip(self.history.suspects, belief.suspects_H, strict=True)
            ],
            "runs": [run.to_json() for run in self.runs],
        }
        write_whole(self.state / "result.json", json.dumps(data, indent=1, allow_nan=False))

    def _write_git_log(self) -> None:
        """Write the marks in git's format, one for each commit on which all runs agree."""
        by_commit: dict[str, list[Run]] = {}
        for run in self.runs:
            by_commit.setdefault(run.commit, []).append(run)
        marks = []
        for sha, runs in by_commit.items():
            outcomes = {run.outcome for run in runs} - {RunOutcome.BLOCKED}
            if len(outcomes) == 1 and self.task.question is Question.PASS_FAIL:
                word = {RunOutcome.PASS: GOOD, RunOutcome.FAIL: BAD, RunOutcome.SKIP: SKIP}[outcomes.pop()]
                marks.append((word, sha, runs[-1].reason))
        text = write_git_log(self.task.good, self.task.bad, marks)
        write_whole(self.state / "bisect.log", text)


def _now() -> str:
    return datetime.now(UTC).isoformat(timespec="seconds")
