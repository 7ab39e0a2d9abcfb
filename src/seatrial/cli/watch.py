"""`seatrial watch LOGS`: black-box rules on the log of any stack, live or after the run."""

from __future__ import annotations

import argparse
import time
from pathlib import Path

from seatrial.cli.healthy_runs import healthy_runs
from seatrial.cli.job_stop import StoppableJob
from seatrial.cli.process_stop import Stoppable
from seatrial.cli.verdict_table import verdicts_json
from seatrial.cli.watch_view import LiveView, report_lines
from seatrial.cli.webhook import check_address, post_alarm
from seatrial.errors import BlockedError, UsageError
from seatrial.files import write_text
from seatrial.report.rows import printable
from seatrial.rules.engine import all_rules, is_evidence, missing_metrics, select
from seatrial.rules.measured import false_alarms
from seatrial.rules.monitor import Look, Monitor
from seatrial.rules.rule import Level
from seatrial.verdict import EXIT_PASS, Outcome, Verdict, combine, exit_code
from seatrial.vocabulary import stack_named


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments of `seatrial watch`."""
    parser.add_argument(
        "logs", metavar="LOGS", nargs="?", type=Path, help="folder or file that the run logs to"
    )
    parser.add_argument(
        "--baseline",
        metavar="LOGS",
        nargs="+",
        type=Path,
        default=[],
        help="logs of earlier healthy runs of the same configuration (four or more), or a file that "
        "`seatrial baseline record` wrote: arms the rules that compare with them",
    )
    parser.add_argument("--follow", action="store_true", help="look again and again while the log grows")
    parser.add_argument("--stack", metavar="NAME", help="stack that writes the log (default: recognised)")
    parser.add_argument(
        "--rule", metavar="NAME", action="append", default=[], help="only this rule, or this family of rules"
    )
    parser.add_argument(
        "--without", metavar="NAME", action="append", default=[], help="leave this rule or family out"
    )
    parser.add_argument(
        "--missing", action="store_true", help="say which metrics, if they were logged, would arm which rules"
    )
    parser.add_argument("--rules", action="store_true", help="list the rules with their figures and end")
    parser.add_argument(
        "--stop-on",
        choices=["Fail"],
        metavar="Fail",
        help="with --follow: end --pid or --job at the first alarm",
    )
    parser.add_argument(
        "--pid",
        metavar="N",
        type=int,
        help="process of the run: following ends with it, and --stop-on may end it",
    )
    parser.add_argument(
        "--job", metavar="N", help="the same of a Slurm job: scancel ends it, squeue says whether it runs"
    )
    parser.add_argument("--webhook", metavar="URL", help="post each alarm there, as JSON with a text")
    parser.add_argument(
        "--interval",
        metavar="SECONDS",
        type=float,
        help="rest between looks (default: half a percent of one core)",
    )
    parser.add_argument(
        "--idle",
        metavar="SECONDS",
        type=float,
        help="with --follow: end when the log has not grown for so long",
    )
    parser.add_argument(
        "--steps", metavar="N", type=int, help="last step of the run, for the time that is left"
    )
    parser.add_argument("--json", metavar="FILE", type=Path, help="write every verdict there as JSON")


def run(arguments: argparse.Namespace) -> int:
    """Judge a log, once or while it grows.

    Returns:
        0 no alarm, 1 an alarm, 3 nothing could be read or a part of it is damaged, 5 no rule had its inputs.

    Raises:
        UsageError: options that do not go together, or a name that is unknown.
        BlockedError: nothing can be read (while following: it is waited for).
    """
    if arguments.rules:
        return _list_rules()
    _check(arguments)
    rules = select(arguments.rule, arguments.without)
    stack = stack_named(arguments.stack) if arguments.stack else None
    healthy = healthy_runs(arguments.baseline, arguments.logs) if arguments.baseline else None
    monitor = Monitor(
        path=arguments.logs, rules=rules, stack=stack, healthy=healthy, newest_only=arguments.follow
    )
    look, ending = _follow(monitor, arguments) if arguments.follow else (monitor.look(), [])
    if look.streams is None:
        if ending:
            print(printable(ending[0].reason))
            return exit_code(combine(ending))
        raise BlockedError(look.waiting)
    verdicts = [*ending, *_damage(look), *(item.verdict for item in look.judged)]
    if combine(verdicts) is Outcome.PASS and not is_evidence(look.judged):
        verdicts = [nothing_judged(look), *(one for one in verdicts if one.outcome is not Outcome.PASS)]
    for line in report_lines(look, verdicts, arguments.logs):
        print(printable(line))
    if arguments.missing:
        _print_missing(look)
    if arguments.json:
        write_text(arguments.json, verdicts_json(verdicts), option="--json")
    if arguments.webhook and not arguments.follow:
        _post(arguments.webhook, arguments.logs, look)
    return exit_code(combine(verdicts))


def _check(arguments: argparse.Namespace) -> None:
    """Refuse options that do not go together."""
    if arguments.logs is None:
        raise UsageError(
            "name the folder or file that the run logs to, before --baseline; or list the rules with --rules"
        )
    if arguments.pid is not None and arguments.job is not None:
        raise UsageError("--pid and --job: name one, the process or the job of the run")
    named = arguments.pid is not None or arguments.job is not None
    if arguments.stop_on and not (named and arguments.follow):
        raise UsageError("--stop-on Fail goes with --follow and --pid N or --job N, what it may end")
    for option in ("pid", "job", "idle", "interval"):
        if getattr(arguments, option) is not None and not arguments.follow:
            raise UsageError(f"--{option} goes with --follow")
    if arguments.interval is not None and not arguments.interval > 0:
        raise UsageError(f"--interval {arguments.interval:g}: a number of seconds above 0")
    if arguments.webhook:
        check_address(arguments.webhook)


def _follow(monitor: Monitor, arguments: argparse.Namespace) -> tuple[Look, list[Verdict]]:
    """Look until the run ends, the log stops growing, or an alarm ends the run; Ctrl-C ends the watching alone.

    Returns:
        The last look, and a verdict where the run crashed or ended early.
    """
    run = _run_of(arguments)
    grown = time.monotonic()
    num_points = -1
    with LiveView(arguments.logs, arguments.steps) as view:
        while True:
            # Asked before the look, so that what the run wrote last is seen.
            ended = run is not None and not run.is_alive()
            look = monitor.look()
            view.show(look)
            if arguments.webhook:
                _post(arguments.webhook, arguments.logs, look)
            if look.num_points != num_points:
                num_points, grown = look.num_points, time.monotonic()
            if arguments.stop_on and any(item.finding.level is Level.ALARM for item in look.judged):
                assert run is not None
                view.say(run.stop())
                return look, []
            if ended:
                status = run.exit_status() if isinstance(run, Stoppable) else None
                return look, early_end(look, arguments.steps, "the process ended", status)
            if arguments.idle is not None and time.monotonic() - grown >= arguments.idle:
                return look, early_end(look, arguments.steps, "the log stopped growing", None)
            seconds = arguments.interval or look.rest
            if isinstance(run, Stoppable):
                run.rest(seconds)
            else:
                time.sleep(seconds)


def nothing_judged(look: Look) -> Verdict:
    """Return the verdict on a log from which no rule of learning or stability could run."""
    assert look.streams is not None
    known = ", ".join(look.streams.by_name) or "none"
    unknown = ", ".join(look.streams.unknown[:8]) or "none"
    remedy = "Name the stack (--stack), or log reward, gradient norm, entropy or KL (--missing lists what rules need)"
    short = [item.finding for item in look.judged if item.finding.num_samples and not item.finding.missing]
    short = [one for one in short if one.level is Level.NOT_TRIGGERED]
    if short:
        least = min(short, key=lambda one: (-one.num_samples, one.reason)).reason.rpartition(": ")[2]
        remedy = f"{len(short)} rules have their metrics and need more points (one has {least})"
    reason = (
        f"no rule of learning or stability could run: recognised metrics: {known}; unknown series: {unknown}. "
        f"{remedy}"
    )
    return Verdict(name="enough evidence", outcome=Outcome.SKIPPED, reason=reason)


def early_end(look: Look, asked: int | None, what: str, status: int | None) -> list[Verdict]:
    """Return a Fail where a run crashed or ended before its last step.

    Args:
        look: the last look at its log.
        asked: the last step that the user named.
        what: how the watching ended.
        status: exit status of the run; negative: the signal that ended it; None where it is not known.
    """
    last = look.last_step
    total = asked or (look.total_steps if look.streams is not None else None)
    where = f"at step {last}" if last is not None else "before its first step"
    where += f" of {total}" if total else ""
    if status:
        how = f"signal {-status}" if status < 0 else f"exit status {status}"
        reason = f"crashed {where} ({how}); run `seatrial triage` on its console"
    elif total is not None and (last is None or last + look.stride < total):
        reason = f"ended early: {what} {where}; run `seatrial triage` on its console"
    else:
        return []
    return [Verdict(name="run reached its end", outcome=Outcome.FAIL, reason=reason)]


def _run_of(arguments: argparse.Namespace) -> Stoppable | StoppableJob | None:
    """Return what --stop-on may end; None where nothing is named."""
    if arguments.job is not None:
        return StoppableJob(arguments.job)
    return Stoppable(arguments.pid) if arguments.pid is not None else None


def _post(address: str, logs: Path, look: Look) -> None:
    for item in look.news:
        if item.finding.level is Level.ALARM:
            post_alarm(address, f"{logs}: {item.verdict.name}: {item.verdict.reason}", item.verdict)


def _damage(look: Look) -> list[Verdict]:
    """Return a Blocked verdict where a part of the log other than its end or one column could not be read."""
    assert look.streams is not None
    lost = [item for item in look.streams.log.damage if not item.is_cut and item.tag is None]
    return [
        Verdict(name="log undamaged", outcome=Outcome.BLOCKED, reason=f"{item.path}: {item.what}")
        for item in lost[:1]
    ]


def _print_missing(look: Look) -> None:
    """Print what would arm rules, those metrics first that do it alone."""
    missing = missing_metrics(look.judged)
    print(
        f"{len(missing)} inputs would arm {len({rule for item in missing for rule in item.rules})} more rules:"
    )
    for item in missing:
        print(printable(f"  {item.metric:32}{', '.join(item.rules)}"))
        print(printable(f"  {'':32}{item.meaning}"))


def _list_rules() -> int:
    for rule in all_rules():
        print(printable(f"{rule.id} ({rule.family}): {rule.statement}"))
        print(printable(f"    needs {', '.join(rule.needs) or 'any series'}"))
        print(printable(f"    false alarms: {false_alarms(rule.id)}"))
        for name, parameter in rule.parameters.items():
            print(printable(f"    {name} = {parameter.value:g} ({parameter.source})"))
    return EXIT_PASS
