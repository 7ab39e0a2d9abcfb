"""Worked examples of data files: rows in every format, columns, repeated prompts, splits, epochs and made tasks."""

from __future__ import annotations

import json
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from refrl.config import DataConfig
from refrl.tasks.base import PromptSource, make_splits, make_task
from refrl.tasks.code import CodePrintTask
from refrl.tasks.examples import Example, stable_id
from refrl.tasks.files.opening import open_rows
from refrl.tasks.files.rows import Columns, lookup
from refrl.tasks.files.splits import scan_rows
from seatrial.relations.contracts.worked import WorkedExample
from seatrial.targets.reference.worked.made import example, refused

COLUMNS = Columns("q", "a", None)
ROWS = [{"q": f"p{number}", "a": str(number % 3), "more": 1} for number in range(7)]


def examples() -> Iterator[WorkedExample]:
    """Yield the examples."""
    yield from _of_columns()
    yield from _of_formats()
    yield from _of_splits()
    yield from _of_order()
    yield from _of_tasks()


def _of_columns() -> Iterator[WorkedExample]:
    nested = {"a.b": 1, "a": {"b": 2, "c": {"d": 3}}}
    for key, right in (("a.b", 1), ("a.c.d", 3), ("a", nested["a"])):
        yield example(f"the column {key}", right, lookup, nested, key, "x", "o")
    yield refused("o); its columns: 'a.b', 'a'", "a column that is missing", lookup, nested, "a.x", "x", "o")
    for given, right in (
        ("", ""),
        (7, "7"),
        (0.5, "0.5"),
        (["ä", 1], '["ä", 1]'),
        ({"b": None}, '{"b": null}'),
    ):
        yield example(f"the answer {given!r}", ("p", right, None), COLUMNS.fit, {"q": "p", "a": given}, "x")
    for bad in (None, True, float("nan")):
        yield refused("x: the column 'a'", f"the answer {bad!r}", COLUMNS.fit, {"q": "p", "a": bad}, "x")
    for unfit in ("", 3, None):
        yield refused("x: the column 'q'", f"the prompt {unfit!r}", COLUMNS.fit, {"q": unfit, "a": "1"}, "x")
    yield example(
        "white space of a prompt and an answer",
        (" p\n", " 1 ", None),
        COLUMNS.fit,
        {"q": " p\n", "a": " 1 "},
        "x",
    )
    solved = Columns("q", "a", "s")
    yield example("a solution", ("p", "1", "w"), solved.fit, {"q": "p", "a": 1, "s": "w"}, "x")
    yield refused("'s'", "an empty solution", solved.fit, {"q": "p", "a": 1, "s": ""}, "x")
    yield example(
        "columns by option",
        {"data.prompt_key": "q", "data.answer_key": "a", "data.solution_key": "s"},
        solved.named,
    )


def _in_folder(function: Callable[..., Any]) -> Callable[..., Any]:
    def call(*words: Any, **options: Any) -> Any:
        with tempfile.TemporaryDirectory() as folder:
            return function(Path(folder), *words, **options)

    return call


def _write(path: Path, rows: Sequence[Mapping[str, Any]], *, batch: int = 2) -> Path:
    """Write rows as the suffix says, in batches and groups of two."""
    if path.suffix == ".jsonl":
        lines = [json.dumps(row, ensure_ascii=False) for row in rows]
        path.write_text("\ufeff" + "\n\n".join(lines) + ("\n" if batch == 2 else ""), encoding="utf-8")
        return path
    import pyarrow as arrow
    from pyarrow import parquet

    table = arrow.Table.from_pylist(list(rows))
    if path.suffix == ".parquet":
        parquet.write_table(table, path, row_group_size=batch)
    else:
        with arrow.ipc.new_stream(str(path), table.schema) as stream:
            for part in table.to_batches(max_chunksize=batch):
                stream.write_batch(part)
    return path


def _read(folder: Path, name: str) -> Any:
    rows = open_rows(_write(folder / name, ROWS), COLUMNS, "o")
    scanned = [row["q"] for row in rows.scan()]
    again = [rows.row(number)["q"] for number in (6, 0, 3, 3)]
    twice = [row["a"] for row in rows.scan()]
    return scanned, again, twice, rows.place(3).removeprefix(f"{folder}/")


def _read_folder(folder: Path) -> Any:
    (folder / "data").mkdir()
    for number, part in enumerate((ROWS[:3], ROWS[3:4], ROWS[4:])):
        _write(folder / "data" / f"train-{number}.parquet", part)
    rows = open_rows(folder, COLUMNS, "o")
    scanned = [row["q"] for row in rows.scan()]
    return scanned, [rows.row(number)["q"] for number in (2, 3, 4, 6)], Path(rows.place(4)).name


def _read_next_to_a_subfolder(folder: Path) -> Any:
    (folder / "earlier").mkdir()
    _write(folder / "now.parquet", ROWS[:2])
    _write(folder / "earlier" / "before.parquet", ROWS[2:])
    return [row["q"] for row in open_rows(folder, COLUMNS, "o").scan()]


def _read_saved(folder: Path) -> Any:
    for name, part in (("b.arrow", ROWS[:2]), ("a.arrow", ROWS[2:5])):
        _write(folder / name, part)
    state = {"_data_files": [{"filename": "b.arrow"}, {"filename": "a.arrow"}]}
    (folder / "state.json").write_text(json.dumps(state), encoding="utf-8")
    return [row["q"] for row in open_rows(folder, COLUMNS, "o").scan()]


def _of_formats() -> Iterator[WorkedExample]:
    prompts, answers = [row["q"] for row in ROWS], [row["a"] for row in ROWS]
    for name, place in (("x.jsonl", "line 7"), ("x.parquet", "row 3"), ("x.arrow", "row 3")):
        right = (prompts, ["p6", "p0", "p3", "p3"], answers, f"{name} {place}")
        yield example(f"rows of {name}", right, _in_folder(_read), name)
    yield example(
        "rows of parts",
        (prompts, ["p2", "p3", "p4", "p6"], "train-2.parquet row 0"),
        _in_folder(_read_folder),
    )
    yield example("rows of a folder alone", prompts[:2], _in_folder(_read_next_to_a_subfolder))
    yield example("rows of a saved dataset", prompts[:5], _in_folder(_read_saved))
    yield refused("several splits", "a folder of splits", _in_folder(_of_several_splits))
    yield refused("different names", "a folder of files of two names", _in_folder(_of_two_names))
    yield refused("line 2", "a line that is no JSON", _in_folder(_scan_text), '{"q": "p", "a": 1}\n{"q": \n')
    yield refused("NaN", "a NaN", _in_folder(_scan_text), '{"q": "p", "a": NaN}\n')
    yield refused("no JSON object", "a list", _in_folder(_scan_text), "[1]\n")
    yield refused("holds no rows", "an empty file", _in_folder(_scan_text), "\n\n")
    yield refused(
        "unknown kind",
        "a suffix that is not known",
        _in_folder(lambda folder: open_rows(_text(folder / "x.csv", ""), COLUMNS, "o")),
    )
    repeated = [*ROWS[:3], {"q": "p1", "a": "1"}, {"q": "p0", "a": "2"}, {"q": "p9", "a": "0"}]
    yield example(
        "repeated prompts",
        ([0, 1, 2, 5], [2, 2, 2, 2], "2 rows repeat the prompt of an earlier row and are left out (1"),
        _in_folder(_scanned),
        repeated,
    )


def _text(path: Path, text: str) -> Path:
    path.write_text(text, encoding="utf-8")
    return path


def _of_several_splits(folder: Path) -> Any:
    _text(folder / "dataset_dict.json", "{}")
    return open_rows(folder, COLUMNS, "o")


def _of_two_names(folder: Path) -> Any:
    for name in ("train-0.jsonl", "train-1.jsonl", "test-0.jsonl"):
        _write(folder / name, ROWS)
    return open_rows(folder, COLUMNS, "o")


def _scan_text(folder: Path, text: str) -> Any:
    return scan_rows(_text(folder / "x.jsonl", text), COLUMNS, "data.train_path")


def _scanned(folder: Path, rows: Sequence[Mapping[str, Any]]) -> Any:
    scan = scan_rows(_write(folder / "x.jsonl", rows), COLUMNS, "data.train_path")
    return list(scan.numbers), list(scan.sizes), scan.notes[0].partition(": ")[2].partition(" of them")[0]


def _splits(folder: Path, held: Sequence[str] | None, **options: Any) -> Any:
    """Return (prompts to train on, held-out prompts, notes) of a file of 30 rows and perhaps another."""
    train = [{"q": f"p{number}", "a": number} for number in range(30)]
    paths: dict[str, Any] = {"train_path": str(_write(folder / "train.jsonl", train, batch=1))}
    if held is not None:
        rows = [{"q": name, "a": 0} for name in held]
        paths["validation_path"] = str(_write(folder / "held.jsonl", rows))
    splits = make_splits(DataConfig(prompt_key="q", answer_key="a", **paths, **options))
    return [one.prompt for one in splits.train], [one.prompt for one in splits.validation], splits.notes


def _facts(folder: Path, held: Sequence[str] | None = None, **options: Any) -> Any:
    """Return numbers of both splits, of prompts in both, and whether each is in the order of its file."""
    train, validation, _ = _splits(folder, held, **options)
    ordered = [part == sorted(part, key=lambda name: int(name[1:])) for part in (train, validation)]
    return len(train), len(validation), len({*train} & {*validation}), len({*train}), ordered


def _of_splits() -> Iterator[WorkedExample]:
    both = [True, True]
    yield example("a tenth is held out", (27, 3, 0, 27, both), _in_folder(_facts))
    yield example(
        "as many as configured", (8, 5, 0, 8, both), _in_folder(_facts), num_train=8, num_validation=5
    )
    yield example("all but what is held out", (28, 2, 0, 28, both), _in_folder(_facts), num_validation=2)
    held = ["p100", "p101", "p102", "p103"]
    yield example("a file of its own", (30, 4, 0, 30, both), _in_folder(_facts), held)
    yield example(
        "some of a file of its own",
        (6, 2, 0, 6, both),
        _in_folder(_facts),
        held,
        num_train=6,
        num_validation=2,
    )
    shared = ["p3", "p100", "p29"]
    yield refused("2 of 30 prompts", "prompts of both files", _in_folder(_facts), shared, on_overlap="refuse")
    yield example(
        "prompts of both files are dropped",
        (28, 3, 0, 28, [True, False]),
        _in_folder(_facts),
        shared,
        on_overlap="drop",
    )
    yield refused(
        "more than the 28", "more than are left", _in_folder(_facts), shared, on_overlap="drop", num_train=29
    )
    yield refused(
        "lower data.num_validation", "more than there are", _in_folder(_facts), num_train=26, num_validation=5
    )
    yield example("a split depends on its seed alone", (True, False, True), _in_folder(_seeds))
    yield example("rows are read with their answers", (True, "train", True), _in_folder(_one_row))
    yield refused("was changed meanwhile", "a file that changes", _in_folder(_changed))


def _seeds(folder: Path) -> Any:
    first, again, other, more = (
        _splits(folder, None, num_train=12, num_validation=6, seed=3),
        _splits(folder, None, num_train=12, num_validation=6, seed=3),
        _splits(folder, None, num_train=12, num_validation=6, seed=4),
        _splits(folder, None, num_train=20, num_validation=6, seed=3),
    )
    return first == again, first[1] == other[1], first[1] == more[1]


def _one_row(folder: Path) -> Any:
    _splits(folder, None)
    config = DataConfig(train_path=f"{folder}/train.jsonl", prompt_key="q", answer_key="a", num_validation=1)
    train = make_splits(config).train
    found = next(one for one in train if one.prompt in ("p7", "p8"))
    part = train[2:5]
    return (
        found.prompt[1:] == found.answer,
        found.task,
        [one.prompt for one in part] == [train[n].prompt for n in (2, 3, 4)],
    )


def _changed(folder: Path) -> Any:
    _splits(folder, None)
    config = DataConfig(train_path=f"{folder}/train.jsonl", prompt_key="q", answer_key="a", num_validation=1)
    train = make_splits(config).train
    path = folder / "train.jsonl"
    path.write_bytes(path.read_bytes().replace(b'"p', b'"s'))
    return train[0]


def _of_order() -> Iterator[WorkedExample]:
    made = [Example(number, str(number), "", "made") for number in range(5)]

    def drawn(source: PromptSource, *nums: int) -> list[list[int]]:
        return [[one.prompt_id for one in source.draw(num)] for num in nums]

    def in_order() -> PromptSource:
        return PromptSource(made, seed=3, shuffle=False)

    def shuffled(seed: int = 3) -> PromptSource:
        return PromptSource(made, seed=seed, shuffle=True)

    yield example(
        "prompts in order, over epochs",
        [[0, 1, 2], [3, 4, 0], [], [1]],
        lambda: drawn(in_order(), 3, 3, 0, 1),
    )

    def epochs() -> Any:
        (numbers,) = drawn(shuffled(), 15)
        parts = [numbers[start : start + 5] for start in (0, 5, 10)]
        return [sorted(part) for part in parts], parts[0] != parts[1] or parts[1] != parts[2]

    yield example("every epoch has each prompt once, in another order", ([[0, 1, 2, 3, 4]] * 3, True), epochs)
    yield example(
        "seeds have other orders",
        (True, True),
        lambda: (
            drawn(shuffled(), 15) == drawn(shuffled(), 15),
            len({str(drawn(shuffled(seed), 15)) for seed in range(8)}) > 4,
        ),
    )

    def resumed(num: int) -> bool:
        first, second = shuffled(), shuffled()
        first.draw(num)
        second.load_state_dict(json.loads(json.dumps(first.state_dict())))
        return drawn(first, 7) == drawn(second, 7)

    for num in (0, 3, 5, 7, 10):
        yield example(f"prompts continue after {num}", True, resumed, num)

    def rewound() -> bool:
        source, fresh = shuffled(), shuffled()
        source.draw(8)
        source.load_state_dict({"num_drawn": 2})
        fresh.draw(2)
        return drawn(source, 6) == drawn(fresh, 6)

    yield example("prompts go back to an earlier place", True, rewound)


def _of_tasks() -> Iterator[WorkedExample]:
    def of(name: str, arguments: Mapping[str, Any], numbers: Sequence[int]) -> Any:
        task = make_task(name, arguments)
        return [task.num_examples, *(task.example(number) for number in numbers)]

    words = [7, *((f"reverse {word}=", word[::-1]) for word in ("", "a", "b", "ba", "bb"))]
    yield example(
        "words in order",
        words,
        of,
        "reverse",
        {"min_length": 0, "max_length": 2, "alphabet_size": 2},
        [0, 1, 2, 4, 6],
    )
    yield example(
        "sums", [100, ("0+0=", "0"), ("1+2=", "3"), ("9+9=", "18")], of, "add", {"digits": 1}, [0, 12, 99]
    )
    yield example(
        "counted letters",
        [8, ("count a in ba=", "1"), ("count b in bb=", "2"), ("count b in aa=", "0")],
        of,
        "count_letters",
        {"length": 2, "alphabet_size": 2},
        [1, 7, 4],
    )
    # Digests of "a", "ab" and "ba" begin with the bytes 202, 251 and 151.
    yield example(
        "prices",
        [6, ("price a:", "81"), ("price ab:", "98"), ("price ba:", "63")],
        of,
        "lookup",
        {"min_length": 1, "max_length": 2, "alphabet_size": 2},
        [0, 3, 4],
    )
    tests = '[{"stdin": "", "stdout": "-1\\n"}]'
    yield example(
        "programs", [18, ("print 1-2:", tests)], of, "code_print", {"limit": 3, "num_operators": 2}, [14]
    )
    yield example(
        "a program that passes",
        "print(1-2)",
        CodePrintTask(limit=3, num_operators=2).solution,
        14,
    )
    for name, arguments in (
        ("add", {"digit": 1}),
        ("add", {"digits": 0}),
        ("add", {"digits": True}),
        ("ad", {}),
    ):
        yield refused("data.task", f"a task {name} {arguments}", make_task, name, arguments)
    yield example(
        "ids of prompts",
        (True, True),
        lambda: (stable_id("a") != stable_id("b"), 0 <= stable_id("é") < 2**63),
    )

    def split(num_train: int, seed: int = 0) -> Any:
        config = DataConfig(
            task="add", task_args={"digits": 1}, num_train=num_train, num_validation=30, seed=seed
        )
        made = make_splits(config)
        return [one.prompt_id for one in made.train], [one.prompt_id for one in made.validation]

    def sizes() -> Any:
        few, many, other = split(20), split(70), split(70, seed=1)
        return (
            (len(few[0]), len(many[0]), len({*many[0]}), len({*many[1]})),
            few[1] == many[1],
            many[1] != other[1],
            {*many[0]} & {*many[1]} == set(),
            few[0] == many[0][:20],
        )

    yield example("splits of a task", ((20, 70, 70, 30), True, True, True, True), sizes)
    yield refused("need 101", "more prompts than there are", split, 71)
