"""Ranks of refrl that are forked from one server process, which has imported torch, transformers and refrl.

A new process spends five seconds of processor time on these imports. The server starts with the first rank and exits
with this process.
"""

from __future__ import annotations

import functools
import gc
import multiprocessing
import os
import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from multiprocessing.connection import Connection, wait
from pathlib import Path
from typing import Any, Literal, NoReturn
from unittest.mock import patch

import torch

from refrl.cli import train
from refrl.config import ClusterConfig
from refrl.lifeline import LIFELINE
from refrl.runtime import launcher
from refrl.runtime.rank_process import GRACE_SECONDS, Ended

RANK_COMMAND = "SEATRIAL_RANK_COMMAND"
"""Variable with the module, and its first words, that a rank runs instead."""
PRELOAD = (
    "transformers.models.qwen3.modeling_qwen3",
    "refrl.policy.dtensor.policy",
    "refrl.policy.megatron.policy",
    "seatrial.targets.reference.components",
)
"""What the server imports; it leaves out a module whose package is not installed."""

Main = Callable[[Sequence[str]], None]
Command = Callable[[Sequence[str]], int | None]
"""The function of a command, which returns its exit status; None: 0."""


def launch_ranks(main: Main, words: Sequence[str], cluster: ClusterConfig) -> None:
    """Run `main(words)` in each rank of a cluster, and return when all have finished.

    Args:
        main: the function `main` of a module that `python -m` can run.
        words: its arguments.
        cluster: number of ranks, and their placement.

    Raises:
        OSError: a rank failed; the message holds the last line of its standard error.
    """
    command = (sys.executable, "-m", *rank_command(main.__module__))
    if RANK_COMMAND in os.environ or (cluster.device != "cpu" and torch.cuda.is_available()):
        # A planted fault needs new processes, and so does CUDA, which imports of the server may have begun to use.
        launcher.launch(words, cluster, command=command)
    else:
        launcher.launch(words, cluster, command=command, start=functools.partial(_ForkedRank, main, words))


def run_forked(
    main: Command, words: Sequence[str], seconds: float, variables: Mapping[str, str] | None = None
) -> tuple[int, str]:
    """Run a command in a process that the server forks; return its exit status and its output.

    The command forks its ranks from that process.

    Args:
        main: the command's function.
        words: its arguments.
        seconds: time limit.
        variables: its environment; None: this process's.

    Raises:
        TimeoutError: it took longer, and was killed.
    """
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(list(PRELOAD))
    with tempfile.NamedTemporaryFile() as output:
        given = (main, words, dict(os.environ if variables is None else variables), output.name)
        process = context.Process(target=_run_command, args=given)
        process.start()
        process.join(seconds)
        if process.exitcode is None:
            process.kill()
            process.join()
            raise TimeoutError(f"{' '.join(words)}: it did not end within {seconds:.0f} s")
        return process.exitcode, Path(output.name).read_text(encoding="utf-8", errors="replace")


def _run_command(
    main: Command,
    words: Sequence[str],
    environment: Mapping[str, str],
    output: str,
) -> None:
    """Run as a command, in the forked process."""
    os.setsid()
    opened = os.open(output, os.O_WRONLY | os.O_APPEND)
    for number in (1, 2):
        os.dup2(opened, number)
    os.close(opened)
    os.environ.clear()
    os.environ.update(environment)
    start = functools.partial(_rank_of_command, main)
    patch.object(train, "launch", functools.partial(launcher.launch, start=start)).start()
    gc.freeze()
    _exit_with(main, words)


def _exit_with(main: Command, words: Sequence[str]) -> NoReturn:
    sys.exit(main(words))


def _rank_of_command(
    main: Command,
    number: int,
    command: Sequence[str],
    environment: Mapping[str, str],
    *,
    stdout: int | None,
) -> _ForkedRank:
    """Return a rank that this process forks, which runs the command with the words that the launcher gives it."""
    words = command[len(launcher.COMMAND) :]
    runs = functools.partial(_exit_with, main)
    return _ForkedRank(runs, words, number, command, environment, stdout=stdout, method="fork")


def rank_command(module: str) -> list[str]:
    """Return the module that a rank runs, and its first words."""
    return os.environ.get(RANK_COMMAND, module).split()


class _ForkedRank:
    """A `refrl.runtime.rank_process.Rank` that the server forks, or this process.

    Its standard output is this process's if this process forks it and `stdout` is None; otherwise it is dropped.
    """

    def __init__(
        self,
        main: Main,
        words: Sequence[str],
        number: int,
        command: Sequence[str],  # of a new process
        environment: Mapping[str, str],
        *,
        stdout: int | None,
        method: Literal["forkserver", "fork"] = "forkserver",
    ) -> None:
        self.number = number
        self._errors = tempfile.NamedTemporaryFile()  # noqa: SIM115  closed with this object
        context: Any = multiprocessing.get_context(method)
        context.set_forkserver_preload(list(PRELOAD))
        lifeline, self._held = context.Pipe(duplex=False)
        output = None if method == "fork" and stdout is None else os.devnull
        inherited = self._held if method == "fork" else None
        self._process = context.Process(
            target=_run_forked,
            args=(main, words, dict(environment), output, self._errors.name, lifeline, inherited),
        )
        self._process.start()
        lifeline.close()

    def wait(self) -> Ended:
        """Wait until it has exited."""
        wait([self._process.sentinel])
        self._process.join()
        text = Path(self._errors.name).read_text(encoding="utf-8", errors="replace")
        return Ended(self._process.exitcode, text)

    def terminate(self) -> None:
        """Ask it to exit."""
        self._process.terminate()

    def finish(self) -> None:
        """Wait for `GRACE_SECONDS`, then kill it."""
        self._process.join(GRACE_SECONDS)
        self._process.kill()
        self._process.join()
        self._held.close()


def _run_forked(
    main: Main,
    words: Sequence[str],
    environment: Mapping[str, str],
    output: str | None,
    errors: str,
    lifeline: Connection,
    held: Connection | None,
) -> None:
    """Run as a rank, in the forked process; its copy of the launcher's end of the lifeline is closed."""
    import torch

    if held is not None:
        held.close()
    for number, path in ((1, output), (2, errors)):
        if path is None:
            continue
        opened = os.open(path, os.O_WRONLY | os.O_APPEND)
        os.dup2(opened, number)
        os.close(opened)
    os.environ.clear()
    os.environ.update(environment)
    os.environ[LIFELINE] = str(lifeline.fileno())
    torch.set_num_threads(int(environment["OMP_NUM_THREADS"]))
    gc.freeze()  # what was imported is not searched for garbage
    main(words)
