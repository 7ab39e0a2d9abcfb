"""SFT, DPO and reward-model losses against closed forms and loops."""

from __future__ import annotations

import math

import pytest
import torch

from refrl.algorithms.losses import dpo_loss, reward_model_loss, sequence_logprobs, sft_loss

LOGPROBS = torch.tensor([[-1.0, -2.0, math.nan], [-4.0, math.inf, -8.0]]).double()
MASK = torch.tensor([[1.0, 1.0, 0.0], [1.0, 0.0, 1.0]]).double()


def test_sft_is_the_mean_over_all_valid_tokens_and_splits() -> None:
    logprobs = LOGPROBS.clone().requires_grad_()
    loss = sft_loss(logprobs, MASK, global_valid_tokens=4)
    assert float(loss.detach()) == pytest.approx(15 / 4)
    parts = [
        sft_loss(LOGPROBS[row : row + 1], MASK[row : row + 1], global_valid_tokens=4) for row in range(2)
    ]
    assert float(sum(parts)) == pytest.approx(15 / 4)
    loss.backward()
    assert logprobs.grad is not None
    assert torch.equal(logprobs.grad, -MASK / 4)


def test_sft_on_nothing_is_an_error() -> None:
    with pytest.raises(ValueError, match="global_valid_tokens"):
        sft_loss(LOGPROBS, torch.zeros_like(MASK), global_valid_tokens=0)


def test_sequence_logprobs_sum_or_average_valid_tokens() -> None:
    assert sequence_logprobs(LOGPROBS, MASK).tolist() == [-3, -12]
    assert sequence_logprobs(LOGPROBS, MASK, average=True).tolist() == [-1.5, -6]
    assert sequence_logprobs(LOGPROBS, 0 * MASK, average=True).tolist() == [0, 0]


def preference_case() -> tuple[torch.Tensor, ...]:
    generator = torch.Generator().manual_seed(0)
    return tuple(torch.randn(5, generator=generator, dtype=torch.float64) * 3 for _ in range(4))


@pytest.mark.parametrize("smoothing", [0.0, 0.2])
def test_dpo_is_the_loops(smoothing: float) -> None:
    chosen, rejected, ref_chosen, ref_rejected = preference_case()
    loss, metrics = dpo_loss(
        chosen, rejected, ref_chosen, ref_rejected, beta=0.4, global_num_pairs=5, label_smoothing=smoothing
    )
    margins = [
        0.4 * ((c - rc) - (r - rr))
        for c, r, rc, rr in zip(*(part.tolist() for part in preference_case()), strict=True)
    ]
    right = [-math.log(1 / (1 + math.exp(-margin))) for margin in margins]
    wrong = [-math.log(1 / (1 + math.exp(margin))) for margin in margins]
    expected = sum((1 - smoothing) * a + smoothing * b for a, b in zip(right, wrong, strict=True)) / 5
    assert float(loss) == pytest.approx(expected)
    assert float(metrics["accuracy"]) == pytest.approx(sum(margin > 0 for margin in margins) / 5)
    assert float(metrics["rewards_chosen_mean"]) == pytest.approx(0.4 * float((chosen - ref_chosen).mean()))
    assert float(metrics["rewards_rejected_mean"]) == pytest.approx(
        0.4 * float((rejected - ref_rejected).mean())
    )


def test_dpo_at_the_reference_is_ln_2_and_moves_chosen_up_and_rejected_down() -> None:
    chosen, rejected = (part.requires_grad_() for part in preference_case()[:2])
    loss, _ = dpo_loss(chosen, rejected, chosen, rejected, beta=0.1, global_num_pairs=5)
    loss.backward()
    assert float(loss.detach()) == pytest.approx(math.log(2))
    assert chosen.grad is not None
    assert rejected.grad is not None
    assert chosen.grad.tolist() == pytest.approx([-0.1 / 2 / 5] * 5)
    assert rejected.grad.tolist() == pytest.approx([0.1 / 2 / 5] * 5)


def test_pair_losses_split_over_micro_batches() -> None:
    parts = preference_case()
    whole, _ = dpo_loss(*parts, beta=0.3, global_num_pairs=5)
    shares = [
        dpo_loss(*(part[rows] for part in parts), beta=0.3, global_num_pairs=5)[0]
        for rows in (slice(0, 1), slice(1, 5))
    ]
    assert float(sum(shares)) == pytest.approx(float(whole))


def test_reward_model_loss_is_bradley_terry() -> None:
    chosen = torch.tensor([2.0, -1.0, 800.0]).double().requires_grad_()
    rejected = torch.tensor([0.0, 1.0, -800.0]).double()
    loss, metrics = reward_model_loss(chosen, rejected, global_num_pairs=3)
    assert float(loss.detach()) == pytest.approx((math.log1p(math.exp(-2)) + math.log1p(math.exp(2))) / 3)
    loss.backward()
    assert chosen.grad is not None
    assert chosen.grad.tolist() == pytest.approx([-1 / (1 + math.exp(2)) / 3, -1 / (1 + math.exp(-2)) / 3, 0])
    assert float(metrics["accuracy"]) == pytest.approx(2 / 3)


@pytest.mark.parametrize(
    "options", [{"beta": 0.0}, {"beta": 0.1, "label_smoothing": 0.5}, {"beta": math.nan}]
)
def test_dpo_options_out_of_range_are_refused(options: dict[str, float]) -> None:
    with pytest.raises(ValueError, match="beta"):
        dpo_loss(*preference_case(), global_num_pairs=5, **options)


def test_no_pairs_are_an_error() -> None:
    with pytest.raises(ValueError, match="global_num_pairs"):
        reward_model_loss(torch.zeros(0), torch.zeros(0), global_num_pairs=0)
