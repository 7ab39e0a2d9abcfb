"""Options of `seatrial run` for several trials at once: jobs, launcher, budget, shard."""

from __future__ import annotations

import argparse
import os
from collections.abc import Callable, Sequence

from seatrial.batch.spread import Spread
from seatrial.bisect.launchers import NAMES, Launcher, make_launcher
from seatrial.errors import UsageError
from seatrial.targets.base import Target
from seatrial.trials.base import ShowProgress, Trial
from seatrial.trials.needs import fitting, need_of, visible_devices
from seatrial.trials.results import Results, TrialResult
from seatrial.trials.rundir import RunDirectory
from seatrial.trials.runner import Request


def add_spreading(parser: argparse.ArgumentParser) -> None:
    """Declare the options."""
    parser.add_argument(
        "--jobs",
        type=int,
        metavar="N",
        help="run N trials at once, each as a job of its own (default: one by one)",
    )
    parser.add_argument(
        "--launcher",
        choices=NAMES,
        help="where the jobs run; slurm and ray need a file system that all machines share (default: local)",
    )
    parser.add_argument(
        "--launch-option",
        action="append",
        default=[],
        metavar="OPTION",
        help="for the launcher: an option of sbatch or the engine, or address=, image=, mount=; may be repeated",
    )
    parser.add_argument(
        "--budget-gpu-hours",
        type=float,
        metavar="H",
        help="leave out the trials that do not fit, by GPUs times minutes that each declares, and stop those that take "
        "longer",
    )
    parser.add_argument("--shard", metavar="I/N", help="run every N-th of the trials, from the I-th")


def check_spreading(arguments: argparse.Namespace) -> None:
    """Check the options before anything is created.

    Raises:
        UsageError: a value is wrong, or two do not go together.
    """
    if arguments.jobs is not None and arguments.jobs < 1:
        raise UsageError(f"--jobs {arguments.jobs}: give at least 1")
    if arguments.budget_gpu_hours is not None and not arguments.budget_gpu_hours > 0:
        raise UsageError(
            f"--budget-gpu-hours {arguments.budget_gpu_hours:g}: give a positive number of hours"
        )
    if arguments.launch_option and arguments.launcher in (None, "local"):
        raise UsageError("--launch-option goes with --launcher container, slurm or ray")


def within_budget(
    trials: Sequence[Trial], target: Target, budget: float | None
) -> tuple[list[Trial], dict[str, str]]:
    """Return the trials that fit in a budget, and the reason for each of the others by its name.

    Raises:
        UsageError: none fits.
    """
    if budget is None:
        return list(trials), {}
    needs = {trial.name: need_of(trial, target) for trial in trials}
    chosen = fitting(needs, budget)
    left_out = {
        name: f"needs {need.gpu_hours:g} GPU hours ({need.num_gpus} GPUs for {need.minutes:g} minutes), which do "
        f"not fit in the budget of {budget:g} with the trials before it"
        for name, need in needs.items()
        if name not in chosen
    }
    if not chosen and left_out:
        name, reason = next(iter(left_out.items()))
        raise UsageError(f"--budget-gpu-hours {budget:g}: no trial fits: {name} {reason}")
    return [trial for trial in trials if trial.name in chosen], left_out


def launcher_of(arguments: argparse.Namespace) -> Launcher | None:
    """Return what starts the jobs; None if the trials run in this process, one after the other.

    Raises:
        UsageError: the launcher needs a setting that is missing.
        BlockedError: its container engine is not available.
    """
    name = arguments.launcher or "local"
    if arguments.jobs is None and name == "local" and arguments.budget_gpu_hours is None:
        return None
    return make_launcher(name, options=arguments.launch_option, environment=os.environ, poll_seconds=None)


def spread(
    arguments: argparse.Namespace,
    launcher: Launcher,
    directory: RunDirectory,
    results: Results,
    target: Target,
    request: Request,
    say: ShowProgress,
    concluded: Callable[[TrialResult], None],
) -> None:
    """Run the trials as jobs."""
    # Slurm and Ray assign the devices of their machines, and queue what does not fit on them.
    is_here = arguments.launcher in (None, "local", "container")
    Spread(
        directory=directory,
        results=results,
        target=target,
        request=request,
        num_jobs=arguments.jobs or (1 if is_here else max(1, len(request.trials))),
        launcher=launcher,
        has_budget=arguments.budget_gpu_hours is not None,
        devices=visible_devices(os.environ) if is_here else (),
        say=say,
        concluded=concluded,
    ).run()
