"""STAND-INS for sbatch, srun, squeue, sacct, scancel, docker and ray: not the real programs.

They read the same arguments and print in the same form, refuse options that the real ones do not have, and run
the work on this machine. `STAND_IN_DIR` holds their jobs; `STAND_IN_FAULT` makes them misbehave as sites do:

* never-starts: the job is taken, vanishes from the queue, and accounting calls it COMPLETED
* preempted-once: the first job of each commit is PREEMPTED
* outage: every other question to squeue fails
* no-accounting: sacct knows nothing
* refuses: sbatch does not take jobs
* late: each job is PENDING until it has been asked for three times

A job that leaves `over-time` in its run's directory and dies is said to have reached its time limit. srun runs a
command once for each task, as the real one does: on every node of the job unless it is told otherwise.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import NoReturn

JOBS = Path(os.environ.get("STAND_IN_DIR", "/nonexistent"))
FAULT = os.environ.get("STAND_IN_FAULT", "")


def fail(message: str, status: int = 1) -> NoReturn:
    print(message, file=sys.stderr)
    raise SystemExit(status)


class Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        fail(f"{self.prog}: unrecognized option ({message})")


def sbatch(words: list[str]) -> None:
    parser = Parser("sbatch", allow_abbrev=False)
    parser.add_argument("--parsable", action="store_true", required=True)
    for name in (
        "job-name",
        "output",
        "chdir",
        "export",
        "time",
        "nodes",
        "gres",
        "account",
        "partition",
        "qos",
        "open-mode",
        "segment",
    ):
        parser.add_argument(f"--{name}")
    parser.add_argument("script")
    parser.add_argument("arguments", nargs=argparse.REMAINDER)
    asked = parser.parse_args(words)
    if not asked.account or not asked.partition:
        fail(
            "sbatch: error: Batch job submission failed: Invalid account or account/partition combination specified"
        )
    if FAULT == "refuses":
        fail("sbatch: error: Batch job submission failed: Job violates accounting/QOS policy")
    JOBS.mkdir(exist_ok=True)
    number = 1001 + len(list(JOBS.glob("*.json")))
    state = {"state": "RUNNING", "options": words}
    first = not (JOBS / f"seen-{os.environ['SEATRIAL_RUN_COMMIT']}").exists()
    (JOBS / f"seen-{os.environ['SEATRIAL_RUN_COMMIT']}").touch()
    if FAULT == "never-starts":
        state["state"] = "COMPLETED"
    elif FAULT == "preempted-once" and first:
        state["state"] = "PREEMPTED"
    else:
        inside = {"SLURM_JOB_ID": str(number), "SLURM_NNODES": asked.nodes or "1", "SLURMD_NODENAME": "node0"}
        with Path(asked.output).open("ab" if asked.open_mode == "append" else "wb") as output:
            process = subprocess.Popen(
                ["/bin/sh", asked.script, *asked.arguments],
                cwd=asked.chdir, stdout=output, stderr=output, stdin=subprocess.DEVNULL, start_new_session=True,
                env={**os.environ, **inside},
            )  # fmt: skip
        state["pid"] = process.pid
        state["run_dir"] = os.environ["SEATRIAL_RUN_DIR"]
        state["asked"] = 0
    (JOBS / f"{number}.json").write_text(json.dumps(state))
    print(f"{number};stand-in")


def _job(words: list[str], parser: argparse.ArgumentParser) -> dict[str, object]:
    asked = parser.parse_args(words)
    path = JOBS / f"{asked.jobs}.json"
    if not path.exists():
        fail("slurm_load_jobs error: Invalid job id specified")
    job = json.loads(path.read_text())
    if job["state"] == "RUNNING" and not _alive(job["pid"]):
        # The real state comes from the exit status; here it is always COMPLETED, to show that nobody believes it.
        over_time = Path(job["run_dir"], "over-time")
        job["state"] = "TIMEOUT" if over_time.exists() else "COMPLETED"
        over_time.unlink(missing_ok=True)
        path.write_text(json.dumps(job))
    return dict(job)


def srun(words: list[str]) -> None:
    parser = Parser("srun", allow_abbrev=False)
    for name in ("overlap", "no-container-mount-home"):
        parser.add_argument(f"--{name}", action="store_true")
    for name in ("nodes", "ntasks", "ntasks-per-node"):
        parser.add_argument(f"--{name}", type=int)
    for name in ("nodelist", "exclude", "export", "container-image", "container-mounts", "container-env"):
        parser.add_argument(f"--{name}")
    parser.add_argument("--container-workdir")
    parser.add_argument("command", nargs=argparse.REMAINDER)
    asked = parser.parse_args(words)
    inside = dict(os.environ)
    if asked.export:
        kept = {"PATH", "STAND_IN_DIR", "SLURM_JOB_ID", *asked.export.split(",")}
        inside = {name: value for name, value in os.environ.items() if name in kept}
    if asked.container_image:
        mounts = [Path(text.split(":")[1]) for text in asked.container_mounts.split(",")]
        if not any(Path(asked.container_workdir).is_relative_to(path) for path in mounts):
            fail("pyxis: couldn't start container: the working directory is not mounted")
        with (JOBS / f"mounts-{os.environ['SLURM_JOB_ID']}").open("a") as stream:
            stream.write(asked.container_mounts + "\n")
        os.chdir(asked.container_workdir)
    number = asked.ntasks or asked.nodes or int(os.environ["SLURM_NNODES"])
    first = 0 if asked.nodelist else 1
    tasks = [
        subprocess.Popen(
            asked.command,
            env={**inside, "SLURM_PROCID": str(rank), "STAND_IN_NODE": f"node{first + rank}"},
        )
        for rank in range(number)
    ]
    raise SystemExit(max(abs(task.wait()) for task in tasks))


def _alive(pid: int) -> bool:
    try:
        stat = Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return False
    return stat.rsplit(")", 1)[1].split()[0] != "Z"


def squeue(words: list[str]) -> None:
    parser = Parser("squeue", allow_abbrev=False)
    parser.add_argument("--noheader", action="store_true", required=True)
    parser.add_argument("--jobs", required=True)
    parser.add_argument("--format", choices=["%T"], required=True)
    if FAULT == "outage":
        flag = JOBS / "outage"
        if not flag.exists():
            flag.touch()
            fail("slurm_load_jobs error: Unable to contact slurm controller (connect failure)")
        flag.unlink()
    job = _job(words, parser)
    if FAULT == "late" and job["state"] == "RUNNING" and job["asked"] < 3:
        number = words[[word.startswith("--jobs") for word in words].index(True)].partition("=")[2]
        (JOBS / f"{number}.json").write_text(json.dumps({**job, "asked": job["asked"] + 1}))
        print("PENDING")
        return
    if job["state"] != "RUNNING":
        fail("slurm_load_jobs error: Invalid job id specified")
    print(job["state"])


def sacct(words: list[str]) -> None:
    parser = Parser("sacct", allow_abbrev=False)
    for name in ("noheader", "parsable2", "allocations"):
        parser.add_argument(f"--{name}", action="store_true", required=True)
    parser.add_argument("--jobs", required=True)
    parser.add_argument("--format", choices=["State,ExitCode"], required=True)
    if FAULT != "no-accounting":
        print(f"{_job(words, parser)['state']}|0:0")


def scancel(words: list[str]) -> None:
    (number,) = words
    path = JOBS / f"{number}.json"
    job = json.loads(path.read_text())
    if job["state"] == "RUNNING" and _alive(job["pid"]):
        os.killpg(job["pid"], signal.SIGKILL)
    path.write_text(json.dumps({**job, "state": "CANCELLED"}))


def docker(words: list[str]) -> None:
    command, *rest = words
    if command == "version":
        print("27.0.0-stand-in")
    elif command == "rm":
        if rest[:1] != ["--force"]:
            fail("unknown flag")
    elif command == "run":
        _docker_run(rest)
    else:
        fail(f"docker: '{command}' is not a docker command.")


def _docker_run(words: list[str]) -> None:
    parser = Parser("docker", allow_abbrev=False)
    for name in ("rm", "init"):
        parser.add_argument(f"--{name}", action="store_true")
    for name in ("network", "shm-size", "workdir", "user", "name", "gpus"):
        parser.add_argument(f"--{name}")
    parser.add_argument("--volume", action="append", default=[])
    parser.add_argument("--env", action="append", default=[])
    parser.add_argument("image")
    parser.add_argument("command", nargs=argparse.REMAINDER)
    asked = parser.parse_args(words)
    if FAULT == "refuses":
        fail("docker: Error response from daemon: No such image.", 125)
    seen = [Path(volume.split(":")[1]) for volume in asked.volume]
    if not any(Path(asked.workdir).is_relative_to(path) for path in seen):
        fail("docker: Error response from daemon: the working directory is not mounted.", 125)
    inside = {"PATH": "/usr/local/bin:/usr/bin:/bin"}
    for item in asked.env:
        name, separator, value = item.partition("=")
        if separator or name in os.environ:
            inside[name] = value if separator else os.environ[name]
    JOBS.mkdir(exist_ok=True)
    (JOBS / f"container-{asked.name}").write_text(asked.image)
    os.chdir(asked.workdir)
    os.execve(asked.command[0], asked.command, inside)


def ray(words: list[str]) -> None:
    if words[:1] == ["start"]:
        _ray_start(words[1:])
        return
    if words[:1] != ["job"]:
        fail(f"Error: No such command '{words[0]}'.", 2)
    verb, *rest = words[1:]
    parser = Parser("ray", allow_abbrev=False)
    parser.add_argument("--address", required=True)
    if verb == "submit":
        parser.add_argument("--submission-id", required=True)
        parser.add_argument("--no-wait", action="store_true", required=True)
        parser.add_argument("--runtime-env", required=True)
        parser.add_argument("entrypoint", nargs="*")
    else:
        parser.add_argument("job")
    asked = parser.parse_args(rest)
    name = asked.submission_id if verb == "submit" else asked.job
    path = JOBS / f"{name}.json"
    print(f"Job submission server address: {asked.address}")
    if verb == "submit":
        _ray_submit(asked, path)
        return
    job = json.loads(path.read_text())
    if verb == "status":
        alive = _alive(job["pid"])
        print(f"Status for job '{name}': RUNNING" if alive else f"Job '{name}' succeeded")
    elif verb == "logs":
        print((JOBS / f"{name}.log").read_text())
    elif verb == "stop":
        if _alive(job["pid"]):
            os.killpg(job["pid"], signal.SIGKILL)
        print(f"Job '{name}' was stopped")


def _ray_start(words: list[str]) -> None:
    """Join a cluster: a line in the file of its address."""
    parser = Parser("ray", allow_abbrev=False)
    for name in ("head", "disable-usage-stats"):
        parser.add_argument(f"--{name}", action="store_true")
    for name in ("port", "address"):
        parser.add_argument(f"--{name}")
    asked = parser.parse_args(words)
    if bool(asked.head) == bool(asked.address):
        fail("Error: a node is the head, or joins one.", 2)
    port = asked.port or asked.address.rpartition(":")[2]
    with (JOBS / f"ray-{port}").open("a") as stream:
        stream.write(f"{os.environ['STAND_IN_NODE']} {'head' if asked.head else asked.address}\n")


def _ray_submit(asked: argparse.Namespace, path: Path) -> None:
    variables = {}
    for line in Path(asked.runtime_env).read_text().splitlines()[1:]:
        name, _, value = line.strip().partition(": ")
        variables[name] = value.strip("'\"")
    JOBS.mkdir(exist_ok=True)
    with path.with_suffix(".log").open("wb") as output:
        process = subprocess.Popen(
            asked.entrypoint, cwd="/", stdout=output, stderr=output, stdin=subprocess.DEVNULL,
            start_new_session=True, env={"PATH": "/usr/local/bin:/usr/bin:/bin", **variables},
        )  # fmt: skip
    path.write_text(json.dumps({"pid": process.pid}))
    print(f"Job '{asked.submission_id}' submitted successfully")


if __name__ == "__main__":
    commands = {
        "sbatch": sbatch,
        "srun": srun,
        "squeue": squeue,
        "sacct": sacct,
        "scancel": scancel,
        "docker": docker,
        "ray": ray,
    }
    commands[Path(sys.argv[0]).name](sys.argv[1:])
