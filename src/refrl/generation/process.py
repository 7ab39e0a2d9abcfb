"""A generator in a process of its own: what it is asked goes there in messages, and so do its weights."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import subprocess
import sys
import threading
import weakref
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any, Protocol

import torch
from torch import Tensor

import refrl
from refrl.config import ConfigError, PolicyConfig
from refrl.generation.base import Completion, SamplingParams
from refrl.generation.messages import Message, named_dtype, pack_parts, receive, send
from refrl.lifeline import PARENT
from refrl.weight_sync.base import Part, Receipt, TensorSpec, WeightSyncError

COMMAND: tuple[str, ...] = (sys.executable, "-P", "-m", "refrl.runtime.generator_process")
"""What is started; the number of its end of the connection follows. A program that wraps refrl names itself here. An
engine in another environment gets the words after the interpreter. `-P`: as for `refrl.runtime.launcher.COMMAND`."""
ERRORS: Mapping[str, type[Exception]] = {
    error.__name__: error for error in (ConfigError, WeightSyncError, ValueError, FloatingPointError)
}
"""Exceptions that the process sends back to its parent, by name; subclasses come before their base classes."""

ABORT, RESUME = signal.SIGUSR1, signal.SIGUSR2
"""Signals to a process that is generating, since it reads messages only afterwards."""

START_SECONDS = 600.0
"""For importing and loading, where `policy.generation.timeout_seconds` is shorter: a deadline for answers."""
_GRACE_SECONDS = 5.0
"""Between the end of the connection and the killing of the process."""


class GeneratorLostError(OSError):
    """The generator's process ended, or did not answer in time."""


class Link(Protocol):
    """The way to a process that has an engine (`refrl.runtime.generator_process` answers there)."""

    pid: int
    """The process; only on its own host is it this number's."""
    is_local: bool
    """Whether it runs on this host."""
    timeout_seconds: float
    """How long an answer may take."""

    def ask(self, message: Message) -> Message:
        """Return the answer to a message.

        Raises:
            GeneratorLostError: the process crashed or was stopped.
        """
        ...

    def abort(self) -> None:
        """Have the engine give up what it generates."""
        ...

    def resume(self) -> None:
        """Have it generate to the end again."""
        ...

    def close(self) -> None:
        """End the process."""
        ...


class SocketLink:
    """A `Link` to a process that this one starts: messages go through a pair of sockets, aborts are signals."""

    is_local = True

    def __init__(self, python: str | None = None) -> None:
        """Start the process: `COMMAND`, or this very refrl with the interpreter and packages of another environment.

        Raises:
            ConfigError: there is no such interpreter.
        """
        command, environment = COMMAND, dict(os.environ)
        if threading.current_thread() is threading.main_thread():
            environment[PARENT] = str(os.getpid())
        if python is not None:
            command = (python, *COMMAND[1:])
            source = str(Path(refrl.__file__).parents[1])
            environment["PYTHONPATH"] = os.pathsep.join(filter(None, [source, environment.get("PYTHONPATH")]))
        own, other = socket.socketpair()
        with other:
            try:
                self._process = subprocess.Popen(
                    [*command, str(other.fileno())],
                    stdin=subprocess.DEVNULL,
                    pass_fds=(other.fileno(),),
                    env=environment,
                )
            except OSError as error:
                own.close()
                raise ConfigError(f"the interpreter {command[0]} cannot be started: {error}") from error
        self._connection = own
        self._closing = weakref.finalize(self, _end, self._process, own)
        self.pid = self._process.pid
        self.timeout_seconds = START_SECONDS

    def ask(self, message: Message) -> Message:
        """Send a message and wait for the answer (see `Link.ask`)."""
        try:
            self._connection.settimeout(self.timeout_seconds)
            return self._exchange(message)
        except (OSError, EOFError) as error:
            late = isinstance(error, TimeoutError)
            self.close()
            how = "did not answer in time and was stopped" if late else _how_it_ended(self._process)
            what = f"the generator's process {self.pid} {how}, asked to {message.kind}"
            raise GeneratorLostError(what) from error

    def _exchange(self, message: Message) -> Message:
        send(self._connection, message)
        return receive(self._connection)

    def abort(self) -> None:
        """Have the process give up what it generates after the next token, until `resume`."""
        self._process.send_signal(ABORT)

    def resume(self) -> None:
        """Have it generate to the end again."""
        self._process.send_signal(RESUME)

    def close(self) -> None:
        """End the process."""
        self._closing()


class ProcessGenerator:
    """A `refrl.generation.base.Generator` whose engine runs in another process."""

    def __init__(
        self,
        config: PolicyConfig,
        *,
        pad_token_id: int,
        device: torch.device,
        connect: Callable[[], Link] = SocketLink,
    ) -> None:
        """Start the process and wait until it has loaded the model.

        Args:
            config: names the model and the engine.
            pad_token_id: as the engine's.
            device: where the engine computes.
            connect: starts the process.

        Raises:
            ConfigError: it cannot load the model.
            GeneratorLostError: it ended, or takes longer than `START_SECONDS`.
        """
        self.link = connect()
        self.link.timeout_seconds = max(START_SECONDS, config.generation.timeout_seconds)
        opened = self._ask(
            Message(
                "open",
                {
                    "policy": config.model_dump(mode="json"),
                    "pad_token_id": pad_token_id,
                    "device": str(device),
                    "num_threads": torch.get_num_threads(),
                },
            )
        )
        self.link.timeout_seconds = config.generation.timeout_seconds
        self.engine: str = opened.fields["engine"]
        self._stop_ids = frozenset(opened.fields["stop_ids"])
        self._specs = {
            name: TensorSpec(tuple(shape), named_dtype(dtype))
            for name, (shape, dtype) in opened.fields["specs"].items()
        }
        self.weight_version = 0

    @property
    def pid(self) -> int | None:
        """The process; None where it runs on another host."""
        return self.link.pid if self.link.is_local else None

    def generate(
        self, prompts: Sequence[Sequence[int]], params: SamplingParams, generator: torch.Generator
    ) -> list[Completion]:
        """Sample one completion per prompt (see `refrl.generation.base.Generator`).

        Raises:
            GeneratorLostError: the process ended, or did not answer in time.
        """
        answer = self._ask(
            Message(
                "generate",
                {"prompts": [list(prompt) for prompt in prompts], "params": asdict(params)},
                [generator.get_state()],
            )
        )
        generator.set_state(answer.tensors[0])
        return [
            Completion(**{name: _tuples(value) for name, value in fields.items()})
            for fields in answer.fields["completions"]
        ]

    def abort(self) -> None:
        """Have the process give up what it generates after the next token, until `resume`."""
        self.link.abort()

    def resume(self) -> None:
        """Have it generate to the end again."""
        self.link.resume()

    def stop_ids(self) -> frozenset[int]:
        """Return the end-of-sequence ids of its model."""
        return self._stop_ids

    def named_weights(self) -> Iterator[tuple[str, Tensor]]:
        """Yield copies of every tensor that it samples with, read back from the process."""
        answer = self._ask(Message("weights"))
        yield from zip(answer.fields["names"], answer.tensors, strict=True)

    def share_weights(self, weights: Iterator[tuple[str, Tensor]]) -> None:
        """Refuse: another process has another storage.

        Raises:
            WeightSyncError: always.
        """
        raise WeightSyncError("a generator in a process of its own shares no weights; sync them")

    def load_weights(self, weights: Iterator[tuple[str, Tensor]], version: int) -> None:
        """Refuse: weights come in parts, each held against its fingerprint.

        Raises:
            WeightSyncError: always.
        """
        raise WeightSyncError("a generator in a process of its own takes weights in parts")

    def specs(self) -> Mapping[str, TensorSpec]:
        """Return the tensors that it samples with (see `refrl.weight_sync.base.WeightReceiver`)."""
        return self._specs

    def begin(self, version: int, based_on: int | None) -> None:
        """Sample no more, and take weights in parts."""
        self._ask(Message("begin", {"version": version, "based_on": based_on}))

    def receive(self, parts: Sequence[Part]) -> None:
        """Put parts of weights in their places."""
        self._ask(pack_parts(parts))

    def commit(self, fingerprints: Mapping[str, str]) -> Receipt:
        """Sample again, when every tensor arrived whole."""
        answer = self._ask(Message("commit", {"fingerprints": dict(fingerprints)}))
        self.weight_version = answer.fields["version"]
        return Receipt(
            **{name: answer.fields[name] for name in ("num_tensors", "seconds", "largest_load_bytes")}
        )

    def close(self) -> None:
        """End the process."""
        self.link.close()

    def _ask(self, message: Message) -> Message:
        """Return the answer to a message.

        Raises:
            GeneratorLostError: the process crashed or was stopped.
            Exception: one of `ERRORS`, as the process raised it.
        """
        answer = self.link.ask(message)
        if answer.kind == "error":
            raise ERRORS[answer.fields["error"]](answer.fields["message"])
        return answer


def _tuples(value: Any) -> Any:
    """Return JSON lists, and those within them, as tuples; a list holds either lists or none."""
    if not isinstance(value, list):
        return value
    return tuple(map(_tuples, value)) if value and isinstance(value[0], list) else tuple(value)


def _end(process: subprocess.Popen[bytes], connection: socket.socket) -> None:
    """Close the connection, which ends the process; kill it if it does not."""
    with contextlib.suppress(OSError):
        connection.shutdown(socket.SHUT_RDWR)
    connection.close()
    try:
        process.wait(_GRACE_SECONDS)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


def _how_it_ended(process: subprocess.Popen[bytes]) -> str:
    status = process.returncode
    by_signal = status is not None and status < 0
    return f"ended by signal {-status}" if by_signal else f"ended with exit status {status}"
