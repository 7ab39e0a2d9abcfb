"""Builds the command line that runs a command inside a container: Docker, Podman, Apptainer, enroot, pyxis.

It is always an argument list, never a shell string, so every argument arrives unchanged. Values of variables that may
be secret are not on the command line: they are passed by name, through the environment.

Source: `docker run`, `podman run`, `apptainer exec`, `enroot start` and pyxis' `srun --container-*` references.
"""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from seatrial.errors import BlockedError, UsageError

ENGINES = ("docker", "podman", "apptainer", "enroot", "pyxis")
"""All engines, in search order."""
PROGRAMS = {engine: engine for engine in ENGINES} | {"pyxis": "srun"}
CACHE_VARIABLES = ("HF_HOME", "HF_DATASETS_CACHE")
"""The folders that these variables name are mounted at their own path, and the variables are passed."""
DEFAULT_VARIABLES = (*CACHE_VARIABLES, "HF_TOKEN", "WANDB_API_KEY")
"""Passed if they are set, as NeMo RL's Docker scripts do."""
_PROBE_SECONDS = 30.0


@dataclass(frozen=True, kw_only=True)
class Mount:
    """A folder or file of this machine that the container can access."""

    source: str
    """Absolute path here."""
    target: str
    """Absolute path in the container."""
    read_only: bool = False

    def text(self, read_only: str) -> str:
        """Return `source:target`, with the suffix `read_only` if the mount is read-only."""
        return f"{self.source}:{self.target}" + (read_only if self.read_only else "")


@dataclass(frozen=True, kw_only=True)
class ContainerRun:
    """What runs in the container, and what it can access on this machine."""

    image: str
    command: tuple[str, ...]
    mounts: tuple[Mount, ...] = ()
    variables: tuple[str, ...] = ()
    """Names of environment variables that are passed; all others are not."""
    gpus: str = "none"
    """`none`, `all`, or numbers and ids of devices, separated by commas."""
    workdir: str = ""
    """Absolute path in the container."""
    as_root: bool = False
    """Run as root of the container instead of as the caller; not possible with Apptainer."""
    is_terminal: bool = False
    """Whether the command runs on an interactive terminal."""
    engine_arguments: tuple[str, ...] = field(default=())
    """Further arguments for the engine itself, before the image."""


@dataclass(frozen=True, kw_only=True)
class Launch:
    """A command line and the environment that it needs."""

    argv: tuple[str, ...]
    environment: Mapping[str, str]


def find_engine(wanted: str | None, which: Callable[[str], str | None] = shutil.which) -> str:
    """Return the requested engine, else the first one on this machine.

    Raises:
        UsageError: the engine is unknown.
        BlockedError: the engine, or all engines, are not installed.
    """
    if wanted is not None and wanted not in ENGINES:
        raise UsageError(f"engine {wanted!r} is unknown; known: {', '.join(ENGINES)}")
    for engine in [wanted] if wanted else ENGINES:
        if which(PROGRAMS[engine]) is not None:
            return engine
    looked_for = PROGRAMS[wanted] if wanted else ", ".join(dict.fromkeys(PROGRAMS.values()))
    raise BlockedError(
        f"no container engine: {looked_for} not found on PATH; install one (Docker, Podman, Apptainer, enroot), "
        f"use a machine that has one, or run the command without `seatrial container run --`"
    )


def check_engine(engine: str) -> None:
    """Check that Docker's daemon responds; the other engines have no daemon.

    Without this check, a missing daemon would look like exit status 125 of the command.

    Raises:
        BlockedError: the daemon does not respond.
    """
    if engine != "docker":
        return
    try:
        done = subprocess.run(
            ["docker", "version", "--format", "{{.Server.Version}}"],
            capture_output=True,
            text=True,
            timeout=_PROBE_SECONDS,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise BlockedError(f"the Docker daemon does not respond: {error}; start it") from error
    if done.returncode != 0:
        reason = (done.stderr.strip().splitlines() or ["no reason given"])[-1]
        raise BlockedError(
            f"the Docker daemon does not respond: {reason}; start it, or choose another --engine"
        )


def parse_mount(text: str) -> Mount:
    """Read `SOURCE[:TARGET[:ro]]`; a source alone is mounted at its own path.

    Raises:
        UsageError: the text has another form, or the source does not exist.
    """
    source, *rest = text.split(":")
    options = rest[1:]
    if not source or len(rest) > 2 or options not in ([], ["ro"], ["rw"]):
        raise UsageError(f"mount {text!r} must be SOURCE, SOURCE:TARGET or SOURCE:TARGET:ro")
    path = Path(source).expanduser().resolve()
    if not path.exists():
        raise UsageError(f"mount {text!r}: {path} does not exist")
    target = rest[0] if rest else str(path)
    if not target.startswith("/"):
        raise UsageError(f"mount {text!r}: {target!r} in the container must be an absolute path")
    return Mount(source=str(path), target=target, read_only=options == ["ro"])


def launch(engine: str, run: ContainerRun, environment: Mapping[str, str]) -> Launch:
    """Return the command line of an engine.

    Args:
        engine: one of `ENGINES`.
        run: what to run.
        environment: of this process; it gives the values of the variables that are passed.

    Raises:
        UsageError: the engine does not support a setting.
    """
    makers = {
        "docker": _docker,
        "podman": _podman,
        "apptainer": _apptainer,
        "enroot": _enroot,
        "pyxis": _pyxis,
    }
    return makers[engine](run, environment)


def _passed(run: ContainerRun, environment: Mapping[str, str]) -> list[str]:
    return [name for name in dict.fromkeys(run.variables) if name in environment]


def _common(run: ContainerRun, environment: Mapping[str, str]) -> list[str]:
    """Return the arguments common to Docker and Podman."""
    words = ["run", "--rm", "--init", "--network=host", "--shm-size=16g"]
    words += ["--interactive", "--tty"] if run.is_terminal else []
    for mount in run.mounts:
        words += ["--volume", mount.text(":ro")]
    for name in _passed(run, environment):
        words += ["--env", name]
    words += ["--workdir", run.workdir] if run.workdir else []
    return words


def _docker(run: ContainerRun, environment: Mapping[str, str]) -> Launch:
    words = ["docker", *_common(run, environment)]
    if not run.as_root:
        # The image has no home for this user, and `/` is not writable.
        words += ["--user", f"{os.getuid()}:{os.getgid()}", "--env", "HOME=/tmp"]
    if run.gpus != "none":
        # The value is a line of CSV: without the inner quotes a list of devices is cut at its commas.
        words += ["--gpus", "all" if run.gpus == "all" else f'"device={run.gpus}"']
    return Launch(argv=(*words, *run.engine_arguments, run.image, *run.command), environment=environment)


def _podman(run: ContainerRun, environment: Mapping[str, str]) -> Launch:
    words = ["podman", *_common(run, environment)]
    if not run.as_root and os.getuid() != 0:
        # Podman of root has no such mode; there the container's root is the user already.
        words += ["--userns=keep-id"]
    for device in [] if run.gpus == "none" else run.gpus.split(","):
        words += ["--device", f"nvidia.com/gpu={device}"]
    return Launch(argv=(*words, *run.engine_arguments, run.image, *run.command), environment=environment)


def _apptainer(run: ContainerRun, environment: Mapping[str, str]) -> Launch:
    if run.as_root:
        raise UsageError("Apptainer runs as you; remove --as-root, or choose another --engine")
    words = ["apptainer", "exec", "--cleanenv", "--no-home"]
    for mount in run.mounts:
        words += ["--bind", mount.text(":ro")]
    words += ["--pwd", run.workdir] if run.workdir else []
    passed = {f"APPTAINERENV_{name}": environment[name] for name in _passed(run, environment)}
    if run.gpus != "none":
        words += ["--nv"]
        if run.gpus != "all":
            passed["APPTAINERENV_CUDA_VISIBLE_DEVICES"] = run.gpus
    # A name without a scheme that is no file is an image of a registry.
    known = "://" in run.image or Path(run.image).exists()
    image = run.image if known else f"docker://{run.image}"
    return Launch(
        argv=(*words, *run.engine_arguments, image, *run.command), environment={**environment, **passed}
    )


def _enroot(run: ContainerRun, environment: Mapping[str, str]) -> Launch:
    if "/" in run.image and not run.image.endswith(".sqsh"):
        raise UsageError(
            f"enroot starts a container or a .sqsh file, not the image {run.image!r}: "
            f"enroot import -o image.sqsh docker://{run.image}, then --image image.sqsh"
        )
    words = ["enroot", "start", "--rw", *(["--root"] if run.as_root else [])]
    for mount in run.mounts:
        # A line of fstab with colons; `x-create` makes a missing mount point.
        options = "x-create=auto,rbind" + (",ro" if mount.read_only else "")
        words += ["--mount", f"{mount.source}:{mount.target}:none:{options}"]
    for name in _passed(run, environment):
        words += ["--env", name]
    words += ["--env", "NVIDIA_VISIBLE_DEVICES"]
    devices = "void" if run.gpus == "none" else run.gpus
    # enroot has no option for the working directory, so `env --chdir` sets it.
    prefix = ["env", f"--chdir={run.workdir}"] if run.workdir else []
    return Launch(
        argv=(*words, *run.engine_arguments, run.image, *prefix, *run.command),
        environment={**environment, "NVIDIA_VISIBLE_DEVICES": devices},
    )


def _pyxis(run: ContainerRun, environment: Mapping[str, str]) -> Launch:
    for mount in run.mounts:
        if "," in mount.source + mount.target:
            raise UsageError(f"pyxis separates mounts by commas: {mount.source!r} cannot be mounted")
    passed = _passed(run, environment)
    # Slurm exports the whole environment unless variables are named.
    exported = ",".join([*passed, "NVIDIA_VISIBLE_DEVICES"])
    words = ["srun", f"--container-image={run.image}", "--no-container-mount-home", f"--export={exported}"]
    words += ["--container-remap-root"] if run.as_root else []
    if run.mounts:
        words += ["--container-mounts=" + ",".join(mount.text(":ro") for mount in run.mounts)]
    if passed:
        # Otherwise a variable that the image sets too would keep the image's value.
        words += ["--container-env=" + ",".join(passed)]
    words += [f"--container-workdir={run.workdir}"] if run.workdir else []
    devices = "void" if run.gpus == "none" else run.gpus
    return Launch(
        argv=(*words, *run.engine_arguments, *run.command),
        environment={**environment, "NVIDIA_VISIBLE_DEVICES": devices},
    )
