"""A package of one's own adds a reader by an entry point."""

from __future__ import annotations

import sys
from importlib.metadata import EntryPoint
from pathlib import Path

import pytest

from seatrial.errors import BlockedError
from seatrial.evidence import read as registry
from seatrial.evidence.read import read_logs

READER = """
from seatrial.evidence.readers.rows import assemble_rows, row_logs
NAME, PRIORITY = "mylog", 55

def claims(file, head):
    return head.startswith(b"MYLOG")

def read(root, paths, tags=None):
    logs = row_logs(root, paths)
    for path, log in zip(paths, logs):
        for line in path.read_text().splitlines()[1:]:
            step, value = line.split()
            log.add(int(step), {"x": float(value)}, line=1)
    return assemble_rows(logs, tags)
"""


@pytest.fixture
def added(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> object:
    """Install an entry point for the time of a test."""

    def add(value: str) -> None:
        point = EntryPoint("mylog", value, registry.GROUP)
        monkeypatch.setattr(registry, "entry_points", lambda: [point])
        monkeypatch.setattr(registry, "all_readers", registry.all_readers.__wrapped__)
        monkeypatch.setattr("seatrial.evidence.read.all_readers", registry.all_readers)

    monkeypatch.syspath_prepend(str(tmp_path))
    yield add
    sys.modules.pop("outside_reader", None)


def test_it_reads_its_format(tmp_path: Path, added: object) -> None:
    (tmp_path / "outside_reader.py").write_text(READER)
    (tmp_path / "run.mylog").write_text("MYLOG\n1 0.5\n2 0.25\n")
    with pytest.raises(BlockedError, match="no log can be read"):
        read_logs(tmp_path / "run.mylog")
    added("outside_reader")  # type: ignore[operator]
    assert read_logs(tmp_path / "run.mylog").series["x"].values.tolist() == [0.5, 0.25]


@pytest.mark.parametrize(
    ("value", "message"),
    [("not_there", "cannot be imported"), ("json", "has no NAME, PRIORITY, claims, read")],
)
def test_one_that_is_broken_is_named(added: object, value: str, message: str) -> None:
    added(value)  # type: ignore[operator]
    with pytest.raises(BlockedError, match=message):
        registry.all_readers()
