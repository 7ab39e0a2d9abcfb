"""Traces of a run of refrl for comparing two runs, without times, paths and process ids."""

from __future__ import annotations

import hashlib
import json
import re
import struct
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

TIMED = ("timing/", "performance/")
"""Scalars whose steps and signs are compared, but not their values."""
_SECONDS = re.compile(r"seconds \S+")


def read_traces(folder: Path) -> dict[str, str]:
    """Return the text of each trace of a run.

    Args:
        folder: with `console.txt`, and below it the log directory `logs` and the export `checkpoints`.
    """
    logs, final = folder / "logs", folder / "checkpoints" / "final"
    files = {
        re.sub(r"tfevents.*", "tfevents", str(path.relative_to(folder))): f"{path.stat().st_mode:o}"
        for path in folder.rglob("*")
    }
    traces = {
        "console": _SECONDS.sub("seconds -", (folder / "console.txt").read_text(errors="replace")),
        "files": json.dumps(files, sort_keys=True),
        **_log(logs),
        **_rows(sorted(logs.glob("train_data_step*.jsonl")), "rows"),
        **_rows(sorted(logs.glob("validation_data_step*.jsonl")), "validation rows"),
        **_run_info(logs / "run_info.json"),
    }
    for path in sorted(folder.rglob("step_*/policy/*")):
        traces[f"checkpoint {path.parents[1].name}"] = hashlib.sha256(path.read_bytes()).hexdigest()
    for path in sorted(path for path in final.rglob("*") if path.is_file()):
        name = "weights" if path.name == "model.safetensors" else f"export {path.name}"
        traces[name] = hashlib.sha256(path.read_bytes()).hexdigest()
    return traces


def differences(sound: Mapping[str, str], faulty: Mapping[str, str]) -> list[str]:
    """Return the names of the traces that differ or that only one run has."""
    return [name for name in {**sound, **faulty} if sound.get(name) != faulty.get(name)]


def _log(logs: Path) -> dict[str, str]:
    series: dict[str, list[tuple[int, str]]] = {}
    for path in sorted((logs / "tensorboard").glob("*tfevents*")):
        for step, tag, value in _scalars(path):
            shown = str(value < 0) if tag.startswith(TIMED) else repr(value)
            series.setdefault(f"log {tag}", []).append((step, shown))
    return {name: json.dumps(values) for name, values in series.items()}


def _scalars(path: Path) -> Iterator[tuple[int, str, float]]:
    from tensorboard.compat.proto.event_pb2 import Event

    data, start = path.read_bytes(), 0
    while start + 12 <= len(data):
        # Length and its checksum, the record and its checksum.
        (length,) = struct.unpack_from("<Q", data, start)
        event = Event.FromString(data[start + 12 : start + 12 + length])
        start += 12 + length + 4
        for value in event.summary.value:
            yield event.step, value.tag, value.simple_value


def _rows(paths: Sequence[Path], name: str) -> dict[str, str]:
    rows = [json.loads(line) for path in paths for line in path.read_text(encoding="utf-8").splitlines()]
    fields = {field for row in rows for field in row}
    return {f"{name}.{field}": json.dumps([row.get(field) for row in rows]) for field in sorted(fields)}


def _run_info(path: Path) -> dict[str, str]:
    if not path.exists():
        return {}
    info: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    compared = {key: info.get(key) for key in ("seed", "device", "config", "versions")}
    compared["placement"] = info.get("placement", {}).get("by")
    return {f"run_info.{key}": json.dumps(value, sort_keys=True) for key, value in compared.items()}
