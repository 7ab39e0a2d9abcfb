"""Schedules by hand, AdamW by its formula, float32 masters, and clipping."""

import math
from typing import Any

import pytest
import torch
from torch import nn

from refrl.config import PolicyConfig, SchedulerConfig, validate_config
from refrl.policy.optimizer import ClippedAdamW, MasterWeights, learning_rate_factor


@pytest.mark.parametrize(
    ("schedule", "factors"),
    [
        ({"name": "constant"}, [1, 1, 1, 1, 1, 1]),
        ({"name": "constant", "warmup_steps": 4}, [1 / 4, 2 / 4, 3 / 4, 1, 1, 1]),
        ({"name": "linear"}, [1, 5 / 6, 4 / 6, 3 / 6, 2 / 6, 1 / 6]),
        ({"name": "linear", "warmup_steps": 2, "min_lr_ratio": 0.5}, [1 / 2, 1, 1, 7 / 8, 6 / 8, 5 / 8]),
        ({"name": "cosine"}, [(1 + math.cos(math.pi * update / 6)) / 2 for update in range(6)]),
        ({"name": "cosine", "min_lr_ratio": 1.0}, [1, 1, 1, 1, 1, 1]),
    ],
)
def test_schedules(schedule: dict[str, Any], factors: list[float]) -> None:
    """Six updates of each; none of them has rate 0."""
    config = SchedulerConfig(**schedule)
    assert [learning_rate_factor(update, config, 6) for update in range(6)] == pytest.approx(factors)
    assert min(factors) > 0


@pytest.mark.parametrize("name", ["linear", "cosine"])
def test_past_its_end_a_schedule_stays_at_the_minimum(name: str) -> None:
    """It does not come up again."""
    config = SchedulerConfig(name=name, min_lr_ratio=0.1)  # type: ignore[arg-type]
    assert [learning_rate_factor(update, config, 6) for update in (6, 7, 12)] == pytest.approx([0.1] * 3)


def policy_config(**changes: Any) -> PolicyConfig:
    """Return a policy configuration."""
    values = {
        "model_name": "none",
        "train_global_batch_size": 1,
        "train_micro_batch_size": 1,
        "max_total_sequence_length": 8,
        "optimizer": {"lr": 0.01, "weight_decay": 0.1, "eps": 1e-8},
        **changes,
    }
    return validate_config(PolicyConfig, values, source="test")


def test_the_first_step_is_the_formula_and_decays_matrices_only() -> None:
    """At the first step AdamW moves each weight by lr * sign(g); a matrix is shrunk by lr * decay before."""
    model = nn.Linear(3, 2)
    before = {name: parameter.detach().clone() for name, parameter in model.named_parameters()}
    optimizer = ClippedAdamW(model, policy_config(max_grad_norm=None), num_updates=1)
    for parameter in model.parameters():
        parameter.grad = torch.arange(1.0, parameter.numel() + 1).reshape(parameter.shape) - 2.5
    signs = {
        name: parameter.grad.sign()
        for name, parameter in model.named_parameters()
        if parameter.grad is not None
    }
    optimizer.step()
    torch.testing.assert_close(model.weight, before["weight"] * (1 - 0.01 * 0.1) - 0.01 * signs["weight"])
    torch.testing.assert_close(model.bias, before["bias"] - 0.01 * signs["bias"])


def test_the_norm_is_taken_before_clipping_and_the_update_after() -> None:
    """With a large epsilon Adam's step is proportional to the gradient: half the norm, half the step."""
    moved = {}
    for limit in (None, 2.5):
        model = nn.Linear(2, 1, bias=False)
        nn.init.zeros_(model.weight)
        optimizer = {"lr": 1.0, "eps": 1e6, "betas": [0.0, 0.0]}
        stepper = ClippedAdamW(model, policy_config(max_grad_norm=limit, optimizer=optimizer), num_updates=1)
        model.weight.grad = torch.tensor([[3.0, -4.0]])
        norm, rate = stepper.step()
        assert norm == pytest.approx(5.0)
        assert rate == 1.0
        moved[limit] = model.weight.detach().clone()
    torch.testing.assert_close(moved[2.5], moved[None] / 2, rtol=1e-4, atol=0)


@pytest.mark.parametrize("bad", [math.nan, math.inf])
def test_a_gradient_that_is_not_finite_changes_nothing(bad: float) -> None:
    """The norm says so, the weights and the schedule stay, and the next step starts clean."""
    model = nn.Linear(2, 1, bias=False)
    before = model.weight.detach().clone()
    schedule = {"name": "constant", "warmup_steps": 4}
    optimizer = ClippedAdamW(model, policy_config(scheduler=schedule), num_updates=4)
    model.weight.grad = torch.tensor([[1.0, bad]])
    norm, _ = optimizer.step()
    assert not math.isfinite(norm)
    assert torch.equal(model.weight, before)
    assert model.weight.grad is None
    model.weight.grad = torch.ones(1, 2)
    assert optimizer.step()[1] == pytest.approx(0.01 / 4)
    assert model.weight.isfinite().all()


def test_a_float32_model_is_its_own_master() -> None:
    """Nothing is copied."""
    model = nn.Linear(2, 2)
    assert all(
        master is live for master, live in zip(MasterWeights(model).weights, model.parameters(), strict=True)
    )


def test_updates_too_small_for_bfloat16_add_up_in_the_master() -> None:
    """1 + 1e-3 is 1 in bfloat16; ten of them are not."""
    model = nn.Linear(1, 1, bias=False).to(torch.bfloat16)
    nn.init.ones_(model.weight)
    optimizer = ClippedAdamW(model, policy_config(optimizer={"lr": 1e-3}, max_grad_norm=None), num_updates=10)
    seen = []
    for _ in range(10):
        model.weight.grad = -torch.ones_like(model.weight)
        optimizer.add_gradients()
        optimizer.step()
        seen.append(float(model.weight.detach()))
    assert seen[0] == 1.0
    assert seen[-1] == pytest.approx(1.01, abs=2**-8)
    assert model.weight.dtype == torch.bfloat16


def test_small_gradients_of_micro_batches_add_up_in_float32() -> None:
    """256 + 1 is 256 in bfloat16; the sum of 256 and ten ones is 266."""
    model = nn.Linear(1, 1, bias=False).to(torch.bfloat16)
    masters = MasterWeights(model)
    for gradient in [256.0] + [1.0] * 10:
        model.weight.grad = torch.full_like(model.weight, gradient)
        masters.add_gradients()
    (master,) = masters.weights
    assert master.grad is not None
    assert float(master.grad) == 266.0


def test_frozen_weights_are_left_alone() -> None:
    """Only what takes a gradient is optimized."""
    model = nn.Linear(2, 2)
    model.bias.requires_grad_(False)
    assert len(MasterWeights(model).weights) == 1
