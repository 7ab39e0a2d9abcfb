"""`seatrial check LOGS 'expression' ...`: judge logs that any stack left."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Sequence
from contextlib import redirect_stdout
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING

from seatrial.checks import KNOWN_RANGES, FindingKind, Interval, lint_check, parse_check
from seatrial.checks.judge import Questions, judge_logs, known_ranges_of
from seatrial.checks.language.doubts import Terms
from seatrial.cli.verdict_table import print_verdicts, verdicts_json
from seatrial.errors import UsageError
from seatrial.evidence.read import read_logs
from seatrial.files import write_text
from seatrial.report.rows import printable
from seatrial.verdict import EXIT_FAIL, EXIT_PASS, Verdict, combine, exit_code

if TYPE_CHECKING:
    from seatrial.checks.suites import Suite


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments of `seatrial check`."""
    parser.add_argument(
        "logs",
        metavar="LOGS",
        help="TensorBoard folder, metrics.json or any other log; with --lint the file of tags, or the first expression",
    )
    parser.add_argument(
        "expressions", metavar="EXPRESSION", nargs="*", help="such as 'max(data[\"train/loss\"]) < 2'"
    )
    parser.add_argument(
        "--suite",
        metavar="FILE",
        type=Path,
        action="append",
        default=[],
        help="checks kept in YAML: a file, or the name of a suite that comes with seatrial, such as grpo-smoke",
    )
    parser.add_argument("--run", metavar="NAME=LOGS", action="append", default=[], help='log of run("NAME")')
    parser.add_argument(
        "--allow-nonfinite",
        metavar="TAG",
        action="append",
        default=[],
        help="leave out NaN and infinity of this tag",
    )
    parser.add_argument(
        "--range",
        metavar="TAG=LOW:HIGH",
        action="append",
        default=[],
        help="values that a tag can take by construction",
    )
    parser.add_argument(
        "--steps", metavar="N", type=int, help="the run must have logged this step, or a later one"
    )
    parser.add_argument(
        "--conflicts",
        choices=["last"],
        help="where one step has values that differ, the last one written counts (without it: Blocked)",
    )
    parser.add_argument(
        "--several-runs",
        choices=["newest", "each"],
        help="where files look like several runs, judge the newest or each of them (without it: Blocked)",
    )
    parser.add_argument(
        "--strict", action="store_true", help="a check that cannot fail or cannot pass is wrong usage"
    )
    parser.add_argument(
        "--lint", action="store_true", help="only look for faults of the checks; no run is judged"
    )
    parser.add_argument("--max-num-steps", metavar="N", type=int, help="last step of the run, for --lint")
    parser.add_argument(
        "--json", metavar="FILE", type=Path, help="write the verdicts there as JSON; - is the standard output"
    )
    parser.add_argument("--junit", metavar="FILE", type=Path, help="write the verdicts there as JUnit XML")


def run(arguments: argparse.Namespace) -> int:
    """Judge the logs.

    Returns:
        0 Pass, 1 Fail, 3 Blocked, 5 when every check was skipped.

    Raises:
        UsageError: no expression, or one that is not in the language; a run that is not given.
    """
    if arguments.lint:
        return _lint(arguments)
    if arguments.max_num_steps is not None:
        raise UsageError("--max-num-steps goes with --lint: a run that is judged says itself how far it came")
    request = _read_request(arguments, arguments.expressions)
    if not request.names():
        raise UsageError(f"nothing to check in {arguments.logs}: give an expression or --suite FILE")
    if arguments.strict:
        _refuse_findings(request)
    logs = _named_paths(arguments.run)
    missing = sorted(request.runs() - logs.keys())
    if missing:
        raise UsageError(f'run("{missing[0]}") is not given: add --run {missing[0]}=LOGS')
    verdicts = judge_logs(Path(arguments.logs), request, logs)
    outcome = combine(verdicts)
    if arguments.json == Path("-"):
        print(verdicts_json(verdicts, argv=sys.argv[1:]), end="")
    elif arguments.json:
        write_text(arguments.json, verdicts_json(verdicts, argv=sys.argv[1:]), option="--json")
    with redirect_stdout(sys.stderr if arguments.json == Path("-") else sys.stdout):
        print_verdicts(verdicts, outcome)
        _print_notes(verdicts)
    _publish(arguments, verdicts)
    return exit_code(outcome)


def _print_notes(verdicts: Sequence[Verdict]) -> None:
    """Print what the reader met in the log, each fact once."""
    for note in dict.fromkeys(note for verdict in verdicts for note in verdict.details.get("notes", ())):
        print(printable(f"note: {note}"))


def _publish(arguments: argparse.Namespace, verdicts: Sequence[Verdict]) -> None:
    """Write JUnit if requested, and the job summary inside GitHub Actions; the views are slow to import."""
    name = f"seatrial check {arguments.logs}"
    if arguments.junit:
        from seatrial.files import write_text
        from seatrial.report.junit import verdicts_junit

        write_text(
            arguments.junit,
            verdicts_junit(name, verdicts, datetime.now(UTC).isoformat(timespec="seconds")),
        )
    if os.environ.get("GITHUB_STEP_SUMMARY"):
        from seatrial.report.github import write_to_github

        write_to_github(name, "", verdicts, os.environ)


def _read_request(arguments: argparse.Namespace, expressions: Sequence[str]) -> Questions:
    """Read what is asked, before any log is touched."""
    suites: list[Suite] = []
    if arguments.suite:
        from seatrial.checks.suites import load_suite  # Its schema library is slow to import.
        from seatrial.packaged import find_file

        suites = [load_suite(find_file("suite", path)) for path in arguments.suite]
    return Questions(
        checks=[parse_check(text) for text in expressions],
        suites=suites,
        allow_nonfinite=arguments.allow_nonfinite,
        ranges=dict(_range(text) for text in arguments.range),
        terms=Terms(
            steps=arguments.steps,
            conflicts=arguments.conflicts or "ask",
            several_runs="newest" if arguments.several_runs == "newest" else "ask",
        ),
        each_run=arguments.several_runs == "each",
    )


def _lint(arguments: argparse.Namespace) -> int:
    """Print the faults of the checks; 1 when there are any, 2 with --strict."""
    for option in ("json", "junit", "run", "allow_nonfinite"):
        if getattr(arguments, option):
            raise UsageError(f"--{option.replace('_', '-')} does not go with --lint, which judges no run")
    words = [arguments.logs, *arguments.expressions]
    first_is_path = Path(arguments.logs).exists() if len(arguments.logs) < 1000 else False
    request = _read_request(arguments, words[1:] if first_is_path else words)
    if not request.all_checks():
        raise UsageError("nothing to look at: give an expression or --suite FILE")
    known, ranges = None, {**KNOWN_RANGES, **request.ranges}
    if first_is_path:
        log = read_logs(Path(arguments.logs), ())
        known, ranges = log.tags(), known_ranges_of(log, request.ranges)
    if arguments.strict:
        _refuse_findings(request)
    found = False
    for check in request.all_checks():
        findings = lint_check(check, known, ranges, arguments.max_num_steps)
        faults = [finding for finding in findings if not finding.kind.is_note]
        found = found or bool(faults)
        print(printable(f"{'fault' if faults else 'note' if findings else 'sound':8}{check.text}"))
        for finding in findings:
            print(printable(f"{'':8}{finding}"))
    return EXIT_FAIL if found else EXIT_PASS


def _refuse_findings(request: Questions) -> None:
    """Raise the first check that cannot fail or cannot pass.

    Raises:
        UsageError: there is one.
    """
    for check in request.all_checks():
        for finding in lint_check(check, ranges={**KNOWN_RANGES, **request.ranges}):
            if finding.kind in (FindingKind.CANNOT_FAIL, FindingKind.CANNOT_PASS):
                raise UsageError(str(finding))


def _named_paths(words: Sequence[str]) -> dict[str, Path]:
    """Read NAME=LOGS.

    Raises:
        UsageError: a word is not of that form, or a name is given twice.
    """
    named: dict[str, Path] = {}
    for word in words:
        name, sign, path = word.partition("=")
        if not (name and sign and path):
            raise UsageError(f"--run {word}: write NAME=LOGS, such as --run baseline=runs/old/logs")
        if name in named:
            raise UsageError(f"--run {word}: {name} is given twice")
        named[name] = Path(path)
    return named


def _range(word: str) -> tuple[str, Interval]:
    """Read TAG=LOW:HIGH.

    Raises:
        UsageError: the word is not of that form.
    """
    tag, _, bounds = word.rpartition("=")
    low, _, high = bounds.partition(":")
    try:
        if tag:
            return tag, Interval(float(low), float(high))
    except ValueError:
        pass
    raise UsageError(
        f"--range {word}: write TAG=LOW:HIGH, such as --range '*/probs_ratio_clamped_max=0.8:1.28'"
    )
