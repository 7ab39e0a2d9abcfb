"""Worked examples of verl's functions of numbers: thresholds, groups, masks, counts of experts, lengths, metrics."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy
import torch

from seatrial.relations.contracts.worked import Refused
from seatrial.targets.common.worked_rows import Row

CORRECTIONS = "verl.trainer.ppo.rollout_corr_helper:"
GROUPS = "verl.utils.groupwise:"
VALUES = "verl.utils.torch_functional:"
METRICS = "verl.trainer.ppo.metric_utils:"
LENGTHS = "verl.utils.seqlen_balancing:"
MODELS = "verl.utils.model:"
PYTHON = "verl.utils.py_functional:"
NAN = math.nan


def refused_calls(function: Callable[..., Any], *calls: Sequence[Any]) -> list[bool]:
    """Return which calls are refused by an error or an assertion."""
    found = []
    for arguments in calls:
        try:
            function(*arguments)
        except (ValueError, TypeError, AssertionError, KeyError):
            found.append(True)
        else:
            found.append(False)
    return found


def _thresholds(parse: Callable[..., Any]) -> dict[str, Any]:
    """Return the bounds of rejection that are read, and what is refused."""
    return {
        "one for all": parse(["seq_sum_k3", "token_k2"], "0.5"),
        "each its own": parse(["token_k1", "seq_max_k2"], "0.5_2.0, 3"),
        "a number": parse(["seq_mean_k1"], 4),
        "refused": refused_calls(
            parse,
            (["token_k2"], None),
            (["token_k2"], ""),
            (["token_k2"], []),
            (["token_k2"], "0"),
            (["token_k2"], "0.1_0.2"),
            (["token_k2"], "x"),
            (["token_k1"], "0_1"),
            (["token_k1"], "1_0"),
            (["token_k1"], "2_1"),
            (["token_k1"], "x_1"),
            (["token_k1", "token_k2", "token_k3"], "1,2"),
        ),
        "equal bounds": parse(["token_k1"], "2_2"),
    }


THRESHOLDS: Mapping[str, Any] = {
    "one for all": {
        "seq_sum_k3": {"lower": None, "upper": 0.5},
        "token_k2": {"lower": None, "upper": 0.5},
    },
    "each its own": {"token_k1": {"lower": 0.5, "upper": 2.0}, "seq_max_k2": {"lower": None, "upper": 3.0}},
    "a number": {"seq_mean_k1": {"lower": 0.25, "upper": 4.0}},
    "refused": [True] * 11,
    "equal bounds": {"token_k1": {"lower": 2.0, "upper": 2.0}},
}


def _rejected(reject: Callable[..., Any]) -> dict[str, Any]:
    """Return which tokens are kept of rows whose statistics are at a bound, below and above; a row has none."""
    ratio_BT = torch.tensor([[2.0, 0.0, 9.0], [2.5, 0.0, 0.0], [0.0, 1.0, 0.0], [7.0, 7.0, 7.0]])
    mask_BT = torch.tensor([[1.0, 1.0, 0.0], [1.0, 1.0, 1.0], [1.0, 1.0, 1.0], [0.0, 0.0, 0.0]])
    found: dict[str, Any] = {}
    for option, bound in (
        ("token_k2", 2.0),
        ("seq_sum_k2", 2.0),
        ("seq_mean_k2", 1.0),
        ("seq_max_k2", 2.0),
        ("token_k2,seq_max_k2", "4,0.5"),
    ):
        kept_BT, metrics = reject(ratio_BT, mask_BT, option, str(bound))
        found[option] = kept_BT.int().tolist()
        found[f"{option}, parts"] = [
            round(metrics["rollout_rs_masked_fraction"], 5),
            round(metrics["rollout_rs_seq_masked_fraction"], 5),
        ]
    third_BT, _ = reject(torch.tensor([[1.0, -1.0, 1.5]]), torch.ones(1, 3), "token_k3", "0.72")
    found["token_k3"] = third_BT.int().tolist()
    kept_BT, _ = reject(torch.tensor([[0.0, -0.5, 0.5]]), torch.ones(1, 3), "token_k1", "1_1")
    found["token_k1 of one"] = kept_BT.int().tolist()
    return found


FIRST_OUT = [[1, 1, 0], [0, 0, 0], [1, 1, 1], [0, 0, 0]]
REJECTED: Mapping[str, Any] = {
    "token_k2": [[1, 1, 0], [0, 1, 1], [1, 1, 1], [0, 0, 0]],
    "token_k2, parts": [0.125, 0.25],
    "seq_sum_k2": FIRST_OUT,
    "seq_sum_k2, parts": [0.375, 0.25],
    "seq_mean_k2": [[1, 1, 0], [0, 0, 0], [1, 1, 1], [0, 0, 0]],
    "seq_mean_k2, parts": [0.375, 0.25],
    "seq_max_k2": FIRST_OUT,
    "seq_max_k2, parts": [0.375, 0.25],
    "token_k2,seq_max_k2": [[0, 0, 0], [0, 0, 0], [1, 1, 1], [0, 0, 0]],
    "token_k2,seq_max_k2, parts": [0.625, 0.5],
    "token_k3": [[1, 1, 0]],
    "token_k1 of one": [[1, 0, 0]],
}


def _labels(index: Callable[..., Any]) -> dict[str, list[int]]:
    """Return the numbers of groups by the labels that are given."""
    given: Mapping[str, Any] = {
        "tensor": torch.tensor([[5, 3], [5, 7]]),
        "booleans": torch.tensor([True, False]),
        "whole floats": torch.tensor([2.0, 1.0, 2.0]),
        "fractions": torch.tensor([0.5, 0.25, 0.5]),
        "array": numpy.array([4, 4, 1]),
        "array of floats": numpy.array([4.0, 4.0, 1.0]),
        "words": ["b", "a", "b"],
        "numbers in words": ["12", "3", "12"],
        "words and numbers": ["a", 1, "a"],
    }
    return {name: index(value, device="cpu").tolist() for name, value in given.items()}


def _means(of_groups: Callable[..., Any]) -> list[Any]:
    """Return means, deviations and sizes of groups: of two, of one, of none, of equal scores."""
    found = of_groups(
        torch.tensor([1.0, 3.0, 7.0, 4.0, 4.0]), torch.tensor([0, 0, 1, 3, 3]), eps=1e-4, device="cpu"
    )
    empty = of_groups(torch.zeros(0), torch.zeros(0).long(), device="cpu")
    wrong = refused_calls(lambda: of_groups(torch.zeros(2), torch.zeros(3).long(), device="cpu"), ())
    return [[round(number, 5) for number in one.tolist()] for one in found] + [len(empty[0]), wrong]


def _masked(of: Any) -> list[float]:
    """Return sums, means and variances of values of which one outside the mask is not a number."""
    import verl.utils.torch_functional as functional

    values_BT = torch.tensor([[1.0, 3.0, NAN], [5.0, 11.0, 4.0]])
    mask_BT = torch.tensor([[1, 1, 0], [1, 0, 0]])
    plain_BT = values_BT.nan_to_num(9.0)
    found = [
        float(functional.masked_sum(values_BT, mask_BT)),
        *functional.masked_sum(values_BT, mask_BT, axis=-1).tolist(),
        float(functional.masked_mean(values_BT, mask_BT)),
        *functional.masked_mean(values_BT, mask_BT, axis=-1).tolist(),
        float(functional.masked_var(plain_BT, mask_BT)),
        float(functional.masked_var(plain_BT, mask_BT, unbiased=False)),
        float(functional.masked_mean(functional.masked_whiten(plain_BT, mask_BT), mask_BT)),
        float(functional.masked_mean(functional.masked_whiten(plain_BT, mask_BT, shift_mean=False), mask_BT)),
    ]
    return [round(number, 5) for number in found]


def _responses(mask: Callable[..., Any]) -> list[Any]:
    ids_BT = torch.tensor([[20, 10, 34, 1, 0, 1], [78, 0, 76, 2, 1, 0], [5, 6, 7, 8, 9, 4]])
    one, two = mask(ids_BT, eos_token=1), mask(ids_BT, eos_token=[1, 2], dtype=torch.float32)
    return [one.tolist(), two.tolist(), str(two.dtype)]


RESPONSES = [
    [[1, 1, 1, 1, 0, 0], [1, 1, 1, 1, 1, 0], [1] * 6],
    [[1.0, 1.0, 1.0, 1.0, 0.0, 0.0], [1.0, 1.0, 1.0, 1.0, 0.0, 0.0], [1.0] * 6],
    "torch.float32",
]


def _appended(append: Callable[..., Any]) -> dict[str, Any]:
    data: dict[str, Any] = {"actor/loss": [1]}
    append(data, {"loss": 2, "actor/loss": [3, 4], "kl": 5}, prefix="actor/")
    append(data, {"plain": 6})
    return data


def _lists(turn: Callable[..., Any]) -> list[Any]:
    return [
        turn([{"a": 1, "b": 2}, {"a": 3, "b": 4}]),
        turn([]),
        *refused_calls(turn, ([{"a": 1}, {"b": 2}],)),
    ]


def _padded(pad: Callable[..., Any]) -> list[Any]:
    one, other = torch.ones(1, 2, 3), torch.full((2, 2, 1), 2.0)
    found = pad([one, other], "key")
    return [list(found.shape), found[1].tolist(), pad([one, one], "key").sum().item()]


def _collected(extract: Callable[..., Any]) -> list[Any]:
    """Return inputs of media of rows, of some rows alone, and of rows that have none."""
    rows = [{"x": torch.ones(1, 2), "y": None}, None, {"x": torch.zeros(2, 2)}, {}]
    return [
        {name: value.shape[0] for name, value in extract(rows).items()},
        {name: value.sum().item() for name, value in extract(rows, [2, 9]).items()},
        extract([None, {}]),
    ]


ROWS: Sequence[Row] = (
    Row(
        "options",
        f"{CORRECTIONS}_parse_rollout_rs_thresholds",
        "bounds of rejection",
        _thresholds,
        THRESHOLDS,
        since="0.9",
    ),
    Row(
        "options",
        f"{CORRECTIONS}_parse_rollout_is_threshold",
        "bounds of weights",
        lambda parse: [
            [parse(given) for given in (2, 1.5, "2", " 0.5_3 ", "2_2")],
            refused_calls(
                parse, (True,), ("",), ("x",), ("1_x",), (0,), (-1.0,), ("0_1",), ("-1_1",), ("3_2",), (None,)
            ),
        ],
        [[(2.0, None), (1.5, None), (2.0, None), (3.0, 0.5), (2.0, 2.0)], [True] * 10],
    ),
    Row(
        "rows",
        f"{CORRECTIONS}compute_rollout_rejection_mask",
        "rows at a bound",
        _rejected,
        REJECTED,
        since="0.7",
    ),
    Row(
        "rows",
        f"{GROUPS}as_torch_index",
        "labels of any type",
        _labels,
        {
            "tensor": [5, 3, 5, 7],
            "booleans": [1, 0],
            "whole floats": [2, 1, 2],
            "fractions": [1, 0, 1],
            "array": [4, 4, 1],
            "array of floats": [4, 4, 1],
            "words": [1, 0, 1],
            "numbers in words": [12, 3, 12],
            "words and numbers": [1, 0, 1],
        },
    ),
    Row(
        "rows",
        f"{GROUPS}group_mean_std",
        "groups of two, one, none and of equal scores",
        _means,
        [[2.0, 0.0, 0.0, 4.0], [1.41421, 1.0, 1.0, 0.01], [2.0, 1.0, 0.0, 2.0], 0, [True]],
    ),
    Row(
        "formulas",
        "verl:DataProto",
        "sums, means and variances under a mask",
        _masked,
        [9.0, 4.0, 5.0, 3.0, 2.0, 5.0, 4.0, 2.66667, 0.0, 3.0],
        since="0.5",
    ),
    Row("batches", f"{VALUES}get_response_mask", "ends of answers", _responses, RESPONSES),
    Row(
        "parts",
        f"{LENGTHS}ceildiv",
        "rounded up",
        lambda divide: [divide(7, 3), divide(6, 3), divide(0, 3)],
        [3, 2, 0],
    ),
    Row(
        "parts",
        f"{LENGTHS}roundup_divisible",
        "multiples",
        lambda up: [up(7, 4), up(8, 4), up(0, 4)],
        [8, 8, 0],
    ),
    Row("parts", f"{LENGTHS}get_reverse_idx", "places", lambda turn: turn([2, 0, 3, 1]), [1, 3, 0, 2]),
    Row(
        "batches",
        f"{MODELS}compute_position_id_with_mask",
        "padding at either side",
        lambda place: place(torch.tensor([[0, 0, 1, 1], [1, 1, 1, 0]])),
        [[0, 0, 0, 1], [0, 1, 2, 2]],
    ),
    Row(
        "batches",
        f"{MODELS}_pad_last_dim_and_cat",
        "inputs of unequal lengths",
        _padded,
        [[3, 2, 3], [[2.0, 0.0, 0.0], [2.0, 0.0, 0.0]], 12.0],
    ),
    Row(
        "batches",
        f"{MODELS}extract_multi_modal_inputs",
        "rows with and without media",
        _collected,
        [{"x": 3}, {"x": 0.0}, {}],
        since="0.7",
    ),
    Row(
        "metrics",
        f"{PYTHON}append_to_dict",
        "names with a prefix",
        _appended,
        {"actor/loss": [1, 2, 3, 4], "actor/kl": [5], "plain": [6]},
        since="0.7",
    ),
    Row(
        "metrics",
        f"{PYTHON}rename_dict",
        "names with a prefix",
        lambda rename: rename({"a": 1, "actor/b": 2}, "actor/"),
        {"actor/a": 1, "actor/b": 2},
    ),
    Row(
        "batches",
        f"{PYTHON}union_two_dict",
        "equal and unequal values",
        lambda union: [union({"a": 1}, {"b": 2, "a": 1}), *refused_calls(union, ({"a": 1}, {"a": 2}))],
        [{"a": 1, "b": 2}, True],
    ),
    Row(
        "batches",
        f"{PYTHON}list_of_dict_to_dict_of_list",
        "rows",
        _lists,
        [{"a": [1, 3], "b": [2, 4]}, {}, True],
    ),
    Row(
        "batches",
        f"{PYTHON}convert_nested_value_to_list_recursive",
        "arrays within",
        lambda turn: turn({"a": [numpy.array([[1, 2]]), {"b": numpy.array([3])}], "c": "d"}),
        {"a": [[[1, 2]], {"b": [3]}], "c": "d"},
    ),
    Row(
        "batches",
        f"{PYTHON}union_two_dict",
        "another value",
        lambda union: union({"a": 1}, {"a": 2}),
        Refused("not the same object"),
    ),
)
