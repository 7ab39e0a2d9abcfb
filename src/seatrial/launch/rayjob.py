"""Ray jobs: `ray job submit|status|stop`. Only jobs that we submitted are stopped, by their id.

Source: the reference of Ray's job submission command line.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Sequence
from dataclasses import dataclass

import yaml

from seatrial.errors import BlockedError
from seatrial.launch.jobs import Ended, Heartbeat, Job, Polled, run_client, wait_for, write_started

_STATE = re.compile(r"\b(PENDING|RUNNING|STOPPED|SUCCEEDED|FAILED)\b", re.IGNORECASE)
_MOST_SILENT_POLLS = 40


@dataclass(frozen=True, kw_only=True)
class RayJobs:
    """Runs jobs on a Ray cluster; the cluster must share the file system of the run directories."""

    address: str
    poll_seconds: float = 5.0
    options: Sequence[str] = ()
    """Further options of `ray job submit`: with `--entrypoint-num-cpus=1` a job may start on any node."""

    def run(self, job: Job, heartbeat: Heartbeat) -> Ended:
        """Submit a job and wait until it ends.

        Raises:
            BlockedError: the job cannot be submitted.
        """
        identity = job.name
        runtime = job.run_dir / "runtime_env.yaml"
        variables = {name: job.environment[name] for name in job.own_variables if name in job.environment}
        runtime.touch(mode=0o600)
        runtime.write_text(yaml.safe_dump({"env_vars": variables}), encoding="utf-8")
        # Ray joins the words of an entry point by its own rules; a script keeps them unchanged.
        script = job.run_dir / "job.sh"
        script.write_text(f"#!/bin/sh\nexec {shlex.join(job.wrapped())}\n", encoding="utf-8")
        words = [
            "ray",
            "job",
            "submit",
            f"--address={self.address}",
            f"--submission-id={identity}",
            "--no-wait",
            *self.options,
        ]
        done = run_client([*words, f"--runtime-env={runtime}", "--", "/bin/sh", str(script)], job.environment)
        if done.returncode != 0:
            message = (done.stderr.strip() or done.stdout.strip() or "no message").splitlines()[-1]
            raise BlockedError(f"ray did not accept the job: {message}")
        write_started(job.run_dir, launcher="ray", job=identity, address=self.address)
        silent = 0

        def poll() -> Polled:
            nonlocal silent
            try:
                answer = run_client(["ray", "job", "status", f"--address={self.address}", identity])
                states = _STATE.findall(answer.stdout.replace(identity, ""))
                report = f"ray job status: {states[0].upper() if states else answer.stderr.strip()[-200:]}"
            except BlockedError as error:
                states, report = [], str(error)
            if not states:
                silent += 1
                return Polled(over=silent > _MOST_SILENT_POLLS, last_report=report)
            silent = 0
            return Polled(over=states[0].upper() in {"STOPPED", "SUCCEEDED", "FAILED"}, last_report=report)

        try:
            ended = wait_for(
                job, poll, heartbeat, poll_seconds=self.poll_seconds, limit_seconds=job.timeout_seconds
            )
        except BaseException:
            stop(identity, self.address)
            raise
        if ended.timed_out:
            stop(identity, self.address)
        self._keep_console(job, identity)
        return ended

    def _keep_console(self, job: Job, identity: str) -> None:
        try:
            logs = run_client(["ray", "job", "logs", f"--address={self.address}", identity])
        except BlockedError:
            return
        job.console.write_text(logs.stdout, encoding="utf-8")


def stop(identity: str, address: str) -> None:
    """Stop a job that we submitted, by its id."""
    try:
        run_client(["ray", "job", "stop", f"--address={address}", identity])
    except BlockedError:
        return
