"""What a run leaves behind: TensorBoard scalars, the rows it trained on, and facts about itself."""

from __future__ import annotations

import json
import math
import os
import platform
import socket
import sys
import time
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, BinaryIO, Self

from pydantic import BaseModel

from refrl.config import ConfigError, LoggerConfig
from refrl.directories import naming
from refrl.masking import masked, masked_word


class RunLogger:
    """Writes the log directory of one run; use it as a context manager, so that it is closed on failure too."""

    def __init__(self, config: LoggerConfig, *, writes: bool = True, continues: bool = False) -> None:
        """Create the log directory.

        Args:
            config: where to, and what.
            writes: False on processes that leave the log to another; then nothing is created or written.
            continues: whether an existing log is this run's own, cut to where the run resumes.

        Raises:
            ConfigError: it cannot be written, or holds the log of another run: evidence of two runs is never mixed.
        """
        self.directory = Path(config.log_dir)
        self._writes = writes
        self._log_train_data = config.log_train_data and writes
        self._events: EventWriter | None = None
        self._latest: dict[str, tuple[int, float]] = {}
        if not writes:
            return
        if not continues and (self.directory / "run_info.json").exists():
            raise ConfigError(
                f"logger.log_dir={self.directory} holds the log of another run; name a new directory or remove it"
            )
        try:
            self.directory.mkdir(parents=True, exist_ok=True)
            if config.tensorboard_enabled:
                self._events = EventWriter(self.directory / "tensorboard")
        except OSError as error:
            raise ConfigError(f"logger.log_dir={self.directory} cannot be written: {error}") from error

    def __enter__(self) -> Self:
        """Return the logger."""
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        """Close the files."""
        if self._events:
            self._events.close()

    def log(self, metrics: Mapping[str, float], step: int, prefix: str) -> None:
        """Write scalars as `<prefix>/<name>`; what is written is on disk when this returns."""
        named = {f"{prefix}/{name}": value for name, value in metrics.items()}
        self._latest |= {tag: (step, value) for tag, value in named.items()}
        if self._events and named:
            self._events.write(named, step)

    def value_at(self, tag: str, step: int) -> float | None:
        """Return what was logged last under a tag, if that was at this step."""
        logged_at, value = self._latest.get(tag, (None, math.nan))
        return value if logged_at == step else None

    def names(self, prefix: str) -> list[str]:
        """Return the names that were logged under a prefix."""
        return [tag.removeprefix(f"{prefix}/") for tag in self._latest if tag.startswith(f"{prefix}/")]

    def log_rows(self, rows: Iterable[Mapping[str, Any]], name: str, step: int) -> None:
        """Write rows of a step to `<name>_step<N>.jsonl`, one JSON object per line (ASCII: no odd line ends)."""
        if self._log_train_data:
            lines = [json.dumps(row) + "\n" for row in rows]
            write_atomically(self.directory / f"{name}_step{step}.jsonl", "".join(lines))

    def log_run_info(
        self,
        config: BaseModel,
        seed: int,
        device: str,
        sandbox: str | None = None,
        *,
        attempt: Mapping[str, Any] | None = None,
    ) -> None:
        """Write `run_info.json`: the configuration, what code on what machine reads it, what holds programs.

        `attempt` are facts of a run that is started several times (`refrl.checkpointing.attempts`).
        """
        if not self._writes:
            return
        info = {
            **run_info(device),
            "seed": seed,
            "config": masked(config.model_dump(mode="json")),
            **(attempt or {}),
        }
        if sandbox is not None:
            info["sandbox"] = sandbox
        write_atomically(self.directory / "run_info.json", json.dumps(info, indent=1) + "\n")

    def log_parts(self, parts: Mapping[str, int]) -> None:
        """Write `parts.json`: the process of each part of the run, by the name of the part."""
        if self._writes:
            write_atomically(self.directory / "parts.json", json.dumps(parts, indent=1) + "\n")


class EventWriter:
    """A TensorBoard event file: one record per call, flushed at once, so that a killed run loses no step."""

    def __init__(self, directory: Path) -> None:
        """Start a new event file.

        Raises:
            OSError: the directory cannot be written.
        """
        from tensorboard.compat.proto.event_pb2 import Event
        from tensorboard.compat.proto.summary_pb2 import Summary
        from tensorboard.summary.writer.record_writer import RecordWriter

        self._event, self._summary = Event, Summary
        directory.mkdir(parents=True, exist_ok=True)
        name = f"events.out.tfevents.{time.time():.6f}.{socket.gethostname()}.{os.getpid()}"
        self._path = directory / name
        self._file: BinaryIO = self._path.open("xb")
        self._records = RecordWriter(self._file)
        self._append(Event(wall_time=time.time(), file_version="brain.Event:2"))

    def write(self, scalars: Mapping[str, float], step: int) -> None:
        """Append scalars of one step."""
        values = [self._summary.Value(tag=tag, simple_value=value) for tag, value in scalars.items()]
        self._append(self._event(wall_time=time.time(), step=step, summary=self._summary(value=values)))

    def close(self) -> None:
        """Close the file."""
        with naming(self._path):
            self._file.close()

    def _append(self, event: Any) -> None:
        with naming(self._path):
            self._records.write(event.SerializeToString())
            self._file.flush()


def run_info(device: str) -> dict[str, Any]:
    """Return the command, the process, where modules came from, and versions."""
    modules = {name: sys.modules.get(name) for name in ("refrl", "torch", "transformers", "tokenizers")}
    return {
        "argv": [masked_word(word) for word in sys.argv],
        "pid": os.getpid(),
        "host": socket.gethostname(),
        "started_at": time.time(),
        "device": device,
        "origins": {name: getattr(module, "__file__", None) for name, module in modules.items() if module},
        "versions": {
            "python": platform.python_version(),
            **{name: str(getattr(module, "__version__", None)) for name, module in modules.items() if module},
        },
    }


def write_atomically(path: Path, text: str) -> None:
    """Write a file that is whole whenever it exists."""
    temporary = path.with_name(f".{path.name}.tmp")
    with naming(path):
        temporary.write_text(text, encoding="utf-8")
        temporary.replace(path)


def console_line(step: int, num_steps: int, metrics: Mapping[str, float], shown: Sequence[str]) -> str:
    """Return one readable line: `step 3/60  reward 0.412  loss 0.0123`."""
    parts = [f"{name} {metrics[name]:.4g}" for name in shown if name in metrics]
    return "  ".join([f"step {step:>{len(str(num_steps))}}/{num_steps}", *parts])
