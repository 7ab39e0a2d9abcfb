"""Worked examples of how data files are opened and read: suffixes, columns, second looks, notes, words of errors."""

from __future__ import annotations

import json
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import patch

from refrl.config import DataConfig
from refrl.tasks.base import make_splits
from refrl.tasks.examples import Example, longest_prompts
from refrl.tasks.files.columnar import ArrowRows, ParquetRows
from refrl.tasks.files.jsonl import JsonLines
from refrl.tasks.files.opening import open_rows
from refrl.tasks.files.rows import Columns
from seatrial.relations.contracts.worked import WorkedExample
from seatrial.targets.reference.worked.made import example, refused

COLUMNS = Columns("q", "a", None)
ROWS = [{"q": f"p{number}", "a": str(number), "more": [number]} for number in range(12)]


def examples() -> Iterator[WorkedExample]:
    """Yield the examples."""
    right: Any
    texts = ("ab", "é", "日", "\udcff!", "a" * 4)
    prompts = [Example(number, text, "", "t") for number, text in enumerate(texts)]
    yield example("the longest prompts in bytes", [3, 4, 2], _longest, prompts)
    for suffix in (".JSONL", ".Ndjson", ".Parquet", ".ARROW"):
        yield example(f"a file with the suffix {suffix}", ["p0", "p11"], _in_folder(_ends), f"x{suffix}")
    for suffixes in ((".parquet",), (".arrow",), (".jsonl",), (".arrow", ".parquet")):
        right = ["p0", "p11"] * len(suffixes)
        yield example(f"a folder with files of {suffixes}", right, _in_folder(_folder), suffixes)
    saved = "state.json"
    for files, right in (
        (("x.jsonl", "data/x.jsonl"), ["p0"]),
        (("x.parquet", "data/x-0.parquet", "data/x-1.parquet"), ["p0"]),
        (("x.arrow", "data/data/x.arrow"), ["p0"]),
        (("train-0.jsonl", "train-1.jsonl", "data/train-0.jsonl"), ["p0", "p1"]),
        (("data/x.jsonl",), ["p0"]),
        (("data/x.jsonl", "other/x.jsonl"), ["p0"]),
        (("data/x.jsonl", "data/data/x.jsonl"), ["p0"]),
        (("data/data/x.jsonl",), ["p0"]),
        (("x.arrow", saved, "data/x.arrow"), ["p0"]),
        (("data/x.arrow", f"data/{saved}", "data/y.arrow"), ["p0"]),
    ):
        yield example(f"rows of a folder with {' '.join(files)}", right, _in_folder(_nested), files)
    for files in (("other/x.jsonl",), ("x/data/x.jsonl",)):
        name = f"a folder with {' '.join(files)}"
        yield refused("holds no rows", name, _in_folder(_nested), files)
    for suffix in (".parquet", ".arrow"):
        right = {"q": "p7", "a": "7"}
        yield example(f"what is read of a row of {suffix}", (right, right), _in_folder(_row), suffix)
    groups = [0, 1, 2, 3, 4, 5, 0, 1, 4, 5]
    yield example("groups of rows that are read", groups, _in_folder(_groups))
    yield example(
        "rows of an Arrow file that are held at once", [{"max_chunksize": 1024}], _in_folder(_batches)
    )
    yield example(
        "rows of a file that is looked at twice", (["p0", "p2"], "x line 4", "p2"), _in_folder(_twice)
    )
    for size in (76, 77):
        shown = repr(["t" * size])
        right = f"holds {shown if size == 76 else shown[:80] + '...'}; it must be"
        yield refused(
            right, f"a value of {len(shown)} letters", COLUMNS.fit, {"q": ["t" * size], "a": "1"}, "x"
        )
    read = '  {"q": "p", "a": null, "more": {"x": null, "y": [1, null]}}  '
    yield example("a row with nulls", json.loads(read), _in_folder(_line), read)
    for num, held_out in ((2, 1), (19, 1), (20, 2), (39, 3)):
        given = [{"prompt": f"p{number}", "answer": "1"} for number in range(num)]
        yield example(f"rows of {num} that are held out", held_out, _in_folder(_held_out), given)
    notes = ["train.jsonl: 1 rows", "val.jsonl: 1 rows", "1 of 3"]
    yield example("notes of both files", notes, _in_folder(_notes))


def _line(folder: Path, text: str) -> Any:
    (folder / "x.jsonl").write_text(text, encoding="utf-8")
    rows = JsonLines(folder / "x.jsonl")
    (found,) = list(rows.scan())
    assert found == rows.row(0)
    return found


def _held_out(folder: Path, rows: Sequence[Mapping[str, Any]]) -> int:
    made = make_splits(DataConfig.model_validate({"train_path": str(_write(folder / "x.jsonl", rows))}))
    assert len(made.train) + len(made.validation) == len(rows)
    return len(made.validation)


def _longest(prompts: Sequence[Example]) -> list[int]:
    return [one.prompt_id for one in longest_prompts(prompts, 3)]


def _in_folder(function: Callable[..., Any]) -> Callable[..., Any]:
    def call(*words: Any) -> Any:
        with tempfile.TemporaryDirectory() as folder:
            return function(Path(folder), *words)

    return call


def _write(path: Path, rows: Sequence[Mapping[str, Any]], rows_of_group: int | None = None) -> Path:
    suffix = path.suffix.lower()
    if suffix in (".jsonl", ".ndjson"):
        path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
        return path
    import pyarrow as arrow
    import pyarrow.parquet as parquet

    table = arrow.Table.from_pylist(list(rows))
    if suffix == ".parquet":
        parquet.write_table(table, path, row_group_size=rows_of_group)
    else:
        with arrow.ipc.new_stream(str(path), table.schema) as stream:
            stream.write_table(table)
    return path


def _ends(folder: Path, name: str) -> list[str]:
    found = [row["q"] for row in open_rows(_write(folder / name, ROWS), COLUMNS, "o").scan()]
    return [found[0], found[-1]]


def _folder(folder: Path, suffixes: Sequence[str]) -> list[str]:
    for number, suffix in enumerate(suffixes):
        _write(folder / f"part-{number}{suffix}", [ROWS[0], ROWS[-1]])
    return [row["q"] for row in open_rows(folder, COLUMNS, "o").scan()]


def _nested(folder: Path, files: Sequence[str]) -> list[str]:
    """Return what is read of a folder with these files: of one row each, or what `save_to_disk` says of the first."""
    for number, name in enumerate(files):
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        if path.name == "state.json":
            saved = {"_data_files": [{"filename": Path(files[0]).name}]}
            path.write_text(json.dumps(saved), encoding="utf-8")
        else:
            _write(path, [ROWS[number]])
    return [row["q"] for row in open_rows(folder, COLUMNS, "o").scan()]


def _row(folder: Path, suffix: str) -> Any:
    """Return a row that is read alone, and as it is read with all."""
    rows = open_rows(_write(folder / f"x{suffix}", ROWS), COLUMNS, "o")
    return list(rows.scan())[7], rows.row(7)


def _groups(folder: Path) -> list[int]:
    """Return which groups of a file of six are read: for all rows, for one of each of the last four, for others."""
    path = _write(folder / "x.parquet", ROWS, 2)
    read: list[int] = []
    once = ParquetRows._read_group

    def noted(self: ParquetRows, group: int) -> Any:
        read.append(group)
        return once(self, group)

    with patch.object(ParquetRows, "_read_group", noted):
        rows = ParquetRows(path, COLUMNS)
        list(rows.scan())
        for number in (11, 9, 7, 5, 0, 2, 8, 1, 10):
            assert rows.row(number)["q"] == f"p{number}"
    return read


def _batches(folder: Path) -> list[Any]:
    rows: Any = ArrowRows(_write(folder / "x.arrow", ROWS), COLUMNS)
    asked: list[Any] = []

    def to_batches(**options: Any) -> list[Any]:
        asked.append(options)
        return []

    rows._table = SimpleNamespace(to_batches=to_batches)
    list(rows.scan())
    return asked


def _twice(folder: Path) -> Any:
    path = folder / "x"
    path.write_text('\n{"q": "p0"}\n\n{"q": "p2"}\n', encoding="utf-8")
    rows = JsonLines(path)
    list(rows.scan())
    found = [row["q"] for row in rows.scan()]
    return found, rows.place(1).removeprefix(f"{folder}/"), rows.row(1)["q"]


def _notes(folder: Path) -> list[str]:
    """Return how each note begins of two files that both repeat a prompt and share another."""
    train = [{"prompt": text, "answer": "1"} for text in ("a", "b", "a", "c")]
    held_out = [{"prompt": text, "answer": "1"} for text in ("c", "d", "d")]
    config = DataConfig.model_validate(
        {
            "train_path": str(_write(folder / "train.jsonl", train)),
            "validation_path": str(_write(folder / "val.jsonl", held_out)),
            "on_overlap": "drop",
        }
    )
    return [" ".join(note.replace(f"{folder}/", "").split()[:3]) for note in make_splits(config).notes]
