"""`seatrial chaos`: kill, pause or slow one process of a run at a chosen moment."""

from __future__ import annotations

import argparse
import os
import re
from pathlib import Path

from seatrial.chaos.acts import ACTS
from seatrial.chaos.experiment import (
    Disturbance,
    Moment,
    Outcomes,
    after_seconds,
    at_line,
    at_step,
    compare_logs,
    disturb,
    judge_alone,
    run_again,
    run_disturbed,
)
from seatrial.cli.verdict_table import print_verdicts
from seatrial.errors import UsageError
from seatrial.verdict import Outcome, Verdict, combine, exit_code


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments of `seatrial chaos`."""
    who = parser.add_mutually_exclusive_group(required=True)
    for act, summary in (
        ("kill", "kill this part (SIGKILL)"),
        ("pause", "pause this part; it continues after --for, or when the run has ended"),
        ("slow", "slow this part: it runs a tenth of the time"),
    ):
        who.add_argument(f"--{act}", metavar="PART|PID", help=summary)
    when = parser.add_mutually_exclusive_group()
    when.add_argument("--at-step", metavar="N", type=int, help="when step N is in the log (needs --log)")
    when.add_argument(
        "--after", metavar="SECONDS", type=float, help="after this many seconds (default: immediately)"
    )
    when.add_argument("--at-line", metavar="REGEX", help="when a line of the output matches")
    parser.add_argument(
        "--log", metavar="LOGS", type=Path, help="the run's log folder; its parts.json lists the parts"
    )
    parser.add_argument(
        "--for", metavar="SECONDS", type=float, dest="seconds", help="duration of a pause or slowdown"
    )
    parser.add_argument(
        "--console",
        metavar="FILE",
        type=Path,
        help="file with the run's output (created if a COMMAND is given)",
    )
    parser.add_argument(
        "--within",
        metavar="SECONDS",
        type=float,
        default=10.0,
        help="time in which a failing run must exit (default: 10)",
    )
    parser.add_argument(
        "--timeout",
        metavar="SECONDS",
        type=float,
        default=3600.0,
        help="time after which a run counts as hanging (default: 3600)",
    )
    parser.add_argument(
        "--resume",
        action="store_true",
        help="start COMMAND again after it has ended; it must then end well",
    )
    parser.add_argument(
        "--unbroken",
        metavar="LOGS",
        type=Path,
        help="log folder of the same run without a break, which the resumed run must equal (needs --resume, --log)",
    )
    parser.add_argument(
        "argv",
        metavar="-- COMMAND",
        nargs="*",
        help="command that starts the run; without it, the run must already be running",
    )


def run(arguments: argparse.Namespace) -> int:
    """Disturb a run.

    Returns:
        0 if the run handled it, 1 if it did not, 3 if the disturbance could not be made.

    Raises:
        UsageError: options contradict each other.
    """
    act = next(act for act in ACTS if getattr(arguments, act) is not None)
    if arguments.at_step is not None and arguments.log is None:
        raise UsageError("--at-step reads the run's log: name its folder with --log")
    for name in ("after", "seconds", "within", "timeout"):
        given = getattr(arguments, name)
        if given is not None and given < 0:
            option = "--for" if name == "seconds" else f"--{name}"
            raise UsageError(f"{option} {given:g}: give 0 or more seconds")
    console = arguments.console
    if arguments.argv and console is None:
        console = Path("chaos.log")
    if arguments.at_line is not None and console is None:
        raise UsageError("--at-line reads the run's output: name its file with --console")
    if act == "kill" and arguments.seconds is not None:
        raise UsageError("--for applies to --pause and --slow, not to --kill")
    if arguments.resume and not arguments.argv:
        raise UsageError("--resume starts the command again: give the command after --")
    if arguments.unbroken is not None and not (arguments.resume and arguments.log):
        raise UsageError("--unbroken is compared with the resumed run: add --resume, and --log LOGS")
    disturbance = Disturbance(
        act=act,
        who=getattr(arguments, act),
        moment=lambda: _moment(arguments, console),
        logs=arguments.log,
        seconds=arguments.seconds,
        patience=arguments.timeout,
    )
    _check_pattern(arguments.at_line)
    if arguments.argv:
        launched, verdicts = run_disturbed(
            arguments.argv,
            disturbance,
            environment=dict(os.environ),
            log_path=console,
            within=arguments.within,
            timeout_seconds=arguments.timeout,
        )
        print(f"the run: {launched.describe()}, output in {console}")
        if arguments.resume and combine(verdicts) is Outcome.PASS:
            verdicts += _resume(arguments, console)
    else:
        if act != "kill" and arguments.seconds is None:
            raise UsageError(f"--{act} of a run that is not started here needs --for SECONDS")
        outcomes = Outcomes()
        disturb(disturbance, outcomes)
        verdicts = [judge_alone(disturbance, outcomes)]
    outcome = combine(verdicts)
    print_verdicts(verdicts, outcome)
    return exit_code(outcome)


def _resume(arguments: argparse.Namespace, console: Path) -> list[Verdict]:
    again = run_again(
        arguments.argv,
        environment=dict(os.environ),
        log_path=console.with_name(f"{console.stem}.resumed{console.suffix}"),
        timeout_seconds=arguments.timeout,
    )
    if arguments.unbroken is None or again.outcome is not Outcome.PASS:
        return [again]
    return [again, compare_logs(arguments.log, arguments.unbroken)]


def _moment(arguments: argparse.Namespace, console: Path | None) -> Moment:
    if arguments.at_step is not None:
        return at_step(arguments.at_step, arguments.log)
    if arguments.at_line is not None:
        assert console is not None
        return at_line(arguments.at_line, console)
    return after_seconds(arguments.after or 0.0)


def _check_pattern(pattern: str | None) -> None:
    try:
        re.compile(pattern or "")
    except re.error as error:
        raise UsageError(f"--at-line {pattern!r} is not a regular expression: {error}") from error
