"""KL estimators against exact divergences of small categorical policies, in value and in gradient."""

from __future__ import annotations

import math
from typing import Literal

import pytest
import torch
from torch import Tensor

from refrl.algorithms.kl import KLKind, kl_estimate, kl_for_loss, penalise_rewards

POLICY, REFERENCE = (0.7, 0.2, 0.1), (0.2, 0.5, 0.3)
KL = sum(p * math.log(p / r) for p, r in zip(POLICY, REFERENCE, strict=True))
REVERSED_KL = sum(r * math.log(r / p) for p, r in zip(POLICY, REFERENCE, strict=True))
KINDS: tuple[KLKind, ...] = ("k1", "k2", "k3")


def logits() -> Tensor:
    return torch.tensor(POLICY, dtype=torch.float64).log().requires_grad_()


def reference() -> Tensor:
    return torch.tensor(REFERENCE, dtype=torch.float64).log()


@pytest.mark.parametrize("kind", ["k1", "k3"])
def test_the_mean_under_the_policy_is_the_divergence_from_the_reference(kind: KLKind) -> None:
    estimate = kl_estimate(logits().detach(), reference(), kind)
    assert float((torch.tensor(POLICY, dtype=torch.float64) * estimate).sum()) == pytest.approx(KL, rel=1e-12)
    assert pytest.approx(REVERSED_KL, rel=1e-2) != KL


def test_values_by_hand() -> None:
    half, quarter = torch.tensor(0.5).double().log(), torch.tensor(0.25).double().log()
    assert float(kl_estimate(half, quarter, "k1")) == pytest.approx(math.log(2))
    assert float(kl_estimate(half, quarter, "k2")) == pytest.approx(math.log(2) ** 2 / 2)
    assert float(kl_estimate(half, quarter, "k3")) == pytest.approx(0.5 - 1 + math.log(2))


@pytest.mark.parametrize("kind", ["k2", "k3"])
def test_k2_and_k3_are_never_negative(kind: KLKind) -> None:
    logprobs = torch.linspace(-30, 0, 301)
    assert (kl_estimate(logprobs, logprobs.flip(0), kind) >= 0).all()
    assert (kl_estimate(logprobs, logprobs, kind) == 0).all()


def expected_gradient(kind: KLKind, gradient: Literal["estimator", "k2"]) -> Tensor:
    """Return the exact expectation, over tokens of the policy, of the gradient by its logits."""
    theta = logits()
    logprobs = theta.log_softmax(0)
    (logprobs.exp().detach() * kl_for_loss(logprobs, reference(), kind, gradient)).sum().backward()
    assert theta.grad is not None
    return theta.grad


def exact_gradient(divergence: str) -> Tensor:
    theta = logits()
    p, r = theta.softmax(0), reference().exp()
    (p * (p / r).log()).sum().backward() if divergence == "policy||reference" else (
        r * (r / p).log()
    ).sum().backward()
    assert theta.grad is not None
    return theta.grad


def test_gradients_in_the_loss_are_what_the_docstring_says() -> None:
    torch.testing.assert_close(expected_gradient("k1", "estimator"), torch.zeros(3, dtype=torch.float64))
    torch.testing.assert_close(expected_gradient("k2", "estimator"), exact_gradient("policy||reference"))
    torch.testing.assert_close(expected_gradient("k3", "estimator"), exact_gradient("reference||policy"))
    assert not torch.allclose(
        exact_gradient("policy||reference"), exact_gradient("reference||policy"), rtol=0.05
    )


@pytest.mark.parametrize("kind", KINDS)
def test_the_straight_through_form_has_the_kls_gradient_and_the_kinds_value(kind: KLKind) -> None:
    torch.testing.assert_close(expected_gradient(kind, "k2"), exact_gradient("policy||reference"))
    value = kl_for_loss(logits(), reference(), kind, "k2")
    torch.testing.assert_close(value, kl_estimate(logits(), reference(), kind))


@pytest.mark.parametrize("kind", KINDS)
def test_the_gradient_is_that_of_finite_differences(kind: KLKind) -> None:
    logprobs = torch.tensor([-0.3, -2.0, -4.0], dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(lambda values: kl_estimate(values, reference(), kind), logprobs)


def test_k1_in_the_reward_has_the_kls_gradient() -> None:
    """REINFORCE with the reward -k1: E[grad log p * k1] is the gradient of the KL."""
    theta = logits()
    logprobs = theta.log_softmax(0)
    rewards = penalise_rewards(
        torch.zeros(3, dtype=torch.float64),
        logprobs.unsqueeze(1),
        reference().unsqueeze(1),
        torch.ones(3, 1),
        coefficient=1.0,
        kind="k1",
    )
    assert not rewards.requires_grad
    (-logprobs.exp().detach() * rewards * logprobs).sum().backward()
    torch.testing.assert_close(theta.grad, exact_gradient("policy||reference"))


def test_the_penalty_is_the_sum_over_valid_tokens_and_reads_no_padding() -> None:
    logprobs = torch.tensor([[-1.0, math.nan, -2.0], [-1e4, -3.0, math.inf]])
    ref = torch.tensor([[-1.5, -math.inf, -2.5], [math.nan, -2.0, 7.0]])
    mask = torch.tensor([[1.0, 0.0, 1.0], [0.0, 1.0, 0.0]])
    rewards = penalise_rewards(torch.tensor([1.0, 2.0]), logprobs, ref, mask, coefficient=0.1, kind="k1")
    assert rewards.tolist() == pytest.approx([1 - 0.1 * (0.5 + 0.5), 2 - 0.1 * -1.0])


def test_an_unknown_kind_is_named() -> None:
    with pytest.raises(ValueError, match="k4"):
        kl_estimate(logits(), reference(), "k4")  # type: ignore[arg-type]
