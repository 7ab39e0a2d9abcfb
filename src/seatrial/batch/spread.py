"""Runs the trials of a run as jobs, several at once, and keeps `results.json` true: one writer, this process.

Each job is `seatrial run` of one trial in a folder of its own, as a process group, container, Slurm job or Ray job.
What a job concluded is read from the results that it left; the scheduler's report only explains a missing conclusion.
A job that is lost costs its own trial, and `--resume` runs that one again.
"""

from __future__ import annotations

import os
import sys
import threading
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from dataclasses import dataclass, field
from pathlib import Path

import seatrial
from seatrial.bisect.launchers import Launcher, Local, end_leftover
from seatrial.errors import BlockedError
from seatrial.launch.jobs import Ended, Job, times_requeued
from seatrial.targets.base import Need, Target
from seatrial.trials.base import ShowProgress
from seatrial.trials.needs import VISIBLE, need_of
from seatrial.trials.results import Results, TrialResult, TrialState
from seatrial.trials.rundir import RunDirectory, make_directory, read_results
from seatrial.trials.runner import Request, begin, finish
from seatrial.verdict import Outcome, Verdict

ENDED = "the trial's job ended by itself"
"""Name of the verdict on a job that left no conclusion."""
GRACE_SECONDS = 30.0
"""How long a job may take to stop its own processes and write what it knows."""
LONGEST_SECONDS = 7 * 24 * 3600.0
"""Time limit of a job without a budget; its commands have `--timeout`."""


class _CancelledError(Exception):
    """The run was interrupted; raised in the threads that wait for jobs."""


@dataclass(kw_only=True)
class Spread:
    """Trials of one run as jobs."""

    directory: RunDirectory
    results: Results
    target: Target
    request: Request
    num_jobs: int
    launcher: Launcher = field(default_factory=Local)
    has_budget: bool = False
    """Whether a job is stopped when the time that its trial declares is over."""
    devices: Sequence[str] = ()
    """GPUs of this machine that jobs share without overlap; none where a scheduler assigns them."""
    say: ShowProgress
    concluded: Callable[[TrialResult], None]
    _cancelled: threading.Event = field(default_factory=threading.Event)
    _states: dict[str, str] = field(default_factory=dict)

    def run(self) -> Results:
        """Run every requested trial that has not concluded.

        Raises:
            KeyboardInterrupt: interrupted; all jobs have been stopped and what is known is written.
            BlockedError: `results.json` itself cannot be written.
        """
        begin(self.directory, self.results, self.target, self.say)
        waiting = []
        for result in self.results.requested_trials():
            if result.state is TrialState.CONCLUDED:
                self.concluded(result)
            else:
                waiting.append(result)
        self._end_leftovers()
        running: dict[Future[Ended], tuple[TrialResult, Path, Sequence[str]]] = {}
        free = list(self.devices)
        with ThreadPoolExecutor(max_workers=self.num_jobs) as pool:
            try:
                while waiting or running:
                    self._start(pool, waiting, running, free)
                    self.say(
                        ", ".join(
                            f"{result.name} {self._states.get(result.name, '')}".strip()
                            for result, _, _ in running.values()
                        )
                    )
                    done, _ = wait(running, timeout=0.5, return_when=FIRST_COMPLETED)
                    for future in done:
                        self._take(future, running, free)
            except BaseException:
                self._cancelled.set()
                wait(running)
                for future in list(running):
                    self._take(future, running, free)
                raise
        finish(self.directory, self.results)
        return self.results

    def _end_leftovers(self) -> None:
        """Stop jobs that an earlier process of this run, which was killed, left running."""
        for place in (self.directory.path.absolute() / "jobs").glob("*"):
            if not (place / "exit_status").exists():
                end_leftover(place)

    def _start(
        self,
        pool: ThreadPoolExecutor,
        waiting: list[TrialResult],
        running: dict[Future[Ended], tuple[TrialResult, Path, Sequence[str]]],
        free: list[str],
    ) -> None:
        """Start trials in their order while jobs and devices are free; a smaller trial does not pass a larger one."""
        while waiting and len(running) < self.num_jobs:
            need = self._need(waiting[0])
            # One that needs more than there is gets all there is: its own preflight says what is missing.
            num_wanted = min(need.num_gpus, len(self.devices))
            if num_wanted > len(free):
                return
            result = waiting.pop(0)
            devices, free[:] = free[:num_wanted], free[num_wanted:]
            job, place = self._job(result, need, devices)
            result.state, result.verdicts, result.commands, result.limitations = (
                TrialState.RUNNING,
                [],
                [],
                [],
            )
            self.directory.write_results(self.results)
            running[pool.submit(self.launcher.run, job, self._heartbeat(result.name))] = (
                result,
                place,
                devices,
            )

    def _take(
        self,
        future: Future[Ended],
        running: dict[Future[Ended], tuple[TrialResult, Path, Sequence[str]]],
        free: list[str],
    ) -> None:
        """Gather the result of a job that is over."""
        result, place, devices = running.pop(future)
        free += devices
        self._states.pop(result.name, None)
        try:
            ended = future.result()
        except _CancelledError:
            gather(self.directory.path.absolute(), result, place, "stopped: this run was interrupted")
        except BlockedError as error:
            gather(self.directory.path.absolute(), result, place, str(error))
        else:
            gather(self.directory.path.absolute(), result, place, how_it_ended(ended, self._need(result)))
        self.directory.write_results(self.results)
        self.concluded(result)

    def _need(self, result: TrialResult) -> Need:
        trial = next(trial for trial in self.request.trials if trial.name == result.name)
        return need_of(trial, self.target)

    def _job(self, result: TrialResult, need: Need, devices: Sequence[str]) -> tuple[Job, Path]:
        """Return the job of a trial, and the folder in which it makes its run directory."""
        place = self.directory.path.absolute() / "jobs" / f"{result.level}-{result.name}"
        number = 2
        while place.exists():
            place, number = place.with_name(f"{result.level}-{result.name}-{number}"), number + 1
        make_directory(place)
        argv = [sys.executable, "-m", "seatrial", "run", "--target", self.results.target]
        argv += ["--trial", result.name]
        argv += ["--seed", str(self.request.seed), "--timeout", f"{self.request.timeout_seconds:g}"]
        argv += ["--output", str(place / "run"), *self.request.overrides]
        own = {
            "PYTHONPATH": _with_ours(os.environ),
            "SEATRIAL_RUN_DIR": str(place),
            "SEATRIAL_RUN_TREE": str(Path.cwd()),
        }
        if self.devices:
            own[VISIBLE] = ",".join(devices)
        minutes = need.minutes if self.has_budget else LONGEST_SECONDS / 60
        script = place / "size.sh"
        # What Slurm reads of a job's size; nothing runs this file.
        size = [f"NUM_MINUTES={max(1, round(need.minutes))}"]
        if need.states_gpus and need.num_gpus:
            size.append(f"GPUS_PER_NODE={need.num_gpus}")
        script.write_text("\n".join(["# BEGIN CONFIG", *size, "# END CONFIG", ""]), encoding="utf-8")
        job = Job(
            name=f"seatrial-{self.results.run[:20]}-{place.name}",
            argv=tuple(argv),
            tree=Path.cwd(),
            run_dir=place,
            environment={**os.environ, **own},
            own_variables=tuple(own),
            timeout_seconds=minutes * 60,
            script=script,
            grace_seconds=GRACE_SECONDS,
        )
        return job, place

    def _heartbeat(self, name: str) -> Callable[[str], None]:
        def beat(report: str) -> None:
            self._states[name] = report
            if self._cancelled.is_set():
                raise _CancelledError

        return beat


def gather(directory: Path, result: TrialResult, place: Path, how: str) -> None:
    """Copy what a job concluded on its trial into the result of the run.

    Args:
        directory: the run's folder.
        result: of the trial; changed.
        place: the job's folder.
        how: how the job ended, for a trial without a conclusion.
    """
    found: TrialResult | None = None
    for path in sorted((place / "run").glob("*/results.json")):
        try:
            parts = read_results(path.parent).requested_trials()
        except BlockedError as error:
            how = f"{how}; {error}"
            continue
        found = next((part for part in parts if part.name == result.name), None)
        if found is not None and found.directory is not None:
            found.directory = str((path.parent / found.directory).relative_to(directory))
    if found is not None:
        for name in TrialResult.model_fields:
            setattr(result, name, getattr(found, name))
    if requeued := times_requeued(place):
        times = "once" if requeued == 1 else f"{requeued} times"
        result.limitations.append(
            f"Slurm requeued the job {times} (pre-empted, or its node was lost): the trial began again each time"
        )
    if result.state is TrialState.CONCLUDED:
        return
    result.state = TrialState.INTERRUPTED
    result.verdicts = [
        *result.verdicts,
        Verdict(
            name=ENDED,
            outcome=Outcome.BLOCKED,
            reason=f"{how}; its output is in {(place / 'run.log').relative_to(directory)}; --resume runs it again",
        ),
    ]


def how_it_ended(ended: Ended, need: Need) -> str:
    """Return how a job ended, for a trial without a conclusion."""
    if ended.timed_out:
        limit = f"{need.minutes:g} minutes, which its trial declares"
        return f"time limit: the job was stopped after {limit} ({ended.last_report})"
    if ended.exit_status is None and ended.cause:
        return f"{ended.cause} ({ended.last_report})"
    if ended.exit_status is None:
        return f"lost or killed: the job left no exit status ({ended.last_report})"
    return f"the job ended with exit status {ended.exit_status} and no conclusion ({ended.last_report})"


def _with_ours(environment: Mapping[str, str]) -> str:
    """Return PYTHONPATH with the folder of this `seatrial`, for a job that starts elsewhere."""
    ours = str(Path(seatrial.__file__).resolve().parent.parent)
    return os.pathsep.join([*filter(None, [environment.get("PYTHONPATH")]), ours])
