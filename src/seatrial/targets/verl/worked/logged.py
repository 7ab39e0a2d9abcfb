"""Worked examples of what verl logs: metrics of a step and of a validation."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy
import torch

from seatrial.targets.common.target import find_name
from seatrial.targets.common.worked_rows import Row
from seatrial.targets.verl.worked.values import METRICS, refused_calls

DEBUG = "verl.utils.debug.metrics:"
NAN = math.nan


def batch_of(tensors: Mapping[str, Any], objects: Mapping[str, Any] | None = None, **notes: Any) -> Any:
    """Return a `DataProto` of lists."""
    proto = find_name("verl", ["verl:DataProto", "verl.protocol:DataProto"])
    return proto.from_dict(
        tensors={name: torch.as_tensor(value) for name, value in tensors.items()},
        non_tensors={name: numpy.array(value, dtype=object) for name, value in (objects or {}).items()},
        meta_info=notes,
    )


# Two tokens of prompt and three of answer: a whole answer, one of a token, and none.
STEP: Mapping[str, Any] = {
    "prompts": [[1, 1], [0, 1], [1, 1]],
    "responses": [[1, 1, 1], [1, 0, 0], [0, 0, 0]],
    "attention_mask": [[1, 1, 1, 1, 1], [0, 1, 1, 0, 0], [1, 1, 0, 0, 0]],
    "response_mask": [[1, 0, 1], [1, 0, 0], [0, 0, 0]],
    "token_level_scores": [[0.0, 0.0, 3.0], [1.0, 0.0, 0.0], [0.0, 0.0, -9.0]],
    "token_level_rewards": [[0.0, 1.0, 3.0], [0.5, 0.0, 0.0], [0.0, 0.0, 7.0]],
    "advantages": [[1.0, 50.0, 2.0], [-3.0, 60.0, 70.0], [80.0, 90.0, 99.0]],
    "returns": [[2.0, 50.0, 4.0], [0.0, 60.0, 70.0], [80.0, 90.0, 99.0]],
    "values": [[1.0, 50.0, 5.0], [0.0, 60.0, 70.0], [80.0, 90.0, 99.0]],
}


def _of_step(compute: Callable[..., Any]) -> dict[str, Any]:
    turns = {"__num_turns__": [2, 4, 3], "tool_call_counts": [0, 5, 1]}
    found = compute(batch_of(STEP, turns), use_critic=True)
    more = sorted(set(found) - set(compute(batch_of(STEP), use_critic=False)))
    return {**{name: float(value) for name, value in found.items()}, "more": more}


OF_STEP: Mapping[str, Any] = {
    **{f"critic/score/{name}": value for name, value in (("mean", 2.0), ("max", 3.0), ("min", 1.0))},
    **{f"critic/rewards/{name}": value for name, value in (("mean", 2.25), ("max", 4.0), ("min", 0.5))},
    **{f"critic/advantages/{name}": value for name, value in (("mean", 0.0), ("max", 2.0), ("min", -3.0))},
    **{f"critic/returns/{name}": value for name, value in (("mean", 2.0), ("max", 4.0), ("min", 0.0))},
    **{f"critic/values/{name}": value for name, value in (("mean", 2.0), ("max", 5.0), ("min", 0.0))},
    # Differences 1, -1 and 0 have variance 1, and returns 2, 4 and 0 have 4.
    "critic/vf_explained_var": 1 - 1 / (4 + 1e-5),
    **{f"response_length/{name}": value for name, value in (("mean", 4 / 3), ("max", 3.0), ("min", 0.0))},
    "response_length/clip_ratio": 1 / 3,
    **{
        f"response_length_non_aborted/{name}": value
        for name, value in (("mean", 2.0), ("max", 3.0), ("min", 1.0), ("clip_ratio", 0.5))
    },
    "response/aborted_ratio": 1 / 3,
    **{f"prompt_length/{name}": value for name, value in (("mean", 5 / 3), ("max", 2.0), ("min", 1.0))},
    "prompt_length/clip_ratio": 2 / 3,
    **{f"num_turns/{name}": value for name, value in (("mean", 3.0), ("max", 4.0), ("min", 2.0))},
    **{f"tool_call_counts/{name}": value for name, value in (("mean", 2.0), ("max", 5.0), ("min", 0.0))},
    "more": [
        *("critic/values/max", "critic/values/mean", "critic/values/min", "critic/vf_explained_var"),
        *("num_turns/max", "num_turns/mean", "num_turns/min"),
        *("tool_call_counts/max", "tool_call_counts/mean", "tool_call_counts/min"),
    ],
}


def _of_nothing(compute: Callable[..., Any]) -> dict[str, Any]:
    """Return which metrics are not numbers if no row has an answer; and lengths that are given count."""
    none = {**STEP, "response_mask": [[0] * 3] * 3, "attention_mask": [[1, 1, 0, 0, 0]] * 3}
    found = compute(batch_of(none), use_critic=True)
    given = {**STEP, "prompt_length": [7.0, 8.0, 9.0], "response_length": [1.0, 2.0, 3.0]}
    other = compute(batch_of(given), use_critic=False)
    return {
        "nan": sorted({name.rpartition("/")[0] for name, value in found.items() if math.isnan(value)}),
        "aborted": found["response/aborted_ratio"],
        "given": [
            other["prompt_length/mean"],
            other["response_length/mean"],
            other["response/aborted_ratio"],
        ],
    }


def _seconds(compute: Callable[..., Any]) -> dict[str, float]:
    """Return seconds, and milliseconds of a token: 4 of answers, and 9 with the prompts."""
    names = ("gen", "ref", "values", "adv", "update_critic", "update_actor", "other")
    return dict(compute(batch_of(STEP), {name: 1.0 + place for place, name in enumerate(names)}))


SECONDS: Mapping[str, float] = {
    **{
        f"timing_s/{name}": 1.0 + place
        for place, name in enumerate(
            ("gen", "ref", "values", "adv", "update_critic", "update_actor", "other")
        )
    },
    "timing_per_token_ms/gen": 250.0,
    **{
        f"timing_per_token_ms/{name}": (2 + place) * 1000 / 9
        for place, name in enumerate(("ref", "values", "adv", "update_critic", "update_actor"))
    },
}


def _proxies(compute: Callable[..., Any]) -> list[Any]:
    """Return proxies of the variance of gradients: without weights, with them, without a norm, and of one row."""
    tensors = {
        "old_log_probs": [[math.log(0.5), 0.0], [math.log(0.25), math.log(0.5)]],
        "sum_pi_squared": [[0.5, 9.0], [0.25, 0.5]],
        "response_mask": [[1.0, 0.0], [1.0, 1.0]],
        "advantages": [[2.0, 50.0], [1.0, 3.0]],
    }
    weighted = {**tensors, "rollout_is_weights": [[2.0, 1.0], [0.5, 0.5]]}
    one = {name: value[:1] for name, value in tensors.items()}
    found = [
        compute(batch_of(tensors), gradient_norm=1.0),
        compute(batch_of(weighted), gradient_norm=1.0),
        compute(batch_of(tensors)),
        compute(batch_of(one), gradient_norm=1.0),
        compute(batch_of(tensors), gradient_norm=10.0),
    ]
    names = (
        "proxy1_signal_strength",
        "proxy2_total_power",
        "proxy3_pure_noise",
        "expected_a_squared",
        "expected_w",
    )
    return [
        *([round(float(metrics[f"variance_proxy/{name}"]), 5) for name in names] for metrics in found),
        compute(batch_of({name: tensors[name] for name in ("old_log_probs", "response_mask", "advantages")})),
    ]


# Of the first row W = 1 - 1 + 0.5 and A = 2; of the second W = 0.75 + 0.5 and A = 2: the mean of A^2 W is (2 + 5) / 2.
# With weights W is 4 * 0.5 and 0.25 * 1.25, and rho^2 A^2 W is 4 * 4 * 0.5 and 0.25 * 4 * 1.25.
PROXIES: Sequence[Any] = [
    [1.0, 3.5, 2.5, 4.0, 0.875],
    [1.0, 4.625, 3.625, 4.0, 1.15625],
    [0.0, 3.5, 0.0, 4.0, 0.875],
    [1.0, 2.0, 0.0, 4.0, 0.5],
    [100.0, 3.5, 0.0, 4.0, 0.875],
    {},
]


def _fields(get: Callable[..., Any]) -> list[Any]:
    """Return which columns are fetched: routes where they are due, again without them if there are none."""
    accumulator = find_name("verl", [f"{METRICS}RolloutMoELoadBalanceMetricsAccumulator"])({"num_experts": 4})
    asked: list[Any] = []

    def fetch(keys: Any, partition_id: str, select_fields: Any) -> str:
        asked.append(list(select_fields))
        if fails and "routed_experts" in select_fields:
            raise ValueError(fails)
        return f"{keys[0]} of {partition_id}"

    fails = ""
    found = [get(["k"], "p", ["a"], interval, 5, accumulator, fetch) for interval in (0, 2)]
    fails = "no routed_experts"
    found.append(get(["k"], "p", ["a"], 3, 5, accumulator, fetch))
    found += [accumulator.should_request_routed_experts(step) for step in (7, 8)]
    fails = "broken"
    return [*found, asked, *refused_calls(get, (["k"], "p", ["a"], 2, 9, accumulator, fetch))]


def _validated(process: Callable[..., Any]) -> dict[str, Any]:
    """Return means and deviations of two sources: prompts count alike, and none and words are left out."""
    sources, uids = ["a", "a", "a", "b", "a"], ["1", "1", "2", "3", "1"]
    infos = {
        "score": [1.0, 0.0, 3.0, 5.0, 2.0],
        "acc": [1.0, None, 0.0, None, 0.0],
        "text": ["x"] * 5,
    }
    found = process(sources, uids, infos)
    return {
        source: {
            name: {key: float(value) for key, value in metrics.items() if "/" not in key}
            for name, metrics in columns.items()
        }
        for source, columns in found.items()
    }


def _expected(process: Callable[..., Any]) -> dict[str, Any]:
    """Return means if more samples were due than there are: those that are missing were wrong."""
    found = process(
        ["a", "a", "b"],
        ["1", "1", "2"],
        {"acc": [1.0, 1.0, None], "score": [1.0, 0.0, 2.0]},
        expected_acc_counts={("a", "1"): 4, ("a", "9"): 1, ("b", "2"): 3},
    )
    return {
        source: {
            name: {key: float(value) for key, value in metrics.items() if key.startswith("mean")}
            for name, metrics in columns.items()
        }
        for source, columns in found.items()
    }


def _drawn(process: Callable[..., Any]) -> list[list[float]]:
    """Return the best, the worst and the votes of drawn samples, less what the same draws give."""
    scores, answers = [1.0, 0.0, 0.0, 0.5, 0.25], ["x", "y", "y", "x", "z"]
    found = process(["a"] * 5, ["1"] * 5, {"score": scores, "pred": answers}, seed=7)["a"]["score"]
    off = []
    for size in (2, 4, 5):
        places = numpy.random.RandomState(7).choice(5, size=(1000, size), replace=True)
        best, worst, voted = [], [], []
        for draw in places.tolist():
            values, votes = [scores[place] for place in draw], [answers[place] for place in draw]
            most = max(dict.fromkeys(votes), key=votes.count)
            best.append(max(values))
            worst.append(min(values))
            voted.append(values[votes.index(most)])
        for name, right in (("best", best), ("worst", worst), ("maj", voted)):
            off += [
                round(found[f"{name}@{size}/mean"] - float(numpy.mean(right)), 9),
                round(found[f"{name}@{size}/std"] - float(numpy.std(right)), 9),
            ]
    return [off, sorted(name for name in found if "@3" in name or "@6" in name)]


def _off_policy(compute: Callable[..., Any]) -> list[Any]:
    """Return differences of probabilities of tokens that train; of the answers of a whole mask; of none."""
    tensors = {
        "rollout_log_probs": [[math.log(0.5), math.log(0.2), 0.0], [math.log(0.9), 0.0, 0.0]],
        "old_log_probs": [[math.log(0.6), math.log(0.4), -9.0], [math.log(0.6), -9.0, -9.0]],
        "responses": [[1, 1, 1]] * 2,
    }
    mask = [[1, 1, 0], [1, 0, 0]]
    whole = {**tensors, "attention_mask": [[1, 1, *row] for row in mask]}
    found = [compute(batch_of(one)) for one in ({**tensors, "response_mask": mask}, whole)]
    none = compute(batch_of({**tensors, "response_mask": [[0, 0, 0]] * 2}))
    return [
        *([round(float(value), 5) for value in metrics.values()] for metrics in found),
        [none["training/rollout_probs_diff_valid"], math.isnan(none["training/rollout_probs_diff_max"])],
    ]


# Differences 0.1, 0.2 and 0.3; the correlation of (0.6, 0.4, 0.6) and (0.5, 0.2, 0.9).
OFF_POLICY = [1.0, 0.3, 0.2, 0.1, 0.822]


def _differing(count: Callable[..., Any]) -> list[Any]:
    one, other = torch.tensor([[1, 2, 3], [4, 5, 6]]), torch.tensor([[1, 0, 0], [4, 5, 0]])
    mask = torch.tensor([[1, 1, 0], [1, 1, 1]])
    return [count(one, other, mask).tolist(), count(one[:, :0], other[:, :0], mask[:, :0]).tolist()]


ROWS: Sequence[Row] = (
    Row(
        "metrics",
        f"{METRICS}compute_data_metrics",
        "a step with an aborted row",
        _of_step,
        OF_STEP,
        since="0.6",
    ),
    Row(
        "metrics",
        f"{METRICS}compute_data_metrics",
        "no answers, and given lengths",
        _of_nothing,
        {
            "nan": [
                *("critic", "critic/advantages", "critic/returns", "critic/rewards", "critic/score"),
                *("critic/values", "response_length_non_aborted"),
            ],
            "aborted": 1.0,
            "given": [8.0, 2.0, 0.0],
        },
        since="0.8",
    ),
    Row("metrics", f"{METRICS}compute_timing_metrics", "seconds of all parts", _seconds, SECONDS),
    Row("metrics", f"{METRICS}compute_variance_proxy_metrics", "weights, norms, one row", _proxies, PROXIES),
    Row(
        "metrics",
        f"{METRICS}get_metric_data_with_optional_routed_experts",
        "columns",
        _fields,
        [
            *["k of p"] * 3,
            False,
            True,
            [["a"], ["a", "routed_experts"], ["a", "routed_experts"], ["a"], ["a", "routed_experts"]],
            True,
        ],
    ),
    Row(
        "metrics",
        f"{METRICS}process_validation_metrics",
        "two sources, missing values",
        _validated,
        {
            "a": {
                "score": {"mean@3": 1.0, "std@3": math.sqrt(2 / 3), "mean@1": 3.0},
                "acc": {"mean@2": 0.5, "std@2": 0.5, "mean@1": 0.0},
            },
            "b": {"score": {"mean@1": 5.0}},
        },
        since="0.9.1",
    ),
    Row(
        "metrics",
        f"{METRICS}process_validation_metrics",
        "samples that are missing",
        _expected,
        {
            "a": {
                "acc": {"mean@4": 0.5, "mean@1": 0.0},
                "score": {"mean@2": 0.5},
                "acc_success_only": {"mean@2": 1.0},
            },
            "b": {"score": {"mean@1": 2.0}},
        },
        since="0.4",
    ),
    Row(
        "metrics",
        f"{METRICS}process_validation_metrics",
        "the best, the worst and votes of drawn samples",
        _drawn,
        [[0.0] * 18, []],
        since="0.4",
    ),
    Row(
        "metrics",
        f"{DEBUG}calculate_debug_metrics",
        "tokens that train, a whole mask, none",
        _off_policy,
        [OFF_POLICY, OFF_POLICY, [0, True]],
        since="0.8",
    ),
    Row("metrics", f"{DEBUG}calculate_token_list_diff", "a mask", _differing, [[1, 1], [0, 0]]),
)
