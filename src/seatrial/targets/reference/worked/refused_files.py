"""Worked examples of refused files, folders, messages and names."""

from __future__ import annotations

import os
import socket
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import patch

from refrl.checkpointing.layout import final_directory
from refrl.config import algorithms, loading, registry
from refrl.config.checkpointing import CheckpointingConfig
from refrl.config.run import GRPORunConfig, LoggerConfig
from refrl.directories import new_directory
from refrl.generation import messages
from refrl.logging import RunLogger
from refrl.models.tokenization import load_tokenizer
from refrl.rollout.environments import make_environment
from refrl.tasks.files.jsonl import JsonLines
from refrl.tasks.files.opening import open_rows
from seatrial.relations.contracts.worked import WorkedExample
from seatrial.targets.reference.worked.checkpoints import in_folder
from seatrial.targets.reference.worked.made import example, refused

HERE = "seatrial.targets.reference.worked"
CUSTOM = f"{HERE}.refusals"


def _blocked(folder: Path, call: Callable[[Path], Any]) -> Any:
    """Call a function with a path below a file, where nothing can be made."""
    (folder / "file").write_text("x", encoding="utf-8")
    return call(folder / "file" / "below")


def _written(folder: Path, name: str, text: str, call: Callable[[Path], Any]) -> Any:
    """Call a function with a folder that has one file of this text."""
    (folder / name).write_text(text, encoding="utf-8")
    return call(folder)


def _without_permission(folder: Path) -> Any:
    with patch.object(os, "access", lambda path, mode: False):
        return final_directory(_checkpoints(folder))


def _checkpoints(folder: Path) -> CheckpointingConfig:
    return CheckpointingConfig(enabled=True, checkpoint_dir=str(folder), save_period=1)


def _fill(path: Path) -> None:
    with new_directory(path):
        pass


def of_files() -> Iterator[WorkedExample]:
    """Yield the files, folders and messages that are refused."""
    columns: Any = SimpleNamespace()
    load = partial(loading.load_config, GRPORunConfig)
    blocked: Mapping[str, Callable[[Path], Any]] = {
        "cannot write the model directory": _fill,
        "below cannot be written": lambda path: final_directory(_checkpoints(path)),
        "logger.log_dir=": lambda path: RunLogger(LoggerConfig(log_dir=str(path), tensorboard_enabled=False)),
        "below cannot be read: Not a directory": JsonLines,
        "below does not exist": lambda path: open_rows(path, columns, "data.train_path"),
        "configuration file": load,
    }
    for words, call in blocked.items():
        yield refused(words, f"below a file: {words}", in_folder(_blocked), call)
    yield refused(
        "cannot be written: no permission", "a folder without permission", in_folder(_without_permission)
    )
    yield refused(
        "does not exist", "a configuration that is not there", in_folder(lambda path: load(path / "a"))
    )
    yield refused("cannot be read", "a configuration that is a folder", in_folder(load))
    yield refused(
        "is of an unknown kind",
        "rows of an unknown kind",
        in_folder(_written),
        "a.txt",
        "",
        lambda folder: open_rows(folder / "a.txt", columns, "data.train_path"),
    )
    for text in ("{}", "", "[]", '{"model": 1}'):
        yield refused(
            "tokenizer",
            f"a tokenizer file {text!r}",
            in_folder(_written),
            "tokenizer.json",
            text,
            load_tokenizer,
        )
    for length, words in ((2**40, "the stream is out of step"), (None, "")):
        yield refused(words, f"a header of {length} bytes", _received, length)


def _received(length: int | None) -> Any:
    """Receive a message whose header has this length; None: of a peer that is gone."""
    here, there = socket.socketpair()
    with here, there:
        if length is not None:
            there.sendall(length.to_bytes(messages._LENGTH, "little"))
        there.close()
        return messages.receive(here)


class NoEnvironment:
    """An object that cannot answer."""

    max_turns = 2


class Point:
    """An entry point of a package."""

    def __init__(self, name: str, value: str, package: str) -> None:
        self.name, self.value, self.dist = name, value, SimpleNamespace(name=package)


POINTS = (
    *(Point("twice", f"{CUSTOM}:{kind}", f"of-{kind.lower()}") for kind in ("Few", "Endless")),
    *(Point("same", f"{CUSTOM}:Few", package) for package in ("a", "b")),
    Point("lost", "no_such_module:Few", "z"),
)


def _found(name: str) -> str:
    """Return the name of the advantage estimator that is found among entry points."""
    with patch.object(registry.Registry, "_entry_points", lambda self: POINTS):
        return str(algorithms.ADVANTAGES.find(name, "key").__name__)


def of_names() -> Iterator[WorkedExample]:
    """Yield the names and values that are refused."""
    for name, words in {
        "twice": "key=twice: several packages offer it (of-endless, of-few); name one by import path",
        "lost": "key=lost (of z)=no_such_module:Few: there is no module 'no_such_module'",
        "fwe": "key='fwe' is unknown",
        f"{CUSTOM}:Fewer": "Fewer",
    }.items():
        yield refused(words, f"a name: {name}", _found, name)
    yield example("a name of one class in two packages", "Few", _found, "same")
    yield example("a class by its path", "Few", _found, f"{CUSTOM}:Few")
    for kind, words in {
        "refused_files:NoEnvironment": "makes a NoEnvironment, which is no environment",
        "refusals:Few": "and data.environment_args: ",
    }.items():
        config: Any = SimpleNamespace(environment=f"{HERE}.{kind}", environment_args={})
        yield refused(words, f"no environment: {kind}", make_environment, config)
    for value in ({1}, object()):
        words = "a value is not a plain number, text, list or mapping"
        yield refused(
            words,
            f"a value: {type(value).__name__}",
            loading.validate_config,
            GRPORunConfig,
            {"a": value},
            source="here",
        )
