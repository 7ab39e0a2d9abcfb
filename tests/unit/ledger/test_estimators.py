"""A ledger whose estimator nobody named is explained by the right one, and by none where a row is wrong."""

import random
from collections.abc import Callable
from dataclasses import replace

import numpy as np
import numpy.typing as npt
import pytest
from tests.unit.ledger.made_ledgers import right_ledger

from seatrial.evidence.ledger.laws.advantages import (
    FAMILIES,
    advantages_ordered,
    advantages_right,
    rule_named,
    rules_of,
)
from seatrial.evidence.ledger.schema import LedgerFacts, LedgerRow

Floats = npt.NDArray[np.float64]
FACTS = LedgerFacts()


def others_mean(rewards_PG: Floats) -> Floats:
    size = rewards_PG.shape[1]
    return (rewards_PG.sum(1, keepdims=True) - rewards_PG) / (size - 1)


def nemo_leave_one_out(rewards_PG: Floats) -> Floats:
    """Scale by the deviation of the others, where it is not 0."""
    size = rewards_PG.shape[1]
    mean = others_mean(rewards_PG)
    square = ((rewards_PG**2).sum(1, keepdims=True) - rewards_PG**2) / (size - 1)
    deviation = np.sqrt(np.maximum(square - mean**2, 0) * (size - 1) / (size - 2))
    centred = rewards_PG - mean
    return np.where(deviation > 1e-12, centred / (deviation + 1e-6), centred)


def centred(rewards_PG: Floats) -> Floats:
    return rewards_PG - rewards_PG.mean(1, keepdims=True)


FORMULAS: dict[str, Callable[[Floats], Floats]] = {
    "grpo": lambda r: centred(r) / (r.std(1, ddof=1, keepdims=True) + 1e-6),
    "grpo, TRL": lambda r: centred(r) / (r.std(1, ddof=1, keepdims=True) + 1e-4),
    "grpo, population": lambda r: centred(r) / (r.std(1, keepdims=True) + 1e-6),
    "grpo, batch": lambda r: centred(r) / (r.std(ddof=1) + 1e-4),
    "grpo, NeMo RL": nemo_leave_one_out,
    "dr_grpo": centred,
    "rloo": lambda r: r - others_mean(r),
    "reinforce_plus_plus": lambda r: (r - r.mean()) / (r.std(ddof=1) + 1e-8),
    "reinforce_plus_plus_baseline": lambda r: centred(r) / (centred(r).std(ddof=1) + 1e-8),
}


def ledger(formula: Callable[[Floats], Floats], seed: int = 0) -> list[LedgerRow]:
    """Return rows of two steps with rewards of uneven spread and the advantages of a formula."""
    source = random.Random(seed)
    template = right_ledger()[0]
    rows = []
    for step in (1, 2):
        rewards_PG = np.array(
            [[source.choice([0.0, 0.1, 0.5, 1.0, 3.0]) for _ in range(5)] for _ in range(6)]
        )
        rewards_PG[0] = 0.5
        rewards_PG[1] = [1.0, 0.0, 0.0, 0.0, 0.0]
        pairs = zip(rewards_PG.ravel().tolist(), formula(rewards_PG).ravel().tolist(), strict=True)
        rows += [
            replace(
                template, step=step, index=index, prompt_id=index // 5, reward=reward, advantage=advantage
            )
            for index, (reward, advantage) in enumerate(pairs)
        ]
    return rows


@pytest.mark.parametrize("name", FORMULAS)
def test_every_estimator_explains_its_own_ledger(name: str) -> None:
    found = advantages_right(ledger(FORMULAS[name]), FACTS)
    assert not found.faults, found.faults[0]
    assert found.summary.split("not 0; ")[1].startswith(name.split(",")[0])


@pytest.mark.parametrize("name", FORMULAS)
@pytest.mark.parametrize("column", ["advantage", "reward"])
def test_a_row_that_none_explains_is_named(name: str, column: str) -> None:
    """A changed reward changes the advantages of its group, or of its batch: the row is among those that are named."""
    rows = ledger(FORMULAS[name])
    rows[37] = replace(rows[37], **{column: 0.7371})
    found = advantages_right(rows, FACTS)
    assert (2, 7) in [(fault.step, fault.row) for fault in found.faults]
    assert "no known estimator explains all rows" in str(found.faults)


@pytest.mark.parametrize("family", FAMILIES)
def test_a_named_estimator_is_held_to(family: str) -> None:
    facts = replace(FACTS, advantage_rules=rules_of(family))
    for name, formula in FORMULAS.items():
        faults = advantages_right(ledger(formula), facts).faults
        assert (not faults) == (name.split(",")[0] == family), name


@pytest.mark.parametrize("name", FORMULAS)
def test_every_estimator_keeps_the_order(name: str) -> None:
    for seed in range(20):
        found = advantages_ordered(ledger(FORMULAS[name], seed), FACTS)
        assert not found.faults, found.faults[0]
        assert found.num_samples == 12


def test_rounding_over_an_epsilon() -> None:
    """A mean in float32 leaves 1e-8 of equal rewards: nothing over TRL's epsilon, an advantage over 1e-6."""
    rewards = np.float32(0.3)
    noise = float(np.float32(rewards - np.float32(rewards + np.float32(3e-8))))
    assert noise != 0
    right = ledger(FORMULAS["grpo, TRL"])
    tiny = [replace(row, reward=0.3, advantage=noise / 1e-4) if row.prompt_id == 0 else row for row in right]
    assert not advantages_right(tiny, FACTS).faults
    right = ledger(FORMULAS["grpo"])
    amplified = [
        replace(row, reward=0.3, advantage=noise / 1e-6) if row.prompt_id == 0 else row for row in right
    ]
    assert advantages_right(amplified, FACTS).faults


def test_rewards_that_differ_by_rounding_have_no_advantage() -> None:
    """A stack that leaves such a group alone is right; one that scales the rounding up to an advantage is not."""
    rewards = [0.3, 0.3 + 3e-8, 0.3, 0.3, 0.3 - 3e-8]
    for scaled, is_right in ((0.0, True), (0.02, False)):
        rows = ledger(FORMULAS["grpo"])
        rows[5:10] = [
            replace(row, reward=reward, advantage=scaled * (place - 2))
            for place, (row, reward) in enumerate(zip(rows[5:10], rewards, strict=True))
        ]
        assert (not advantages_right(rows, FACTS).faults) is is_right
        assert (not advantages_ordered(rows, FACTS).faults) is is_right


def test_overflow_is_no_pass() -> None:
    """Rewards beyond what float64 can add up give no advantage, and that is not equal to the logged."""
    rows = [replace(row, reward=1e308 * (row.index % 3 + 0.5)) for row in ledger(FORMULAS["grpo"])]
    assert advantages_right(rows, FACTS).faults


def test_an_unknown_scale_is_refused() -> None:
    with pytest.raises(ValueError, match="known: none, group, batch"):
        rule_named("grpo", "rank", 1e-6)
