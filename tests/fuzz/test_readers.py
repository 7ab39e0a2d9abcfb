"""Random bytes and random mutations of valid files: a reader gives a log or says Blocked, and nothing else.

Each case stops after SEATRIAL_FUZZ_CASES inputs (10,000) or SEATRIAL_FUZZ_SECONDS (1), whichever comes first; the
nightly run sets a longer time. Memory is limited while it runs, so that a length that a file only declares cannot
be allocated. A failure prints the seed of its input.
"""

from __future__ import annotations

import json
import math
import os
import random
import resource
import sqlite3
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from tests.unit.evidence.event_writers import scalar, start, write_events

from seatrial.errors import BlockedError
from seatrial.evidence import (
    csv,
    jsonl,
    leveldb_log,
    metrics_json,
    mlflow,
    prime_rl,
    sqlite,
    tensorboard,
    trackio,
    trainer_state,
    verl,
)
from seatrial.evidence.read import Reader, read_logs
from seatrial.evidence.runlog import RunLog

pytestmark = [pytest.mark.fuzz, pytest.mark.timeout(1800)]

CASES = int(os.environ.get("SEATRIAL_FUZZ_CASES", "10000"))
SECONDS = float(os.environ.get("SEATRIAL_FUZZ_SECONDS", "1"))
HEADROOM = 1 << 30

ROWS = [
    {"step": step, "loss": 1 / step, "nan": math.nan, "null": None, "text": "NaN", "deep": {"a": {"b": step}}}
    for step in range(1, 30)
]
ODD_PIECES = [
    b"1e999", b"-" * 50, b"9" * 5000, b"[" * 3000, b'{"a":' * 2000, b"NaN", b"\x00" * 64, b"\xff" * 9, b'"', b"\n",
    b"null", b"1.5", b"-1", b"9223372036854775808", b"\xe2\x80\xae", b",", b"}", b"\r", b"\xef\xbb\xbf", b"0x1",
]  # fmt: skip


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
    "mlflow files": (
        mlflow,
        "run/metrics/loss",
        lambda _: b"".join(b"%d %f %d\n" % (10**12 + step, 1 / step, step) for step in range(1, 60)),
    ),
    "mlflow store": (mlflow, "mlflow.db", mlflow_store),
    "trackio": (trackio, "project.db", trackio_file),
}


@contextmanager
def limited_memory() -> Iterator[None]:
    soft, hard = resource.getrlimit(resource.RLIMIT_AS)
    pages = int(Path("/proc/self/statm").read_text().split()[0])
    resource.setrlimit(resource.RLIMIT_AS, (pages * resource.getpagesize() + HEADROOM, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_AS, (soft, hard))


def seeds() -> Iterator[int]:
    begin = time.monotonic()
    for seed in range(CASES):
        if time.monotonic() - begin > SECONDS:
            return
        yield seed


def random_bytes(generator: random.Random, valid: bytes) -> bytes:
    """Return random bytes, often behind the first bytes of a valid file."""
    size = generator.choice([0, 1, 7, 12, 16, 50, 500, 5000])
    head = valid[: generator.choice([0, 0, 4, 16, 100])]
    alphabet = generator.choice([None, b'{}[]",:0123456789eE+-.NaN \n', b"\x00\x01\xff"])
    if alphabet is None:
        return head + generator.randbytes(size)
    return head + bytes(generator.choices(alphabet, k=size))


def mutate(generator: random.Random, valid: bytes) -> bytes:
    """Return a valid file with a few changes."""
    blob = bytearray(valid)
    for _ in range(generator.randint(1, 6)):
        place = generator.randrange(len(blob) + 1)
        match generator.randrange(6):
            case 0 if place < len(blob):
                blob[place] ^= 1 << generator.randrange(8)
            case 1:
                blob[place : place + generator.randint(1, 8)] = generator.randbytes(generator.randint(1, 8))
            case 2:
                del blob[place : place + generator.choice([1, 4, 100, 10**6])]
            case 3:
                blob[place:place] = generator.choice(ODD_PIECES)
            case 4:
                other = generator.randrange(len(blob) + 1)
                blob[place:place] = blob[other : other + generator.randint(1, 300)]
            case _:
                blob[place : place + 4] = generator.choice(
                    [b"\xff\xff\xff\x7f", b"\x00\x00\x00\x00", b"\xff" * 4]
                )
    return bytes(blob)


@pytest.mark.parametrize("make", [random_bytes, mutate])
@pytest.mark.parametrize("name", FORMATS)
def test_a_log_or_blocked(name: str, make: Callable[[random.Random, bytes], bytes], tmp_path: Path) -> None:
    reader, file_name, valid_file = FORMATS[name]
    valid = valid_file(tmp_path)
    path = tmp_path / "fuzz" / file_name
    path.parent.mkdir(parents=True)
    if name == "mlflow files":
        (path.parents[1] / "meta.yaml").touch()
    path.write_bytes(valid)
    assert read_logs(path).series, "the file that is mutated must be valid"
    num_read = 0
    with limited_memory():
        for seed in seeds():
            path.write_bytes(make(random.Random(seed), valid))
            for read in (lambda: reader.read(path.parent, [path]), lambda: read_logs(path.parent)):
                try:
                    log = read()
                except BlockedError as error:
                    assert str(error).count("\n") <= 1, seed
                    continue
                except BaseException as error:
                    error.add_note(f"seed {seed}")
                    raise
                num_read += 1
                assert isinstance(log, RunLog), seed
                for series in log.series.values():
                    assert len(series.steps) == len(series.values), seed
    assert make is random_bytes or num_read > 0


def test_leveldb_framing_accounts_for_every_byte_read() -> None:
    generator = random.Random(0)
    valid = generator.randbytes(7) + b"".join(_piece(generator.randbytes(400)) for _ in range(200))
    for seed in seeds():
        blob = mutate(random.Random(seed), valid)
        held = [item.data for item in leveldb_log.records(blob, 7) if isinstance(item, leveldb_log.Record)]
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
