"""`seatrial run`: test a stack in trials and print the verdict."""

from __future__ import annotations

import argparse
import os
import sys
from collections import Counter
from collections.abc import Iterable
from pathlib import Path

from seatrial.cli.progress import StatusLine
from seatrial.cli.run_spread import add_spreading, check_spreading, launcher_of, spread, within_budget
from seatrial.errors import UsageError
from seatrial.evidence.identity.redaction import MARK, Redactor
from seatrial.launch.interrupts import termination_interrupts
from seatrial.report.causes import advice_of, by_importance
from seatrial.report.console import make_console, print_results
from seatrial.report.files import write_views
from seatrial.report.github import write_to_github
from seatrial.report.markdown import report_markdown
from seatrial.report.rows import WORDS, printable
from seatrial.report.summary import summary_text
from seatrial.targets import get_target, target_names
from seatrial.targets.base import DescribesRuns, Target
from seatrial.targets.common.checkout_trials import CheckoutTrials
from seatrial.trials.plan import all_trials, parse_levels, select_trials
from seatrial.trials.results import Results, TrialResult, TrialState
from seatrial.trials.rundir import RunDirectory
from seatrial.trials.runner import Request, new_results, run_trials
from seatrial.trials.sharding import Shard
from seatrial.verdict import EXIT_PASS, Outcome, exit_code

DEFAULT_TIMEOUT_SECONDS = 600.0
MAX_REASONS = 3
"""Failed verdicts of a trial shown on the console; the report has all of them."""
MAX_REASON_LENGTH = 300
MAX_SEED = 2**32 - 1000
"""Repeats add a little to the seed; generators of NumPy take 32 bits."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments."""
    parser.add_argument(
        "--target",
        default=None,
        metavar="NAME|FILE",
        help=f"stack to test: {', '.join(target_names())}, or a YAML file (default: reference)",
    )
    parser.add_argument(
        "--level", default=None, metavar="LEVELS", help="such as 0, or 0,6, or 0-2 (default: 0)"
    )
    parser.add_argument(
        "--trial", action="append", default=[], metavar="NAME", help="run this trial; may be repeated"
    )
    parser.add_argument(
        "--seed", type=int, default=None, metavar="N", help="seed of models, data and sampling (default: 0)"
    )
    parser.add_argument(
        "--output",
        type=_folder,
        default=None,
        metavar="DIR",
        help="folder for run directories (default: runs)",
    )
    parser.add_argument(
        "--resume", type=Path, default=None, metavar="DIR", help="continue an interrupted run"
    )
    parser.add_argument(
        "--timeout",
        type=float,
        default=None,
        metavar="SECONDS",
        help="time limit of each command (default: 600)",
    )
    add_spreading(parser)
    parser.add_argument(
        "--dry-run",
        action="store_true",
        help="print what each trial would launch, read and require, and start nothing",
    )
    parser.add_argument(
        "-v",
        "--verbose",
        action="store_true",
        help="also print every verdict and the summary form of the report",
    )
    parser.add_argument(
        "overrides",
        nargs="*",
        metavar="key=value",
        help="settings of the stack, such as grpo.max_num_steps=5",
    )


def run(arguments: argparse.Namespace) -> int:
    """Run the trials and return the exit code of the overall outcome."""
    check_spreading(arguments)
    if arguments.dry_run:
        return _dry_run(arguments)
    launcher = launcher_of(arguments)
    with termination_interrupts():
        directory, results, target, request = _open(arguments)
        with directory:
            try:
                with StatusLine() as status:
                    run = (directory, results, target, request, status.say, print_trial)
                    if launcher is None:
                        run_trials(*run)
                    else:
                        spread(arguments, launcher, *run)
            finally:
                # Written after an interruption too, with the results so far.
                if (directory.path / "results.json").exists():
                    report = write_views(directory.path, results)
                    if arguments.verbose:
                        console = make_console(sys.stdout)
                        print_results(console, results)
                        console.print(summary_text(results), soft_wrap=True)
                    _print_whole(results, report)
                    judged = [verdict for trial in results.requested_trials() for verdict in trial.verdicts]
                    write_to_github("seatrial run", report_markdown(results), judged, os.environ)
    return exit_code(results.outcome)


def _folder(text: str) -> Path:
    """Return a folder; an empty name, as of an unset shell variable, would be the current one."""
    if not text.strip():
        raise argparse.ArgumentTypeError("expected a folder (an unset shell variable is empty)")
    return Path(text)


def print_trial(trial: TrialResult) -> None:
    """Print one line for a trial, and one for each of its first failed or blocked verdicts, with a cause."""
    seconds = "" if trial.seconds is None else f"{trial.seconds:.1f} s"
    counts = _counts(verdict.outcome for verdict in trial.verdicts)
    print(
        f"{WORDS[trial.outcome]:<13} level {trial.level} {trial.name:<40} {seconds:>9}  {counts}", flush=True
    )
    wrong = by_importance(trial.verdicts)
    causes: list[str] = []
    for verdict in wrong[:MAX_REASONS]:
        text = f"{verdict.name}: {verdict.reason}"
        print(printable(f"    {WORDS[verdict.outcome]:<10}{text[:MAX_REASON_LENGTH]}"), flush=True)
        advice = advice_of(verdict, trial.verdicts)
        if advice.cause not in causes:
            print(printable(f"{'':14}usual cause: {advice.cause}"), flush=True)
        if not causes:
            print(printable(f"{'':14}next: {advice.next}"), flush=True)
        causes.append(advice.cause)
    if len(wrong) > MAX_REASONS:
        print(f"    and {len(wrong) - MAX_REASONS} more; see the report", flush=True)


def _dry_run(arguments: argparse.Namespace) -> int:
    """Print what each trial would launch, read and require.

    Raises:
        UsageError: the target has no such description.
    """
    if arguments.resume is not None:
        raise UsageError("--dry-run goes with a new run, not with --resume")
    target = get_target(arguments.target or "reference")
    levels = parse_levels(arguments.level) if arguments.level is not None else None
    if levels is None and not arguments.trial:
        levels = [0]
    target.check_overrides(arguments.overrides)
    if not isinstance(target, DescribesRuns):
        raise UsageError(
            f"--dry-run: the target {target.name} describes no runs; YAML files, nemo-rl and verl do"
        )
    chosen = [
        (trial.level, trial.name)
        for trial in all_trials()
        if (levels is None or trial.level in levels)
        and (not arguments.trial or trial.name in arguments.trial)
    ]
    output = (arguments.output or Path("runs")).absolute() / target.name
    for line in target.dry_run(chosen, output):
        print(line)
    return EXIT_PASS


def _print_whole(results: Results, report: Path) -> None:
    requested = results.requested_trials()
    for trial in requested:
        if trial.state is not TrialState.CONCLUDED:
            print(f"{WORDS[trial.outcome]:<13} level {trial.level} {trial.name}: {trial.state.value}")
    for name, reason in results.left_out.items():
        print(f"{WORDS[Outcome.NOT_REQUESTED]:<13} {name}: {reason}")
    num_others = len(results.trials) - len(requested) - len(results.left_out)
    if num_others:
        print(f"{num_others} trials were not requested")
    environment = "; the environment is the reason, so this is no evidence against the stack"
    print(
        f"{WORDS[results.outcome]} - {results.target}, {results.requested}, seed {results.seed}: "
        f"{_counts(trial.outcome for trial in requested)}"
        + (environment if results.outcome is Outcome.BLOCKED else "")
    )
    print(f"report: {report} (for a browser: {report.with_suffix('.html').name})")


def _counts(outcomes: Iterable[Outcome]) -> str:
    counts = Counter(outcomes)
    return ", ".join(f"{counts[outcome]} {WORDS[outcome]}" for outcome in Outcome if counts[outcome])


def _open(arguments: argparse.Namespace) -> tuple[RunDirectory, Results, Target, Request]:
    """Check the whole request before creating anything."""
    if arguments.resume is not None:
        return _reopen(arguments)
    seed = 0 if arguments.seed is None else arguments.seed
    timeout = DEFAULT_TIMEOUT_SECONDS if arguments.timeout is None else arguments.timeout
    if not 0 <= seed <= MAX_SEED:
        raise UsageError(f"--seed {seed}: give 0 to {MAX_SEED}")
    if not timeout > 0:
        raise UsageError(f"--timeout {timeout:g} is not positive")
    target = get_target(arguments.target or "reference")
    levels = parse_levels(arguments.level) if arguments.level is not None else None
    if levels is None and not arguments.trial:
        levels = [0]
    trials = select_trials(levels, arguments.trial, getattr(target, "trials", None))
    target.check_overrides(arguments.overrides)
    words = [f"level {','.join(map(str, levels))}"] if levels is not None else []
    words += [f"trial {name}" for name in arguments.trial]
    if arguments.shard is not None:
        trials = Shard.parse(arguments.shard).take(trials)
        words.append(f"shard {arguments.shard}")
        if not trials:
            raise UsageError(f"--shard {arguments.shard} has no trial: there are fewer trials than shards")
    trials, left_out = within_budget(trials, target, arguments.budget_gpu_hours)
    if isinstance(target, CheckoutTrials):
        target.requested = [trial.name for trial in trials]
    request = Request(
        trials=trials,
        words=" ".join(words),
        seed=seed,
        overrides=tuple(arguments.overrides),
        timeout_seconds=timeout,
    )
    directory = RunDirectory.create(arguments.output or Path("runs"), target.name)
    results = new_results(directory, target, request, Redactor(os.environ))
    results.left_out = left_out
    return directory, results, target, request


def _reopen(arguments: argparse.Namespace) -> tuple[RunDirectory, Results, Target, Request]:
    """Continue an interrupted run with the request that it was started with."""
    for option in ("target", "level", "seed", "output", "timeout", "shard"):
        if getattr(arguments, option) is not None:
            raise UsageError(
                f"--{option} goes with a new run; --resume continues the request of the earlier run"
            )
    if arguments.trial or arguments.overrides:
        raise UsageError(
            "--trial and key=value go with a new run; --resume continues the request of the earlier run"
        )
    directory, results = RunDirectory.reopen(arguments.resume)
    if any(MARK in word for word in results.overrides):
        directory.close()
        raise UsageError(f"{arguments.resume} was started with a secret among its settings; start a new run")
    target = get_target(results.target)
    target.check_overrides(results.overrides)
    if arguments.budget_gpu_hours is not None:
        for trial in results.trials:
            if trial.name in results.left_out:
                trial.state = TrialState.PENDING
    wanted = {trial.name for trial in results.requested_trials()}
    for trial in results.requested_trials():
        if trial.state is not TrialState.CONCLUDED:
            trial.state = TrialState.PENDING
    request = Request(
        trials=[trial for trial in all_trials() if trial.name in wanted],
        words=results.requested,
        seed=results.seed,
        overrides=tuple(results.overrides),
        timeout_seconds=results.timeout_seconds,
    )
    unknown = wanted - {trial.name for trial in request.trials}
    if unknown:
        directory.close()
        raise UsageError(
            f"{arguments.resume} requests trials that are not known here: {', '.join(sorted(unknown))}"
        )
    _fit_again(arguments.budget_gpu_hours, results, target, request)
    return directory, results, target, request


def _fit_again(budget: float | None, results: Results, target: Target, request: Request) -> None:
    """Leave out what does not fit in the budget of a resumed run."""
    if budget is None:
        return
    open_ones = [trial for trial in results.trials if trial.state is TrialState.PENDING]
    by_name = {trial.name: trial for trial in request.trials}
    _, results.left_out = within_budget([by_name[trial.name] for trial in open_ones], target, budget)
    for trial in open_ones:
        if trial.name in results.left_out:
            trial.state = TrialState.NOT_REQUESTED
