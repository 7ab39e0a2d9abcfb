"""Worked examples of verl's batches: rows that are chosen, joined, repeated, padded, cut and kept in files."""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy
import torch

from seatrial.targets.common.target import find_name
from seatrial.targets.common.trainers import new_folder
from seatrial.targets.common.worked_rows import Row
from seatrial.targets.verl.worked.values import refused_calls

PROTO = "verl.protocol:DataProto"
NAN = float("nan")


def _batch(proto: Any, rows: int = 4, **notes: Any) -> Any:
    names = numpy.array([f"row {row}" for row in range(rows)], dtype=object)
    tensors = {"ids": torch.arange(rows), "pairs": torch.arange(2 * rows).reshape(rows, 2)}
    return proto.from_dict(tensors=tensors, non_tensors={"names": names}, meta_info=notes or {"note": 1})


def _rows(batch: Any) -> list[int]:
    """Return the numbers of rows; those of names and pairs must be the same.

    Raises:
        ValueError: they are not.
    """
    ids: list[int] = batch.batch["ids"].tolist()
    others = [int(name.split()[1]) for name in batch.non_tensor_batch["names"].tolist()]
    pairs = (batch.batch["pairs"][:, 0] // 2).tolist()
    if ids != others or ids != pairs:
        raise ValueError(f"rows are mixed: {ids}, {others}, {pairs}")
    return ids


def _chosen(proto: Any) -> dict[str, Any]:
    """Return the rows that are chosen, by what they are chosen with."""
    batch = _batch(proto)
    item = batch[2]
    return {
        "slices": [_rows(batch[given]) for given in (slice(1, 3), slice(None, None, 2), slice(-1, None))],
        "lists": [_rows(batch[[3, 0]]), _rows(batch[numpy.array([1, 1])]), _rows(batch[torch.tensor([2])])],
        "masks": [
            _rows(batch.select_idxs(given))
            for given in (
                [True, False, False, True],
                numpy.array([False, True, True, False]),
                torch.tensor([False, False, False, True]),
            )
        ],
        "numbers": [_rows(batch.select_idxs(given)) for given in ([3, 1], torch.tensor([0, 0]))],
        "a row": [item.batch["ids"].item(), item.non_tensor_batch["names"], item.meta_info],
        "sliced": [_rows(batch.slice(1, None)), _rows(batch.slice(0, 4, 3)), _rows(batch.slice(end=1))],
        "split": [_rows(part) for part in batch.split(3)],
        "notes": [batch[1:].meta_info, batch.select_idxs([0]).meta_info, batch.slice(0, 1).meta_info],
    }


NOTE = {"note": 1}
CHOSEN: Mapping[str, Any] = {
    "slices": [[1, 2], [0, 2], [3]],
    "lists": [[3, 0], [1, 1], [2]],
    "masks": [[0, 3], [1, 2], [3]],
    "numbers": [[3, 1], [0, 0]],
    "a row": [2, "row 2", NOTE],
    "sliced": [[1, 2, 3], [0, 3], [0]],
    "split": [[0, 1, 2], [3]],
    "notes": [NOTE] * 3,
}


def _columns(proto: Any) -> dict[str, Any]:
    """Return the columns after some are selected, taken out or renamed, and what is left."""
    batch = _batch(proto, note=[1])
    chosen = batch.select(batch_keys=["ids"], non_tensor_batch_keys=[], meta_info_keys=[])
    apart, shared, batch_note = batch.select(deepcopy=True), batch.select(), batch.meta_info["note"]
    copied = [one.meta_info["note"] is batch_note for one in (apart, shared)]
    taken = batch.pop(batch_keys=["pairs"], non_tensor_batch_keys=["names"], meta_info_keys=["note"])
    renamed = _batch(proto).rename("ids", "numbers")
    listed = _batch(proto).rename(["ids"], ["one"])
    return {
        "selected": [sorted(chosen.batch.keys()), sorted(chosen.non_tensor_batch), chosen.meta_info],
        "copied": copied,
        "taken": [sorted(taken.batch.keys()), sorted(taken.non_tensor_batch), taken.meta_info],
        "left": [sorted(batch.batch.keys()), sorted(batch.non_tensor_batch), batch.meta_info],
        "renamed": [sorted(renamed.batch.keys()), sorted(listed.batch.keys())],
        "refused": refused_calls(_batch(proto).pop, (["none"],), (None, ["none"]), (None, None, ["none"])),
    }


COLUMNS: Mapping[str, Any] = {
    "selected": [["ids"], [], {}],
    "copied": [False, True],
    "taken": [["pairs"], ["names"], {"note": [1]}],
    "left": [["ids"], [], {}],
    "renamed": [["numbers", "pairs"], ["one", "pairs"]],
    "refused": [True] * 3,
}


def _repeated(proto: Any) -> dict[str, Any]:
    """Return rows that are repeated, each one or all of them, and those in chunks of columns."""
    batch = _batch(proto, 2)
    times: Sequence[Any] = ([2, 1], (0, 3), torch.tensor([1, 2]), numpy.array([3, 0]))
    unfolded = batch.unfold_column_chunks(2, split_keys=["pairs"])
    padded = [_batch(proto, 2) for _ in range(3)]
    for one, (size, which) in zip(padded, ((2, "first"), (1, "last"), (0, "last")), strict=True):
        one.padding(size, which)
    return {
        "each": _rows(batch.repeat(2, interleave=True)),
        "all": _rows(batch.repeat(2, interleave=False)),
        "by row": [_rows(batch.sample_level_repeat(given)) for given in times],
        "columns": [
            unfolded.batch["ids"].tolist(),
            unfolded.batch["pairs"].tolist(),
            unfolded.non_tensor_batch["names"].tolist(),
        ],
        "padded": [_rows(one) for one in padded],
        "notes": [batch.repeat(2).meta_info, batch.sample_level_repeat([1, 1]).meta_info, unfolded.meta_info],
    }


REPEATED: Mapping[str, Any] = {
    "each": [0, 0, 1, 1],
    "all": [0, 1, 0, 1],
    "by row": [[0, 0, 1], [1, 1, 1], [0, 1, 1], [0, 0, 0]],
    "columns": [[0, 0, 1, 1], [[0], [1], [2], [3]], ["row 0", "row 0", "row 1", "row 1"]],
    "padded": [[0, 1, 0, 0], [0, 1, 1], [0, 1]],
    "notes": [NOTE] * 3,
}


def _joined(proto: Any) -> dict[str, Any]:
    """Return rows of batches that are joined, notes and metrics with them, and what does not fit."""
    one, other = _batch(proto, 2), _batch(proto, 3)
    one.meta_info, other.meta_info = {"note": 1, "metrics": [{"a": 1}]}, {"note": 1, "metrics": [{"a": 2}]}
    joined = proto.concat([one, other])
    conflicting = _batch(proto, 2, note=2)
    columns = proto.from_dict(tensors={"more": torch.ones(4)}, meta_info={"other": 2})
    union = _batch(proto).union(columns)
    unequal = proto.from_dict(tensors={"ids": torch.zeros(4)})
    unnamed = proto.from_dict(
        tensors={"x": torch.zeros(4)}, non_tensors={"names": numpy.array(["a"] * 4, dtype=object)}
    )
    return {
        "rows": joined.batch["ids"].tolist(),
        "names": joined.non_tensor_batch["names"].tolist() == [f"row {row}" for row in (0, 1, 0, 1, 2)],
        "note": joined.meta_info["note"],
        "metrics": joined.meta_info["metrics"],
        "refused": refused_calls(proto.concat, ([_batch(proto, 2), conflicting],)),
        "columns": [sorted(union.batch.keys()), union.meta_info],
        "columns refused": refused_calls(
            _batch(proto).union, (unequal,), (unnamed,), (_batch(proto, note=3),)
        ),
        "again": sorted(_batch(proto).union(_batch(proto)).batch.keys()),
    }


JOINED: Mapping[str, Any] = {
    "rows": [0, 1, 0, 1, 2],
    "names": True,
    "note": 1,
    "metrics": {"a": [1, 2]},
    "refused": [True],
    "columns": [["ids", "more", "pairs"], {"note": 1, "other": 2}],
    "columns refused": [True] * 3,
    "again": ["ids", "pairs"],
}


def _iterated(proto: Any) -> dict[str, Any]:
    """Return rows of mini-batches of two passes: in a drawn order, the same for a seed, and each row once a pass."""
    batch = _batch(proto, 8)

    def passes(seed: Any, shuffle: bool = True) -> list[list[int]]:
        made = batch.make_iterator(4, 2, seed=seed, dataloader_kwargs={"shuffle": shuffle})
        return [_rows(part) for part in made]

    one, other = passes(3), passes(4)
    return {
        "sizes": [len(part) for part in one],
        "the same": passes(3) == one,
        "others": other != one,
        "each once": [sorted(one[0] + one[1]), sorted(one[2] + one[3])],
        "another order": one[:2] != one[2:],
        "as given": passes(3, shuffle=False),
        "refused": refused_calls(lambda: list(batch.make_iterator(3, 1)), ()),
    }


ITERATED: Mapping[str, Any] = {
    "sizes": [4] * 4,
    "the same": True,
    "others": True,
    "each once": [list(range(8))] * 2,
    "another order": True,
    "as given": [[0, 1, 2, 3], [4, 5, 6, 7]] * 2,
    "refused": [True],
}


def _kept(proto: Any) -> list[Any]:
    """Return rows and notes after a batch is copied through its state, and written to a file."""
    batch = _batch(proto)
    copied = copy.deepcopy(batch)
    path = Path(new_folder()) / "batch"
    batch.save_to_disk(path)
    loaded = proto.load_from_disk(path)
    return [_rows(copied), copied.meta_info, _rows(loaded), loaded.meta_info]


def _wrapped(wrapper: Any) -> dict[str, Any]:
    """Return what is dispatched in chunks and collected, and what is not."""
    proto = find_name("verl", [PROTO])
    batch = _batch(proto)
    chunks = wrapper(batch).chunk(2)
    return {
        "chunked": [_rows(part) for part in chunks],
        "joined": _rows(wrapper(list(chunks)).concat()),
        "chunks": [wrapper(one).is_chunkable() for one in (batch, torch.ones(2), [batch])],
        "joins": [wrapper(one).is_concatable() for one in ([batch], (batch,), [], batch, [1], "ab")],
        "refused": refused_calls(wrapper([]).concat, ()),
    }


WRAPPED: Mapping[str, Any] = {
    "chunked": [[0, 1], [2, 3]],
    "joined": [0, 1, 2, 3],
    "chunks": [True, False, False],
    "joins": [True, True, False, False, False, False],
    "refused": [True],
}


def _equal(compare: Callable[..., Any]) -> list[bool]:
    """Return whether values are equal: numbers, none, what is no number, arrays and values within them."""
    arrays = numpy.array([1.0, NAN]), numpy.array([1.0, NAN]), numpy.array([1.0, 2.0])
    objects = [numpy.array([{"a": [NAN]}, "b"], dtype=object) for _ in range(2)]
    given: Sequence[tuple[Any, Any]] = (
        (1, 1),
        (1, 1.0),
        (1, 2),
        (NAN, NAN),
        (NAN, 1.0),
        (1.0, NAN),
        (None, 0),
        ([1, [2]], [1, [2]]),
        ([1], [1, 2]),
        ({"a": NAN}, {"a": NAN}),
        ({"a": 1}, {"b": 1}),
        ({"a": 1}, {"a": 1, "b": 2}),
        (arrays[0], arrays[1]),
        (arrays[0], arrays[2]),
        (arrays[0], arrays[0][:1]),
        (objects[0], objects[1]),
        ("a", "a"),
    )
    return [bool(compare(one, other, set())) for one, other in given]


EQUAL = [
    True,
    False,
    False,
    True,
    False,
    False,
    False,
    True,
    False,
    True,
    False,
    False,
    True,
    False,
    False,
    True,
    True,
]


def _tables(of: Any) -> dict[str, Any]:
    """Return rows of tables with rows of unequal lengths that are chosen, cut, joined and padded."""
    import verl.utils.tensordict_utils as tables

    rows = [torch.arange(size) + 10 * size for size in (1, 3, 2, 4)]
    nested = torch.nested.as_nested_tensor(rows, layout=torch.jagged)
    table = tables.get_tensordict(
        {"ids": torch.arange(4), "rows": nested, "names": list("abcd")}, {"note": {"a": 1}}
    )

    def shown(one: Any) -> list[Any]:
        return [
            one["ids"].tolist(),
            [row.tolist() for row in one["rows"].unbind()],
            [str(name) for name in one["names"]],
        ]

    chosen = tables.index_select_tensor_dict(table, [3, 0])
    parts = tables.chunk_tensordict(table, 2)
    joined = tables.concat_tensordict(parts)
    plain = tables.get_tensordict({"ids": torch.arange(5)}, {"note": 2})
    padded, more = tables.pad_to_divisor(plain, 4)
    far, much = tables.pad_to_divisor(tables.get_tensordict({"ids": torch.arange(2)}), 5)
    notes = copy.copy(table)
    return {
        "all": shown(table) == [[0, 1, 2, 3], [row.tolist() for row in rows], list("abcd")],
        "chosen": shown(chosen),
        "chosen notes": tables.get(chosen, "note"),
        "parts": [shown(part) for part in parts],
        "joined": shown(joined) == shown(table),
        "padded": [padded["ids"].tolist(), more, far["ids"].tolist(), much],
        "unpadded": [tables.unpad(padded, more)["ids"].tolist(), tables.unpad(plain, 0)["ids"].tolist()],
        "read": [tables.get(table, "note"), tables.get(table, "none", 5), tables.get(table, "names")],
        "some": sorted(tables.get_keys(table, ["ids", "note"]).keys()),
        "taken": [tables.pop(notes, "note"), tables.pop(notes, "none", 7), "note" in set(notes.keys())],
        "refused": refused_calls(lambda: tables.chunk_tensordict(table, 3), ())
        + refused_calls(lambda: tables.get_tensordict({"a": torch.ones(2), "b": torch.ones(3)}), ())
        + refused_calls(lambda: tables.get_tensordict({"a": torch.ones(2), "b": [1]}), ()),
    }


TABLE: Mapping[str, Any] = {
    "all": True,
    "chosen": [[3, 0], [[40, 41, 42, 43], [10]], ["d", "a"]],
    "chosen notes": {"a": 1},
    "parts": [
        [[0, 1], [[10], [30, 31, 32]], ["a", "b"]],
        [[2, 3], [[20, 21], [40, 41, 42, 43]], ["c", "d"]],
    ],
    "joined": True,
    "padded": [[0, 1, 2, 3, 4, 0, 1, 2], 3, [0, 1, 0, 1, 0], 3],
    "unpadded": [[0, 1, 2, 3, 4], [0, 1, 2, 3, 4]],
    "read": [{"a": 1}, 5, ["a", "b", "c", "d"]],
    "some": ["ids", "note"],
    "taken": [{"a": 1}, 7, False],
    "refused": [True, True, True],
}
ROWS: Sequence[Row] = (
    Row("rows", PROTO, "rows that are chosen", _chosen, CHOSEN),
    Row("rows", PROTO, "columns that are selected, taken out and renamed", _columns, COLUMNS),
    Row("rows", PROTO, "rows that are repeated and padded", _repeated, REPEATED),
    Row("rows", PROTO, "batches that are joined", _joined, JOINED, since="0.6"),
    Row("rows", PROTO, "mini-batches of two passes", _iterated, ITERATED),
    Row("files", PROTO, "batches that are kept", _kept, [[0, 1, 2, 3], NOTE] * 2),
    Row("rows", "verl.protocol:BatchData", "chunks and what they make", _wrapped, WRAPPED),
    Row("rows", "verl.protocol:_deep_equal", "values", _equal, EQUAL),
    Row("rows", "verl:DataProto", "tables of rows of unequal lengths", _tables, TABLE),
)
