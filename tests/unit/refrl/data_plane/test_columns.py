"""What is put comes back: every dtype, every form, nothing shared."""

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from refrl.data_plane.columns import Column, decode, encode, gather, pad

DTYPES = [
    torch.bfloat16,
    torch.float16,
    torch.float32,
    torch.float64,
    torch.int32,
    torch.int64,
    torch.uint8,
    torch.bool,
]


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("jagged", [False, True])
def test_every_dtype_comes_back(dtype: torch.dtype, jagged: bool) -> None:
    rows = [torch.tensor([0, 1, 1][: 1 + row]).to(dtype) for row in range(3)]
    given = rows if jagged else torch.stack([row[:1] for row in rows])
    back = decode(encode(given, "x"))
    assert [row.dtype for row in back] == [dtype] * 3
    assert all(torch.equal(one, other) for one, other in zip(back, given, strict=True))


@given(st.lists(st.integers(0, 5), min_size=1, max_size=8), st.data())
def test_taken_jagged_rows_are_the_rows_in_their_order(lengths: list[int], data: st.DataObject) -> None:
    rows = [torch.full((length, 2), float(number)) for number, length in enumerate(lengths)]
    chosen = data.draw(st.lists(st.integers(0, len(rows) - 1), max_size=8))
    taken = decode(encode(rows, "x").take(chosen))
    assert [row.tolist() for row in taken] == [rows[number].tolist() for number in chosen]


@given(st.permutations(range(6)))
def test_rows_of_two_columns_are_laid_in_the_order_asked_for(places: list[int]) -> None:
    one, other = encode(torch.arange(4) * 10, "x"), encode(torch.arange(4) * 100, "x")
    column = gather([(one, [0, 1, 3], places[:3]), (other, [2, 1, 0], places[3:])], 6)
    expected = [0] * 6
    for place, value in zip(places, [0, 10, 30, 200, 100, 0], strict=True):
        expected[place] = value
    assert decode(column).tolist() == expected


def test_a_nested_tensor_is_jagged_rows() -> None:
    rows = [torch.arange(3), torch.arange(1)]
    back = decode(encode(torch.nested.nested_tensor(rows, layout=torch.jagged), "x"))
    assert [row.tolist() for row in back] == [[0, 1, 2], [0]]


def test_objects_come_back_equal_with_their_types() -> None:
    given = np.empty(3, dtype=object)
    given[:] = [{"role": "user", "n": 1}, [1.0, None, True, "ü"], "text"]
    back = decode(encode(given, "content"))
    assert back.tolist() == given.tolist()
    assert type(back[1][0]) is float


@pytest.mark.parametrize("value", [(1, 2), {1: "x"}, object(), float("nan"), {"a": {1, 2}}])
def test_an_object_that_would_not_come_back_is_refused(value: object) -> None:
    given = np.empty(1, dtype=object)
    given[0] = value
    with pytest.raises(TypeError, match="row 0 of field 'content'"):
        encode(given, "content")


def test_a_column_shares_nothing_with_what_it_was_made_of() -> None:
    given, rows = torch.arange(6), [torch.arange(3), torch.arange(2)]
    dense, jagged = encode(given, "x"), encode(rows, "y")
    given.fill_(9)
    rows[0].fill_(9)
    assert dense.values.tolist() == [0, 1, 2, 3, 4, 5]
    assert decode(jagged)[0].tolist() == [0, 1, 2]
    dense.take([0, 1]).values.fill_(7)
    assert dense.values.tolist() == [0, 1, 2, 3, 4, 5]


@pytest.mark.parametrize(
    "value",
    [
        torch.tensor(1),
        [torch.tensor(1)],
        [torch.zeros(1), torch.zeros(1, 2)],
        [torch.zeros(1), torch.zeros(1).int()],
    ],
)
def test_rows_that_cannot_lie_together_are_refused(value: object) -> None:
    with pytest.raises(ValueError, match="'x'"):
        encode(value, "x")  # type: ignore[arg-type]


@pytest.mark.parametrize("value", [[], np.zeros(3), "text", None])
def test_what_is_no_column_is_refused(value: object) -> None:
    with pytest.raises(TypeError, match="field 'x'"):
        encode(value, "x")  # type: ignore[arg-type]


def test_dense_rows_of_two_widths_are_not_joined() -> None:
    parts = [(encode(torch.zeros(1, width), "x"), [0], [width - 1]) for width in (1, 2)]
    with pytest.raises(ValueError, match="differ in form"):
        gather(parts, 2)


def test_padding_is_on_the_right_and_never_cuts() -> None:
    rows = [torch.tensor([1, 2, 3]), torch.tensor([4])]
    assert pad(rows, -1).tolist() == [[1, 2, 3], [4, -1, -1]]
    assert pad(rows, 0, 4).tolist() == [[1, 2, 3, 0], [4, 0, 0, 0]]
    assert pad(torch.tensor([[1, 2]]), 7, 3).tolist() == [[1, 2, 7]]
    with pytest.raises(ValueError, match="3 tokens"):
        pad(rows, 0, 2)


def test_a_column_of_no_rows_has_no_bytes() -> None:
    empty = encode(torch.zeros(4, 2), "x").take([])
    assert isinstance(empty, Column)
    assert (empty.num_rows, empty.num_bytes) == (0, 0)
