"""A package adds a reader of rows by an entry point."""

from collections.abc import Callable, Iterator
from importlib.metadata import EntryPoint
from pathlib import Path

import pytest

from seatrial.errors import BlockedError
from seatrial.evidence.ledger import read

READER = """
from seatrial.evidence.ledger.readers.base import lines
from seatrial.evidence.ledger.schema import LedgerRow
NAME = "mystack"

def claims(file, row):
    return row is not None and "mystack_step" in row

def read(files, options):
    return [
        LedgerRow(step=row["mystack_step"], index=number, prompt_id=0, reward=row["r"])
        for file in files for number, (place, row) in enumerate(lines(file))
    ]
"""


@pytest.fixture
def added(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[str, str], None]]:
    """Return a function that installs a module as a reader for the time of a test."""

    def add(module: str, source: str) -> None:
        (tmp_path / f"{module}.py").write_text(source)
        point = EntryPoint("mystack", module, read.GROUP)
        monkeypatch.setattr(read, "entry_points", lambda group: [point] if group == read.GROUP else [])
        read.all_readers.cache_clear()

    monkeypatch.syspath_prepend(str(tmp_path))
    yield add
    read.all_readers.cache_clear()


def test_it_reads_its_form(tmp_path: Path, added: Callable[[str, str], None]) -> None:
    added("mystack_rows", READER)
    (tmp_path / "rows.jsonl").write_text('{"mystack_step": 1, "r": 0.5}\n{"mystack_step": 1, "r": 1}\n')
    ledger = read.read_ledger(tmp_path)
    assert ledger.stack == "mystack"
    assert [row.reward for row in ledger.rows] == [0.5, 1]


def test_one_that_is_none_is_named(tmp_path: Path, added: Callable[[str, str], None]) -> None:
    added("mystack_half", "NAME = 'mystack'")
    (tmp_path / "rows.jsonl").write_text('{"mystack_step": 1}\n')
    with pytest.raises(BlockedError, match="has no claims, read"):
        read.read_ledger(tmp_path)
    added("mystack_broken", "import no_such_module")
    with pytest.raises(BlockedError, match="cannot be imported"):
        read.read_ledger(tmp_path)
