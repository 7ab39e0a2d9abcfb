"""Worked examples of the data plane's parts: metadata, partitions, columns and journals."""

from __future__ import annotations

import json
import random
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch

from refrl.data_plane import KVBatchMeta
from refrl.data_plane.columns import decode, encode, gather, pad
from refrl.data_plane.control import ControlState, Journal, restored
from refrl.data_plane.observability import num_bytes
from refrl.data_plane.partition import PartitionSpec, plain_tags, shown
from refrl.data_plane.records import NewBlock
from seatrial.relations.contracts.worked import WorkedExample
from seatrial.targets.reference.worked import spread_errors
from seatrial.targets.reference.worked.made import example, refused
from seatrial.targets.reference.worked.spread_limits import of_limits
from seatrial.targets.reference.worked.spread_stores import of_spread_stores


def examples() -> Iterator[WorkedExample]:
    """Yield the examples."""
    yield from _of_metadata()
    yield from _of_columns()
    yield from _of_journals()
    yield from of_spread_stores()
    yield from of_limits()
    yield from spread_errors.examples()


def _meta(names: str, **options: Any) -> KVBatchMeta:
    return KVBatchMeta(partition_id="p", sample_ids=list(names), **options)


def _of_metadata() -> Iterator[WorkedExample]:
    def plain(meta: KVBatchMeta | None) -> Any:
        if meta is None:
            return None
        return "".join(meta.sample_ids), meta.sequence_lengths, meta.tags, meta.fields, meta.lease_id

    tags = [{"n": number} for number in range(3)]
    full = _meta("abc", sequence_lengths=[4, 5, 6], tags=tags, fields=["x"], lease_id="l")
    yield example(
        "rows that are dropped", ("b", [5], [{"n": 1}], ["x"], "l"), lambda: plain(full.drop([0, 2]))
    )
    yield example("no row is dropped", plain(full), lambda: plain(full.drop([7])))
    yield example("all rows are dropped", None, lambda: plain(full.drop(range(3))))
    yield example("rows of a slice", ("bc", [5, 6], tags[1:], ["x"], "l"), lambda: plain(full.slice(-2, 9)))
    yield example(
        "rows in another order",
        ("ca", [6, 4], [tags[2], tags[0]], ["x"], "l"),
        lambda: plain(full.subset([2, 0])),
    )
    yield refused("[3, -1]", "rows that are not there", full.subset, [0, 3, -1])
    more = _meta("d", sequence_lengths=[7], lease_id="l")
    yield example("joined rows", ("abcd", [4, 5, 6, 7], None, ["x"], "l"), lambda: plain(full.concat(more)))
    other = _meta("d", sequence_lengths=[7], tags=[{}], lease_id="m")
    yield example(
        "joined rows of two leases",
        ("abcd", [4, 5, 6, 7], [*tags, {}], ["x"], None),
        lambda: plain(full.concat(other)),
    )
    foreign = KVBatchMeta(partition_id="q", sample_ids=["d"])
    yield refused("['q']", "rows of two partitions", full.concat, foreign)
    yield example("more fields", ["x", "y", "z"], lambda: full.with_fields(["y", "x", "z", "y"]).fields)
    yield example("first fields", ["y"], lambda: _meta("a").with_fields(["y"]).fields)
    stamped = [{"n": 9, "m": 1}, {"n": 8, "m": 2}, {"n": 7, "m": 3}]
    yield example(
        "stamped tags",
        (stamped, tags),
        lambda: (full.stamp_tags({"n": [9, 8, 7], "m": [1, 2, 3]}).tags, full.tags),
    )
    yield example("first tags", [{"m": 1}], lambda: _meta("a").stamp_tags({"m": [1]}).tags)
    yield refused("2 values for 3 samples", "too few tags", full.stamp_tags, {"m": [1, 2]})
    yield refused("2 tags of 1 samples", "tags of others", _meta, "a", tags=[{}, {}])
    yield refused("1 sequence_lengths of 2", "lengths of others", _meta, "ab", sequence_lengths=[1])
    yield example("samples in a message", "a, b, c, d, e and 2 more", shown, list("abcdefg"))
    yield example("five samples in a message", "a, b, c, d, e", shown, list("abcde"))
    given = [{"a": np.int64(3), "b": np.float64(0.5), "c": np.bool_(True), "d": "x", "e": None}]
    yield example("plain tags", [{"a": 3, "b": 0.5, "c": True, "d": "x", "e": None}], plain_tags, given)
    yield refused("'a' is list", "a tag that is a list", plain_tags, [{"a": [1]}])
    spec = {"fields": ("x",), "num_samples": 4, "consumer_tasks": ("t",)}
    for words, changes in (
        ("name at least one", {"fields": ()}),
        ("each once", {"fields": ("x", "x")}),
        ("at least 1", {"num_samples": 0}),
        ("at least 1", {"grpo_group_size": 0}),
        ("a group of 5", {"grpo_group_size": 5}),
    ):
        yield refused(words, f"a partition with {changes}", PartitionSpec, **{**spec, **changes})
    whole = PartitionSpec(**{**spec, "grpo_group_size": 4, "enums": {"e": (1, "a")}, "required_tags": ("e",)})  # type: ignore[arg-type]
    yield example(
        "a partition's words",
        True,
        lambda: PartitionSpec.from_json(json.loads(json.dumps(whole.to_json()))) == whole,
    )


def _of_columns() -> Iterator[WorkedExample]:
    yield example("rows of random columns", [], _random_columns)
    dense, rows = torch.tensor([[1.0, 2.0], [3.0, 4.0]]), [torch.tensor([1, 2]), torch.tensor([3])]
    yield example("wider rows", [[1.0, 2.0, 9.0], [3.0, 4.0, 9.0]], pad, dense, 9.0, 3)
    yield example("rows as wide as they are", True, lambda: pad(dense, 9.0) is dense)
    numbers = torch.tensor([1, 2])
    yield example("numbers are not padded", True, lambda: pad(numbers, 9, 5) is numbers)
    yield example(
        "bytes of fields",
        8 + 16 + 24,
        lambda: num_bytes({"a": torch.zeros(2), "b": dense.bool().repeat(1, 4), "c": rows}),
    )
    objects = np.array(["é", {"a": [1, None]}], dtype=object)
    yield example(
        "bytes of objects", len(json.dumps("é")) + len('{"a": [1, null]}'), lambda: num_bytes({"o": objects})
    )
    for words, value in (
        ("a single number", torch.tensor(1)),
        ("differ in dtype", [torch.zeros(1), torch.zeros(1).long()]),
        ("differ in dtype", [torch.zeros(1, 2), torch.zeros(1, 3)]),
        ("have no length", [torch.tensor(1), torch.tensor(2)]),
        ("a non-empty list", []),
        ("a non-empty list", [1, 2]),
        ("2 dimensions", np.array([[None]], dtype=object)),
        ("row 1 of field 'x'", np.array([1, {1: 2}], dtype=object)),
        ("row 0 of field 'x'", np.array([float("nan")], dtype=object)),
        ("would not come back", _tuple_of_objects()),
    ):
        yield refused(words, f"a field that is {str(value)[:40]}", encode, value, "x")
    parts = [(encode(torch.zeros(1, 2), "x"), [0], [0]), (encode(torch.zeros(1, 3), "x"), [0], [1])]
    yield refused("dense (2,), dense (3,)", "rows of two shapes", gather, parts, 2)


def _tuple_of_objects() -> Any:
    value = np.empty(1, dtype=object)
    value[0] = (1, 2)
    return value


def _random_columns() -> list[str]:
    """Return how rows that are taken and gathered from columns of every kind differ from those of plain lists."""
    stream, wrong = random.Random(5), []
    for number in range(60):
        kind = ("dense", "jagged", "object", "jagged pairs")[number % 4]
        plain: list[list[Any]] = [
            [
                [stream.randrange(99) for _ in range(2 if kind == "dense" else stream.randrange(4))]
                for _ in range(size)
            ]
            for size in (stream.randint(1, 4) for _ in range(3))
        ]
        columns = [encode(_value(kind, rows), "x") for rows in plain]
        num = stream.randint(1, 6)
        of_row = (
            sorted(stream.randrange(3) for _ in range(num))
            if number % 2
            else [stream.randrange(3) for _ in range(num)]
        )
        rows = [stream.randrange(len(plain[part])) for part in of_row]
        parts = [
            (columns[part], [rows[place] for place in places], places)
            for part in range(3)
            if (places := [place for place in range(num) if of_row[place] == part])
        ]
        due = [plain[part][row] for part, row in zip(of_row, rows, strict=True)]
        found = _lists(decode(gather(parts, num)))
        wrong += [f"{kind}: {found} for {due}"] * (found != due)
        part, chosen = stream.randrange(3), stream.choice([[0], [], "all", "back"])
        places = list(range(len(plain[part])))
        places = chosen if isinstance(chosen, list) else places if chosen == "all" else places[::-1]
        found, due = _lists(decode(columns[part].take(places))), [plain[part][place] for place in places]
        wrong += [f"{kind} rows {places}: {found} for {due}"] * (found != due)
    return wrong


def _value(kind: str, rows: list[Any]) -> Any:
    if kind == "dense":
        return torch.tensor(rows)
    if kind == "jagged":
        return [torch.tensor(row, dtype=torch.long) for row in rows]
    if kind == "jagged pairs":
        return [torch.tensor([row, row], dtype=torch.long).T for row in rows]
    value = np.empty(len(rows), dtype=object)
    for number, row in enumerate(rows):
        value[number] = row
    return value


def _lists(value: Any) -> list[Any]:
    """Return rows as lists; the first of each pair, and a mark where the second differs."""
    rows = [row if isinstance(row, list) else row.tolist() for row in value]
    return [
        [one if not isinstance(one, list) else one[0] if one[0] == one[1] else "differs" for one in row]
        for row in rows
    ]


def _of_journals() -> Iterator[WorkedExample]:
    yield example("a line that is cut short", (["register", "clear"], 2, True), _cut_short)
    yield refused("line 2, is no change", "a line of something else", _other_line)
    yield example("leases begin again after a restart", ([], ["a"]), _restarted)
    for restarts in (False, True):
        name = f"a partition that is made again counts from 0, restarted: {restarts}"
        yield example(
            name, (*[[0, 0, 0, 0.0, 0]] * 3, [3, 0, 0, 24.0, 24], ["a", "b"], True), _made_again, restarts
        )


def _spec(**changes: Any) -> PartitionSpec:
    return PartitionSpec(**{"fields": ("x",), "num_samples": 9, "consumer_tasks": ("t",), **changes})


def _cut_short() -> Any:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "below", "journal")
        restored(path).register("p", _spec())
        with path.open("a") as file:
            file.write('["clear", {"partition_id": "' + "p" * 200)
        restored(path).clear("p", None)
        lines = path.read_text().splitlines()
        return (
            [json.loads(line)[0] for line in lines],
            Journal(path).play(ControlState()),
            path.read_text().endswith("}]\n"),
        )


def _other_line() -> None:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "journal")
        restored(path).register("p", _spec())
        with path.open("a") as file:
            file.write('["drop", {}]\n')
        restored(path)


def _counts(state: ControlState, name: str) -> list[float]:
    found = state.status(name)
    return [found.num_rows, found.num_leased, found.num_returned, found.bytes_live, found.bytes_held]


def _made_again(restarts: bool) -> Any:
    """Return how a partition counts that is removed and made again, and what it serves.

    It counts just then, after an old lease is given back and after that lease's time; then with three new samples.
    The last value is whether another partition stays as it was.
    """
    with tempfile.TemporaryDirectory() as folder:
        path, now = Path(folder, "journal"), [0.0]
        state = restored(path, lambda: now[0])
        for name in "pq":
            state.register(name, _spec())
            state.publish(name, ["a", "b", "c"], [NewBlock("x", f"{name}1", "int64", 24)], None)
            for lease, most, seconds in (("l", 2, 50.0), ("m", 1, 1.0)):
                state.claim(name, "t", ["x"], lease + name, most=most, least=1, seconds=seconds)
            state.release(f"l{name}", ["a"])
        now[0] = 2.0
        kept = _counts(state, "q")  # one of three is leased, one was given back, and one ran out
        assert _counts(state, "p") == kept
        state.clear("p", None)
        if restarts:
            state = restored(path, lambda: now[0])
        state.register("p", _spec())
        seen = [_counts(state, "p")]
        state.release("lp", ["b"])
        seen.append(_counts(state, "p"))
        stays = restarts or _counts(state, "q") == kept == [3, 1, 2, 24.0, 24]
        now[0] = 99.0
        seen.append(_counts(state, "p"))
        state.publish("p", ["a", "b", "c"], [NewBlock("x", "p2", "int64", 24)], None)
        seen.append(_counts(state, "p"))
        return *seen, state.claim("p", "t", ["x"], "n", most=2, least=1, seconds=1.0).samples, stays


def _restarted() -> Any:
    """Return what is served 4 seconds and 6 seconds after a restart, of a lease of 5 seconds that began before it."""
    with tempfile.TemporaryDirectory() as folder:
        path, now = Path(folder, "journal"), [0.0]
        state = restored(path, lambda: now[0])
        state.register("p", _spec())
        state.publish("p", ["a"], [NewBlock("x", "b", "int64", 8)], None)
        state.claim("p", "t", ["x"], "l", most=1, least=1, seconds=5.0)
        now[0] = 3.0
        state, served = restored(path, lambda: now[0]), []
        for now[0] in (7.0, 9.0):
            served.append(state.claim("p", "t", ["x"], f"m{now[0]}", most=1, least=1, seconds=5.0).samples)
        return tuple(served)
