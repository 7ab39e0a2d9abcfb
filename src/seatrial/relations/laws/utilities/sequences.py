"""R31.sequences: masks, padding, cuts and flattened rows are those of a loop over lists."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from seatrial.relations.laws.utilities.numbers import Numbers
from seatrial.relations.laws.utilities.plain import Arguments, Plain, add_laws, relation_of

PAD = 0
SEQUENCES = relation_of(
    "sequences",
    "sequences-are-cut-and-padded-as-documented",
    "Masks of answers, padding, cuts and rows laid end to end are those of a loop over lists.",
)


def _ids(case: Numbers, *shape: int) -> Tensor:
    return torch.randint(1, 9, shape, generator=case.generator())


def _lengths(case: Numbers, count: int, longest: int) -> list[int]:
    drawn = torch.randint(1, longest, (count,), generator=case.generator()).tolist()
    return [longest] * count if case.tidy else [longest, *drawn[1:]]


def answer_mask(ids: Tensor, ends: int | Sequence[int]) -> Tensor:
    """Return 1 up to and with the first end."""
    stops = [ends] if isinstance(ends, int) else list(ends)
    rows = []
    for row in ids.tolist():
        kept = next((place + 1 for place, one in enumerate(row) if one in stops), len(row))
        rows.append([1] * kept + [0] * (len(row) - kept))
    return torch.tensor(rows)


def _answers(case: Numbers) -> Iterable[Arguments]:
    ids = _ids(case, 6, 7)
    ids[0, 0], ids[1] = 2, 8
    return [(ids, 2), (ids, [2, 5]), (ids, [3])]


def padded_lists(rows: Sequence[Sequence[float]], value: int, length: int | None) -> Tensor:
    """Return rows padded at their end, to the longest or to a length above it."""
    longest = max(max(len(row) for row in rows), length or 0)
    return torch.tensor([[*row, *[value] * (longest - len(row))] for row in rows])


def padded(rows: Tensor, length: int, value: int, left: bool) -> Tensor:
    """Return rows padded on a side; as they are if they are that long."""
    more = [[value] * max(0, length - rows.shape[1])] * len(rows)
    pairs = zip(rows.tolist(), more, strict=True)
    return torch.tensor([gap + row if left else row + gap for row, gap in pairs])


def fitted(
    ids: Tensor, mask: Tensor, length: int, pad_id: int, left: bool, cut: str
) -> tuple[Tensor, Tensor]:
    """Return ids and mask of a length: padded on a side, or cut at one."""
    half = length // 2

    def keep(rows: Tensor, value: int) -> Tensor:
        if rows.shape[1] <= length:
            return padded(rows, length, value, left)
        own = rows.tolist()
        if cut == "middle":
            return torch.tensor([row[:half] + row[len(row) - (length - half) :] for row in own])
        return torch.tensor([row[len(row) - length :] if cut == "left" else row[:length] for row in own])

    return keep(ids, pad_id), keep(mask, 0)


def _fits(case: Numbers) -> Iterable[Arguments]:
    ids = _ids(case, 2, 7)
    mask = torch.ones_like(ids)
    mask[1, :2] = 0
    for length in (4, 5, 7, 9):
        for left in (True, False):
            for cut in ("left", "right", "middle"):
                yield ids, mask, length, PAD, left, cut


def _left_padded(case: Numbers) -> tuple[Tensor, Tensor]:
    lengths = _lengths(case, 4, 6)
    mask = torch.tensor([[0] * (6 - length) + [1] * length for length in lengths])
    return _ids(case, 4, 6) * mask, mask


def without_padding(ids: Tensor, mask: Tensor) -> list[list[int]]:
    """Return each row's shown ids."""
    return [row[shown.bool()].tolist() for row, shown in zip(ids, mask, strict=True)]


def ends_of_rows(mask: Tensor) -> tuple[Tensor, Tensor, int]:
    """Return the flat places that are shown, where each row begins and ends among them, and the longest row."""
    lengths = [int(row.sum()) for row in mask]
    places = [place for place, one in enumerate(mask.flatten().tolist()) if one]
    ends = [sum(lengths[:number]) for number in range(len(lengths) + 1)]
    return torch.tensor(places), torch.tensor(ends, dtype=torch.int32), max(lengths)


def positions(mask: Tensor) -> Tensor:
    """Return the number of shown ids before each shown place, and 0 before the first."""
    return torch.tensor(
        [[max(0, sum(row[: place + 1]) - 1) for place in range(len(row))] for row in mask.tolist()]
    )


def visible(mask: Tensor) -> Tensor:
    """Return whether a place (third dimension) sees another (fourth): an earlier or the same one that is shown."""
    size = mask.shape[1]
    rows = [
        [[bool(row[key]) and key <= place for key in range(size)] for place in range(size)] for row in mask
    ]
    return torch.tensor(rows)[:, None]


def _rows(case: Numbers) -> Iterable[Arguments]:
    """Return values of all tokens of rows, and the numbers of tokens of prompts and answers."""
    answers = _lengths(case, 4, 5)
    prompts = [3, 1, 4, 2]
    values = [torch.randn(p + a, generator=case.generator()) for p, a in zip(prompts, answers, strict=True)]
    return [(values, prompts, answers)]


def answer_values(values: Sequence[Tensor], prompts: Sequence[int], answers: Sequence[int]) -> Tensor:
    """Return the values one place before each token of an answer, padded with 0 at the end."""
    made = torch.zeros(len(values), max(answers))
    for number, (row, prompt, answer) in enumerate(zip(values, prompts, answers, strict=True)):
        made[number, :answer] = row[prompt - 1 : prompt - 1 + answer]
    return made


def answer_rows(values: Sequence[Tensor], prompts: Sequence[int], answers: Sequence[int]) -> list[Tensor]:
    """Return the same without padding."""
    made = answer_values(values, prompts, answers)
    return [row[:answer] for row, answer in zip(made, answers, strict=True)]


def _padded_rows(case: Numbers) -> Iterable[Arguments]:
    """Return prompts padded on the left, answers padded on the right, and their mask."""
    ids, mask = _left_padded(case)
    lengths = [2, 4, 1, 3]
    shown = torch.tensor([[1] * length + [0] * (4 - length) for length in lengths])
    return [(torch.cat([ids, _ids(case, 4, 4) * shown], 1), torch.cat([mask, shown], 1), 4)]


def flattened(ids: Tensor, mask: Tensor, num_answer: int) -> tuple[list[list[int]], list[list[int]]]:
    """Return each row's ids and positions without padding."""
    rows = without_padding(ids, mask)
    return rows, [list(range(len(row))) for row in rows]


def _padded_columns(case: Numbers) -> Iterable[Arguments]:
    """Return the same rows with experts of two layers, and a teacher's two likeliest tokens at each place."""
    ((ids, mask, size),) = _padded_rows(case)
    experts = torch.stack([ids + 1, ids + 2, ids + 3, ids + 4], -1).reshape(*ids.shape, 2, 2)
    teacher = torch.stack([ids + 5, ids + 6], -1)
    return [
        (
            ids,
            mask,
            size,
            {"routed_experts": experts, "teacher_ids": teacher, "teacher_logprobs": -teacher / 8},
        )
    ]


def flattened_columns(
    ids: Tensor, mask: Tensor, num_answer: int, columns: Mapping[str, Tensor]
) -> dict[str, Any]:
    """Return the widths of rows and answers, and each row's columns without padding."""
    rows = {
        name: [values[shown.bool()].tolist() for values, shown in zip(column, mask, strict=True)]
        for name, column in columns.items()
    }
    return {"widths": [ids.shape[1], num_answer], **rows}


def expanded(values: Tensor, lengths: Sequence[int]) -> list[list[float]]:
    """Return a row's value for each of its tokens."""
    return [[float(value)] * length for value, length in zip(values, lengths, strict=True)]


def _mask_alone(case: Numbers) -> Iterable[Arguments]:
    return [(_left_padded(case)[1],), (_left_padded(case)[1].flip(1),)]


def _lists(case: Numbers) -> Iterable[Arguments]:
    rows = [_ids(case, length).tolist() for length in _lengths(case, 4, 6)]
    return [(rows, PAD, length) for length in (None, 3, 6, 9)]


def _sided(case: Numbers) -> Iterable[Arguments]:
    return [(_ids(case, 3, 4), length, PAD, left) for length in (3, 4, 7) for left in (True, False)]


def _row_values(case: Numbers) -> Iterable[Arguments]:
    return [(torch.randn(4, generator=case.generator()), _lengths(case, 4, 5))]


def _sequence(name: str, law: str, suspects: str, cases: Any, right: Any) -> Plain:
    return Plain(name=name, law=law, suspects=suspects, cases=cases, right=right)


SEQUENCE_FUNCTIONS = (
    _sequence(
        "answer mask", "masks of answers", "the end left out, one end of several", _answers, answer_mask
    ),
    _sequence("pad lists", "lists padded", "a longer row cut, the length of the first", _lists, padded_lists),
    _sequence("pad on a side", "rows padded on a side", "the other side, a longer row cut", _sided, padded),
    _sequence(
        "fit to length",
        "rows padded or cut to a length",
        "the mask cut on the other side, a middle of an odd length, the side of padding taken for that of the cut",
        _fits,
        fitted,
    ),
    _sequence(
        "without padding",
        "ids without padding",
        "an id that equals the pad id",
        lambda case: [_left_padded(case)],
        without_padding,
    ),
    _sequence(
        "ends of rows", "where rows begin and end", "lengths in place of sums", _mask_alone, ends_of_rows
    ),
    _sequence("positions", "positions under a mask", "positions that count padding", _mask_alone, positions),
    _sequence("visible", "places that attend", "a future place, a place of padding", _mask_alone, visible),
    _sequence(
        "answer values",
        "values of answers out of whole rows",
        "no shift by one place, rows of another length",
        _rows,
        answer_values,
    ),
    _sequence(
        "answer rows", "values of answers, without padding", "no shift by one place", _rows, answer_rows
    ),
    _sequence("flattened", "rows without padding", "rows that lose or keep padding", _padded_rows, flattened),
    _sequence(
        "flattened columns",
        "columns of rows without padding",
        "experts and teacher's tokens of another place, widths that are exchanged",
        _padded_columns,
        flattened_columns,
    ),
    _sequence(
        "expanded", "a value of each row for its tokens", "a row of another length", _row_values, expanded
    ),
)
add_laws(SEQUENCES, SEQUENCE_FUNCTIONS)
