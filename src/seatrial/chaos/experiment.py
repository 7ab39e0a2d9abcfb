"""One disturbance of one run: when it happens, and what is concluded from how the run reacts."""

from __future__ import annotations

import re
import signal
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from seatrial.chaos.acts import ACTS, PARTS, find_victim
from seatrial.errors import BlockedError, UsageError
from seatrial.evidence.read import read_logs
from seatrial.launch.local import Launched, run_command
from seatrial.verdict import Outcome, Verdict

POLL_SECONDS = 0.1
_STEP_IN_NAME = re.compile(r"step_?(\d+)\.jsonl$")


@dataclass(frozen=True)
class Moment:
    """A condition on what the run has written so far."""

    what: str
    """For messages: `step 5 is logged`."""
    has_come: Callable[[], bool]


def after_seconds(seconds: float) -> Moment:
    """Return the moment so many seconds from now."""
    started = time.monotonic()
    return Moment(f"{seconds:g} s have passed", lambda: time.monotonic() - started >= seconds)


def at_step(step: int, logs: Path) -> Moment:
    """Return the moment at which a step, or a later one, is in the log."""
    return Moment(f"step {step} is logged in {logs}", lambda: last_step(logs) >= step)


def at_line(pattern: str, console: Path) -> Moment:
    """Return the moment at which a line of a file matches."""
    expression = re.compile(pattern)

    def has_come() -> bool:
        try:
            text = console.read_text(encoding="utf-8", errors="replace")
        except FileNotFoundError:
            return False
        return any(expression.search(line) for line in text.splitlines())

    return Moment(f"a line of {console} matches {pattern!r}", has_come)


def at_parts(logs: Path, since: float) -> Moment:
    """Return the moment at which a run has named its parts.

    Args:
        logs: its log folder.
        since: `time.time()` of its start; an older file is of an earlier start.
    """
    path = logs / PARTS

    def has_come() -> bool:
        return path.exists() and path.stat().st_mtime >= since

    return Moment(f"{path} is written", has_come)


def last_step(logs: Path) -> int:
    """Return the last step of any series or file of rows below a folder; -1 where there is nothing yet."""
    steps = [int(found[1]) for path in logs.glob("*.jsonl") if (found := _STEP_IN_NAME.search(path.name))]
    if steps:
        return max(steps)
    try:
        series = read_logs(logs).series.values()
    except BlockedError:
        return -1
    return max((max(points.steps, default=-1) for points in series), default=-1)


def wait_for(moment: Moment, *, seconds: float, is_over: Callable[[], bool]) -> str | None:
    """Wait for a moment.

    Args:
        moment: waited for.
        seconds: most of them.
        is_over: whether the run has ended, so that nothing more will come.

    Returns:
        None when it has come; else why it did not.
    """
    deadline = time.monotonic() + seconds
    while not moment.has_come():
        if is_over():
            return f"the run ended before {moment.what}"
        if time.monotonic() >= deadline:
            return f"{seconds:g} s passed, but not: {moment.what}"
        time.sleep(POLL_SECONDS)
    return None


@dataclass(frozen=True, kw_only=True)
class Disturbance:
    """What to do, to which process, and when."""

    act: str
    """`kill`, `pause` or `slow`."""
    who: str
    """A part that the run names, or a process number."""
    moment: Callable[[], Moment]
    """Created when the wait begins."""
    logs: Path | None = None
    """The run's log folder."""
    seconds: float | None = None
    """Of a pause or a slowness; None: until the run ends."""
    patience: float = 600.0
    """Seconds to wait for the moment, and for the run to name its parts."""
    since: float = 0.0
    """`time.time()` of the run's start; 0: it runs already."""


@dataclass
class Outcomes:
    """What happened."""

    done_at: float | None = None
    """`time.monotonic()` of the act; None: it was not done."""
    was_done: bool = False
    why_not: str | None = None
    over: threading.Event = field(default_factory=threading.Event)
    """Set when the run has ended, or when the wait is given up."""


def disturb(disturbance: Disturbance, outcomes: Outcomes) -> None:
    """Wait for the moment and act; the result is stored in `outcomes`."""
    moments = [disturbance.moment()]
    if disturbance.logs is not None and not disturbance.who.isdecimal():
        moments.append(at_parts(disturbance.logs, disturbance.since))
    for moment in moments:
        outcomes.why_not = wait_for(moment, seconds=disturbance.patience, is_over=outcomes.over.is_set)
        if outcomes.why_not is not None:
            return
    try:
        victim = find_victim(disturbance.who, disturbance.logs)
    except UsageError as error:
        outcomes.why_not = str(error)
        return
    outcomes.done_at = time.monotonic()
    outcomes.was_done = ACTS[disturbance.act](victim, disturbance.seconds, outcomes.over)
    if not outcomes.was_done:
        outcomes.why_not = (
            f"the {disturbance.act} of {victim.name} (process {victim.process.pid}) could not be confirmed"
        )


def judge_alone(disturbance: Disturbance, outcomes: Outcomes) -> Verdict:
    """Return whether a run that is watched elsewhere was disturbed."""
    return _act_verdict(disturbance, outcomes)


def run_disturbed(
    argv: Sequence[str],
    disturbance: Disturbance,
    *,
    environment: dict[str, str],
    log_path: Path,
    within: float,
    timeout_seconds: float,
) -> tuple[Launched, list[Verdict]]:
    """Run a command, disturb it, and judge how it ended.

    Args:
        argv: the command; it runs in its own process group, of which nothing is left at the end.
        disturbance: what is done to it.
        environment: of the command.
        log_path: file of its output.
        within: seconds after the act within which a failing run must end.
        timeout_seconds: after these a run that still runs counts as hanging and is stopped.
    """
    outcomes = Outcomes()
    disturbance = replace(disturbance, since=time.time())
    watcher = threading.Thread(target=disturb, args=(disturbance, outcomes), name="seatrial-chaos")
    watcher.start()
    try:
        launched = run_command(
            argv, log_path=log_path, environment=environment, timeout_seconds=timeout_seconds
        )
        ended_at = time.monotonic()
    finally:
        outcomes.over.set()
        watcher.join()
    act = _act_verdict(disturbance, outcomes)
    if act.outcome is not Outcome.PASS or outcomes.done_at is None:
        return launched, [act]
    text = log_path.read_text(encoding="utf-8", errors="replace")
    return launched, [
        act,
        _end_verdict(launched, disturbance, text, seconds=ended_at - outcomes.done_at, within=within),
    ]


def _act_verdict(disturbance: Disturbance, outcomes: Outcomes) -> Verdict:
    name = f"chaos: {disturbance.act} {disturbance.who}"
    if outcomes.was_done:
        return Verdict(
            name=name,
            outcome=Outcome.PASS,
            reason=f"{disturbance.who} was disturbed, and this was confirmed",
            num_samples=1,
        )
    return Verdict(name=name, outcome=Outcome.BLOCKED, reason=outcomes.why_not or "nothing was done")


def _end_verdict(
    launched: Launched, disturbance: Disturbance, text: str, *, seconds: float, within: float
) -> Verdict:
    """A good end: the run continued and succeeded, or it ended in time with a message that names the part.

    The command's own process can print nothing when it is killed: then it must end by that signal.
    """
    name = "chaos: the run continues, or ends in time and names the part"
    bound = f"exit status 0, or a message that names {disturbance.who} within {within:g} s"
    how = f"{launched.describe()}, {seconds:.1f} s after the {disturbance.act}"
    names_it = disturbance.who in text
    if launched.ok:
        reason = f"it continued: {how}"
        return Verdict(
            name=name, outcome=Outcome.PASS, reason=reason, value=seconds, bound=bound, num_samples=1
        )
    if disturbance.act == "kill" and launched.returncode == -signal.SIGKILL and seconds <= within:
        left = f"; {launched.num_stragglers} processes outlived it, ended" if launched.num_stragglers else ""
        reason = f"the command's own process was killed, and {how}{left}"
        return Verdict(
            name=name, outcome=Outcome.PASS, reason=reason, value=seconds, bound=bound, num_samples=1
        )
    if launched.timed_out:
        reason = f"it hangs: {how}; a part that is lost must be noticed within a deadline"
    elif not names_it:
        reason = (
            f"{how}, and its output does not name {disturbance.who}: a user cannot know which part was lost"
        )
    elif seconds <= within:
        reason = f"it ended with a message: {how}"
        return Verdict(
            name=name, outcome=Outcome.PASS, reason=reason, value=seconds, bound=bound, num_samples=1
        )
    else:
        reason = f"{how}: too late"
    return Verdict(name=name, outcome=Outcome.FAIL, reason=reason, value=seconds, bound=bound, num_samples=1)


def run_again(
    argv: Sequence[str], *, environment: dict[str, str], log_path: Path, timeout_seconds: float
) -> Verdict:
    """Run the command that was disturbed once more, and judge whether it resumes and ends well."""
    launched = run_command(argv, log_path=log_path, environment=environment, timeout_seconds=timeout_seconds)
    return Verdict(
        name="chaos: the same command ends well when it is started again",
        outcome=Outcome.PASS if launched.ok else Outcome.FAIL,
        reason=f"{launched.describe()}, output in {log_path}",
        value=launched.describe(),
        bound="exit status 0",
        num_samples=1,
    )


NOT_REPEATED = ("timing/", "performance/")
"""Beginnings of the names of series that no two runs have in common."""


def compare_logs(logs: Path, unbroken: Path) -> Verdict:
    """Compare the series of a run that was resumed with those of the same run without a break, bit by bit.

    Raises:
        BlockedError: one of the logs cannot be read.
    """
    resumed, whole = (
        {
            name: dict(zip(points.steps.tolist(), points.values.tolist(), strict=True))
            for name, points in read_logs(folder).series.items()
            if not name.startswith(NOT_REPEATED)
        }
        for folder in (logs, unbroken)
    )
    wrong = [f"{name} is in one log only" for name in sorted(resumed.keys() ^ whole.keys())]
    number = 0
    for name in sorted(resumed.keys() & whole.keys()):
        steps = sorted(resumed[name].keys() | whole[name].keys())
        number += len(steps)
        for step in steps:
            one, other = resumed[name].get(step), whole[name].get(step)
            if repr(one) != repr(other):  # as text: NaN equals NaN
                wrong.append(f"{name} at step {step} is {one}, without a break {other}")
                break
    return Verdict(
        name="chaos: the resumed run equals the unbroken one",
        outcome=Outcome.PASS if number and not wrong else Outcome.FAIL,
        reason="; ".join(wrong[:3])
        or (f"{number} values are equal" if number else "the logs have no values"),
        value=len(wrong),
        bound=f"the values of {unbroken}",
        num_samples=number,
    )
