"""Worked examples of tasks with images or sounds, of parts by name, and what is said of data files."""

from __future__ import annotations

import json
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from refrl.config import DataConfig
from refrl.media import unpack
from refrl.rewards.scoring import make_verifier
from refrl.tasks.base import default_verifier, make_splits, make_task
from refrl.tasks.files.opening import open_rows
from refrl.tasks.files.rows import Columns
from seatrial.relations.contracts.worked import WorkedExample
from seatrial.targets.reference.worked import row_files
from seatrial.targets.reference.worked.made import example, refused


def examples() -> Iterator[WorkedExample]:
    """Yield the examples."""
    yield from _of_media_tasks()
    yield from _of_named_parts()
    yield from _of_files()
    yield from row_files.examples()


def _of_media_tasks() -> Iterator[WorkedExample]:
    # Number 4 (1 + 3 (2 + 3 (0 + 3 * 1))) + 2: quarters green, blue, red, green, and the third is asked for.
    number = 4 * (1 + 3 * (2 + 3 * (0 + 3 * 1))) + 2
    yield example(
        "an image's prompt",
        (f"{'<|media|>' * 3}c=", "red"),
        make_task("colour", {"num_features": 3}).example,
        number,
    )
    colours = {"green": [-1.0, 1.0, -1.0], "blue": [-1.0, -1.0, 1.0], "red": [1.0, -1.0, -1.0]}
    corners = [colours[name] for name in ("green", "green", "blue", "red", "red", "green", "green")]
    yield example("an image", ([3, 6, 6], corners), _corners, number)
    yield example("images", (324, 324), _distinct, "colour", {"size": 2})
    # Number 4 (3 + 5 (2 + 5 (0 + 5 * 4))) + 1: tones 3, 2, 0, 4, and the second is asked for.
    number = 4 * (3 + 5 * (2 + 5 * (0 + 5 * 4))) + 1
    yield example(
        "a sound's prompt",
        (f"{'<|media|>' * 2}b=", "2"),
        make_task("pitch", {"num_bands": 5, "num_features": 2}).example,
        number,
    )
    yield example("a sound", ([5, 16], [3] * 4 + [2] * 4 + [0] * 4 + [4] * 4, [-3.0] * 16), _tones, number)
    yield example("sounds", (64, 64), _distinct, "pitch", {"num_bands": 2})


def _media(name: str, arguments: Mapping[str, Any], number: int) -> Any:
    task: Any = make_task(name, arguments)
    return unpack(task.media(number))


def _corners(number: int) -> Any:
    """Return the shape of an image, and its colours at places of its quarters, row by row."""
    image = _media("colour", {"size": 6}, number)
    places = ((0, 0), (2, 2), (0, 3), (3, 0), (5, 2), (3, 3), (5, 5))
    return list(image.shape), [image[:, row, column].tolist() for row, column in places]


def _tones(number: int) -> Any:
    sound = _media("pitch", {"num_bands": 5}, number)
    return list(sound.shape), sound.argmax(0).tolist(), sound.sum(0).tolist()


def _distinct(name: str, arguments: Mapping[str, Any]) -> Any:
    task: Any = make_task(name, arguments)
    numbers = range(task.num_examples)
    return len(numbers), len({(task.example(number)[0], task.media(number)) for number in numbers})


def _of_named_parts() -> Iterator[WorkedExample]:
    yield example(
        "a verifier of a class", True, lambda: callable(make_verifier("refrl.rewards.math:MathVerifier"))
    )
    yield refused(
        "data.verifier=refrl.timing:Timer is no verifier",
        "an object that is no verifier",
        make_verifier,
        "refrl.timing:Timer",
    )
    yield refused(
        "failed with TypeError", "a class that cannot be made", make_verifier, "refrl.rewards.weighted:Part"
    )
    yield refused("mine='x'", "a verifier of another option", make_verifier, "x", "mine")
    for task, right in (
        ("reverse", "character_match"), ("add", "exact_match"), ("colour", "exact_match"),
        ("code_print", "code_output"), ("lookup", "integer_match"), (None, "exact_match"),
    ):  # fmt: skip
        given: dict[str, Any] = {"train_path": "x"} if task is None else {"task": task}
        yield example(f"the verifier of {task}", right, lambda of=given: default_verifier(DataConfig(**of)))
    yield refused("data.task is not given", "no task", make_task, None, {})
    yield refused("is no task", "a class that is no task", make_task, "refrl.timing:Timer", {})
    yield example("prompts of a space that cannot be counted", (20, True, True), _countless)


def _countless() -> Any:
    config = DataConfig(
        task="reverse", task_args={"min_length": 30, "max_length": 30}, num_train=15, num_validation=5
    )
    splits, again = make_splits(config), make_splits(config)
    rows = [*splits.train, *splits.validation]
    small = all(0 <= row.prompt_id < 2**63 for row in rows)
    return len({row.prompt_id for row in rows}), small, rows == [*again.train, *again.validation]


def _of_files() -> Iterator[WorkedExample]:
    columnar = (("parquet", "is no readable Parquet file"), ("arrow", "is no readable Arrow file"))
    for suffix, words in columnar if find_spec("pyarrow") else ():
        yield refused(words, f"bytes that are no {suffix}", _split, {f"train.{suffix}": "no rows" * 9})
    yield refused(
        "has no column 'p' (data.prompt_key)", "a column that is missing", _parquet, {"prompt_key": "p"}
    )
    yield refused(
        "has no column 'y.z' (data.answer_key)", "a mapping that is missing", _parquet, {"answer_key": "y.z"}
    )
    yield example("a column within a mapping", ["1", "2"], _parquet, {"answer_key": "answer.a"})
    listed = {"_data_files": [{"filename": "train.jsonl"}]}
    for state in (
        *({key: [{"filename": "i"}]} for key in INDICES),
        {key: [{"filename": "i"}] for key in INDICES},
    ):
        yield refused(
            "is a selection of a larger dataset",
            f"a dataset with {[*state]}",
            _saved_rows,
            {**listed, **state},
        )
    whole: list[dict[str, Any]] = [{}, *({key: []} for key in INDICES), *({key: None} for key in INDICES)]
    for given in whole:
        yield example(f"rows of a saved dataset with {given}", ["p", "q"], _saved_rows, {**listed, **given})
    for key in ("_data_file", "_indices_files"):
        yield refused("is not that of a saved dataset", f"{key} alone", _saved_rows, {key: []})
    yield refused("holds no rows", "a saved dataset of no files", _saved_rows, {"_data_files": []})
    rows = [("a", 1), ("b", 1), ("a", 2), ("b", 1), ("c", 1), ("a", 3), ("d", 1)]
    note = "3 rows repeat the prompt of an earlier row and are left out (2 of them with another answer; the first is "
    yield example("the note on repeated rows", (note, 4, True), _notes, rows)
    for option, files in (
        ("data.train_path", {"train.csv": "a"}),
        ("data.validation_path", {"train.jsonl": _lines(rows), "held.csv": "a"}),
        ("data.validation_path", {"train.jsonl": _lines(rows), "held.jsonl": "\n"}),
    ):
        yield refused(f"{option}=", f"files {[*files]} that cannot be used", _split, files)
    both = {"train.jsonl": _lines(rows), "held.jsonl": _lines([("x", 1), ("c", 2), ("b", 3)])}
    found = "2 of 4 prompts of data.train_path are in data.validation_path too"
    yield refused(f"{found} (the first is ", "prompts of both files", _split, both)
    yield example("the note on prompts of both files", (f"{found} and are left out", 2, 3), _dropped, both)
    same = {"train.jsonl": _lines(rows[:2]), "held.jsonl": _lines(rows)}
    yield refused("nothing is left to train on", "all prompts in both files", _dropped, same)


INDICES = ("_indices_files", "_indices_data_files")
"""Keys under which versions of `datasets` write down that a dataset is a selection of its files' rows."""


def _saved_rows(state: Mapping[str, Any]) -> list[Any]:
    """Return the prompts of a folder with a state of `save_to_disk`."""
    with tempfile.TemporaryDirectory() as folder:
        Path(folder, "train.jsonl").write_text(_lines([("p", 1), ("q", 2)]))
        Path(folder, "state.json").write_text(json.dumps(state))
        return [
            row["prompt"] for row in open_rows(Path(folder), Columns("prompt", "answer", None), "o").scan()
        ]


def _lines(rows: Sequence[tuple[str, int]]) -> str:
    return "".join(json.dumps({"prompt": prompt, "answer": answer}) + "\n" for prompt, answer in rows)


def _split(files: Mapping[str, str], **options: Any) -> Any:
    """Return the splits of files, of which the first is to train on."""
    with tempfile.TemporaryDirectory() as folder:
        paths = [Path(folder, name) for name in files]
        for path, text in zip(paths, files.values(), strict=True):
            path.write_text(text)
        given: dict[str, Any] = dict(zip(("train_path", "validation_path"), map(str, paths), strict=False))
        return make_splits(DataConfig(**given, **options))


def _parquet(keys: Mapping[str, Any]) -> list[str]:
    """Return the answers of two rows, whose column `answer` is a mapping with `a`."""
    import pyarrow
    from pyarrow import parquet

    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "train.parquet")
        parquet.write_table(pyarrow.table({"prompt": ["p", "q"], "answer": [{"a": "1"}, {"a": "2"}]}), path)
        splits = make_splits(DataConfig(train_path=str(path), num_validation=1, **keys))
        return sorted(one.answer for one in [*splits.train, *splits.validation])


def _notes(rows: Sequence[tuple[str, int]]) -> Any:
    splits = _split({"train.jsonl": _lines(rows)}, num_validation=1)
    (note,) = splits.notes
    _, _, words = note.partition(": ")
    start, place = words.split("the first is ")
    return f"{start}the first is ", len(splits.train) + len(splits.validation), place.endswith("3)")


def _dropped(files: Mapping[str, str]) -> Any:
    splits = _split(files, on_overlap="drop")
    note = next(one for one in splits.notes if "are left out of training" in one)
    first = note.rpartition("the first is ")[2].rstrip(")").split(" = ")
    lines = [int(place.split()[-1]) for place in first]
    return note.split(" of training")[0], *lines
