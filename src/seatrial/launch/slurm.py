"""Slurm: `sbatch` starts a job, `squeue` and `sacct` tell when waiting is over, `scancel` ends what we started.

Source: the manual pages of sbatch, squeue, sacct and scancel.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from seatrial.errors import BlockedError
from seatrial.launch.jobs import Ended, Heartbeat, Job, Polled, speak, wait_for, write_started

_JOB_ID = re.compile(r"^(\d+)(?:;\S+)?$")
_MOST_SILENT_POLLS = 40


@dataclass(frozen=True, kw_only=True)
class Slurm:
    """Runs jobs through sbatch."""

    options: Sequence[str] = ()
    """Further sbatch options: `--partition=...`, `--account=...`, `--nodes=...`, `--gres=...`."""
    poll_seconds: float = 15.0
    wrap: Callable[[Job], Sequence[str]] = Job.wrapped
    """Returns the command line inside the job; a container's goes here."""

    def run(self, job: Job, heartbeat: Heartbeat) -> Ended:
        """Submit a job and wait for its end.

        Raises:
            BlockedError: it cannot be submitted.
        """
        identity = self._submit(job)
        write_started(job.run_dir, launcher="slurm", job=identity)
        watch = _Watch(identity)
        try:
            return wait_for(job, watch.poll, heartbeat, poll_seconds=self.poll_seconds)
        except BaseException:
            cancel(identity)
            raise

    def _submit(self, job: Job) -> str:
        wrapped = self.wrap(job)
        script = job.run_dir / "job.sh"
        script.write_text('#!/bin/sh\nexec "$@"\n', encoding="utf-8")
        minutes = max(1, round(job.timeout_seconds / 60))
        words = [
            "sbatch",
            "--parsable",
            f"--job-name={job.name}",
            f"--output={job.console}",
            f"--chdir={job.tree}",
        ]
        words += ["--export=ALL", f"--time={minutes}", *self.options, str(script), *wrapped]
        done = speak(words, job.environment)
        answer = _JOB_ID.match(done.stdout.strip().splitlines()[-1]) if done.stdout.strip() else None
        if done.returncode != 0 or answer is None:
            said = (done.stderr.strip() or done.stdout.strip() or "no message").splitlines()[-1]
            raise BlockedError(f"sbatch did not take the job: {said}")
        return answer.group(1)


class _Watch:
    """Asks for the state of one job; an outage of the scheduler is not an end."""

    def __init__(self, identity: str) -> None:
        self._identity = identity
        self._silent_polls = 0

    def poll(self) -> Polled:
        """Return what squeue, and once it has forgotten the job sacct, say."""
        try:
            queued = speak(["squeue", "--noheader", f"--jobs={self._identity}", "--format=%T"])
        except BlockedError as error:
            return self._silent(str(error))
        state = queued.stdout.strip()
        if queued.returncode == 0 and state and not _over(state):
            self._silent_polls = 0
            return Polled(over=False, told=f"squeue: {state}")
        if queued.returncode != 0 and "invalid job id" not in queued.stderr.lower():
            return self._silent(f"squeue: {queued.stderr.strip()[:200]}")
        return self._account()

    def _account(self) -> Polled:
        try:
            done = speak(
                [
                    "sacct",
                    "--noheader",
                    "--parsable2",
                    "--allocations",
                    f"--jobs={self._identity}",
                    "--format=State,ExitCode",
                ]
            )
        except BlockedError as error:
            return self._silent(str(error))
        line = done.stdout.strip().splitlines()[0] if done.stdout.strip() else ""
        if done.returncode != 0 or not line:
            return self._silent(f"sacct: {done.stderr.strip()[:200] or 'does not know the job'}")
        state = line.split("|")[0]
        if not _over(state):
            return Polled(over=False, told=f"sacct: {line}")
        return Polled(over=True, told=f"sacct: {line}", timed_out=state.startswith("TIMEOUT"))

    def _silent(self, told: str) -> Polled:
        """Count polls without an answer; after many the job's end is taken as unknown."""
        self._silent_polls += 1
        return Polled(
            over=self._silent_polls > _MOST_SILENT_POLLS, told=f"{told} ({self._silent_polls} polls)"
        )


def _over(state: str) -> bool:
    return state.split()[0].rstrip("+") not in {
        "PENDING", "RUNNING", "SUSPENDED", "REQUEUED", "REQUEUE_HOLD", "REQUEUE_FED", "RESIZING", "CONFIGURING",
        "COMPLETING", "STAGE_OUT", "SIGNALING", "SPECIAL_EXIT", "STOPPED", "RESV_DEL_HOLD",
    }  # fmt: skip


def cancel(identity: str) -> None:
    """End a job that we submitted, by its number."""
    try:
        speak(["scancel", identity])
    except BlockedError:
        return


CONFIG_KEYS = {"NUM_NODES": "--nodes={}", "GPUS_PER_NODE": "--gres=gpu:{}", "NUM_MINUTES": "--time={}"}


def options_of_script(text: str) -> list[str]:
    """Return the sbatch options that a nightly script asks for between `BEGIN CONFIG` and `END CONFIG`.

    Only plain `NAME=number` lines are read; nothing is run.
    """
    found: dict[str, str] = {}
    inside = False
    for line in text.splitlines():
        if "BEGIN CONFIG" in line:
            inside = True
        elif "END CONFIG" in line:
            inside = False
        elif inside and (plain := re.match(r"^\s*(\w+)=(\d+)\s*(?:#.*)?$", line)) and plain[1] in CONFIG_KEYS:
            found[plain[1]] = CONFIG_KEYS[plain[1]].format(plain[2])
    return list(found.values())
