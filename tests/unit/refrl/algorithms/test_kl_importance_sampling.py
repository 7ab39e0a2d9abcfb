"""The KL in the loss times current / old: exact expectations over a vocabulary, and TRL's own formula."""

from __future__ import annotations

import pytest
import torch
from pydantic import ValidationError

from refrl.algorithms.batching import Batch
from refrl.algorithms.losses import policy_loss
from refrl.config import LossConfig

VOCABULARY = 7


def loss_of_token(
    logprob: torch.Tensor, old: torch.Tensor, ref: torch.Tensor, **options: object
) -> torch.Tensor:
    """Return the loss of one row of one token without advantage: the KL alone is left."""
    one = torch.ones(1, 1, dtype=torch.float64)
    batch = Batch(
        input_ids_BS=torch.zeros(1, 2, dtype=torch.long),
        attention_mask_BS=torch.ones(1, 2, dtype=torch.long),
        completion_ids_BT=torch.zeros(1, 1, dtype=torch.long),
        mask_BT=one,
        prompt_lens_B=torch.ones(1, dtype=torch.long),
        sampling_logprobs_BT=old.detach() * one,
        rewards_B=torch.zeros(1, dtype=torch.float64),
        group_ids_B=torch.zeros(1, dtype=torch.long),
        advantages_B=torch.zeros(1, dtype=torch.float64),
        old_logprobs_BT=old.detach() * one,
        ref_logprobs_BT=ref.detach() * one,
    )
    config = LossConfig(reference_policy_kl_penalty=1.0, **options)
    return policy_loss(logprob * one, batch, config, global_valid_tokens=1.0, global_valid_seqs=1.0)[0]


def three_policies() -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Return logits of the policy, of the older one that sampled, and of the reference."""
    random = torch.Generator().manual_seed(0)
    current_V, old_V, ref_V = torch.randn(3, VOCABULARY, dtype=torch.float64, generator=random)
    return current_V.requires_grad_(), old_V, ref_V


def expected_gradient(kind: str, *, corrected: bool) -> tuple[float, torch.Tensor]:
    """Return value and gradient of the loss, averaged exactly over what the older policy may sample."""
    current_V, old_V, ref_V = three_policies()
    logprobs_V, old_logprobs_V, ref_logprobs_V = (
        values.log_softmax(0) for values in (current_V, old_V, ref_V)
    )
    total = torch.zeros((), dtype=torch.float64)
    for token in range(VOCABULARY):
        loss = loss_of_token(
            logprobs_V[token],
            old_logprobs_V[token],
            ref_logprobs_V[token],
            reference_policy_kl_type=kind,
            reference_policy_kl_importance_sampling=corrected,
        )
        total = total + old_logprobs_V[token].exp() * loss
    total.backward()
    assert current_V.grad is not None
    return float(total.detach()), current_V.grad


def true_kl() -> tuple[float, torch.Tensor]:
    """Return KL(policy || reference) and its gradient by the closed form p * (log p/q - KL)."""
    current_V, _, ref_V = three_policies()
    with torch.no_grad():
        probabilities_V = current_V.softmax(0)
        log_ratio_V = current_V.log_softmax(0) - ref_V.log_softmax(0)
        kl = (probabilities_V * log_ratio_V).sum()
        return float(kl), probabilities_V * (log_ratio_V - kl)


@pytest.mark.parametrize("kind", ["k1", "k3"])
def test_corrected_the_expected_value_and_gradient_are_the_kls_off_policy(kind: str) -> None:
    """Exactly, though an older policy sampled; without the correction they are not."""
    value, gradient_V = expected_gradient(kind, corrected=True)
    kl, slope_V = true_kl()
    assert value == pytest.approx(kl, abs=1e-12)
    torch.testing.assert_close(gradient_V, slope_V, atol=1e-12, rtol=0)
    plain, plain_gradient_V = expected_gradient(kind, corrected=False)
    assert abs(plain - kl) > 0.01
    assert float((plain_gradient_V - slope_V).abs().max()) > 0.01


def test_it_is_trls_formula() -> None:
    """TRL 1.16 with use_bias_correction_kl, its default: (exp(ref - p) - (ref - p) - 1) * exp(p - old)."""
    logprob = torch.tensor(-1.3, dtype=torch.float64, requires_grad=True)
    old, ref = torch.tensor(-0.9, dtype=torch.float64), torch.tensor(-2.0, dtype=torch.float64)
    loss = loss_of_token(logprob, old, ref, reference_policy_kl_importance_sampling=True)
    (slope,) = torch.autograd.grad(loss, logprob)
    other = logprob.detach().clone().requires_grad_()
    expected = (torch.exp(ref - other) - (ref - other) - 1) * torch.exp(other - old)
    (expected_slope,) = torch.autograd.grad(expected, other)
    torch.testing.assert_close(loss, expected, atol=1e-14, rtol=0)
    torch.testing.assert_close(slope, expected_slope, atol=1e-14, rtol=0)


@pytest.mark.parametrize("other", [{"kl_in": "reward"}, {"reference_policy_kl_gradient": "k2"}])
def test_what_it_has_no_effect_on_is_refused(other: dict[str, str]) -> None:
    with pytest.raises(ValidationError, match="reference_policy_kl_importance_sampling"):
        LossConfig(reference_policy_kl_importance_sampling=True, **other)
