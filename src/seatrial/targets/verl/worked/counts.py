"""Worked examples of verl's counts: tokens of experts, lengths of rows in parts, names, votes."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from types import SimpleNamespace
from typing import Any

import torch

from seatrial.targets.common.worked_rows import Row
from seatrial.targets.verl.worked.values import LENGTHS, METRICS, MODELS, refused_calls


def _routed(count: Callable[..., Any]) -> dict[str, Any]:
    """Return the tokens of each expert by layer: the last token of an answer has none, and prompts do not count."""
    experts = torch.tensor([[[[2]], [[0]], [[1]], [[2]]], [[[0]], [[1]], [[1]], [[0]]]])
    mask = torch.tensor([[1, 1, 1], [1, 1, 0]])
    wide = torch.tensor([[[[0, 1], [1, 2]], [[1, 2], [0, 1]], [[2, 0], [2, 0]]]])
    return {
        "answers": count(experts, mask, 3).tolist(),
        "two of two layers": count(wide, torch.ones(1, 3), 4).tolist(),
        "nothing": [
            count(*given)
            for given in (
                (None, mask, 3),
                (experts, None, 3),
                (experts, mask, None),
                (experts, mask, 0),
                (experts[0], mask, 3),
                (experts, mask[:1], 3),
                (experts, mask[:, :0], 3),
                (experts[:, :2], mask, 3),
                (experts, mask, 1),
                (experts, torch.tensor([[1, 0, 0], [0, 0, 0]]), 3),
            )
        ],
    }


ROUTED: Mapping[str, Any] = {
    "answers": [[1, 2, 0]],
    "two of two layers": [[1, 2, 1, 0], [1, 2, 1, 0]],
    "nothing": [None] * 10,
}


def _accumulated(accumulator: Callable[..., Any]) -> list[Any]:
    """Return counts that add up, that begin again at another shape, and steps at which routes are requested."""
    made = accumulator({"num_experts": 4})
    two, three = torch.tensor([[[[0], [1]], [[2], [3]]]]), torch.tensor([[[[0]], [[3]]]])
    found: list[Any] = [made.update(two, torch.ones(1, 2)), made.update(two, torch.ones(1, 2))]
    found += [made.total_assignments(), made.load_counts.tolist()]
    found += [made.update(None, torch.ones(1, 2)), made.total_assignments()]
    made.update(three, torch.ones(1, 2))
    found += [made.load_counts.tolist(), made.update(three, torch.ones(1, 2), num_experts=1)]
    found.append(made.load_counts.tolist())
    made.defer_routed_experts_retry(5, 3)
    return [*found, [made.should_request_routed_experts(step) for step in (5, 7, 8)]]


def _balance(compute: Callable[..., Any]) -> dict[str, Any]:
    """Return how far loads are from equal ones: all tokens at one of two experts, and none of them off."""
    found: dict[str, Any] = compute(torch.tensor([[4, 0], [3, 3]]))
    return {name.removeprefix("rollout/moe/"): value for name, value in found.items()}


BALANCE: Mapping[str, float] = {
    "max_vio/layer_0": 1.0,
    "min_vio/layer_0": -1.0,
    "avg_vio/layer_0": 1.0,
    "max_vio/layer_1": 0.0,
    "min_vio/layer_1": 0.0,
    "avg_vio/layer_1": 0.0,
    "max_vio/max": 1.0,
    "max_vio/avg": 0.5,
    "min_vio/max": 0.0,
    "min_vio/avg": -0.5,
    "avg_vio/max": 1.0,
    "avg_vio/avg": 0.5,
}


def _experts(infer: Callable[..., Any]) -> list[Any]:
    """Return the number of experts that is found in configurations of models."""
    return [
        infer({"num_experts": 8}),
        infer(SimpleNamespace(n_routed_experts=16)),
        infer({"hf_config": SimpleNamespace(num_experts=4)}),
        infer({"hf_config": {"text_config": {"num_experts": 5}}}),
        infer({"text_config": {"n_routed_experts": 6}}),
        infer({"override_config": {"model_config": {"num_experts": 7}}}),
        infer({"override_config": {"text_config": {"num_experts": 9}}}),
        infer({"model_type": "mixtral", "num_local_experts": 3}),
        infer({"model_type": "qwen2", "num_local_experts": 3}),
        infer({}),
    ]


def _every(compute: Callable[..., Any]) -> list[Any]:
    """Return what is logged of routes at steps of an interval, off the interval, and without one."""
    from seatrial.targets.common.target import find_name

    made = find_name("verl", [f"{METRICS}RolloutMoELoadBalanceMetricsAccumulator"])({"num_experts": 4})
    routes = {"routed_experts": torch.tensor([[[[0]], [[3]]]]), "response_mask": torch.ones(1, 2)}
    batch = SimpleNamespace(batch=routes)
    found: list[Any] = [compute(batch, 0, 2, made), made.total_assignments(), compute(batch, 2, 1, made)]
    logged = compute(batch, 2, 2, made)
    found += [logged["rollout/moe/routed_expert_assignments"], logged["rollout/moe/routed_experts_found"]]
    return [*found, "rollout/moe/max_vio/max" in logged, made.total_assignments()]


def _unbalanced(log: Callable[..., Any]) -> Any:
    return log([1, 9, 2, 4], [[1], [0, 2, 3]], "rows")


def _group_parts(partition: Callable[..., Any]) -> list[Any]:
    lengths, names = [9, 9, 1, 1, 5, 5, 2, 2], list("aabbccdd")
    parts = partition(lengths, names, 2)
    refused = refused_calls(partition, ([1, 2], ["a", "a"], 2), ([1, 2], ["a"], 1))
    return [
        sorted(sorted({names[row] for row in part}) for part in parts),
        [len(part) for part in parts],
        refused,
    ]


def _named(check: Callable[..., Any]) -> dict[str, list[bool]]:
    keys = (
        "model.layers.0.q_proj",
        "model.layers.11.q_proj",
        "q_proj",
        "model.layers.0.my_q_proj",
        "model.layers.1.mlp",
    )
    given: Mapping[str, Mapping[str, Any]] = {
        "ends": {"target_modules": ["q_proj"]},
        "an expression": {"target_modules": r"model\.layers\.0\..*"},
        "a layer": {"target_modules": ["q_proj"], "layers_to_transform": 11},
        "layers": {"target_modules": ["q_proj", "mlp"], "layers_to_transform": [0, 1]},
        "no layers": {"target_modules": ["q_proj"], "layers_to_transform": []},
        "a list of layers": {
            "target_modules": ["q_proj"],
            "layers_to_transform": [0],
            "layers_pattern": "layers",
        },
        "another list": {
            "target_modules": ["q_proj"],
            "layers_to_transform": [0],
            "layers_pattern": ["blocks"],
        },
    }
    return {
        name: [bool(check(SimpleNamespace(**options), key)) for key in keys]
        for name, options in given.items()
    }


NAMED: Mapping[str, Sequence[bool]] = {
    "ends": [True, True, True, False, False],
    "an expression": [True, False, False, True, False],
    "a layer": [False, True, True, False, False],
    "layers": [True, False, True, False, True],
    "no layers": [True, True, True, False, False],
    "a list of layers": [True, False, True, False, False],
    "another list": [False, False, True, False, False],
}


def _excluded(check: Callable[..., Any]) -> list[bool]:
    return [
        bool(check(SimpleNamespace(**({} if given is None else {"exclude_modules": given})), key))
        for given, key in (
            (["q"], "a.q"),
            (["q"], "a.bq"),
            (["a.q"], "a.q"),
            (r"a\..*", "a.q"),
            (r"a", "a.q"),
            ([], "a.q"),
            (None, "a.q"),
        )
    ]


def _votes(vote: Callable[..., Any]) -> float:
    rows = [{"pred": "B", "val": 0.8}, {"pred": "A", "val": 0.9}, {"pred": "A", "val": 0.7}]
    found: float = vote(rows, vote_key="pred", val_key="val")
    return found


ROWS: Sequence[Row] = (
    Row("metrics", f"{METRICS}_compute_rollout_moe_load_counts", "tokens of experts", _routed, ROUTED),
    Row(
        "metrics",
        f"{METRICS}RolloutMoELoadBalanceMetricsAccumulator",
        "counts that add up and begin again",
        _accumulated,
        [
            True,
            True,
            4,
            [[2, 0, 0, 0], [0, 2, 0, 0]],
            False,
            4,
            [[1, 0, 0, 0]],
            True,
            [[1]],
            [False, False, True],
        ],
    ),
    Row(
        "metrics",
        f"{METRICS}_compute_rollout_moe_load_balance_metrics_from_counts",
        "loads off equal ones",
        _balance,
        BALANCE,
    ),
    Row(
        "models",
        f"{METRICS}infer_moe_num_experts",
        "configurations",
        _experts,
        [8, 16, 4, 5, 6, 7, 9, 3, None, None],
    ),
    Row(
        "metrics",
        f"{METRICS}compute_moe_lb_metrics",
        "an interval of two steps",
        _every,
        [{}, 0, {}, 2, 1.0, True, 0],
    ),
    Row(
        "metrics",
        f"{LENGTHS}log_seqlen_unbalance",
        "two parts of unequal sizes",
        _unbalanced,
        {
            "rows/min": 6,
            "rows/max": 10,
            "rows/minmax_diff": 4,
            "rows/balanced_min": 7,
            "rows/balanced_max": 9,
            "rows/mean": 8.0,
        },
    ),
    Row(
        "parts",
        f"{LENGTHS}get_group_balanced_partitions",
        "answers of a prompt stay together",
        _group_parts,
        [[["a", "b"], ["c", "d"]], [4, 4], [True, True]],
    ),
    Row("parts", f"{MODELS}check_target_modules", "names", _named, NAMED),
    Row(
        "parts",
        f"{MODELS}check_exclude_modules",
        "names",
        _excluded,
        [True, False, True, True, False, False, False],
    ),
    Row("metrics", f"{METRICS}calc_maj_val", "the value of most votes", _votes, 0.9),
)
