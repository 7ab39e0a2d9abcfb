"""Slurm: `sbatch` starts a job, `squeue` and `sacct` report when it is over, `scancel` stops it.

Source: the manual pages of sbatch, squeue, sacct and scancel.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

from seatrial.errors import BlockedError
from seatrial.launch.container import Launch
from seatrial.launch.jobs import Ended, Heartbeat, Job, Polled, run_client, wait_for, write_started
from seatrial.launch.script_config import config_of
from seatrial.launch.slurm_ray import RAY_ADDRESS, needs_ray, write_cluster_job

_JOB_ID = re.compile(r"^(\d+)(?:;\S+)?$")
_MOST_SILENT_POLLS = 40


InContainer = Callable[[Job, Sequence[str], Sequence[str]], Launch]
"""Returns the srun command that runs a job's command in a container: (job, options of srun, command)."""

_ONCE = ("--overlap", "--nodes=1", "--ntasks=1")
"""By default srun starts a command on every node of a job."""


@dataclass(frozen=True, kw_only=True)
class Slurm:
    """Runs jobs through sbatch. A job's script sets its size, and the number of jobs of one run."""

    options: Sequence[str] = ()
    """Further sbatch options, after those of the script: `--partition=...`, `--account=...`, `--time=...`."""
    poll_seconds: float = 15.0
    in_container: InContainer | None = None
    ray: bool | None = None
    """Start a Ray cluster over the nodes; None: if the script requests several nodes and starts nothing on them."""

    def run(self, job: Job, heartbeat: Heartbeat) -> Ended:
        """Submit a job and wait until it ends; then submit the next of its chain, up to NUM_RUNS jobs.

        The next job of a chain starts if the one before succeeded or reached its time limit; it continues from the
        checkpoints in the same checkout. The verdict is that of the last job.

        Raises:
            BlockedError: the job cannot be submitted.
        """
        script = job.script.read_text(encoding="utf-8", errors="replace") if job.script is not None else ""
        config = config_of(script)
        num_jobs, seconds = max(1, config.get("NUM_RUNS", 1)), 0.0
        for number in range(1, num_jobs + 1):
            ended = self._run_one(job, script, config, _in_chain(heartbeat, number, num_jobs))
            seconds += ended.seconds
            continues = ended.exit_status == 0 or (ended.exit_status is None and ended.timed_out)
            if number == num_jobs or not continues:
                break
            job.set_aside_status(number)
        return replace(ended, seconds=seconds)

    def _run_one(self, job: Job, script: str, config: Mapping[str, int], heartbeat: Heartbeat) -> Ended:
        identity = self._submit(job, script, config)
        write_started(job.run_dir, launcher="slurm", job=identity)
        watch = _Watch(identity)
        try:
            return wait_for(job, watch.poll, heartbeat, poll_seconds=self.poll_seconds)
        except BaseException:
            cancel(identity)
            raise

    def _submit(self, job: Job, script: str, config: Mapping[str, int]) -> str:
        environment, words = self._inside(job, script, config.get("NUM_NODES", 1))
        minutes = max(1, round(job.timeout_seconds / 60))
        words = [
            "sbatch", "--parsable", f"--job-name={job.name}", f"--output={job.console}", "--open-mode=append",
            f"--chdir={job.tree}", "--export=ALL", f"--time={minutes}", *options_of(config), *self.options, *words,
        ]  # fmt: skip
        done = run_client(words, environment)
        answer = _JOB_ID.match(done.stdout.strip().splitlines()[-1]) if done.stdout.strip() else None
        if done.returncode != 0 or answer is None:
            message = (done.stderr.strip() or done.stdout.strip() or "no message").splitlines()[-1]
            raise BlockedError(f"sbatch did not accept the job: {message}")
        return answer.group(1)

    def _inside(self, job: Job, script: str, num_nodes: int) -> tuple[Mapping[str, str], Sequence[str]]:
        """Return the environment of sbatch, and the batch script with its arguments."""
        command = job.wrapped()
        if self.ray or (self.ray is None and needs_ray(script, num_nodes)):
            job = replace(
                job,
                environment={**job.environment, RAY_ADDRESS: "auto"},
                own_variables=(*job.own_variables, RAY_ADDRESS),
            )
            path = write_cluster_job(
                job.run_dir, num_nodes, lambda options, words: self._step(job, options, words), command
            )
            return self._environment(job), (str(path),)
        path = job.run_dir / "job.sh"
        path.write_text('#!/bin/sh\nexec "$@"\n', encoding="utf-8")
        return self._environment(job), (str(path), *self._once(job, command))

    def _once(self, job: Job, command: Sequence[str]) -> Sequence[str]:
        """Return the command line that runs a command on the first node only, where sbatch starts its script."""
        return command if self.in_container is None else self.in_container(job, _ONCE, command).argv

    def _step(self, job: Job, options: Sequence[str], command: Sequence[str]) -> Sequence[str]:
        if self.in_container is None:
            return ("srun", *options, *command)
        return self.in_container(job, options, command).argv

    def _environment(self, job: Job) -> Mapping[str, str]:
        if self.in_container is None:
            return job.environment
        return self.in_container(job, (), ()).environment


def _in_chain(heartbeat: Heartbeat, number: int, num_jobs: int) -> Heartbeat:
    """Return a heartbeat that adds the job's number in its chain."""
    return heartbeat if num_jobs == 1 else lambda report: heartbeat(f"job {number} of {num_jobs}: {report}")


class _Watch:
    """Polls the state of one job; an outage of the scheduler does not end it."""

    def __init__(self, identity: str) -> None:
        self._identity = identity
        self._silent_polls = 0

    def poll(self) -> Polled:
        """Return the report of squeue, or of sacct once squeue no longer lists the job."""
        try:
            queued = run_client(["squeue", "--noheader", f"--jobs={self._identity}", "--format=%T"])
        except BlockedError as error:
            return self._silent(str(error))
        state = queued.stdout.strip()
        if queued.returncode == 0 and state and not _over(state):
            self._silent_polls = 0
            return Polled(over=False, last_report=f"squeue: {state}")
        if queued.returncode != 0 and "invalid job id" not in queued.stderr.lower():
            return self._silent(f"squeue: {queued.stderr.strip()[:200]}")
        return self._account()

    def _account(self) -> Polled:
        try:
            words = ["sacct", "--noheader", "--parsable2", "--allocations", f"--jobs={self._identity}"]
            done = run_client([*words, "--format=State,ExitCode"])
        except BlockedError as error:
            return self._silent(str(error))
        line = done.stdout.strip().splitlines()[0] if done.stdout.strip() else ""
        if done.returncode != 0 or not line:
            return self._silent(f"sacct: {done.stderr.strip()[:200] or 'does not know the job'}")
        state = line.split("|")[0]
        if not _over(state):
            return Polled(over=False, last_report=f"sacct: {line}")
        return Polled(over=True, last_report=f"sacct: {line}", timed_out=state.startswith("TIMEOUT"))

    def _silent(self, report: str) -> Polled:
        """Count polls without an answer; after many of them the job counts as over with an unknown end."""
        self._silent_polls += 1
        return Polled(
            over=self._silent_polls > _MOST_SILENT_POLLS, last_report=f"{report} ({self._silent_polls} polls)"
        )


def _over(state: str) -> bool:
    return state.split()[0].rstrip("+") not in {
        "PENDING", "RUNNING", "SUSPENDED", "REQUEUED", "REQUEUE_HOLD", "REQUEUE_FED", "RESIZING", "CONFIGURING",
        "COMPLETING", "STAGE_OUT", "SIGNALING", "SPECIAL_EXIT", "STOPPED", "RESV_DEL_HOLD",
    }  # fmt: skip


def cancel(identity: str) -> None:
    """Cancel a job that we submitted, by its number."""
    try:
        run_client(["scancel", identity])
    except BlockedError:
        return


_OPTIONS = {
    "NUM_NODES": "--nodes={}",
    "GPUS_PER_NODE": "--gres=gpu:{}",
    "NUM_MINUTES": "--time={}",
    "SEGMENT_SIZE": "--segment={}",
}


def options_of(config: Mapping[str, int]) -> list[str]:
    """Return the sbatch options for the size that a script sets."""
    return [_OPTIONS[name].format(value) for name, value in config.items() if name in _OPTIONS]
