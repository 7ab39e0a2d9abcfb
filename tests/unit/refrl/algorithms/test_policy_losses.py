"""The policy loss against loops over numbers, in value and gradient, for every option."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable
from typing import Any

import pytest
import torch

from refrl.algorithms.losses import policy_loss
from refrl.algorithms.metrics import merge_metrics
from refrl.config import LossConfig

CONFIGS: list[dict[str, Any]] = [
    {"kind": kind, "reduction": reduction, "importance_sampling": sampling, **kl, **clip}
    for kind, reduction, sampling, kl, clip in itertools.product(
        ("ppo_clip", "gspo", "cispo"),
        ("token", "sequence", "fixed_length"),
        ("none", "truncated", "masked"),
        (
            {"reference_policy_kl_penalty": 0.0},
            {"reference_policy_kl_penalty": 0.3, "reference_policy_kl_type": "k1"},
            {"reference_policy_kl_penalty": 0.3, "reference_policy_kl_type": "k2"},
            {"reference_policy_kl_penalty": 0.3, "reference_policy_kl_type": "k3"},
            {"reference_policy_kl_penalty": 0.3, "reference_policy_kl_gradient": "k2"},
            {"reference_policy_kl_penalty": 0.3, "kl_in": "reward"},
            {"reference_policy_kl_penalty": 0.3, "reference_policy_kl_importance_sampling": True},
        ),
        (
            {"ratio_clip_min": 0.1, "ratio_clip_max": 0.3},
            {"ratio_clip_min": 0.2, "ratio_clip_max": 0.2, "ratio_clip_c": 1.5, "entropy_coefficient": 0.1},
        ),
    )
    if (kind != "gspo" or reduction == "sequence") and (kind != "cispo" or "ratio_clip_c" not in clip)
]


def config_of(options: dict[str, Any]) -> LossConfig:
    fixed = {"fixed_length": 5} if options.get("reduction") == "fixed_length" else {}
    bounds = {"importance_sampling_max": 1.3, "importance_sampling_min": 0.7}
    return LossConfig(**{**bounds, **fixed, **options})


def name_of(options: dict[str, Any]) -> str:
    return "-".join(str(value) for value in options.values())


def oracle(case: Any, config: LossConfig) -> tuple[float, list[list[float]]]:
    """Return the loss and d loss / d logprob of each token, by loops and hand-made derivatives."""
    batch = case.batch
    current, old, ref = (
        case.logprobs_BT.tolist(),
        batch.old_logprobs_BT.tolist(),
        batch.ref_logprobs_BT.tolist(),
    )
    sampling, entropy = batch.sampling_logprobs_BT.tolist(), case.entropy_BT.tolist()
    loss = 0.0
    gradient = [[0.0] * len(row) for row in current]
    low, high = 1 - config.ratio_clip_min, 1 + config.ratio_clip_max
    for row, tokens in enumerate(case.valid()):
        advantage = float(batch.advantages_B[row])
        mean_log_ratio = sum(current[row][t] - old[row][t] for t in tokens) / max(len(tokens), 1)
        for t in tokens:
            weight = {
                "token": 1 / case.num_tokens,
                "sequence": 1 / len(tokens) / case.num_seqs,
                "fixed_length": 1 / (config.fixed_length or 1) / case.num_seqs,
            }[config.reduction]
            correction = math.exp(old[row][t] - sampling[row][t])
            if config.importance_sampling == "none":
                correction = 1.0
            elif config.importance_sampling == "truncated":
                correction = min(correction, config.importance_sampling_max)
            elif not config.importance_sampling_min <= correction <= config.importance_sampling_max:
                correction = 0.0
            log_ratio = mean_log_ratio if config.kind == "gspo" else current[row][t] - old[row][t]
            ratio = math.exp(log_ratio)
            clamped = min(max(ratio, low), high)
            if config.kind == "cispo":
                value, slope = -clamped * advantage * current[row][t], -clamped * advantage
            else:
                # The clipped branch is constant wherever it is the smaller one.
                objective = min(ratio * advantage, clamped * advantage)
                slope = -ratio * advantage if ratio * advantage <= clamped * advantage else 0.0
                value = -objective
                if (
                    config.ratio_clip_c is not None
                    and advantage < 0
                    and value > -config.ratio_clip_c * advantage
                ):
                    value, slope = -config.ratio_clip_c * advantage, 0.0
            loss += weight * correction * value
            if config.kind == "gspo":
                for other in tokens:
                    gradient[row][other] += weight * correction * slope / len(tokens)
            else:
                gradient[row][t] += weight * correction * slope
            if config.kl_in == "loss":
                x = ref[row][t] - current[row][t]
                kl = {"k1": -x, "k2": x * x / 2, "k3": math.exp(x) - 1 - x}[config.reference_policy_kl_type]
                kl_slope = {"k1": 1.0, "k2": -x, "k3": 1 - math.exp(x)}[
                    "k2" if config.reference_policy_kl_gradient == "k2" else config.reference_policy_kl_type
                ]
                if config.reference_policy_kl_importance_sampling:
                    # TRL 1.16: k3 * exp(current - old), both differentiated.
                    ratio = math.exp(current[row][t] - old[row][t])
                    kl, kl_slope = ratio * kl, ratio * (kl + kl_slope)
                loss += weight * config.reference_policy_kl_penalty * kl
                gradient[row][t] += weight * config.reference_policy_kl_penalty * kl_slope
            loss -= weight * config.entropy_coefficient * entropy[row][t]
    return loss, gradient


def run(case: Any, config: LossConfig) -> tuple[torch.Tensor, torch.Tensor, dict[str, torch.Tensor]]:
    logprobs = case.logprobs_BT.clone().requires_grad_()
    loss, metrics = policy_loss(
        logprobs,
        case.batch,
        config,
        global_valid_tokens=case.num_tokens,
        global_valid_seqs=case.num_seqs,
        entropy_BT=case.entropy_BT,
    )
    loss.backward()
    assert logprobs.grad is not None
    return loss.detach(), logprobs.grad, metrics


@pytest.mark.parametrize("options", CONFIGS, ids=name_of)
def test_loss_and_gradient_are_those_of_the_loops(
    make_case: Callable[..., Any], options: dict[str, Any]
) -> None:
    config = config_of(options)
    for seed in range(3):
        case = make_case(seed)
        loss, gradient, _ = run(case, config)
        expected_loss, expected_gradient = oracle(case, config)
        assert float(loss) == pytest.approx(expected_loss, rel=1e-12, abs=1e-14)
        torch.testing.assert_close(
            gradient, torch.tensor(expected_gradient, dtype=torch.float64), rtol=1e-11, atol=1e-14
        )


@pytest.mark.parametrize("padding", [math.nan, math.inf, -math.inf, 1e4, -1e4])
@pytest.mark.parametrize("options", CONFIGS[::7], ids=name_of)
def test_padding_changes_nothing(
    make_case: Callable[..., Any], options: dict[str, Any], padding: float
) -> None:
    config = config_of(options)
    clean, clean_gradient, clean_metrics = run(make_case(1), config)
    dirty, dirty_gradient, dirty_metrics = run(make_case(1, padding=padding), config)
    assert torch.equal(dirty, clean)
    assert torch.equal(dirty_gradient, clean_gradient)
    for name, value in clean_metrics.items():
        assert torch.equal(dirty_metrics[name], value), name


def test_advantage_of_a_masked_row_changes_nothing(make_case: Callable[..., Any]) -> None:
    case = make_case(2)
    expected, expected_gradient, _ = run(case, config_of({}))
    case.batch.advantages_B[3] = math.nan
    loss, gradient, _ = run(case, config_of({}))
    assert torch.equal(loss, expected)
    assert torch.equal(gradient, expected_gradient)


@pytest.mark.parametrize(
    "split", [[[0], [1], [2], [3], [4], [5]], [[3], [5, 0], [1, 2, 4]], [[4, 2, 0, 1, 3, 5]]]
)
@pytest.mark.parametrize("options", CONFIGS[::5], ids=name_of)
def test_micro_batches_add_up_to_the_batch(
    make_case: Callable[..., Any], options: dict[str, Any], split: list[list[int]]
) -> None:
    case, config = make_case(3), config_of(options)
    loss, gradient, metrics = run(case, config)
    logprobs = case.logprobs_BT.clone().requires_grad_()
    parts = []
    for rows in split:
        share, part = policy_loss(
            logprobs[rows],
            case.batch.rows(rows),
            config,
            global_valid_tokens=torch.tensor(float(case.num_tokens)),
            global_valid_seqs=torch.tensor(float(case.num_seqs)),
            entropy_BT=case.entropy_BT[rows],
        )
        share.backward()
        parts.append(part)
    merged, whole = merge_metrics(parts), merge_metrics([metrics])
    assert merged == pytest.approx(whole, rel=1e-12)
    assert merged["loss"] == pytest.approx(float(loss), rel=1e-12)
    torch.testing.assert_close(logprobs.grad, gradient, rtol=1e-12, atol=1e-15)


def test_on_policy_token_loss_is_minus_the_mean_advantage_and_its_gradient_is_reinforce(
    make_case: Callable[..., Any],
) -> None:
    case = make_case(4)
    case.batch.old_logprobs_BT = case.logprobs_BT
    loss, gradient, metrics = run(case, config_of({"reference_policy_kl_penalty": 0.0}))
    advantages = case.batch.advantages_B.unsqueeze(1).expand_as(gradient)
    valid = case.batch.mask_BT.bool()
    assert float(loss) == pytest.approx(-float(advantages[valid].mean()), rel=1e-12)
    torch.testing.assert_close(gradient, torch.where(valid, -advantages / case.num_tokens, 0.0))
    assert merge_metrics([metrics])["probs_ratio_min"] == merge_metrics([metrics])["probs_ratio_max"] == 1


def test_entropy_bonus_raises_entropy(make_case: Callable[..., Any]) -> None:
    case = make_case(5)
    entropy = case.entropy_BT.clone().requires_grad_()
    loss, _ = policy_loss(
        case.logprobs_BT,
        case.batch,
        config_of({"entropy_coefficient": 0.2}),
        global_valid_tokens=case.num_tokens,
        global_valid_seqs=case.num_seqs,
        entropy_BT=entropy,
    )
    loss.backward()
    torch.testing.assert_close(entropy.grad, -0.2 / case.num_tokens * case.batch.mask_BT)


def test_an_unlikely_ratio_in_the_branch_not_taken_leaves_the_gradient_finite(
    make_case: Callable[..., Any],
) -> None:
    case = make_case(6)
    case.logprobs_BT[0, 0], case.batch.old_logprobs_BT[0, 0] = -0.1, -2000.0
    _, gradient, _ = run(case, config_of({"reference_policy_kl_penalty": 0.0}))
    assert gradient[0, 0] == 0
    assert gradient.isfinite().all()


@pytest.mark.parametrize("missing", ["advantages_B", "old_logprobs_BT", "ref_logprobs_BT"])
def test_what_the_loss_needs_is_named(make_case: Callable[..., Any], missing: str) -> None:
    case = make_case()
    setattr(case.batch, missing, None)
    with pytest.raises(ValueError, match=missing):
        run(case, config_of({}))


def test_a_reference_is_not_needed_without_its_penalty(make_case: Callable[..., Any]) -> None:
    case = make_case()
    case.batch.ref_logprobs_BT = None
    _, _, metrics = run(case, config_of({"reference_policy_kl_penalty": 0.0}))
    assert float(metrics["kl_penalty"]) == 0


def test_an_entropy_bonus_needs_entropies(make_case: Callable[..., Any]) -> None:
    case = make_case()
    with pytest.raises(ValueError, match="entropy_BT"):
        policy_loss(
            case.logprobs_BT,
            case.batch,
            config_of({"entropy_coefficient": 0.1}),
            global_valid_tokens=1,
            global_valid_seqs=1,
        )


@pytest.mark.parametrize(("tokens", "seqs"), [(0, 1), (1, 0), (math.nan, 1), (torch.tensor(0.0), 1)])
def test_a_batch_without_valid_tokens_is_an_error(
    make_case: Callable[..., Any], tokens: float, seqs: float
) -> None:
    case = make_case()
    with pytest.raises(ValueError, match="global_valid_"):
        policy_loss(
            case.logprobs_BT, case.batch, config_of({}), global_valid_tokens=tokens, global_valid_seqs=seqs
        )


def test_advantages_per_token_are_refused(make_case: Callable[..., Any]) -> None:
    case = make_case()
    case.batch.advantages_B = case.batch.advantages_B.unsqueeze(1)
    with pytest.raises(ValueError, match="one per row"):
        run(case, config_of({}))
