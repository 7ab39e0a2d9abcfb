"""How a run starts: new, from its last complete checkpoint, or again if it was killed before the first one.

The same command resumes in the same directories. The result is one log: entries after the checkpoint are removed.
"""

from __future__ import annotations

import json
import re
import struct
import time
import uuid
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pydantic import BaseModel

from refrl.checkpointing.base import Checkpoint
from refrl.checkpointing.layout import latest_checkpoint, remove_unfinished
from refrl.config import CheckpointingConfig, ConfigError, LoggerConfig
from refrl.directories import naming
from refrl.distributed import World
from refrl.masking import masked


@dataclass(frozen=True, kw_only=True)
class Attempt:
    """One start of a run."""

    run_id: str
    """The same for every attempt."""
    checkpoint: Checkpoint | None
    """The checkpoint that it resumes from; None: it starts at the beginning."""
    continues_log: bool
    """Whether the log directory holds the log of earlier attempts."""
    log_facts: Mapping[str, Any]
    """The attempts, as `run_info.json` lists them."""

    @property
    def step(self) -> int:
        """Steps that earlier attempts completed and saved."""
        return 0 if self.checkpoint is None else self.checkpoint.info.step

    @property
    def is_finished(self) -> bool:
        """Whether an earlier attempt stopped the loop before its last step because it had reached its goal."""
        return self.checkpoint is not None and self.checkpoint.info.finished


def begin_attempt(
    config: BaseModel, checkpointing: CheckpointingConfig, logger: LoggerConfig, world: World
) -> Attempt:
    """Decide how the run starts, and prepare its directories; all ranks get the same answer.

    Args:
        config: the whole configuration.
        checkpointing: its section.
        logger: its section.
        world: the processes of the run; the first one reads the directories.

    Raises:
        ConfigError: the log directory belongs to another run than the checkpoint.
    """
    found = (
        []
        if world.rank
        else [_look(masked(config.model_dump(mode="json")), checkpointing, Path(logger.log_dir))]
    )
    return world.gather(found)[0]


def _look(config: Mapping[str, Any], checkpointing: CheckpointingConfig, log_dir: Path) -> Attempt:
    root = Path(checkpointing.checkpoint_dir)
    remove_unfinished(root)
    checkpoint, logged = latest_checkpoint(root), _read_log_facts(log_dir)
    if checkpoint is None:
        again = bool(logged and checkpointing.enabled and checkpointing.save_period)
        continues = again and logged is not None and logged.get("config") == config
        run_id = str(logged["run_id"]) if continues and logged and "run_id" in logged else uuid.uuid4().hex
    else:
        run_id, continues = checkpoint.info.run_id, logged is not None
        if logged is not None and logged.get("run_id") != run_id:
            raise ConfigError(
                f"logger.log_dir={log_dir} holds the log of another run than the checkpoint in {checkpoint.directory}: "
                "name the log directory of that run or a new one, or another checkpointing.checkpoint_dir"
            )
        print(f"resuming after step {checkpoint.info.step} from {checkpoint.directory}", flush=True)
        for note in _changes(masked(checkpoint.info.config), config):
            print(f"resuming with a changed option: {note}", flush=True)
    resumed_from = None if checkpoint is None else checkpoint.info.step
    if continues:
        cut_log(log_dir, after=-1 if resumed_from is None else resumed_from)
    earlier = logged.get("attempts", []) if continues and logged else []
    return Attempt(
        run_id=run_id,
        checkpoint=checkpoint,
        continues_log=continues,
        log_facts={
            "run_id": run_id,
            "attempts": [*earlier, {"started_at": time.time(), "resumed_from": resumed_from}],
        },
    )


def _read_log_facts(log_dir: Path) -> dict[str, Any] | None:
    """Return `run_info.json`; None if it is missing, {} if it cannot be read."""
    try:
        facts = json.loads((log_dir / "run_info.json").read_text(encoding="utf-8"))
    except FileNotFoundError:
        return None
    except (OSError, ValueError):
        return {}
    return facts if isinstance(facts, dict) else {}


def _changes(before: Mapping[str, Any], now: Mapping[str, Any]) -> Iterator[str]:
    old, new = dict(_flat(before)), dict(_flat(now))
    for key in sorted(old.keys() | new.keys()):
        if old.get(key) != new.get(key):
            yield f"{key} was {old.get(key)!r}, is {new.get(key)!r}"


def _flat(tree: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    for name, value in tree.items():
        if isinstance(value, Mapping):
            yield from _flat(value, f"{prefix}{name}.")
        else:
            yield f"{prefix}{name}", value


_ROWS = re.compile(r"\w+_step(\d+)\.jsonl")
_FRAME = struct.Struct("<QI")
"""Length of a record and the checksum of the length; the record and its own checksum follow (TFRecord)."""
_CHECKSUM_BYTES = 4


def cut_log(directory: Path, after: int) -> None:
    """Restore the log to the end of a step, so that readers see one series without repeated steps.

    A half-written record of a killed run is removed as well. Each file is replaced atomically.

    Args:
        directory: `logger.log_dir`.
        after: the last step to keep; -1 keeps none.
    """
    for path in directory.glob("*.jsonl"):
        rows = _ROWS.fullmatch(path.name)
        if rows is not None and int(rows[1]) > after:
            path.unlink()
    for path in (directory / "tensorboard").glob("events.out.tfevents.*"):
        _cut_events(path, after)


def _cut_events(path: Path, after: int) -> None:
    from tensorboard.compat.proto.event_pb2 import Event

    whole = path.read_bytes()
    kept = []
    for frame in _frames(whole):
        event = Event.FromString(frame[_FRAME.size : -_CHECKSUM_BYTES])
        if event.HasField("file_version") or event.step <= after:
            kept.append(frame)
    left = b"".join(kept)
    if left == whole:
        return
    temporary = path.with_name(f".{path.name}.tmp")
    with naming(path):
        temporary.write_bytes(left)
        temporary.replace(path)


def _frames(data: bytes) -> Iterator[bytes]:
    """Yield the complete records of an event file with their framing."""
    start = 0
    while start + _FRAME.size <= len(data):
        length, _ = _FRAME.unpack_from(data, start)
        end = start + _FRAME.size + length + _CHECKSUM_BYTES
        if end > len(data):
            return
        yield data[start:end]
        start = end
