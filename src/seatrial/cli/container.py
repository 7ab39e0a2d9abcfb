"""`seatrial container run -- COMMAND`: run a command inside a container, with its arguments intact."""

from __future__ import annotations

import argparse
import os
import shlex
import signal
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

from seatrial.errors import BlockedError, UsageError
from seatrial.launch.container import (
    CACHE_VARIABLES,
    DEFAULT_VARIABLES,
    ENGINES,
    ContainerRun,
    Mount,
    check_engine,
    find_engine,
    launch,
    parse_mount,
)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options of `seatrial container`."""
    actions = parser.add_subparsers(dest="action", metavar="ACTION", required=True)
    run = actions.add_parser("run", help="run a command inside a container", allow_abbrev=False)
    run.add_argument("--image", help="image, container or .sqsh file (default: $CONTAINER)")
    run.add_argument("--engine", help=f"{', '.join(ENGINES)} (default: the first that is installed)")
    run.add_argument(
        "--mount",
        action="append",
        default=[],
        metavar="SOURCE[:TARGET[:ro]]",
        help="mount a folder or file; the working directory is always mounted at its own path",
    )
    run.add_argument(
        "--cache", action="append", default=[], metavar="DIR", help="create and mount a cache folder"
    )
    run.add_argument("--gpus", default="all", help="all, none, or devices such as 0,1 (default: all)")
    run.add_argument(
        "--env",
        action="append",
        default=[],
        metavar="NAME",
        help=f"pass this variable to the container; only {', '.join(DEFAULT_VARIABLES)} are passed by default",
    )
    run.add_argument("--workdir", help="working directory in the container (default: this one)")
    run.add_argument("--as-root", action="store_true", help="run as the container's root, not as you")
    run.add_argument(
        "--engine-arg",
        action="append",
        default=[],
        metavar="ARG",
        help="pass an argument to the engine itself",
    )
    run.add_argument("--dry-run", action="store_true", help="show the command line and stop")
    run.add_argument("command_words", nargs="*", metavar="-- COMMAND", help="the command and its arguments")


def run(arguments: argparse.Namespace) -> int:
    """Run the command; return its own exit status.

    Raises:
        UsageError: there is no command or no image, or a mount is invalid.
        BlockedError: there is no engine, or its daemon does not answer.
    """
    request = _request(arguments, os.environ)
    engine = find_engine(arguments.engine)
    made = launch(engine, request, os.environ)
    print(f"+ {shlex.join(made.argv)}", file=sys.stderr, flush=True)
    if arguments.dry_run:
        return 0
    check_engine(engine)
    return _wait(list(made.argv), made.environment)


def _request(arguments: argparse.Namespace, environment: Mapping[str, str]) -> ContainerRun:
    if not arguments.command_words:
        raise UsageError("no command: seatrial container run --image IMAGE -- COMMAND [ARGUMENT ...]")
    image = arguments.image or environment.get("CONTAINER")
    if not image:
        raise UsageError("no image: give --image, or set CONTAINER")
    here = str(Path.cwd())
    mounts = [Mount(source=here, target=here), *(parse_mount(text) for text in arguments.mount)]
    mounts += _caches(arguments.cache, environment)
    missing = [name for name in arguments.env if name not in environment]
    if missing:
        raise UsageError(f"--env {missing[0]}: the variable is not set here")
    return ContainerRun(
        image=image,
        command=tuple(arguments.command_words),
        mounts=tuple(dict.fromkeys(mounts)),
        variables=(*DEFAULT_VARIABLES, *arguments.env),
        gpus=arguments.gpus,
        workdir=arguments.workdir or here,
        as_root=arguments.as_root,
        is_terminal=sys.stdin.isatty() and sys.stdout.isatty() and not environment.get("CI"),
        engine_arguments=tuple(arguments.engine_arg),
    )


def _caches(folders: list[str], environment: Mapping[str, str]) -> list[Mount]:
    """Return mounts of the cache folders; create missing folders, which an engine would create as root."""
    named = [environment[name] for name in CACHE_VARIABLES if environment.get(name)]
    mounts = []
    for folder in [*folders, *named]:
        path = Path(folder).expanduser().resolve()
        try:
            path.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise BlockedError(f"cannot make the cache folder {path}: {error.strerror}") from error
        mounts.append(Mount(source=str(path), target=str(path)))
    return mounts


def _wait(argv: list[str], environment: Mapping[str, str]) -> int:
    """Run in the foreground. Ctrl-C reaches the engine by itself; a SIGTERM to this process is forwarded."""
    try:
        process = subprocess.Popen(argv, env=dict(environment))
    except OSError as error:
        raise BlockedError(f"cannot start {argv[0]}: {error.strerror}") from error
    before = signal.signal(signal.SIGTERM, lambda number, frame: process.send_signal(number))
    try:
        while True:
            try:
                status = process.wait()
                break
            except KeyboardInterrupt:
                # The engine receives the signal too and forwards it to its command; wait for its exit status.
                continue
    finally:
        signal.signal(signal.SIGTERM, before)
    return 128 - status if status < 0 else status
