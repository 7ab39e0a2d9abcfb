"""The metrics of the policy loss against their definitions, token by token, and how parts are merged."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch

from refrl.algorithms.losses import policy_loss
from refrl.algorithms.metrics import merge_metrics
from refrl.config import LossConfig


def metrics_of(case: Any, config: LossConfig) -> dict[str, float]:
    _, metrics = policy_loss(
        case.logprobs_BT,
        case.batch,
        config,
        global_valid_tokens=case.num_tokens,
        global_valid_seqs=case.num_seqs,
        entropy_BT=case.entropy_BT,
    )
    return merge_metrics([metrics])


def mean(values: list[float]) -> float:
    return sum(values) / len(values)


@pytest.mark.parametrize("seed", range(3))
def test_every_metric_is_its_definition(make_case: Callable[..., Any], seed: int) -> None:
    case = make_case(seed, padding=math.nan)
    config = LossConfig(ratio_clip_min=0.1, ratio_clip_max=0.3, reference_policy_kl_penalty=0.2)
    tokens = [(row, t) for row, valid in enumerate(case.valid()) for t in valid]
    c = [float(case.logprobs_BT[at]) for at in tokens]
    p = [float(case.batch.old_logprobs_BT[at]) for at in tokens]
    g = [float(case.batch.sampling_logprobs_BT[at]) for at in tokens]
    ref = [float(case.batch.ref_logprobs_BT[at]) for at in tokens]
    m = [math.log((math.exp(a) + math.exp(b)) / 2) for a, b in zip(p, g, strict=True)]
    ratio = [math.exp(a - b) for a, b in zip(c, p, strict=True)]
    clamped = [min(max(value, 0.9), 1.3) for value in ratio]

    def k3(first: list[float], second: list[float]) -> float:
        return mean([math.exp(a - b) - 1 - (a - b) for a, b in zip(first, second, strict=True)])

    expected = {
        "token_mult_prob_error": mean([math.exp(abs(b - a)) for a, b in zip(p, g, strict=True)]),
        "gen_kl_error": k3(p, g),
        "policy_kl_error": k3(g, p),
        "js_divergence_error": (k3(p, m) + k3(g, m)) / 2,
        "sampling_importance_ratio": mean([math.exp(a - b) for a, b in zip(p, g, strict=True)]),
        "is_oob_ratio": 0.0,
        "probs_ratio": mean(ratio),
        "probs_ratio_min": min(ratio),
        "probs_ratio_max": max(ratio),
        "probs_ratio_clamped": mean(clamped),
        "probs_ratio_clamped_min": min(clamped),
        "probs_ratio_clamped_max": max(clamped),
        "approx_entropy": -mean([math.exp(a - b) * a for a, b in zip(c, g, strict=True)]),
        "kl_penalty": k3(ref, c),
        "entropy": mean([float(case.entropy_BT[at]) for at in tokens]),
        "num_valid_samples": 5.0,
        "global_valid_toks": float(len(tokens)),
        "global_valid_seqs": 5.0,
    }
    measured = metrics_of(case, config)
    assert measured.keys() == expected.keys() | {"loss"}
    for name, value in expected.items():
        assert measured[name] == pytest.approx(value, rel=1e-10, abs=1e-14), name


def test_a_sampler_that_agrees_is_perfect(make_case: Callable[..., Any]) -> None:
    case = make_case()
    case.batch.sampling_logprobs_BT = case.batch.old_logprobs_BT
    measured = metrics_of(case, LossConfig())
    assert measured["token_mult_prob_error"] == measured["sampling_importance_ratio"] == pytest.approx(1)
    for name in ("gen_kl_error", "policy_kl_error", "js_divergence_error"):
        assert measured[name] == pytest.approx(0, abs=1e-15)


def test_out_of_bounds_share_and_truncated_weight(make_case: Callable[..., Any]) -> None:
    case = make_case(1)
    old, g = case.batch.old_logprobs_BT, case.batch.sampling_logprobs_BT
    ratios = [math.exp(old[row, t] - g[row, t]) for row, valid in enumerate(case.valid()) for t in valid]
    above = mean([float(ratio > 1.2) for ratio in ratios])
    outside = mean([float(not 0.8 <= ratio <= 1.2) for ratio in ratios])
    assert 0 < above < outside < 1
    bounds = {"importance_sampling_max": 1.2, "importance_sampling_min": 0.8}
    truncated = metrics_of(case, LossConfig(importance_sampling="truncated", **bounds))
    masked = metrics_of(case, LossConfig(importance_sampling="masked", **bounds))
    assert truncated["is_oob_ratio"] == pytest.approx(above)
    assert truncated["sampling_importance_ratio"] == pytest.approx(
        mean([min(ratio, 1.2) for ratio in ratios])
    )
    assert masked["is_oob_ratio"] == pytest.approx(outside)
    kept = [ratio if 0.8 <= ratio <= 1.2 else 0.0 for ratio in ratios]
    assert masked["sampling_importance_ratio"] == pytest.approx(mean(kept))


def test_an_infinite_importance_ratio_counts_zero_but_shows_in_the_probability_error(
    make_case: Callable[..., Any],
) -> None:
    case = make_case()
    case.batch.sampling_logprobs_BT[0, 0] = -5000.0
    measured = metrics_of(case, LossConfig())
    assert math.isfinite(measured["sampling_importance_ratio"])
    assert measured["token_mult_prob_error"] == math.inf


def test_merge_sums_and_divides_by_updates_but_takes_extrema_and_counts_as_they_are() -> None:
    parts = [
        {"loss": 0.5, "probs_ratio_min": math.inf, "probs_ratio_max": -math.inf, "global_valid_toks": 12.0},
        {"loss": 0.25, "probs_ratio_min": 0.75, "probs_ratio_max": 1.5, "global_valid_toks": 12.0},
        {"loss": 0.25, "probs_ratio_min": 0.5, "probs_ratio_max": math.nan, "global_valid_toks": 12.0},
    ]
    assert merge_metrics(parts, num_updates=2) == {
        "loss": 0.5,
        "probs_ratio_min": 0.5,
        "probs_ratio_max": 1.5,
        "global_valid_toks": 12.0,
    }


def test_merge_gives_minus_one_where_no_extremum_is_finite() -> None:
    assert merge_metrics([{"probs_ratio_min": math.inf}])["probs_ratio_min"] == -1


def test_merge_keeps_a_nan_visible() -> None:
    assert math.isnan(merge_metrics([{"loss": 1.0}, {"loss": math.nan}])["loss"])


def test_merge_refuses_parts_that_differ() -> None:
    with pytest.raises(ValueError, match="reward"):
        merge_metrics([{"loss": 1.0}, {"loss": 1.0, "reward": 0.0}])
    with pytest.raises(ValueError, match="at least one"):
        merge_metrics([])


def test_metrics_carry_no_gradient(make_case: Callable[..., Any]) -> None:
    case = make_case()
    logprobs = case.logprobs_BT.clone().requires_grad_()
    entropy = case.entropy_BT.clone().requires_grad_()
    _, metrics = policy_loss(
        logprobs, case.batch, LossConfig(), global_valid_tokens=1, global_valid_seqs=1, entropy_BT=entropy
    )
    assert not [
        name for name, value in metrics.items() if isinstance(value, torch.Tensor) and value.requires_grad
    ]
