"""Slurm: `sbatch` starts a job, `squeue`, `sacct` or `scontrol` report when it is over, `scancel` stops it.

A job's size is read from its test script, between `BEGIN CONFIG` and `END CONFIG`. The script is not run. Supported are
`NAME=number`, `NAME=${NAME:-number}` and `NAME=$(( arithmetic ))` over names set before, which is what the suites use;
the caller's environment is ignored.

A job of several nodes may get a Ray cluster: a head on the first node, a worker on each other node, the command once.
The steps synchronise through files in the run's directory, which all nodes share. Nothing waits for a port: `ray start`
returns when its node has joined.

Source: the manual pages of sbatch, srun, squeue, sacct and scancel, and the reference of `ray start`.
"""

from __future__ import annotations

import ast
import operator
import re
import shlex
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from seatrial.errors import BlockedError
from seatrial.launch.container import Launch
from seatrial.launch.jobs import Ended, Heartbeat, Job, Polled, run_client, wait_for, write_started

SIZES = ("NUM_NODES", "GPUS_PER_NODE", "NUM_MINUTES", "NUM_RUNS", "SEGMENT_SIZE")
"""Names that decide how a job is submitted; other names may have any value."""
_ASSIGNMENT = re.compile(r"^\s*(?:export\s+)?(\w+)=(.*)$")
_DEFAULT = re.compile(r"\$\{\w+:-(\d+)\}")
_NAME = re.compile(r"\$\{?(\w+)\}?")
_OPERATORS = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: operator.floordiv,
    ast.Mod: operator.mod,
}


def config_of(text: str) -> dict[str, int]:
    """Return the integers that the CONFIG block of a script sets, by name.

    Raises:
        BlockedError: one of `SIZES` has a value that cannot be read without running the script.
    """
    found: dict[str, int] = {}
    inside = False
    for line in text.splitlines():
        if "BEGIN CONFIG" in line:
            inside = True
        elif "END CONFIG" in line:
            inside = False
        elif inside and (assignment := _ASSIGNMENT.match(line)) is not None:
            name, written = assignment[1], _without_comment(assignment[2])
            value = _value(written, found)
            if value is not None:
                found[name] = value
            elif name in SIZES:
                raise BlockedError(
                    f"the test script sets {name}={written}, which cannot be read without running it; "
                    "write a number there (SED_CLAUSES can)"
                )
    return found


def _without_comment(written: str) -> str:
    return re.sub(r"(^|\s)#.*$", "", written).strip().strip("\"'")


def _value(written: str, known: Mapping[str, int]) -> int | None:
    """Return the integer value of a shell word, or None."""
    text = _DEFAULT.sub(r"\1", written)
    if arithmetic := re.fullmatch(r"\$\(\((.*)\)\)", text):
        try:
            return _arithmetic(ast.parse(_NAME.sub(r"\1", arithmetic[1].strip()), mode="eval").body, known)
        except (SyntaxError, KeyError, ZeroDivisionError):
            return None
    if named := _NAME.fullmatch(text):
        return known.get(named[1])
    return int(text) if re.fullmatch(r"\d+", text) else None


def _arithmetic(node: ast.expr, known: Mapping[str, int]) -> int:
    """Compute the shell's result, for positive numbers.

    Raises:
        KeyError: an unknown name or operation.
    """
    if isinstance(node, ast.Constant) and type(node.value) is int:
        return node.value
    if isinstance(node, ast.Name):
        return known[node.id]
    if isinstance(node, ast.BinOp):
        operation = _OPERATORS[type(node.op)]
        return int(operation(_arithmetic(node.left, known), _arithmetic(node.right, known)))
    raise KeyError(type(node).__name__)


RAY_ADDRESS = "RAY_ADDRESS"
MOST_SECONDS_TO_START = 900
_OWN_CLUSTER = re.compile(r"^[^#\n]*\b(?:srun|ray\s+start)\b", re.MULTILINE)

_ON_HEAD, _NOT_ON_HEAD = '--nodelist="$head"', '--exclude="$head"'

_NODE = """\
#!/bin/sh
# One node of the cluster: joins, reports it, and stays until the command has ended.
rank="{rank}"
if ! command -v ray > /dev/null; then echo "a node has no ray" >> "$SEATRIAL_RUN_DIR/ray/failed"; exit 1; fi
ray start {words} || {{ echo "ray start on a node ended with $?" >> "$SEATRIAL_RUN_DIR/ray/failed"; exit 1; }}
: > "$SEATRIAL_RUN_DIR/ray/node-$rank"
while [ ! -e "$SEATRIAL_RUN_DIR/ray/stop" ]; do sleep 1; done
"""

_JOB = """\
#!/bin/sh
# Starts a Ray cluster over the nodes of this job, runs the command once on the first, and stops the cluster.
head="${{SLURMD_NODENAME:-$(hostname)}}"
port=$((20000 + SLURM_JOB_ID % 10000))
export RAY_ADDRESS="$head:$port"
ready="$SEATRIAL_RUN_DIR/ray"
rm -rf "$ready"
mkdir -p "$ready"
{{ {head} || echo "srun ended with $?" >> "$ready/failed"; }} &
{{ {workers} || echo "srun ended with $?" >> "$ready/failed"; }} &
waited=0
while [ "$(ls "$ready" | grep -c '^node-')" -lt {nodes} ]; do
    if [ -s "$ready/failed" ]; then
        echo "seatrial: no Ray cluster: $(head -n 1 "$ready/failed"); without --launch-option ray=no a job of several" \
            "nodes gets one"
        : > "$ready/stop"
        exit 1
    fi
    if [ "$waited" -ge {seconds} ]; then
        echo "seatrial: the Ray cluster did not come up: $(ls "$ready" | grep -c '^node-') of {nodes} nodes joined"
        : > "$ready/stop"
        exit 1
    fi
    waited=$((waited + 1))
    sleep 1
done
{driver}
status=$?
: > "$ready/stop"
wait
exit "$status"
"""

Step = Callable[[Sequence[str], Sequence[str]], Sequence[str]]
"""Returns the srun command line of one step: (options of srun, command)."""


def needs_ray(script: str, num_nodes: int) -> bool:
    """Return whether a script expects a cluster from its launcher: it has several nodes and starts nothing on them."""
    return num_nodes > 1 and _OWN_CLUSTER.search(script) is None


def write_cluster_job(run_dir: Path, num_nodes: int, step: Step, command: Sequence[str]) -> Path:
    """Write the batch script that starts the cluster and runs the command on it; return its path.

    Args:
        run_dir: of this run, shared by the nodes.
        num_nodes: of the job, at least 1.
        step: makes the command line of a step.
        command: runs once, on the first node, with RAY_ADDRESS set.
    """
    head, worker = run_dir / "ray_head.sh", run_dir / "ray_worker.sh"
    head.write_text(
        _NODE.format(rank=0, words='--head --port="${RAY_ADDRESS##*:}" --disable-usage-stats'),
        encoding="utf-8",
    )
    worker.write_text(
        _NODE.format(rank="$((SLURM_PROCID + 1))", words='--address="$RAY_ADDRESS" --disable-usage-stats'),
        encoding="utf-8",
    )
    others = num_nodes - 1
    on_head = ("--overlap", "--nodes=1", "--ntasks=1", _ON_HEAD)
    elsewhere = ("--overlap", f"--nodes={others}", f"--ntasks={others}", "--ntasks-per-node=1", _NOT_ON_HEAD)
    text = _JOB.format(
        head=_line(step(on_head, ("/bin/sh", str(head)))),
        workers=_line(step(elsewhere, ("/bin/sh", str(worker)))) if others else ":",
        driver=_line(step(on_head, command)),
        nodes=num_nodes,
        seconds=MOST_SECONDS_TO_START,
    )
    path = run_dir / "ray_job.sh"
    path.write_text(text, encoding="utf-8")
    return path


def _line(words: Sequence[str]) -> str:
    """Return words as a shell line; the name of the first node is known only in the job."""
    return " ".join(word if word in (_ON_HEAD, _NOT_ON_HEAD) else shlex.quote(word) for word in words)


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
            return self._controller() or self._silent(str(error))
        line = done.stdout.strip().splitlines()[0] if done.stdout.strip() else ""
        if done.returncode != 0 or not line:
            said = f"sacct: {done.stderr.strip()[:200] or 'does not know the job'}"
            return self._controller() or self._silent(said)
        state = line.split("|")[0]
        if not _over(state):
            return Polled(over=False, last_report=f"sacct: {line}")
        return end_of(state, f"sacct: {line}")

    def _controller(self) -> Polled | None:
        """Return the end of a job that the controller still knows, for sites without accounting; else None."""
        try:
            done = run_client(["scontrol", "show", "job", "--oneliner", self._identity])
        except BlockedError:
            return None
        state = re.search(r"\bJobState=(\S+)", done.stdout)
        if done.returncode != 0 or state is None or not _over(state[1]):
            return None
        return end_of(state[1], f"scontrol: {state[1]}")

    def _silent(self, report: str) -> Polled:
        """Count polls without an answer; after many of them the job counts as over with an unknown end."""
        self._silent_polls += 1
        return Polled(
            over=self._silent_polls > _MOST_SILENT_POLLS, last_report=f"{report} ({self._silent_polls} polls)"
        )


CAUSES = {
    "PREEMPTED": "pre-empted: a job of higher priority took its place",
    "NODE_FAIL": "node lost: Slurm lost the node of the job",
    "BOOT_FAIL": "node lost: the node of the job did not start",
    "OUT_OF_MEMORY": "out of memory: Slurm ended the job, which needs more (--launch-option=--mem=...)",
}
"""States of a job that Slurm ended, in words."""


def end_of(state: str, report: str) -> Polled:
    """Return the end of a job in a state of `sacct` or `scontrol`."""
    word = state.split()[0].rstrip("+")
    return Polled(
        over=True, last_report=report, timed_out=word in ("TIMEOUT", "DEADLINE"), cause=CAUSES.get(word, "")
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
