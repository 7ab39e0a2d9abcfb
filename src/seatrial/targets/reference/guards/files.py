"""Reads the rows of data files without refrl's readers."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

MOST_BYTES = 16 * 2**20
"""Files that are larger are not read a second time."""
SUFFIXES = (".jsonl", ".ndjson", ".parquet", ".arrow")


def small_enough(path: str) -> bool:
    """Return whether a file or folder is small enough to be read a second time."""
    place = Path(path)
    files = [place] if place.is_file() else [one for one in place.rglob("*") if one.is_file()]
    return sum(one.stat().st_size for one in files) <= MOST_BYTES


def rows_of(path: Path) -> Iterator[Mapping[str, Any]]:
    """Yield the rows of a file, or of the files of a folder in the order of their names."""
    if path.is_dir():
        for inner in _files(path):
            yield from rows_of(inner)
    elif path.suffix in (".jsonl", ".ndjson"):
        for line in path.read_text(encoding="utf-8-sig").split("\n"):
            if line.strip():
                yield json.loads(line)
    elif path.suffix == ".parquet":
        import pyarrow.parquet

        yield from pyarrow.parquet.read_table(path).to_pylist()
    elif path.suffix == ".arrow":
        import pyarrow

        with pyarrow.memory_map(str(path)) as source:
            yield from pyarrow.ipc.open_stream(source).read_all().to_pylist()


def _files(folder: Path) -> list[Path]:
    """Return the files of a folder; a dataset that was saved (`save_to_disk`) names them in their order."""
    state = folder / "state.json"
    if state.is_file():
        names = json.loads(state.read_text(encoding="utf-8"))["_data_files"]
        return [folder / str(one["filename"]) for one in names]
    here = sorted(one for one in folder.iterdir() if one.suffix in SUFFIXES)
    return here or _files(folder / "data")


def column(row: Mapping[str, Any], name: str | None) -> Any:
    """Return a column; dots reach into mappings where no column has the whole name."""
    if name is None or name in row:
        return row.get(name or "")
    value: Any = row
    for part in name.split("."):
        value = value.get(part) if isinstance(value, Mapping) else None
    return value


def distinct_rows(path: str | None, prompt_key: str) -> dict[str, Mapping[str, Any]] | None:
    """Return the first row of each prompt of a file, in their order; None where a prompt is not text."""
    found: dict[str, Mapping[str, Any]] = {}
    for row in rows_of(Path(path or "")):
        prompt = column(row, prompt_key)
        if not isinstance(prompt, str):
            return None
        found.setdefault(prompt, row)
    return found


def as_text(value: Any) -> str | None:
    """Return an answer of a file as text: the digits of a number, the JSON of a list or mapping; None otherwise."""
    if isinstance(value, str):
        return value
    if isinstance(value, int) and not isinstance(value, bool):
        return f"{value:d}"
    if isinstance(value, list | dict):
        return json.dumps(value, ensure_ascii=False)
    return None
