"""Random bytes and random mutations of valid files: a reader gives a log or says Blocked, and nothing else.

Each case stops after SEATRIAL_FUZZ_CASES inputs (10,000) or SEATRIAL_FUZZ_SECONDS (0.5), whichever comes first; the
nightly form of it has no limit of time. Memory is limited while it runs. A failure prints the seed of its input.
"""

from __future__ import annotations

import gzip
import json
import math
import os
import random
import sqlite3
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tests.fuzz.damage import mutate, random_bytes
from tests.fuzz.readers import Damager, fuzz, seeds
from tests.unit.evidence.event_writers import scalar, start, write_events

from seatrial.evidence.read import Reader, read_logs
from seatrial.evidence.readers import (
    console,
    csv,
    json_columns,
    json_rows,
    jsonl,
    metrics_json,
    mlflow,
    prime_rl,
    sqlite,
    trackio,
    trainer_state,
    verl,
    wandb,
)
from seatrial.evidence.readers.tensorboard import folder as tensorboard

pytestmark = [pytest.mark.fuzz, pytest.mark.timeout(1800)]

CASES = int(os.environ.get("SEATRIAL_FUZZ_CASES", "10000"))
SECONDS = float(os.environ.get("SEATRIAL_FUZZ_SECONDS", "0.5"))

ROWS = [
    {"step": step, "loss": 1 / step, "nan": math.nan, "null": None, "text": "NaN", "deep": {"a": {"b": step}}}
    for step in range(1, 30)
]


def lines(rows: list[dict[str, object]]) -> bytes:
    return "".join(json.dumps(row) + "\n" for row in rows).encode()


def event_file(folder: Path) -> bytes:
    events = [
        scalar(f"train/m{tag}", step, tag / step, 1e9 + step) for step in range(1, 40) for tag in range(6)
    ]
    events.insert(100, start(10, 1e9 + 20))
    return write_events(folder / "valid.tfevents", events).read_bytes()


def trackio_file(folder: Path) -> bytes:
    path = folder / "valid.db"
    path.unlink(missing_ok=True)
    with sqlite3.connect(path) as connection:
        connection.execute(
            "CREATE TABLE metrics (id INTEGER PRIMARY KEY, run_name, timestamp, step, metrics)"
        )
        connection.executemany(
            "INSERT INTO metrics (run_name, timestamp, step, metrics) VALUES ('r', '2026-01-01T00:00:00', ?, ?)",
            [(row["step"], json.dumps(row)) for row in ROWS],
        )
    connection.close()
    return path.read_bytes()


def mlflow_store(folder: Path) -> bytes:
    path = folder / "valid.sqlite"
    path.unlink(missing_ok=True)
    with sqlite3.connect(path) as connection:
        connection.execute("CREATE TABLE runs (run_uuid PRIMARY KEY, lifecycle_stage)")
        connection.execute("INSERT INTO runs VALUES ('r', 'active')")
        connection.execute("CREATE TABLE metrics (key, value, timestamp, run_uuid, step, is_nan)")
        connection.executemany(
            "INSERT INTO metrics VALUES ('loss', ?, ?, 'r', ?, 0)", [(1.0, step, step) for step in range(30)]
        )
    connection.close()
    return path.read_bytes()


def header_and_rows(folder: Path) -> bytes:
    return b"step,loss,wall time\n" + b"".join(
        b"%d,%f,%d\n" % (step, 1 / step, step) for step in range(1, 60)
    )


def printed(folder: Path) -> bytes:
    rows = [f"(pid=1) step:{row['step']} - loss:{row['loss']} - nan:nan" for row in ROWS]
    rows += [f"{{'loss': {row['loss']}, 'reward': '0.5', 'epoch': 0.1}}" for row in ROWS]
    return "\n".join([*rows, "Epoch:[1/2](3/40), loss: 0.5, lr: 0.1"]).encode()


FORMATS: dict[str, tuple[Reader, str, Callable[[Path], bytes]]] = {
    "tensorboard": (tensorboard, "events.out.tfevents.1", event_file),
    "jsonl": (jsonl, "log.jsonl", lambda _: lines(ROWS)),
    "verl": (verl, "log.jsonl", lambda _: lines([{"step": row["step"], "data": row} for row in ROWS])),
    "prime_rl": (
        prime_rl,
        "metrics.jsonl",
        lambda _: lines([{"step": 1, "time": 1e9, **row} for row in ROWS]),
    ),
    "metrics_json": (
        metrics_json,
        "metrics.json",
        lambda _: json.dumps({"a": {str(row["step"]): row["loss"] for row in ROWS}, "b": 1.0}).encode(),
    ),
    "trainer_state": (
        trainer_state,
        "trainer_state.json",
        lambda _: json.dumps({"global_step": 29, "log_history": ROWS}).encode(),
    ),
    "csv": (csv, "log.csv", header_and_rows),
    "list of rows": (json_rows, "log.json", lambda _: json.dumps(ROWS).encode()),
    "columns": (
        json_columns,
        "log.json",
        lambda _: json.dumps({"step": [row["step"] for row in ROWS], "loss": [1.0] * len(ROWS)}).encode(),
    ),
    "console": (console, "run.log", printed),
    "packed": (jsonl, "log.jsonl.gz", lambda _: gzip.compress(lines(ROWS))),
    "mlflow files": (
        mlflow,
        "run/metrics/loss",
        lambda _: b"".join(b"%d %f %d\n" % (10**12 + step, 1 / step, step) for step in range(1, 60)),
    ),
    "mlflow store": (mlflow, "mlflow.db", mlflow_store),
    "trackio": (trackio, "project.db", trackio_file),
}


@pytest.fixture(params=["in a moment", pytest.param("nightly", marks=pytest.mark.nightly)])
def seconds(request: pytest.FixtureRequest) -> float:
    """Return the limit of time: a nightly case reaches its number of inputs."""
    return SECONDS if request.param == "in a moment" else math.inf


@pytest.fixture(scope="module")
def wandb_folder(
    formats_worker: Callable[..., dict[str, Any]], tmp_path_factory: pytest.TempPathFactory
) -> Path:
    """Return a folder with logs that W&B wrote."""
    folder = tmp_path_factory.mktemp("wandb-logs")
    formats_worker("write", "wandb", folder)
    return folder


@pytest.mark.parametrize("make", [random_bytes, mutate])
@pytest.mark.parametrize("name", FORMATS)
def test_a_log_or_blocked(
    name: str, make: Damager, seconds: float, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    reader, file_name, valid_file = FORMATS[name]
    path = tmp_path / "fuzz" / file_name
    path.parent.mkdir(parents=True)
    if name == "mlflow files":
        (path.parents[1] / "meta.yaml").touch()
    path.write_bytes(valid_file(tmp_path))
    assert read_logs(path).series, "the file that is mutated must be valid"
    tried, num_read = fuzz(reader, path, make, CASES, seconds)
    request.node.user_properties.append(("inputs", tried))
    assert make is random_bytes or num_read > 0
    assert tried == CASES or seconds == SECONDS


@pytest.mark.peer
@pytest.mark.parametrize("make", [random_bytes, mutate])
def test_a_log_or_blocked_of_wandb(
    make: Damager,
    seconds: float,
    wandb_folder: Path,
    formats_worker: Callable[..., dict[str, Any]],
    tmp_path: Path,
    request: pytest.FixtureRequest,
) -> None:
    """The reader needs the protobufs of wandb, so it runs in an environment that has them."""
    valid = min(wandb_folder.rglob("run-*.wandb"), key=lambda path: path.parent.name)
    (tmp_path / valid.name).write_bytes(valid.read_bytes())
    counted = formats_worker("fuzz", tmp_path / valid.name, make.__name__, str(CASES), str(seconds))
    request.node.user_properties.append(("inputs", counted["tried"]))
    assert make is random_bytes or counted["read"] > 0
    assert counted["tried"] == CASES or seconds == SECONDS


def test_leveldb_framing_accounts_for_every_byte_read(seconds: float) -> None:
    generator = random.Random(0)
    valid = generator.randbytes(7) + b"".join(_piece(generator.randbytes(400)) for _ in range(200))
    for seed in seeds(CASES, seconds):
        blob = mutate(random.Random(seed), valid)
        held = [item.data for item in wandb.records(blob, 7) if isinstance(item, wandb.Record)]
        assert sum(map(len, held)) <= len(blob), seed


def _piece(data: bytes) -> bytes:
    import struct
    import zlib

    return struct.pack("<IHB", zlib.crc32(b"\x01" + data), len(data), 1) + data


def test_a_query_that_does_not_end_is_given_up(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A damaged or hostile database may make SQLite work without end."""
    monkeypatch.setattr(sqlite, "_MAX_PROGRESS", 50)
    path = tmp_path / "endless.db"
    with sqlite3.connect(path) as connection:
        connection.execute("CREATE TABLE t (x)")
    connection.close()
    endless = "WITH RECURSIVE c(x) AS (SELECT 1 UNION ALL SELECT x + 1 FROM c) SELECT count(*) FROM c"
    with sqlite.open_read_only(path) as opened, pytest.raises(sqlite3.OperationalError, match="interrupted"):
        opened.execute(endless).fetchone()
