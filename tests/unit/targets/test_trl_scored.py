"""What the losses and the scores of GRPO and RLOO are by definition, where they can be worked out by hand."""

import math
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from seatrial.targets.trl.worked import outside, scored, surrogates
from seatrial.targets.trl.worked.generations import Plan, reward_of


def run(name: str, values: list[float | None], copies: int, **options: Any) -> Any:
    """Return what `advantages_of` reads of a run with one reward function."""
    return SimpleNamespace(
        name=name,
        plan=Plan(options=options),
        num_copies=copies,
        beta=options.get("beta", 0.0),
        said=values,
        rewards=lambda: [[one] for one in values],
        weighted=lambda: [math.nan if one is None else one for one in values],
    )


def test_advantages_of_a_group_leave_out_what_has_no_reward() -> None:
    """Mean 2 and deviation 1 of the three that have one."""
    found = scored.advantages_of(run("GRPO", [1.0, None, 2.0, 3.0], 4), [0.0] * 4)
    assert found == pytest.approx([-1 / 1.0001, 0.0, 0.0, 1 / 1.0001])


def test_advantages_may_be_scaled_by_the_batch_or_not_at_all() -> None:
    """Of two groups with the means 1 and 5 and the values 0, 2, 3, 7."""
    values: list[float | None] = [0.0, 2.0, 3.0, 7.0]
    assert scored.advantages_of(run("GRPO", values, 2, scale_rewards="none"), []) == [-1.0, 1.0, -2.0, 2.0]
    apart = math.sqrt(26 / 3) + 1e-4
    found = scored.advantages_of(run("GRPO", values, 2, scale_rewards="batch"), [])
    assert found == pytest.approx([-1 / apart, 1 / apart, -2 / apart, 2 / apart])


def test_a_baseline_is_the_mean_of_the_others() -> None:
    """Rewards of 0, 1 and 5, which is cut to 3, less half of the divergences."""
    given = run("RLOO", [0.0, 1.0, 5.0], 3, beta=0.5, reward_clip_range=(-1.0, 3.0))
    assert scored.advantages_of(given, [2.0, 0.0, 0.0]) == pytest.approx([-3.0, 0.0, 3.0])


def test_one_completion_of_a_prompt_has_no_advantage() -> None:
    """As in an evaluation."""
    for name in ("GRPO", "RLOO"):
        assert scored.advantages_of(run(name, [1.0, 4.0], 1), [0.0, 0.0]) == [0.0, 0.0]


def test_kinds_of_rewards_leave_out_other_completions() -> None:
    """The code of `c` is a multiple of 3: `silent` never scores it, and `sparse` does not as the first function."""
    assert reward_of("silent", 1, "ab", "c") is None
    assert reward_of("sparse", 0, "ab", "c") is None
    assert reward_of("sparse", 1, "ab", "c") is not None
    assert reward_of("constant", 0, "ab", "c") == reward_of("constant", 0, "ab", "d") == 0.25


def test_ratios_of_a_server_are_cut_or_left_out() -> None:
    """Of a token, and of the whole completion."""
    moved = [math.log(2.0), math.log(0.5)]
    assert outside.ratios_of(moved, "token_truncate", (0.75, 1.5)) == pytest.approx([1.5, 0.75])
    assert outside.ratios_of(moved, "token_mask", (None, 1.5)) == pytest.approx([0.0, 0.5])
    assert outside.ratios_of(moved, "sequence_mask", (0.75, 1.5)) == pytest.approx([1.0])


@pytest.mark.parametrize(
    ("options", "due"),
    [
        ({"loss_type": "grpo"}, -1.2),
        ({"loss_type": "cispo", "epsilon_high": 1.1}, 1.1 * 0.5),
        ({"loss_type": "grpo", "delta": 1.1}, -1.1),
    ],
)
def test_a_term_of_a_token_is_worked_out(options: dict[str, Any], due: float) -> None:
    """Of an advantage of 1, a ratio of 2 and a log-probability of -0.5."""
    line = surrogates.Line((1,), (2,), 1.0, (-0.5 - math.log(2.0),), (0.0,), (1,))
    own, ratio = torch.tensor([-0.5]), torch.tensor([2.0])
    found = surrogates.surrogate_of({**surrogates.DEFAULTS, **options}, own, ratio, line)
    assert found.tolist() == pytest.approx([due])
