"""Starts a run's command: locally, in a container, through Slurm, or as a Ray job."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

import psutil

from seatrial.errors import UsageError
from seatrial.launch import rayjob, slurm
from seatrial.launch.container import (
    DEFAULT_VARIABLES,
    ContainerRun,
    Launch,
    Mount,
    check_engine,
    find_engine,
    launch,
    parse_mount,
)
from seatrial.launch.jobs import Ended, Heartbeat, Job, read_started, run_client, write_started
from seatrial.launch.local import run_command

_POINTER = "gitdir: "


def git_mounts(tree: Path) -> list[Mount]:
    """Return the mounts with which git works in a container; the user's objects are read-only."""
    try:
        text = (tree / ".git").read_text(encoding="utf-8")
    except OSError:
        return []
    if not text.startswith(_POINTER):
        return []
    of_tree = Path(tree, text.removeprefix(_POINTER).strip())
    common = of_tree
    if (of_tree / "commondir").is_file():
        common = Path(of_tree, (of_tree / "commondir").read_text(encoding="utf-8").strip()).resolve()
    # The object stores of the repository and of the checkout's submodules.
    stores = [common / "objects", *(of_tree / "modules").glob("**/objects")]
    borrowed = {folder for store in stores for folder in _alternates(store)}
    mounts = [Mount(source=str(common), target=str(common))]
    return mounts + [
        Mount(source=str(folder), target=str(folder), read_only=True)
        for folder in sorted(borrowed)
        if not folder.is_relative_to(common)
        and not any(folder != o and folder.is_relative_to(o) for o in borrowed)
    ]


def _alternates(store: Path) -> set[Path]:
    """Return the stores that a store borrows objects from, transitively."""
    found: set[Path] = set()
    pending = [store]
    while pending:
        current = pending.pop()
        try:
            lines = (current / "info" / "alternates").read_text(encoding="utf-8").splitlines()
        except OSError:
            continue
        for line in filter(None, lines):
            folder = Path(current, line).resolve()
            if folder not in found and folder.is_dir():
                found.add(folder)
                pending.append(folder)
    return found


NAMES = ("local", "container", "slurm", "ray")


class Launcher(Protocol):
    """Runs one job to its end."""

    def run(self, job: Job, heartbeat: Heartbeat) -> Ended:
        """Run the job; raises BlockedError if it cannot start, and anything that `heartbeat` raises."""
        ...


class Local:
    """Runs a job as a process group on this machine."""

    def run(self, job: Job, heartbeat: Heartbeat) -> Ended:
        """Run the job."""
        write_started(job.run_dir, launcher="local")
        return self._run(job, job.wrapped(), job.environment, heartbeat)

    @staticmethod
    def _run(job: Job, argv: Sequence[str], environment: Mapping[str, str], heartbeat: Heartbeat) -> Ended:
        done = run_command(
            argv,
            log_path=job.console,
            environment=environment,
            timeout_seconds=job.timeout_seconds,
            directory=job.tree,
            progress=lambda seconds, line: heartbeat(""),
            grace_seconds=job.grace_seconds,
        )
        return Ended(
            exit_status=job.exit_status(),
            seconds=done.seconds,
            timed_out=done.timed_out,
            last_report=done.describe(),
        )


@dataclass(frozen=True, kw_only=True)
class Container(Local):
    """Runs a job in a container on this machine."""

    engine: str
    image: str
    mounts: tuple[Mount, ...]
    variables: tuple[str, ...]
    gpus: str

    def run(self, job: Job, heartbeat: Heartbeat) -> Ended:
        """Run the job; its directories are mounted at their own paths."""
        named = (f"--name={job.name}",) if self.engine in {"docker", "podman"} else ()
        made = self.inside(job, named, job.wrapped())
        if named:
            write_started(job.run_dir, launcher="container", engine=self.engine, job=job.name)
        else:
            write_started(job.run_dir, launcher="local")
        try:
            return self._run(job, made.argv, made.environment, heartbeat)
        finally:
            if named:
                _remove_container(self.engine, job.name)

    def inside(self, job: Job, engine_arguments: Sequence[str], command: Sequence[str]) -> Launch:
        """Return the command line that runs a command of the job in the container."""
        own = [Mount(source=str(path), target=str(path)) for path in _shared_paths(job)]
        own += git_mounts(job.tree)
        run = ContainerRun(
            image=self.image,
            command=tuple(command),
            mounts=(*own, *self.mounts),
            variables=(*job.own_variables, *self.variables),
            gpus=self.gpus,
            workdir=str(job.tree),
            engine_arguments=tuple(engine_arguments),
        )
        return launch(self.engine, run, job.environment)


def _shared_paths(job: Job) -> list[Path]:
    """Return the directories that a job needs, without those inside another one."""
    paths = sorted({job.tree.parent, job.run_dir})
    return [
        path for path in paths if not any(path != other and path.is_relative_to(other) for other in paths)
    ]


def _remove_container(engine: str, name: str) -> None:
    """Remove a container of ours that outlived its client; usually `--rm` has already done so."""
    run_client([engine, "rm", "--force", name])


def make_launcher(
    name: str,
    *,
    options: Sequence[str],
    environment: Mapping[str, str],
    poll_seconds: float | None,
    which: Callable[[str | None], str] = find_engine,
) -> Launcher:
    """Create a launcher from its name, its options and the environment.

    Args:
        name: one of `NAMES`.
        options: further options for the engine, sbatch or `ray job submit`, and `address=`, `engine=`, `image=`,
            `gpus=`, `mount=`, `ray=`.
        environment: CONTAINER, MOUNTS, ACCOUNT, PARTITION, HF_HOME, HF_DATASETS_CACHE, RAY_ADDRESS are read.
        poll_seconds: between queries of a scheduler; None is its default.
        which: finds the container engine.

    Raises:
        UsageError: a required setting is missing.
        BlockedError: the container engine is not available.
    """
    named = dict(option.split("=", 1) for option in options if not option.startswith("-") and "=" in option)
    plain = [option for option in options if option.startswith("-")]
    if name == "local":
        return Local()
    if name == "container":
        image = named.get("image") or _needed(environment, ("CONTAINER",), name)["CONTAINER"]
        engine = which(named.get("engine"))
        check_engine(engine)
        return _container(engine, image, named, environment)
    if name == "slurm":
        needed = _needed(environment, ("ACCOUNT", "PARTITION"), name)
        words = [f"--account={needed['ACCOUNT']}", f"--partition={needed['PARTITION']}"]
        image = named.get("image") or environment.get("CONTAINER", "")
        pyxis = _container("pyxis", image, named, environment) if image else None
        return slurm.Slurm(
            options=[*words, *plain],
            poll_seconds=poll_seconds or 15.0,
            in_container=pyxis.inside if pyxis is not None else None,
            ray=_yes_or_no(named, "ray"),
        )
    if name == "ray":
        variables = ("RAY_API_SERVER_ADDRESS", "RAY_ADDRESS")
        address = next(filter(None, (named.get("address"), *map(environment.get, variables))), None)
        if not address:
            raise UsageError(
                "--launcher ray needs the cluster: --launch-option address=http://HOST:8265, or RAY_ADDRESS"
            )
        return rayjob.RayJobs(address=address, poll_seconds=poll_seconds or 5.0, options=plain)
    raise UsageError(f"launcher {name!r} is unknown; known: {', '.join(NAMES)}")


def _container(
    engine: str, image: str, named: Mapping[str, str], environment: Mapping[str, str]
) -> Container:
    mounts = [text for text in (named.get("mount") or environment.get("MOUNTS", "")).split(",") if text]
    return Container(
        engine=engine,
        image=image,
        mounts=tuple(parse_mount(text) for text in mounts),
        variables=DEFAULT_VARIABLES,
        gpus=named.get("gpus", "none" if engine != "pyxis" else "all"),
    )


def _yes_or_no(named: Mapping[str, str], name: str) -> bool | None:
    """Return an option that is `yes`, `no` or not given.

    Raises:
        UsageError: it has another value.
    """
    if named.get(name, "no") not in ("yes", "no"):
        raise UsageError(f"--launch-option {name}={named[name]} must be {name}=yes or {name}=no")
    return named[name] == "yes" if name in named else None


def _needed(environment: Mapping[str, str], names: Sequence[str], launcher: str) -> dict[str, str]:
    missing = [name for name in names if not environment.get(name)]
    if missing:
        raise UsageError(
            f"--launcher {launcher} needs the environment variables {', '.join(missing)}; nothing was run"
        )
    return {name: environment[name] for name in names}


def end_leftover(run_dir: Path) -> None:
    """Stop what an earlier, killed process of ours started for this run, by the identity that it recorded."""
    started = read_started(run_dir)
    launcher = started.get("launcher")
    if launcher == "slurm":
        slurm.cancel(str(started["job"]))
    elif launcher == "ray":
        rayjob.stop(str(started["job"]), str(started["address"]))
    elif launcher == "container":
        _remove_container(str(started["engine"]), str(started["job"]))
    elif launcher == "local":
        # Every process with the variable of this run, in any process group or session.
        for process in psutil.process_iter():
            try:
                if process.pid != os.getpid() and process.environ().get("SEATRIAL_RUN_DIR") == str(run_dir):
                    process.kill()
            except psutil.Error:
                continue
