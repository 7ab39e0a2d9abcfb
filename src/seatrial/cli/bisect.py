"""`seatrial bisect`: find the commit that broke it, even with noisy runs."""

from __future__ import annotations

import argparse
import os
import shlex
import shutil
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from seatrial.bisect.console import WIDTH, answer_lines, picture_lines, run_line, waiting_text, wrapped
from seatrial.bisect.drive import Progress
from seatrial.bisect.git import read_history
from seatrial.bisect.journal import NAME, GitLog, read_git_log
from seatrial.bisect.judge import earlier_values
from seatrial.bisect.likelihood import EITHER
from seatrial.bisect.outcomes import Run
from seatrial.bisect.private_repo import UserRepository, deepened
from seatrial.bisect.prober import check_sed, script_of, untracked_words
from seatrial.bisect.report import page
from seatrial.bisect.session import Session, change_task, new_state
from seatrial.bisect.task import Task, direction_of, metric_check, state_base
from seatrial.cli.bisect_options import add_arguments
from seatrial.cli.progress import StatusLine
from seatrial.errors import BlockedError, UsageError
from seatrial.files import write_whole
from seatrial.launch.interrupts import termination_interrupts

__all__ = ["add_arguments", "run"]


def run(arguments: argparse.Namespace) -> int:
    """Search, or simulate a search."""
    if arguments.simulate:
        from seatrial.cli.bisect_simulate import simulate

        return simulate(arguments)
    state, marks_of = _state(arguments, os.environ)
    print(f"bisect: journal {state / NAME}", flush=True)
    keep = arguments.keep_state or os.environ.get("BISECT_NO_RESET", "0") not in ("", "0")
    marks = marks_of.marks if marks_of is not None else ()
    try:
        with termination_interrupts(), Session(state, os.environ, marks) as session:
            return _search(session, keep)
    except (BlockedError, KeyboardInterrupt):
        print(f"resume: {resume_command(state)}", file=sys.stderr, flush=True)
        raise


def resume_command(state: Path) -> str:
    """Return the command that resumes a bisect, quoted for a shell."""
    return shlex.join(["seatrial", "bisect", "--resume", str(state / NAME)])


def _search(session: Session, keep: bool) -> int:
    history = session.history
    if session.note:
        print(f"note: {session.note}")
    print(
        f"{history.num_suspects} suspects between {history.good.sha[:12]} and {session.task.bad[:12]}; "
        f"{len(session.runs)} results known",
        flush=True,
    )

    # COLUMNS is ignored without a terminal: whole lines in a log can be searched.
    columns = shutil.get_terminal_size().columns if sys.stdout.isatty() else None
    shown: Mapping[int, str] = {}
    with StatusLine() as status:

        def waiting(running: Mapping[int, str]) -> None:
            nonlocal shown
            if running and running != shown:
                shown = running
                status.say(waiting_text(session.search, session.runs, running, session.task.jobs))

        def ended(run: Run) -> None:
            print(wrapped(run_line(history, run), columns), flush=True)

        answer = session.run(Progress(waiting=waiting, ended=ended), keep)
    report = session.state / "report.html"
    write_whole(report, page(session.task, session.search, session.runs, answer, session.note))
    print("\n".join(picture_lines(session.search, session.runs, min(columns or WIDTH, 200))))
    print("\n".join(wrapped(line, columns) for line in answer_lines(answer)))
    print(f"Report: {report}", flush=True)
    return answer.exit_code


def _state(arguments: argparse.Namespace, environment: Mapping[str, str]) -> tuple[Path, GitLog | None]:
    """Return the state directory, of the bisect to resume or a new one, and the git log to replay."""
    replay = arguments.replay or (
        Path(environment["BISECT_REPLAY_LOG"]) if environment.get("BISECT_REPLAY_LOG") else None
    )
    resume = arguments.resume or (replay if replay is not None and _is_journal(replay) else None)
    if resume is not None:
        journal = resume / NAME if resume.is_dir() else resume
        if journal.name != NAME or not journal.is_file():
            raise UsageError(f"--resume {resume}: give the {NAME} of an earlier bisect, or its folder")
        change_task(journal.resolve().parent, _overrides(arguments))
        return journal.resolve().parent, None
    log = read_git_log(replay) if replay is not None else None
    base = arguments.state.resolve() if arguments.state else state_base(environment)
    user = UserRepository(arguments.repo)
    with deepened(user, base) as repository:
        task = task_of(arguments, environment, log, repository)
        if user.is_cut_at(task.good):
            print(
                f"note: GOOD {task.good[:12]} is where this shallow clone was cut off; "
                "`git log` shows it as the commit that added every file"
            )
        # Refuse two ends with no commit between them before a directory is created.
        read_history(repository or user.top, task.good, task.bad, first_parent=task.first_parent)
        return new_state(base, task, repository), log


def _overrides(arguments: argparse.Namespace) -> dict[str, Any]:
    """Return the settings that a resumed bisect may change: budget, parallel jobs, timeout, credibility."""
    settings = {
        "budget_minutes": arguments.budget,
        "max_runs": arguments.max_runs,
        "credibility": arguments.credibility,
        "jobs": arguments.jobs,
        "timeout_minutes": arguments.timeout,
    }
    return {name: value for name, value in settings.items() if value is not None}


def _is_journal(path: Path) -> bool:
    try:
        with path.open("rb") as stream:
            return stream.read(1) == b"{"
    except OSError:
        return False


def task_of(
    arguments: argparse.Namespace,
    environment: Mapping[str, str],
    log: GitLog | None,
    deepened: Path | None = None,
) -> Task:
    """Return the task that the command line and the environment describe.

    Args:
        arguments: parsed.
        environment: of this process.
        log: of git bisect, to replay.
        deepened: repository with the whole history if the user's is a shallow clone.

    Raises:
        UsageError: an option is missing or contradicts another; nothing has run.
    """
    user = UserRepository(arguments.repo)
    good = arguments.good or environment.get("GOOD") or (log.good[0] if log and log.good else None)
    bad = arguments.bad or environment.get("BAD") or (log.bad if log else None)
    if not good or not bad:
        missing = " and ".join(name for name, value in (("--good", good), ("--bad", bad)) if not value)
        raise UsageError(f"{missing} missing: give both ends (or GOOD=... BAD=... in the environment)")
    good_sha, bad_sha = user.resolve(good, "GOOD", deepened), user.resolve(bad, "BAD", deepened)
    whole = deepened or user.top
    command = list(arguments.words) or (["python", "-m", "pytest"] if arguments.test else [])
    outside = untracked_words(user.top, whole, bad_sha, command, arguments.carry)
    if outside:
        raise UsageError(
            f"{outside[0]} is in your checkout but not in BAD, so the trees would not have it: add --carry {outside[0]}"
        )
    sed = environment.get("SED_CLAUSES", "")
    script = arguments.script or script_of(whole, bad_sha, command)
    check_sed(sed)
    task = Task(
        repository=str(user.top.resolve()),
        good=good_sha,
        bad=bad_sha,
        command=tuple(command),
        checks=tuple(arguments.check),
        metric=arguments.metric,
        test=arguments.test,
        logs=arguments.logs,
        prepare=arguments.prepare,
        script=script,
        carry=tuple(arguments.carry),
        sed_clauses=sed,
        extra_script_args=environment.get("EXTRA_SCRIPT_ARGS", ""),
        first_parent=arguments.first_parent or bool(log and log.first_parent),
        paths=tuple(arguments.paths),
        prior_paths=dict(_prior(text) for text in arguments.prior_path),
        launcher=arguments.launcher,
        launch_options=tuple(arguments.launch_option),
        poll_seconds=arguments.poll,
        noise=arguments.noise,
        metric_sd=arguments.metric_sd,
        healthy_values=_healthy_values(arguments),
        worse=_worse(arguments),
        smallest_rate_change=arguments.smallest_change,
        on_signal=arguments.on_signal,
        on_timeout=arguments.on_timeout,
        read_obstacles=not arguments.no_obstacles,
        retry_wait_seconds=arguments.retry_wait,
        most_trees=max(1, arguments.trees),
        **_overrides(arguments),
    )
    task.validate()
    return task


def _worse(arguments: argparse.Namespace) -> str | None:
    """Return which values are worse: from --worse, otherwise from the metric's name; None for both directions."""
    if arguments.worse is not None or arguments.metric is None:
        return None if arguments.worse == EITHER else arguments.worse
    known = direction_of(arguments.metric)
    if known is None:
        return None
    print(
        f"worse: {known.worse.value} values: {known.tag} is {known.metric.name}, for which {known.metric.better} is "
        f"better; --worse {EITHER} looks for any change"
    )
    return known.worse.value


def _healthy_values(arguments: argparse.Namespace) -> tuple[float, ...]:
    """Return the metric's values in the logs of earlier runs."""
    if not arguments.baseline:
        return ()
    if not arguments.metric:
        raise UsageError("--baseline needs --metric: it shows how much the metric varies")
    return earlier_values(arguments.baseline, metric_check(arguments.metric))


def _prior(text: str) -> tuple[str, float]:
    pattern, separator, factor = text.rpartition("=")
    try:
        number = float(factor)
    except ValueError:
        number = 0.0
    if not separator or not pattern or not number > 0:
        raise UsageError(
            f"--prior-path {text!r} must be GLOB=FACTOR with a factor above 0, such as 'src/loss/*=5'"
        )
    return pattern, number
