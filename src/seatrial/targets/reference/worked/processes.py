"""Worked examples of processes: how rows and threads are shared, how ranks end, what an engine's process answers."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import redirect_stderr
from dataclasses import replace
from io import StringIO
from pathlib import Path
from queue import SimpleQueue
from types import SimpleNamespace
from typing import Any
from unittest.mock import patch

import torch

from refrl import lifeline
from refrl.config import ClusterConfig, ConfigError
from refrl.distributed import World, _buckets
from refrl.generation.messages import Message
from refrl.rewards.sandbox_kinds import KINDS
from refrl.runtime import generator_process
from refrl.runtime.generator_process import GeneratorServer
from refrl.runtime.launcher import RankError, is_launcher, launch
from refrl.runtime.rank_process import Ended, RankProcess, end, threads, variables
from seatrial.relations.contracts.worked import WorkedExample
from seatrial.targets.reference.worked.ends import of_ends
from seatrial.targets.reference.worked.engine_servers import of_servers
from seatrial.targets.reference.worked.exchanges import of_exchanges
from seatrial.targets.reference.worked.made import example, refused
from seatrial.targets.reference.worked.ray_actors import of_engine_actors


def examples() -> Iterator[WorkedExample]:
    """Yield the examples."""
    yield from of_exchanges()
    yield from of_ends()
    yield from of_servers()
    yield from of_engine_actors()
    yield from _of_shares()
    yield from _of_ends()
    yield from _of_launches()
    yield from _of_parents()
    yield from _of_engines()


def _of_shares() -> Iterator[WorkedExample]:
    def shares(rows: int, size: int) -> list[list[int]]:
        return [list(range(rows)[World(rank, size).share(rows)]) for rank in range(size)]

    yield example("rows of three ranks", [[0, 1], [2, 3], [4, 5, 6]], shares, 7, 3)
    yield example("fewer rows than ranks", [[], [0], [1]], shares, 2, 3)
    yield example("one rank", [[0, 1]], shares, 2, 1)
    yield example("what one process gathers", [1, 2], World().gather, (1, 2))
    tensors = [torch.zeros(2), torch.zeros(3), torch.zeros(1, dtype=torch.bfloat16), torch.zeros(1)]
    yield example(
        "gradients of one type together", [2, 1, 1], lambda: [len(one) for one in _buckets(tensors)]
    )
    yield example(
        "variables of a rank",
        {"REFRL_RENDEZVOUS": "x", "RANK": "3", "LOCAL_RANK": "1", "WORLD_SIZE": "4"},
        variables,
        3,
        4,
        "x",
        local_rank=1,
    )
    cores = os.cpu_count() or 1
    for num, due in ((1, str(cores)), (cores + 1, "1")):
        yield example(f"threads of {num} ranks", due, threads, num)
    yield example(
        "what starts ranks",
        [False, True],
        lambda: [is_launcher(ClusterConfig(num_processes=number)) for number in (1, 2)],
    )
    yield example("sandboxes, the strongest first", KINDS[0], lambda: next(iter(KINDS)))


def _of_ends() -> Iterator[WorkedExample]:
    for status, right in (
        (0, "ended with exit status 0"),
        (3, "ended with exit status 3"),
        (-9, "ended by signal 9"),
        (None, "was lost with its actor"),
    ):
        yield example(f"how {status} is worded", right, lambda of=status: Ended(of, "").how)
    yield example("a rank's folder, variables and words", (0, True, "y\n", "z"), _one_rank)
    yield example("a rank's long errors", 2**16 + 9, _long_errors)
    yield example("all ranks get SIGTERM", [-signal.SIGTERM] * 2, _two_ended)


def _followed(parents: Sequence[int], given: str | None) -> Any:
    """Return what a process sets in the kernel so that it ends with its parent, and what is left of the variable.

    Args:
        parents: of the process, each time it looks.
        given: number that the variable has; None: it is not set.
    """
    noted: list[Any] = []
    looks = iter(parents)
    library = SimpleNamespace(prctl=lambda *words: noted.append(words))
    own = {} if given is None else {lifeline.PARENT: given}
    others = {name: value for name, value in os.environ.items() if name != lifeline.PARENT}
    with (
        patch.dict(os.environ, {**others, **own}, clear=True),
        patch.object(os, "getppid", lambda: next(looks)),
        patch.object(os, "_exit", lambda status: noted.append(("exit", status))),
        patch("ctypes.CDLL", lambda name: library),
        patch.object(sys, "platform", "linux"),
    ):
        lifeline.end_with_parent()
        return noted, lifeline.PARENT in os.environ


def _of_parents() -> Iterator[WorkedExample]:
    kill = (1, signal.SIGKILL)
    yield example("a process of this parent", ([kill], False), _followed, [77, 77], "77")
    yield example(
        "a process whose parent ends meanwhile", ([kill, ("exit", 1)], False), _followed, [77, 1], "77"
    )
    yield example("a process of another parent", ([], False), _followed, [78], "77")
    yield example("a process without a named parent", ([], False), _followed, [], None)

    def watched() -> Any:
        """Return what a rank does when its launcher closes the pipe."""
        ends: SimpleQueue[int] = SimpleQueue()
        reading, writing = os.pipe()
        own = {lifeline.LIFELINE: str(reading)}
        with patch.dict(os.environ, own), patch.object(os, "_exit", ends.put):
            lifeline.watch_lifeline()
            before = ends.empty() and os.environ[lifeline.LIFELINE] == str(reading)
            os.close(writing)
            status = ends.get(timeout=5)
        os.close(reading)
        return before, status

    yield example("a rank whose launcher is gone", (True, 1), watched)
    for given, right in (
        ({lifeline.RAY_NODE: "n", lifeline.RENDEZVOUS: "x"}, ("ray", "n")),
        ({lifeline.RENDEZVOUS: "x"}, ("process", socket.gethostname())),
        ({lifeline.TORCHRUN: "x"}, ("torchrun", socket.gethostname())),
        ({}, ("inline", socket.gethostname())),
    ):
        yield example(f"where a rank with {sorted(given)} is", right, _placed, given)


def _placed(given: Mapping[str, str]) -> Any:
    known = (lifeline.RAY_NODE, lifeline.RENDEZVOUS, lifeline.TORCHRUN)
    others = {name: value for name, value in os.environ.items() if name not in known}
    with patch.dict(os.environ, {**others, **given}, clear=True):
        return lifeline.placed_by(), lifeline.node()


def _rank(number: int, program: str, **options: Any) -> RankProcess:
    chosen = {"stdout": subprocess.PIPE, **options}
    return RankProcess(number, [sys.executable, "-S", "-c", program], {**os.environ, "WORD": "y"}, **chosen)


def _one_rank() -> Any:
    with tempfile.TemporaryDirectory() as folder:
        program = "import os,sys; print(os.getcwd()); print(os.environ['WORD']); sys.stderr.write('z')"
        rank = _rank(5, program, directory=folder)
        ended = rank.wait()
        where, _, word = rank.output().decode().partition("\n")
        rank.finish()
        return ended.status, Path(where).resolve() == Path(folder).resolve(), word, ended.errors


def _long_errors() -> int:
    rank = _rank(0, "import sys; sys.stderr.write('z' * (2**16 + 9))")
    ended = rank.wait()
    rank.finish()
    return len(ended.errors)


def _two_ended() -> Any:
    ranks = [_rank(number, "import time; print(1, flush=True); time.sleep(60)") for number in range(2)]
    for rank in ranks:
        rank.output()
    end(ranks)
    return [rank.wait().status for rank in ranks]


class _MadeRank:
    """A rank that ends as given; it notes what happens to it."""

    def __init__(self, number: int, ended: Ended, noted: list[Any]) -> None:
        self.number, self._ended, self._noted = number, ended, noted

    def wait(self) -> Ended:
        return self._ended

    def terminate(self) -> None:
        self._noted.append(("terminated", self.number))

    def finish(self) -> None:
        self._noted.append(("finished", self.number))


def _says(ended: Ended, right: str) -> bool:
    return right in _launched([Ended(0, ""), ended])[0]


def _threads(own: str | None) -> list[str]:
    """Return the threads that two ranks are started with."""
    found: list[str] = []

    def start(number: int, command: Any, environment: Mapping[str, str], *, stdout: int | None) -> Any:
        found.append(environment["OMP_NUM_THREADS"])
        return _MadeRank(number, Ended(0, ""), [])

    others = {name: value for name, value in os.environ.items() if name != "OMP_NUM_THREADS"}
    given = {} if own is None else {"OMP_NUM_THREADS": own}
    with patch.dict(os.environ, {**others, **given}, clear=True):
        launch(["grpo"], ClusterConfig(num_processes=2), start=start, command=["refrl"])
    return found


def _launched(ends: Sequence[Ended], last: int = 1) -> Any:
    """Return what a launch of made ranks raises, what each was started with, and the last lines that it prints."""
    noted: list[Any] = []

    def start(
        number: int, command: Sequence[str], environment: Mapping[str, str], *, stdout: int | None
    ) -> Any:
        own = [environment[name] for name in ("RANK", "LOCAL_RANK", "WORLD_SIZE")]
        noted.append((number, list(command), own, stdout == subprocess.DEVNULL))
        return _MadeRank(number, ends[number], noted)

    errors, sys.stderr = sys.stderr, (written := _Written())
    try:
        launch(["grpo", "x"], ClusterConfig(num_processes=len(ends)), start=start, command=["refrl"])
        how = "well"
    except (ConfigError, RankError) as error:
        how = f"{type(error).__name__}: {error}"
    finally:
        sys.stderr = errors
    return how, noted, written.text.splitlines()[-last:]


def _warns(ranks: int, processors: int) -> bool:
    """Return whether a launch says that there are more ranks than processors."""
    places: list[str] = []
    folders: set[Path] = set()
    affinity = patch.object(os, "sched_getaffinity", lambda number: set(range(processors)), create=True)

    def start(number: int, command: Any, own: Mapping[str, str], *, stdout: int | None) -> Any:
        places.append(own["LOCAL_RANK"])
        folders.add(Path(own["REFRL_RENDEZVOUS"].removeprefix("file://")).parent)
        return _MadeRank(number, Ended(0, ""), [])

    with affinity, redirect_stderr(StringIO()) as written:
        launch(["grpo"], ClusterConfig(num_processes=ranks), start=start, command=["refrl"])
    assert places == [str(number) for number in range(ranks)]
    (folder,) = folders
    assert folder.name.startswith("refrl-") and not folder.exists()  # one of this run's own, which is removed
    return f"={ranks} is more than the {processors} processors" in written.getvalue()


class _Written:
    """A stream that keeps its text."""

    text = ""

    def write(self, text: str) -> int:
        self.text += text
        return len(text)

    def flush(self) -> None:
        """There is nothing to write."""


def _of_launches() -> Iterator[WorkedExample]:
    started = [
        (number, ["refrl", "grpo", "x"], [str(number), str(number), "2"], number == 1) for number in range(2)
    ]
    stopped = [(what, number) for what in ("terminated", "finished") for number in range(2)]
    well = Ended(0, "first")
    yield example(
        "ranks that end well",
        ("well", [*started, *stopped], ["first"]),
        _launched,
        [well, Ended(0, "second")],
    )
    yield example(
        "a rank that refuses the configuration",
        "ConfigError: no such option",
        lambda: _launched([well, Ended(2, "note\nrefrl grpo: no such option\n")])[0],
    )
    yield example(
        "a rank that fails",
        "RankError: rank 1 ended by signal 9, and the others were stopped: it wrote no message",
        lambda: _launched([well, Ended(-9, "")])[0],
    )
    for ranks, processors in ((2, 2), (3, 2)):
        yield example(
            f"{ranks} ranks on {processors} processors",
            ranks > processors,
            lambda ranks=ranks, processors=processors: _warns(ranks, processors),
        )
    elsewhere = Ended(3, "note\nrefrl grpo: x", "host")
    for ended, right in (
        (elsewhere, "RankError: rank 1 on host ended with exit status 3, and the others were stopped: x"),
        (
            replace(elsewhere, status=None),
            "RankError: rank 1 on host was lost with its actor, and the others were",
        ),
        (replace(elsewhere, status=2), "ConfigError: x (rank 1 on host)"),
        (replace(elsewhere, errors="refrl sft: x"), "stopped: refrl sft: x"),
    ):
        yield example(f"a rank on another host: {ended.how}, {ended.errors}", True, _says, ended, right)
    for errors, lines in (("a\nb\n", ["a", "b"]), ("a\n", []), ("", [])):
        name = f"what is printed of the errors {errors!r} of a rank that fails"
        yield example(name, lines, lambda of=errors: _launched([Ended(1, of)], 2)[2])
    for own, due in (("7", "7"), (None, threads(2))):
        yield example(f"threads of two ranks where the user sets {own}", [due] * 2, _threads, own)
    native = "[W1126 02:09:25.896250867 ProcessGroupNCCL.cpp:1575] Warning: not left"
    yield example(
        "a warning after the error",
        "RankError: rank 0 ended with exit status 1, and the others were stopped: ValueError: x",
        lambda: _launched([Ended(1, f"Traceback\nValueError: x\n{native}\n"), well])[0],
    )


class _Engine:
    """An engine that raises what it is given, and notes what it is asked."""

    def __init__(self, error: Exception | None = None) -> None:
        self.error = error
        self.noted: list[str] = []

    def begin(self, version: int, based_on: int | None) -> None:
        self.noted.append(f"{version} {based_on}")
        if self.error is not None:
            raise self.error

    def abort(self) -> None:
        self.noted.append("abort")

    def resume(self) -> None:
        self.noted.append("resume")


def _asked(error: Exception | None = None) -> Any:
    server, engine = GeneratorServer(), _Engine(error)
    server._engine = engine  # type: ignore[assignment]
    answer = server.answer(Message("begin", {"version": 3, "based_on": None}))
    server.abort()
    server.resume()
    return answer.kind, dict(answer.fields), engine.noted


def _not_opened() -> None:
    server = GeneratorServer()
    server.abort()
    server.resume()


def _handled(number: signal.Signals) -> Any:
    """Return which signals an engine's process handles, and what one that comes between messages does there."""
    engine = _Engine()
    handlers: dict[int, Any] = {}

    def receive(connection: Any) -> Any:
        handlers[number](number, None)
        raise EOFError

    server = GeneratorServer()
    server._engine = engine  # type: ignore[assignment]
    connection: Any = None
    with (
        patch.object(generator_process, "GeneratorServer", lambda: server),
        patch.object(generator_process, "receive", receive),
        patch("signal.signal", handlers.__setitem__),
    ):
        generator_process.serve(connection)
    return sorted(handlers), engine.noted


def _of_engines() -> Iterator[WorkedExample]:
    from refrl.generation.process import ERRORS

    handled = [signal.SIGUSR1, signal.SIGUSR2]
    for number, word in zip(handled, ("abort", "resume"), strict=True):
        yield example(f"the signal to {word}", (handled, [word]), _handled, number)
    noted = ["3 None", "abort", "resume"]
    yield example("an answer", ("begun", {}, noted), _asked)
    for name, kind in ERRORS.items():
        yield example(
            f"an error {name}", ("error", {"error": name, "message": "why"}, noted), _asked, kind("why")
        )
    yield refused("", "an error of its own", _asked, AssertionError("why"))
    yield example("nothing to abort before it is opened", None, _not_opened)
