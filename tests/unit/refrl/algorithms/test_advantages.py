"""Advantages against loops, closed forms and the algebra that they must obey."""

from __future__ import annotations

import itertools
import math

import pytest
import torch

from refrl.algorithms.advantages import compute_advantages
from refrl.config import AdvantageConfig

CONFIGS = [
    AdvantageConfig(estimator="grpo"),
    AdvantageConfig(estimator="grpo", scale="batch"),
    AdvantageConfig(estimator="grpo", scale="none"),
    AdvantageConfig(estimator="dr_grpo"),
    AdvantageConfig(estimator="rloo"),
    AdvantageConfig(estimator="rloo", scale="group"),
    AdvantageConfig(estimator="rloo", scale="batch"),
    AdvantageConfig(estimator="reinforce_plus_plus_baseline"),
]
each_config = pytest.mark.parametrize(
    "config", CONFIGS, ids=lambda config: f"{config.estimator}-{config.scale}"
)


def oracle(rewards: list[float], groups: list[int], config: AdvantageConfig) -> list[float]:
    def deviation(values: list[float]) -> float:
        mean = math.fsum(values) / len(values)
        return math.sqrt(math.fsum((value - mean) ** 2 for value in values) / max(len(values) - 1, 1))

    result = []
    for row, (reward, group) in enumerate(zip(rewards, groups, strict=True)):
        members = [value for value, other in zip(rewards, groups, strict=True) if other == group]
        others = [rewards[i] for i, other in enumerate(groups) if other == group and i != row]
        if len(set(members)) == 1:
            result.append(0.0)
            continue
        baseline = others if config.estimator == "rloo" else members
        value = reward - math.fsum(baseline) / len(baseline)
        scale = config.resolved_scale
        if scale == "group":
            value /= deviation(members) + config.epsilon
        elif scale == "batch" and config.estimator != "reinforce_plus_plus_baseline":
            value /= deviation(rewards) + config.epsilon
        result.append(value)
    if config.estimator == "reinforce_plus_plus_baseline":
        spread = deviation(result) + config.epsilon
        result = [value / spread for value in result]
    return result


def random_case(seed: int) -> tuple[list[float], list[int]]:
    """Interleaved groups of unequal sizes: one of a single row, one of equal rewards."""
    generator = torch.Generator().manual_seed(seed)
    groups = [7] * 4 + [3] * 2 + [100] + [5] * 3 + [-2] * 5
    rewards = torch.rand(len(groups), generator=generator, dtype=torch.float64)
    rewards[7:10] = 0.3
    order = torch.randperm(len(groups), generator=generator).tolist()
    return [float(rewards[i]) for i in order], [groups[i] for i in order]


def compute(rewards: list[float], groups: list[int], config: AdvantageConfig) -> list[float]:
    rewards_B = torch.tensor(rewards, dtype=torch.float64)
    return compute_advantages(rewards_B, torch.tensor(groups), config).tolist()


@each_config
@pytest.mark.parametrize("seed", range(5))
def test_advantages_are_those_of_the_loops(config: AdvantageConfig, seed: int) -> None:
    rewards, groups = random_case(seed)
    assert compute(rewards, groups, config) == pytest.approx(
        oracle(rewards, groups, config), rel=1e-12, abs=1e-15
    )


def test_uneven_groups_by_hand() -> None:
    """1,1,1,0 and 0,0,0,1: 1,0,1,0 would normalise alike with groups and without."""
    rewards, groups = [1, 1, 1, 0, 0, 0, 0, 1], [5, 5, 5, 5, 8, 8, 8, 8]
    expected = [0.5, 0.5, 0.5, -1.5, -0.5, -0.5, -0.5, 1.5]
    assert compute(rewards, groups, AdvantageConfig()) == pytest.approx(expected, abs=1e-5)
    assert compute(rewards, groups, AdvantageConfig(estimator="dr_grpo")) == pytest.approx(
        [value / 2 for value in expected]
    )
    assert compute(rewards, groups, AdvantageConfig(estimator="rloo")) == pytest.approx(
        [1 / 3, 1 / 3, 1 / 3, -1, -1 / 3, -1 / 3, -1 / 3, 1]
    )


@each_config
def test_groups_are_told_by_id_and_not_by_position(config: AdvantageConfig) -> None:
    rewards, groups = [1, 1, 1, 0, 0, 0, 0, 1], [5, 5, 5, 5, 8, 8, 8, 8]
    together = compute(rewards, groups, config)
    for order in itertools.islice(itertools.permutations(range(8)), 0, 40320, 997):
        apart = compute([rewards[i] for i in order], [groups[i] for i in order], config)
        assert apart == pytest.approx([together[i] for i in order], rel=1e-12)


@each_config
def test_every_group_sums_to_zero(config: AdvantageConfig) -> None:
    rewards, groups = random_case(11)
    advantages = compute(rewards, groups, config)
    for group in set(groups):
        total = sum(value for value, other in zip(advantages, groups, strict=True) if other == group)
        assert total == pytest.approx(0, abs=1e-12)


@each_config
@pytest.mark.parametrize("reward", [0.0, 0.1, 0.3, 0.7, -5.3, 1e6 / 3, 1e-8])
def test_equal_rewards_give_exactly_zero(config: AdvantageConfig, reward: float) -> None:
    rewards_B = torch.tensor(
        [reward, 1, reward, 0, reward, reward, reward, reward, reward], dtype=torch.float32
    )
    groups_B = torch.tensor([1, 2, 1, 2, 1, 1, 1, 1, 1])
    advantages_B = compute_advantages(rewards_B, groups_B, config)
    assert (advantages_B[groups_B == 1] == 0).all()
    assert (advantages_B[groups_B == 2] != 0).all()


@each_config
def test_a_difference_of_rounding_is_none(config: AdvantageConfig) -> None:
    rewards_B = torch.tensor([0.1 + 0.2, 0.3, 0.3, 0.3, 0.0, 1.0], dtype=torch.float64)
    assert rewards_B[0] != rewards_B[1]
    advantages_B = compute_advantages(rewards_B, torch.tensor([0, 0, 0, 0, 1, 1]), config)
    assert (advantages_B[:4] == 0).all()
    assert (advantages_B[4:] != 0).all()


@each_config
def test_a_group_of_one_gets_zero(config: AdvantageConfig) -> None:
    assert compute([3.0, 0.0, 1.0], [1, 2, 2], config)[0] == 0
    assert compute([3.0], [1], config) == [0]


@each_config
def test_a_shift_of_rewards_changes_nothing(config: AdvantageConfig) -> None:
    rewards, groups = random_case(12)
    shifted = compute([reward + 17 for reward in rewards], groups, config)
    assert shifted == pytest.approx(compute(rewards, groups, config), rel=1e-9, abs=1e-12)


@each_config
def test_a_positive_factor_scales_or_cancels(config: AdvantageConfig) -> None:
    rewards, groups = random_case(13)
    factor = 8.0 if config.resolved_scale == "none" else 1.0
    scaled = compute([8 * reward for reward in rewards], groups, config)
    assert scaled == pytest.approx(
        [factor * value for value in compute(rewards, groups, config)], rel=1e-4, abs=1e-12
    )


def test_group_scale_gives_each_group_unit_deviation_and_batch_scale_the_batch() -> None:
    rewards, groups = random_case(14)
    grouped = torch.tensor(compute(rewards, groups, AdvantageConfig()))
    groups_B = torch.tensor(groups)
    for group in (7, 3, -2):
        assert float(grouped[groups_B == group].std()) == pytest.approx(1, abs=1e-4)
    whitened = torch.tensor(
        compute(rewards, groups, AdvantageConfig(estimator="reinforce_plus_plus_baseline"))
    )
    assert float(whitened.std()) == pytest.approx(1, abs=1e-4)
    assert float(whitened[groups_B == 7].std()) != pytest.approx(1, abs=1e-2)


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
def test_rewards_that_are_not_finite_are_named(bad: float) -> None:
    with pytest.raises(ValueError, match=r"rows \[1, 3\]"):
        compute([1.0, bad, 0.0, bad], [0, 0, 0, 0], AdvantageConfig())


@pytest.mark.parametrize(("rewards", "groups"), [([1.0, 0.0], [1]), ([], []), ([[1.0]], [[1]])])
def test_shapes_are_checked(rewards: list[float], groups: list[int]) -> None:
    with pytest.raises(ValueError, match=r"must both be \(B,\)"):
        compute_advantages(torch.tensor(rewards), torch.tensor(groups), AdvantageConfig())


def test_inputs_are_left_as_they_were() -> None:
    rewards_B, groups_B = torch.tensor([1.0, 0.0]), torch.tensor([3, 3])
    advantages_B = compute_advantages(rewards_B, groups_B, AdvantageConfig())
    assert rewards_B.tolist() == [1, 0]
    assert groups_B.tolist() == [3, 3]
    assert advantages_B.dtype == torch.float32


@pytest.mark.parametrize(
    ("estimator", "scale"), [("dr_grpo", "group"), ("reinforce_plus_plus_baseline", "none")]
)
def test_a_scale_that_contradicts_the_estimator_is_refused(estimator: str, scale: str) -> None:
    with pytest.raises(ValueError, match=r"grpo\.advantage\.scale"):
        AdvantageConfig.model_validate({"estimator": estimator, "scale": scale})


@each_config
def test_float32_rewards_are_computed_in_float64(config: AdvantageConfig) -> None:
    rewards_B = 1e7 + torch.tensor([0.0, 1.0, 2.0, 30.0, 50.0, 60.0, 7.0], dtype=torch.float32)
    groups_B = torch.tensor([0, 0, 0, 0, 1, 1, 1])
    advantages_B = compute_advantages(rewards_B, groups_B, config)
    assert advantages_B.dtype == torch.float32
    expected = oracle([float(reward) for reward in rewards_B], groups_B.tolist(), config)
    assert advantages_B.tolist() == pytest.approx(expected, rel=1e-6)
