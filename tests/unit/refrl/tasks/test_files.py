"""Prompts from files: every kind gives the same examples, rows that do not fit are named, splits share no prompt."""

from __future__ import annotations

import json
import random
import tracemalloc
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

from refrl.config import ConfigError, DataConfig
from refrl.tasks import PromptSource, make_splits
from refrl.tasks.files import columnar

Row = Mapping[str, Any]
Writer = Callable[[Path, Sequence[Row]], Path]


def write_jsonl(folder: Path, rows: Sequence[Row]) -> Path:
    """Write one object a line, with a byte order mark, Windows line ends and empty lines, as editors leave them."""
    path = folder / "rows.jsonl"
    lines = [json.dumps(row, ensure_ascii=False) for row in rows]
    path.write_bytes(b"\xef\xbb\xbf" + "\r\n\r\n".join(lines).encode())
    return path


def write_parquet(folder: Path, rows: Sequence[Row]) -> Path:
    """Write groups of three rows."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    path = folder / "rows.parquet"
    pq.write_table(pa.Table.from_pylist(list(rows)), path, row_group_size=3)
    return path


def write_saved_dataset(folder: Path, rows: Sequence[Row]) -> Path:
    """Write what `Dataset.save_to_disk(num_shards=2)` writes: Arrow streams, and the state that names them."""
    import pyarrow as pa

    path = folder / "rows"
    path.mkdir()
    half = len(rows) // 2
    names = [f"data-{number:05d}-of-00002.arrow" for number in range(2)]
    for name, part in zip(names, (rows[:half], rows[half:]), strict=True):
        table = pa.Table.from_pylist(list(part))
        with pa.OSFile(str(path / name), "wb") as sink, pa.ipc.new_stream(sink, table.schema) as stream:
            stream.write_table(table, max_chunksize=2)
    state = {"_data_files": [{"filename": name} for name in names], "_fingerprint": "f", "_split": "train"}
    (path / "state.json").write_text(json.dumps(state))
    return path


def write_hub_folder(folder: Path, rows: Sequence[Row]) -> Path:
    """Write the Parquet files of one split, as a copy of a repository of data holds them."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    path = folder / "rows"
    (path / "data").mkdir(parents=True)
    for number, part in enumerate((rows[:4], rows[4:])):
        table = pa.Table.from_pylist(list(part))
        pq.write_table(table, path / "data" / f"train-{number:05d}-of-00002.parquet")
    return path


WRITERS = [write_jsonl, write_parquet, write_saved_dataset, write_hub_folder]


@pytest.fixture(params=WRITERS, ids=lambda writer: writer.__name__.removeprefix("write_"))
def write(request: pytest.FixtureRequest) -> Writer:
    """Return each writer; those of columns need pyarrow."""
    if request.param is not write_jsonl:
        pytest.importorskip("pyarrow")
    writer: Writer = request.param
    return writer


def sums(num: int) -> list[dict[str, Any]]:
    """Return additions with nested and surplus columns."""
    return [
        {"question": f"{n}+{n} = ß", "meta": {"gold": str(2 * n), "level": n % 3}, "unused": [n]}
        for n in range(num)
    ]


def config(path: Path, **changes: Any) -> DataConfig:
    """Name the columns of `sums`."""
    return DataConfig(train_path=str(path), prompt_key="question", answer_key="meta.gold", **changes)


def test_every_kind_of_file_gives_the_rows_in_their_order(write: Writer, tmp_path: Path) -> None:
    """Prompt and answer by column, dots reach into mappings; nothing is lost, doubled or reordered."""
    splits = make_splits(config(write(tmp_path, sums(23)), num_validation=3))
    pairs = {
        (example.prompt, example.answer) for split in (splits.train, splits.validation) for example in split
    }
    assert pairs == {(f"{n}+{n} = ß", str(2 * n)) for n in range(23)}
    assert [len(splits.train), len(splits.validation)] == [20, 3]
    numbers = [int(example.answer) for example in splits.train]
    assert numbers == sorted(numbers)
    assert {example.task for example in splits.train} == {"rows"}
    assert splits.notes == ()


def test_ids_follow_the_prompt_and_not_the_place(tmp_path: Path) -> None:
    """Sorted otherwise, with rows before it, or in another file, a prompt keeps its id; others have others."""
    rows = sums(50)
    ids = []
    for number in range(2):
        folder = tmp_path / str(number)
        folder.mkdir()
        random.Random(number).shuffle(rows)
        splits = make_splits(config(write_jsonl(folder, rows)))
        ids.append({e.prompt: e.prompt_id for split in (splits.train, splits.validation) for e in split})
    assert ids[0] == ids[1]
    assert len(set(ids[0].values())) == 50
    assert all(0 <= value < 2**63 for value in ids[0].values())


def test_the_seed_alone_chooses(tmp_path: Path) -> None:
    """Held-out rows and a part of the rows are drawn by `data.seed`."""
    path = write_jsonl(tmp_path, sums(200))

    def prompts(**changes: Any) -> tuple[list[str], list[str]]:
        splits = make_splits(config(path, **changes))
        return [e.prompt for e in splits.train], [e.prompt for e in splits.validation]

    assert prompts(num_train=40) == prompts(num_train=40)
    assert prompts(seed=1)[1] != prompts()[1] == prompts(num_train=40)[1]
    assert set(prompts(num_train=40)[0]) < set(prompts()[0])
    assert [len(part) for part in prompts()] == [180, 20]


@pytest.mark.parametrize(
    ("value", "text"),
    [(7, "7"), (-0.5, "-0.5"), ([{"stdout": "é"}], '[{"stdout": "é"}]'), ({"a": 1}, '{"a": 1}'), ("", "")],
)
def test_answers_become_text(tmp_path: Path, value: object, text: str) -> None:
    """Numbers as they are written, lists and mappings as JSON, which verifiers of code read."""
    (tmp_path / "rows.jsonl").write_text(
        "".join(json.dumps({"prompt": str(n), "answer": value}) + "\n" for n in range(2))
    )
    splits = make_splits(DataConfig(train_path=str(tmp_path / "rows.jsonl")))
    assert [example.answer for example in splits.train] == [text]


def test_fine_tuning_may_learn_another_column(tmp_path: Path) -> None:
    """The answer stays what the verifier holds completions against."""
    rows = [{"prompt": str(n), "answer": n, "worked": f"so {n}"} for n in range(3)]
    splits = make_splits(DataConfig(train_path=str(write_jsonl(tmp_path, rows)), solution_key="worked"))
    assert {(e.answer, e.target) for e in splits.train} <= {(str(n), f"so {n}") for n in range(3)}


GOOD = '{"prompt": "1+1", "answer": "2"}'


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("{", "rows.jsonl line 3 is not valid JSON"),
        ('{"prompt": "x", "answer": NaN}', "rows.jsonl line 3 is not valid JSON: NaN is no JSON number"),
        ("[1]", "rows.jsonl line 3 is no JSON object, but list"),
        ("\xff", "rows.jsonl line 3 is not valid JSON"),
        (
            '{"question": "x", "answer": "2"}',
            "rows.jsonl line 3 has no column 'prompt' (data.prompt_key); its columns: 'question', 'answer'",
        ),
        (
            '{"prompt": "x"}',
            "rows.jsonl line 3 has no column 'answer' (data.answer_key); its columns: 'prompt'",
        ),
        (
            '{"prompt": "", "answer": "2"}',
            "line 3: the column 'prompt' (data.prompt_key) holds ''; it must be a text",
        ),
        ('{"prompt": [], "answer": "2"}', "line 3: the column 'prompt' (data.prompt_key) holds []"),
        ('{"prompt": "x", "answer": null}', "line 3: the column 'answer' (data.answer_key) holds None"),
        ('{"prompt": "x", "answer": true}', "line 3: the column 'answer' (data.answer_key) holds True"),
        ('{"prompt": "x", "answer": 1e999}', "line 3: the column 'answer' (data.answer_key) holds inf"),
    ],
)
def test_a_row_that_does_not_fit_is_named(tmp_path: Path, line: str, words: str) -> None:
    """File, line, column, option; empty lines count."""
    (tmp_path / "rows.jsonl").write_bytes(f"{GOOD}\n\n{line}\n".encode("latin-1"))
    with pytest.raises(ConfigError) as caught:
        make_splits(DataConfig(train_path=str(tmp_path / "rows.jsonl")))
    assert words in str(caught.value)


def test_a_column_of_parquet_that_is_missing_is_named(tmp_path: Path) -> None:
    """With the columns that there are; and a row of null with its place."""
    pytest.importorskip("pyarrow")
    path = write_parquet(tmp_path, [{"q": "a", "a": "1"}, {"q": None, "a": "2"}])
    with pytest.raises(
        ConfigError, match=r"rows.parquet has no column 'prompt' \(data.prompt_key\); its columns: 'q', 'a'"
    ):
        make_splits(DataConfig(train_path=str(path), answer_key="a"))
    with pytest.raises(
        ConfigError, match=r"rows.parquet row 1: the column 'q' \(data.prompt_key\) holds None"
    ):
        make_splits(DataConfig(train_path=str(path), prompt_key="q", answer_key="a"))


def test_paths_that_hold_no_rows_are_refused(tmp_path: Path) -> None:
    """Missing, of an unknown kind, empty, several splits in one folder, a selection, a damaged file."""

    def refusal(path: Path) -> str:
        with pytest.raises(ConfigError) as caught:
            make_splits(DataConfig(train_path=str(path)))
        return str(caught.value)

    assert "none.jsonl does not exist" in refusal(tmp_path / "none.jsonl")
    (tmp_path / "rows.csv").write_text("prompt,answer\n")
    assert "rows.csv is of an unknown kind; known: .jsonl" in refusal(tmp_path / "rows.csv")
    (tmp_path / "empty.jsonl").write_text("\n")
    assert "empty.jsonl holds no rows" in refusal(tmp_path / "empty.jsonl")
    (tmp_path / "folder").mkdir()
    assert "folder holds no rows" in refusal(tmp_path / "folder")
    for name in ("train", "test"):
        (tmp_path / "saved" / name).mkdir(parents=True)
        (tmp_path / "saved" / name / "state.json").write_text("{}")
        (tmp_path / "folder" / f"{name}-0.jsonl").write_text(GOOD)
    (tmp_path / "saved" / "dataset_dict.json").write_text("{}")
    assert f"name one of them: {tmp_path / 'saved' / 'test'}" in refusal(tmp_path / "saved")
    assert f"name one of them: {tmp_path / 'folder' / 'test-0.jsonl'}" in refusal(tmp_path / "folder")
    assert "state.json is not that of a saved dataset" in refusal(tmp_path / "saved" / "test")
    state = {"_data_files": [{"filename": "a.arrow"}], "_indices_files": [{"filename": "i.arrow"}]}
    (tmp_path / "saved" / "test" / "state.json").write_text(json.dumps(state))
    assert "dataset.flatten_indices()" in refusal(tmp_path / "saved" / "test")


@pytest.mark.parametrize("name", ["rows.parquet", "rows.arrow"])
def test_a_damaged_file_of_columns_is_one_message(tmp_path: Path, name: str) -> None:
    """And one without pyarrow names what to install."""
    pytest.importorskip("pyarrow")
    (tmp_path / name).write_bytes(b"PAR1" + bytes(100))
    with pytest.raises(ConfigError, match="is no readable"):
        make_splits(DataConfig(train_path=str(tmp_path / name)))


def test_pyarrow_that_is_missing_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """With what to install."""

    def missing(module: str) -> None:
        raise ModuleNotFoundError(module)

    (tmp_path / "rows.parquet").write_bytes(b"PAR1")
    monkeypatch.setattr("importlib.import_module", missing)
    with pytest.raises(
        ConfigError, match=r"needs pyarrow, which is not installed: pip install 'seatrial\[data\]'"
    ):
        columnar.ParquetRows(tmp_path / "rows.parquet", None)  # type: ignore[arg-type]


def lines(path: Path, numbers: Sequence[int], answer: int = 0) -> Path:
    """Write one row a number."""
    path.write_text("".join(json.dumps({"prompt": f"p{n}", "answer": n + answer}) + "\n" for n in numbers))
    return path


def test_prompts_of_both_files_are_refused_or_left_out_of_training(tmp_path: Path) -> None:
    """Said with the count and the first of them; validation keeps its rows."""
    files = {
        "train_path": str(lines(tmp_path / "train.jsonl", range(10))),
        "validation_path": str(lines(tmp_path / "test.jsonl", [20, 7, 3])),
    }
    with pytest.raises(ConfigError) as caught:
        make_splits(DataConfig(**files))
    assert "2 of 10 prompts of data.train_path are in data.validation_path too" in str(caught.value)
    assert "train.jsonl line 4 = " in str(caught.value)
    assert "test.jsonl line 3" in str(caught.value)
    assert "data.on_overlap=drop" in str(caught.value)
    splits = make_splits(DataConfig(**files, on_overlap="drop"))
    assert [example.prompt for example in splits.train] == [f"p{n}" for n in (0, 1, 2, 4, 5, 6, 8, 9)]
    assert [example.prompt for example in splits.validation] == ["p20", "p7", "p3"]
    assert "2 of 10 prompts" in splits.notes[0]
    both = {**files, "validation_path": files["train_path"]}
    with pytest.raises(ConfigError, match="nothing is left to train on"):
        make_splits(DataConfig(**both, on_overlap="drop"))


def test_prompts_that_stand_twice_are_trained_once_and_said(tmp_path: Path) -> None:
    """The first counts; with another answer there is a contradiction, which is counted apart."""
    path = lines(tmp_path / "train.jsonl", [1, 2, 3, 1, 2])
    path.write_text(path.read_text() + '{"prompt": "p3", "answer": 9}\n')
    splits = make_splits(DataConfig(train_path=str(path), num_validation=1))
    assert len(splits.train) == 2
    assert (
        "3 rows repeat the prompt of an earlier row and are left out (1 of them with another answer"
        in splits.notes[0]
    )
    assert "train.jsonl line 4" in splits.notes[0]


def test_too_few_rows_are_refused(tmp_path: Path) -> None:
    """With both numbers."""
    path = lines(tmp_path / "train.jsonl", range(10))
    with pytest.raises(ConfigError, match=r"has 10 different prompts, and 4 are held out besides 7"):
        make_splits(DataConfig(train_path=str(path), num_train=7, num_validation=4))
    other = lines(tmp_path / "test.jsonl", range(20, 25))
    with pytest.raises(
        ConfigError, match=r"data.num_validation=6 is more than the 5 different prompts that data.valid"
    ):
        make_splits(DataConfig(train_path=str(path), validation_path=str(other), num_validation=6))


def test_a_file_that_changes_meanwhile_is_noticed(tmp_path: Path) -> None:
    """What is read when a prompt is drawn must be what was looked at."""
    path = lines(tmp_path / "train.jsonl", range(10))
    splits = make_splits(DataConfig(train_path=str(path), num_validation=1))
    path.write_text(path.read_text().replace('"p0', '"q0').replace('"p1', '"q1'))
    with pytest.raises(ConfigError, match="the file was changed meanwhile"):
        list(splits.train)


def test_a_large_file_is_not_held(tmp_path: Path) -> None:
    """40 MB of rows take less than a tenth of that, and any row can be drawn."""
    path = tmp_path / "large.jsonl"
    with path.open("w") as stream:
        for number in range(4000):
            stream.write(json.dumps({"prompt": f"{number} " + "x" * 10_000, "answer": number}) + "\n")
    tracemalloc.start()
    splits = make_splits(DataConfig(train_path=str(path)))
    source = PromptSource(splits.train, seed=1, shuffle=True)
    drawn = [example for _ in range(50) for example in source.draw(4)]
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < path.stat().st_size / 10 + 3_000_000
    assert all(example.prompt.startswith(f"{example.answer} ") for example in drawn)


@pytest.mark.parametrize(
    ("section", "words"),
    [
        ({}, "set exactly one of the two"),
        ({"task": "add", "train_path": "rows.jsonl"}, "set exactly one of the two"),
        ({"task": "add", "prompt_key": "q"}, "data.prompt_key has no effect without data.train_path"),
        (
            {"train_path": "a.jsonl", "task_args": {"digits": 1}},
            "data.task_args has no effect without data.task",
        ),
        (
            {"train_path": "a.jsonl", "on_overlap": "drop"},
            "data.on_overlap has no effect without data.validation_path",
        ),
    ],
)
def test_options_without_effect_are_refused(section: dict[str, Any], words: str) -> None:
    """A made task or files, never a half of each."""
    with pytest.raises(ValueError, match=words):
        DataConfig(**section)
