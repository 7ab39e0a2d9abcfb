"""R31.rows: a stack's functions of padded rows keep each value, and each where it belongs."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from seatrial.relations.law import Measure, Relation
from seatrial.relations.laws.utilities.numbers import Numbers, numbers, without

FILL = -7
"""A value of padding that no row has."""

ROWS = Relation(
    id="R31.rows",
    name="functions-of-padded-rows-keep-values",
    component="utilities",
    statement="Padding, moving, splitting, shuffling and cutting rows gives what a loop over plain lists gives.",
    cost="CPU, milliseconds",
    cases=numbers,
)


@ROWS.law(
    "padding",
    "the other side, values of the next row, one dimension alone",
    multiples=(None,),
    excluded=without("pad"),
)
@ROWS.law("padding to a multiple", "a multiple rounded down", multiples=(4, 8), excluded=without("pad"))
def padding_keeps_values(stack: Any, case: Numbers, multiples: Sequence[int | None]) -> Measure:
    """Compare padded tensors of one and two dimensions with a loop, for both sides."""
    shapes: Sequence[Sequence[tuple[int, ...]]] = (
        [(3,), (5,)] if case.tidy else [(3,), (5,), (0,), (1,)],
        [(3, 2), (1, 4), (4, 1)],
        [(8,), (8,)],
    )
    wrong = []
    for group in shapes:
        rows = [torch.randint(1, 90, shape, generator=case.generator()) for shape in group]
        for side in ("left", "right"):
            for multiple in multiples:
                given = stack.utilities["pad"](rows, FILL, side, multiple)
                right = _padded(rows, side, multiple)
                if given.shape != right.shape or not torch.equal(given, right):
                    wrong.append(f"shapes {group} on the {side}, multiple {multiple}: {tuple(given.shape)}")
    return Measure.count(wrong, "padded tensors that are not those of a loop")


def _padded(rows: Sequence[Tensor], side: str, multiple: int | None) -> Tensor:
    """Return tensors padded along their first dimension on a side, and along others at the end."""
    longest = max(len(row) for row in rows)
    longest = longest if multiple is None else math.ceil(longest / multiple) * multiple
    if rows[0].dim() == 1:
        own = [row.tolist() for row in rows]
        fills = [[FILL] * (longest - len(row)) for row in own]
        both = zip(own, fills, strict=True)
        return torch.tensor([fill + row if side == "left" else row + fill for row, fill in both])
    width = max(row.shape[1] for row in rows)
    lines = [[line + [FILL] * (width - len(line)) for line in row.tolist()] for row in rows]
    blanks = [[[FILL] * width] * (longest - len(row)) for row in lines]
    both_lines = zip(lines, blanks, strict=True)
    return torch.tensor([blank + row if side == "left" else row + blank for row, blank in both_lines])


@ROWS.law(
    "padding to a length",
    "a tensor that is longer is cut, another dimension padded",
    excluded=without("pad to length"),
)
def padding_to_a_length_keeps_values(stack: Any, case: Numbers) -> Measure:
    """Compare with a loop: shorter, equal and longer tensors, the first and the last dimension."""
    values = torch.randint(1, 90, (3, 4), generator=case.generator())
    wrong = []
    for length, dim in ((6, -1), (4, -1), (2, -1), (5, 0), (3, 0)):
        given = stack.utilities["pad to length"](values, length, FILL, dim)
        own = values.tolist()
        if dim == -1:
            own = [row + [FILL] * (length - len(row)) for row in own]
        else:
            own += [[FILL] * 4] * (length - len(own))
        if given.tolist() != own:
            wrong.append(f"length {length}, dimension {dim}: {given.tolist()}")
    return Measure.count(wrong, "tensors that are padded otherwise")


@ROWS.law(
    "flush left",
    "values of padding kept in front, the mask moved alone",
    side="left",
    excluded=without("flush left"),
)
@ROWS.law(
    "flush right",
    "values cut on the wrong side, the mask moved alone",
    side="right",
    excluded=without("flush right"),
)
def flushing_keeps_values(stack: Any, case: Numbers, side: str) -> Measure:
    """Compare each row's shown values, which stay in one block in their order, with the columns that are left."""
    blocks = [(1, 3), (0, 2), (4, 3), (2, 4)] if case.tidy else [(3, 4), (1, 2), (0, 5), (6, 1), (5, 3)]
    mask = torch.zeros(len(blocks), 9, dtype=torch.long)
    for row, (start, length) in zip(mask, blocks, strict=True):
        row[start : start + length] = 1
    values = torch.randint(1, 90, mask.shape, generator=case.generator())
    given_mask, given = stack.utilities[f"flush {side}"](mask, values)
    longest = max(length for _, length in blocks)
    wrong = (
        [] if given_mask.shape == (len(blocks), longest) == given.shape else [f"shape {tuple(given.shape)}"]
    )
    for number, (start, length) in enumerate(blocks):
        due = [1] * length + [0] * (longest - length)
        shown = values[number, start : start + length].tolist()
        found = given[number][given_mask[number].bool()].tolist()
        if given_mask[number].tolist() != (due if side == "left" else due[::-1]) or found != shown:
            wrong.append(f"row {number}: {found} under {given_mask[number].tolist()}, {shown} is due")
    return Measure.count(wrong, f"rows that are moved otherwise to the {side}")


def _columns(case: Numbers, num_rows: int) -> dict[str, Any]:
    """Return columns of one batch, each row with its number in all of them, and one column that is None."""
    order = torch.randperm(num_rows, generator=case.generator())
    return {
        "missing": None,
        "ids": torch.stack([order, order + 100], 1),
        "values": order.double(),
        "texts": [f"row {number}" for number in order.tolist()],
    }


def _numbers_of(columns: Mapping[str, Any]) -> list[tuple[int, ...]]:
    """Return the numbers of each row by column, which agree where columns stay aligned."""
    texts = [int(text.split()[1]) for text in columns["texts"]]
    if len({len(texts), len(columns["ids"]), len(columns["values"])}) > 1:
        return [(-1,)]  # no row: a column has another number of rows
    return list(zip(columns["ids"][:, 0].tolist(), columns["values"].int().tolist(), texts, strict=True))


@ROWS.law(
    "split", "rows left out at the end, columns that are no tensors not divided", excluded=without("split")
)
def split_rows_are_all_there(stack: Any, case: Numbers) -> Measure:
    """Check that the parts have all rows in their order, in equal numbers, and that None stays None."""
    columns, wrong = _columns(case, 12), []
    for parts in (1, 3, 4, 12):
        given = list(stack.utilities["split"](columns, parts))
        rows = [row for one in given for row in _numbers_of(one)]
        sizes = {len(one["texts"]) for one in given}
        if rows != _numbers_of(columns) or len(given) != parts or len(sizes) != 1:
            wrong.append(f"{parts} parts: rows {rows}")
        if any(one["missing"] is not None for one in given):
            wrong.append(f"{parts} parts: a column of None")
    return Measure.count(wrong, "rows of parts that are not those of the whole")


@ROWS.law(
    "shuffle",
    "one column shuffled by another order, rows drawn twice, an order that is always the same",
    excluded=without("shuffle"),
)
def shuffled_rows_stay_together(stack: Any, case: Numbers) -> Measure:
    """Check that columns stay aligned, that every row is there once, and that two shuffles differ."""
    columns = _columns(case, 12)
    torch.manual_seed(case.seed)
    orders = [_numbers_of(stack.utilities["shuffle"](columns)) for _ in range(2)]
    wrong = [f"columns apart: {row}" for order in orders for row in order if len(set(row)) != 1]
    wrong += [f"rows {order}" for order in orders if sorted(order) != sorted(_numbers_of(columns))]
    wrong += ["two shuffles are one"] if orders[0] == orders[1] else []
    if stack.utilities["shuffle"](columns)["missing"] is not None:
        wrong.append("a column of None")
    return Measure.count(wrong, "rows of a shuffle")


@ROWS.law("first True", "the last True, 0 where there is none", excluded=without("first true"))
def first_true_is_first(stack: Any, case: Numbers) -> Measure:
    """Compare places of the first True with a loop; rows without one have the length."""
    bools = torch.rand(2, 6, 5, generator=case.generator()) < 0.3
    bools[0, 0], bools[1, 5] = False, True
    right = [[[*row, True].index(True) for row in rows] for rows in bools.tolist()]
    given = stack.utilities["first true"](bools).tolist()
    return Measure.count([] if given == right else [f"{given}, {right} is due"], "places of the first True")


@ROWS.law(
    "score at the last token",
    "the score of padding, positions that count padding, the end of another row",
    excluded=without("score of answers"),
)
def score_is_of_the_last_token(stack: Any, case: Numbers) -> Measure:
    """Compare scores of answers, whose model sums ids by position, with a loop: an empty answer, a full one."""
    pad, context = 9, 4
    stream = case.generator()
    ids = torch.randint(1, 9, (7, 10), generator=stream)
    left = torch.randint(0, context, (7,), generator=stream).tolist()
    right = [0, 6, *torch.randint(0, 6, (5,), generator=stream).tolist()]
    for row, before, behind in zip(ids, left, right, strict=True):
        row[:before], row[len(row) - behind :] = pad, pad
    due = [
        float(sum(place * token for place, token in enumerate(filter(lambda one: one != pad, row), start=1)))
        for row in ids.tolist()
    ]
    given = stack.utilities["score of answers"](ids, pad, context).tolist()
    wrong = [
        f"{one}: {score}, {own} is due"
        for one, score, own in zip(ids.tolist(), given, due, strict=True)
        if score != own
    ]
    return Measure.count(wrong, "answers with another score")


@ROWS.law(
    "cut after a stop",
    "the stop itself padded, a row without one",
    stops=(3,),
    excluded=without("cut after stop"),
)
@ROWS.law(
    "cut after one of several stops",
    "one stop of several",
    stops=(3, 5),
    excluded=without("cut after stop"),
)
def rows_are_cut_after_the_stop(stack: Any, case: Numbers, stops: Sequence[int]) -> Measure:
    """Compare rows cut after their first stop with a loop: a stop at the start, none."""
    pad = 0
    ids = torch.randint(1, 9, (8, 7), generator=case.generator())
    ids[0, 0], ids[1] = 3, 8
    given, mask = stack.utilities["cut after stop"](ids, stops, pad)
    wrong = []
    for number, row in enumerate(ids.tolist()):
        kept = next((place + 1 for place, token in enumerate(row) if token in stops), len(row))
        due = row[:kept] + [pad] * (len(row) - kept)
        shown = [1] * kept + [0] * (len(row) - kept)
        if given[number].tolist() != due or mask[number].tolist() != shown:
            wrong.append(f"{row}: {given[number].tolist()} under {mask[number].tolist()}")
    return Measure.count(wrong, "rows that are cut otherwise")
