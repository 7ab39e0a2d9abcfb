"""`seatrial report RUN_DIR` draws the views of a run; `seatrial report A B` draws logs and runs the rules."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from seatrial.batch.merge import is_relations, merge_relations, merge_runs
from seatrial.cli.healthy_runs import healthy_runs
from seatrial.errors import UsageError
from seatrial.files import write_text
from seatrial.report.compared import outcome_of, page_of, recorded_outcomes, sections_of
from seatrial.report.console import make_console, print_conclusion, print_results
from seatrial.report.files import write_views
from seatrial.report.rows import WORDS, printable
from seatrial.report.summary import summary_text
from seatrial.report.watched import rule_counts
from seatrial.rules.rule import Level
from seatrial.trials.rundir import RESULTS, read_results
from seatrial.verdict import combine, exit_code

PAGE_OF_ONE, PAGE_OF_TWO = Path("report.html"), Path("comparison.html")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the runs."""
    parser.add_argument(
        "runs",
        type=Path,
        nargs="+",
        metavar="RUN",
        help="a run directory, such as runs/20260102T030405Z-reference; or one or two logs of any stack",
    )
    parser.add_argument(
        "--output",
        type=Path,
        metavar="FILE",
        help=f"page of one log (default: {PAGE_OF_ONE}), or of two runs (default: {PAGE_OF_TWO}); or a folder for it",
    )
    parser.add_argument(
        "--merge",
        type=Path,
        metavar="OUT",
        help="merge shards of one run into the run directory OUT, or JSON files of `seatrial relations` into one",
    )
    parser.add_argument(
        "--baseline",
        metavar="LOGS",
        nargs="+",
        type=Path,
        default=[],
        help="logs of earlier healthy runs of the same configuration, as in `seatrial watch --baseline`",
    )


def run(arguments: argparse.Namespace) -> int:
    """Draw the views of one run directory again, or the page of logs or of two runs.

    Returns:
        The exit code of the run's outcome, or of what the rules find in every run on the page and its trials concluded.

    Raises:
        UsageError: more than two runs, or runs that share no trial.
        BlockedError: a log cannot be read.
    """
    paths: list[Path] = arguments.runs
    if arguments.merge is not None:
        return _merge(paths, arguments.merge)
    if len(paths) > 2:
        raise UsageError(f"{len(paths)} runs: name one or two; more are compared by `seatrial trend`")
    is_directory = len(paths) == 1 and (paths[0].is_dir() and (paths[0] / RESULTS).exists())
    if arguments.baseline and any((path / RESULTS).exists() for path in paths):
        raise UsageError("--baseline goes with logs; of a run directory name the log of a trial")
    if is_directory and arguments.output is None:
        return _views(paths[0])
    healthy = healthy_runs(arguments.baseline, paths[0]) if arguments.baseline else None
    sections, recorded = sections_of(paths, healthy), recorded_outcomes(paths)
    output = _page(arguments.output, PAGE_OF_ONE if len(paths) == 1 else PAGE_OF_TWO)
    write_text(output, page_of(sections, recorded))
    for section in sections:
        for watched in section.runs:
            name = f"{watched.name} {section.title}".strip()
            for item in watched.at(Level.ALARM):
                print(
                    printable(f"{name}: {item.rule.id} from step {item.finding.step}: {item.finding.reason}")
                )
            print(printable(f"{name}: {rule_counts(watched.judged)}"))
    for name, trials in recorded.items():
        print(
            printable(f"{name}: its trials: {WORDS[trials]} (`seatrial report RUN_DIR` draws their report)")
        )
    outcome = outcome_of(sections, recorded)
    print(f"{WORDS[outcome]} - for a browser: {output}")
    return exit_code(outcome)


def _page(output: Path | None, default: Path) -> Path:
    """Return the file of the page: in a folder it has the default name, and a name without a suffix gets one."""
    if output is None:
        return default
    if output.is_dir():
        return output / default
    return output if output.suffix else output.with_name(f"{output.name}.html")


def _merge(paths: list[Path], output: Path) -> int:
    if all(is_relations(path) for path in paths):
        verdicts = merge_relations(paths, output)
        outcome = combine(verdicts)
        print(f"{WORDS[outcome]} - {len(verdicts)} verdicts of {len(paths)} files: {output}")
        return exit_code(outcome)
    merge_runs(paths, output)
    return _views(output)


def _views(directory: Path) -> int:
    results = read_results(directory)
    console = make_console(sys.stdout)
    report = write_views(directory, results)
    print_results(console, results)
    console.print(summary_text(results), soft_wrap=True)
    print_conclusion(console, results, report)
    return exit_code(results.outcome)
