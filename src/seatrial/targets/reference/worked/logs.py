"""Worked examples of what a run leaves, whole and without secrets: logs, folders, threads; sums that ranks compare."""

from __future__ import annotations

import hashlib
import json
import os
import socket
import tempfile
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, ExitStack, suppress
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import patch

import torch

from refrl import distributed, lifeline, logging, media
from refrl.checkpointing.attempts import _frames
from refrl.config.run import ClusterConfig, LoggerConfig
from refrl.directories import naming, new_directory
from refrl.distributed import DivergenceError, World
from refrl.logging import RunLogger
from refrl.masking import MASK, masked
from refrl.streams import random_stream
from refrl.timing import Timer
from seatrial.relations.contracts.worked import WorkedExample
from seatrial.targets.reference.worked.made import example

SECRETS = (
    *("password", "db_PASSWD", "passphrase", "client_secret", "Credential", "aws_credentials", "api_key"),
    *("access-key", "privatekey", "secret_key", "signing_key", "encryption_key", "api_token", "access_token"),
    *("auth-token", "bearer_token", "refresh_token", "session_token", "HF_TOKEN", "a.token", "token"),
)
PLAIN = (
    "pad_token",
    "max_new_tokens",
    "secretary",
    "key",
    "tokens",
    "hf_tokenizer",
    "token_id",
    "secretarial",
)


def examples() -> Iterator[WorkedExample]:
    """Yield the examples."""
    yield from _of_masks()
    for raises in (None, ValueError, KeyboardInterrupt):
        right = {"in the file at once": True, "closed": True, "mode": "xb"}
        yield example(f"a log that ends with {raises}", right, _in_folder(_logged), raises)
        made = [] if raises else ["made"]
        yield example(
            f"a folder that is filled and ends with {raises}", (True, made), _in_folder(_filled), raises
        )
    yield example("a file that is written whole", (".x.json.tmp", "old", ["x.json"]), _in_folder(_replaced))
    yield example("events in a folder below another", ["a/b", "brain.Event:2"], _in_folder(_events_below))
    yield example("processes of the parts of a run", {"trainer": 7, "sampler": 8}, _in_folder(_parts))
    facts = {"config": {"url": f"https://{MASK}@h/x"}, "argv": ["refrl", f"hf_token={MASK}"], "seed": 3}
    yield example("facts of a run with secrets", facts, _in_folder(_facts))
    yield example("the file of a log, event by event", _EVENTS, _in_folder(_events))
    for seed, purpose, step in ((4, "validation", 0), (0, "prompts", 17)):
        name = f"the stream of seed {seed} for {purpose} at step {step}"
        yield example(name, _seed_of(seed, purpose, step), lambda *given: random_stream(*given).initial_seed(),
                      seed, purpose, step)  # fmt: skip
    yield example("blocks that keep an interrupt to themselves", [], _in_folder(_swallowed))
    yield example("the floats of an image", ("float32", True, [1.5, -2.0]), _image)
    for num in (1, 2):
        yield example(f"a run of {num} processes watches its launcher", 1, _joined, num)
    yield example("weights that differ by less than float32 adds", True, _differ)
    yield example("the thread of a launcher's end", [("refrl-lifeline", True), ("exit", 1)], _thread)


def _in_folder(function: Callable[..., Any]) -> Callable[..., Any]:
    def call(*words: Any) -> Any:
        with tempfile.TemporaryDirectory() as folder:
            return function(Path(folder), *words)

    return call


def _events_below(folder: Path) -> list[str]:
    logging.EventWriter(folder / "a" / "b").close()
    (path,) = folder.rglob("events.out.tfevents.*")
    version = b"brain.Event:2"
    return [str(path.parent.relative_to(folder)), version.decode() * (version in path.read_bytes())]


def _parts(folder: Path) -> Any:
    with RunLogger(LoggerConfig(log_dir=str(folder))) as logger:
        logger.log_parts({"trainer": 7, "sampler": 8})
    return json.loads((folder / "parts.json").read_text())


def _of_masks() -> Iterator[WorkedExample]:
    for name in SECRETS:
        yield example(f"the value of {name}", {name: MASK}, masked, {name: "x"})
    for name in PLAIN:
        yield example(f"the value of {name}", {name: "x"}, masked, {name: "x"})
    for value, right in (
        (("hf_token=x", 1), [f"hf_token={MASK}", 1]),
        ({"token": ("x", "y")}, {"token": [MASK, MASK]}),
        ({"token": 7}, {"token": MASK}),
        ({"token": None}, {"token": None}),
        ({"token": False}, {"token": False}),
        ({"token": {"a": "x"}}, {"token": {"a": "x"}}),
        ({"db_password": {"port": 5}}, {"db_password": {"port": 5}}),
    ):
        yield example(f"{value} without secrets", right, masked, value)


def _logged(folder: Path, raises: type[BaseException] | None) -> Any:
    """Return whether scalars are in the file when they are logged, whether it is closed, and how it was opened."""
    modes: list[str] = []
    opened = Path.open

    def noted(self: Path, mode: str = "r", *words: Any, **options: Any) -> Any:
        modes.append(mode)
        return opened(self, mode, *words, **options)

    with patch.object(Path, "open", noted):
        log = RunLogger(LoggerConfig(log_dir=str(folder / "log")))
    events: Any = log._events
    with suppress(ValueError, KeyboardInterrupt), log as logger:
        before = events._path.stat().st_size
        logger.log({"loss": 0.5}, 1, "train")
        grown = events._path.stat().st_size > before
        if raises is not None:
            raise raises
    closed = events._file.closed
    events._file.close()
    return {
        "in the file at once": grown and before > 0,
        "closed": closed,
        "mode": next(mode for mode in modes if mode[0] in "axw"),
    }


def _filled(folder: Path, raises: type[BaseException] | None) -> Any:
    """Return whether a folder is filled next to where it will be, and what is there afterwards."""
    is_near = False
    with suppress(ValueError, KeyboardInterrupt), new_directory(folder / "made") as temporary:
        is_near = temporary.parent == folder and temporary.name.startswith(".made.")
        if raises is not None:
            raise raises
    return is_near, [path.name for path in folder.iterdir()]


def _replaced(folder: Path) -> Any:
    """Return which file is written first, what the other one holds then, and the files in the end."""
    path = folder / "x.json"
    path.write_text("old")
    found: list[str] = []
    write = Path.write_text

    def noted(self: Path, text: str, **options: Any) -> int:
        size = write(self, text, **options)
        found.extend((self.name, path.read_text()))
        return size

    with patch.object(Path, "write_text", noted):
        logging.write_atomically(path, "new")
    assert path.read_text() == "new"
    return (*found, [one.name for one in folder.iterdir()])


def _facts(folder: Path) -> Mapping[str, Any]:
    config: Any = SimpleNamespace(model_dump=lambda mode: {"url": "https://me:secret@h/x"})
    with (
        patch("sys.argv", ["refrl", "hf_token=secret"]),
        RunLogger(LoggerConfig(log_dir=str(folder), tensorboard_enabled=False)) as logger,
    ):
        logger.log_run_info(config, 3, "cpu")
    found = json.loads((folder / "run_info.json").read_text())
    return {name: found[name] for name in ("config", "argv", "seed")}


_EVENTS = (
    "events.out.tfevents.1234.500000",
    [("brain.Event:2", 0, []), ("", 3, [("a/x", 0.5), ("a/y", -1.0)]), ("", 4, [("b/x", 2.0)])],
    {1234.5},
)
"""How the name of an event file begins, its events with their versions, steps and scalars, and their times."""


def _events(folder: Path) -> Any:
    from tensorboard.compat.proto.event_pb2 import Event

    clock = patch.object(logging, "time", SimpleNamespace(time=lambda: 1234.5))
    with clock, RunLogger(LoggerConfig(log_dir=str(folder))) as logger:
        logger.log({"x": 0.5, "y": -1.0}, 3, "a")
        logger.log({}, 9, "none")
        logger.log({"x": 2.0}, 4, "b")
    (path,) = (folder / "tensorboard").iterdir()
    events = [Event.FromString(frame[12:-4]) for frame in _frames(path.read_bytes())]
    assert path.name.endswith(f".{socket.gethostname()}.{os.getpid()}")
    found = [
        (one.file_version, one.step, [(value.tag, value.simple_value) for value in one.summary.value])
        for one in events
    ]
    return path.name[: len(_EVENTS[0])], found, {one.wall_time for one in events}


def _seed_of(seed: int, purpose: str, step: int) -> int:
    """Return the seed of a stream: runs that are resumed by a later version draw the same."""
    digest = hashlib.sha256(f"{seed}/{purpose}/{step}".encode()).digest()
    return int.from_bytes(digest[:8], "big") // 2


def _swallowed(folder: Path) -> list[str]:
    """Return the context managers whose block is interrupted and that continue as if it were not."""
    alone, two = ClusterConfig(device="cpu"), ClusterConfig(num_processes=2, device="cpu")
    started = {"WORLD_SIZE": "2", "RANK": "1", lifeline.TORCHRUN: "x"}
    blocks: Mapping[str, Callable[[], AbstractContextManager[Any]]] = {
        "a phase": lambda: Timer().time("a"),
        "a file": lambda: naming(folder),
        "a folder": lambda: new_directory(folder / "made"),
        "a log": lambda: RunLogger(LoggerConfig(log_dir=str(folder / "log"))),
        "one process": lambda: distributed.join(alone),
        "a rank": lambda: distributed.join(two),
    }
    raised = []
    with ExitStack() as stack:
        stack.enter_context(patch("torch.distributed.init_process_group", lambda *words, **more: None))
        stack.enter_context(patch("torch.distributed.destroy_process_group", lambda: None))
        stack.enter_context(patch.object(distributed, "watch_lifeline", lambda: None))
        for name, block in blocks.items():
            stack.enter_context(patch.dict(os.environ, started if name == "a rank" else {}))
            try:
                with block():
                    raise KeyboardInterrupt
            except KeyboardInterrupt:
                raised.append(name)
    return [name for name in blocks if name not in raised]


def _image() -> Any:
    packed = media.unpack("2:AADAPwAAAMA=")
    return str(packed.dtype), packed.flags.writeable, packed


def _joined(num: int) -> int:
    """Return how often a process looks after its launcher when it joins a run."""
    watched: list[bool] = []
    started = {} if num == 1 else {"WORLD_SIZE": "2", "RANK": "1", lifeline.TORCHRUN: "x"}
    with ExitStack() as stack:
        stack.enter_context(patch.dict(os.environ, started))
        stack.enter_context(patch.object(distributed, "watch_lifeline", lambda: watched.append(True)))
        stack.enter_context(patch("torch.distributed.init_process_group", lambda *words, **more: None))
        stack.enter_context(patch("torch.distributed.destroy_process_group", lambda: None))
        if num == 1:
            for name in (lifeline.TORCHRUN, lifeline.RENDEZVOUS, "WORLD_SIZE"):
                os.environ.pop(name, None)
        with distributed.join(ClusterConfig(num_processes=num, device="cpu")):
            return len(watched)


def _differ() -> bool:
    """Return whether ranks whose weights differ by one in 2^24 are distinguished."""
    said: list[str] = []

    class Ranks(World):
        def gather(self, items: Any) -> Any:
            said.extend(items)
            return list(said)

    for weights in ([2.0**24, 0.0], [2.0**24, 1.0]):
        try:
            Ranks(0, 2).check_agreement(1.0, [torch.tensor(weights)])
        except DivergenceError:
            return True
    return False


def _thread() -> list[Any]:
    """Return the thread that waits for a launcher's end, and how the process ends with the launcher."""
    found: list[Any] = []

    def thread(*, target: Callable[[], None], daemon: bool, name: str) -> Any:
        found.append((name, daemon))
        return SimpleNamespace(start=target)

    reading, writing = os.pipe()
    os.close(writing)
    try:
        with (
            patch.dict(os.environ, {lifeline.LIFELINE: str(reading)}),
            patch.object(threading, "Thread", thread),
            patch.object(os, "_exit", lambda status: found.append(("exit", status))),
        ):
            lifeline.watch_lifeline()
    finally:
        os.close(reading)
    return found
