"""The oracle of sampled completions gives the numbers that the papers' formulas give, computed here by plain loops."""

import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor

from seatrial.relations.contracts.trainers import (
    EntropyControl,
    LoggedRow,
    Rollout,
    RolloutSpec,
    Scalar,
    TrainerPlan,
    TrainerRecord,
    TrainerSpec,
    TrainerStep,
)
from seatrial.relations.laws.run.updates import SGD
from seatrial.relations.laws.trainer.logged import tables_hold_the_rollouts
from seatrial.relations.oracles.schedules import scheduled_rate
from seatrial.relations.oracles.trainer_metrics import Rows, scalar
from seatrial.relations.oracles.trainers import advantages, controlled_coefficient, step_loss
from seatrial.relations.records.run import UpdateRecord
from seatrial.targets.common.zoo import balance_loss

V = 5
ROWS = tuple(
    Rollout(
        prompt_ids=(prompt,),
        ids=ids,
        ended=True,
        rewards=rewards,
        batch=0,
        weight_version=0,
        number=number,
    )
    for number, (prompt, ids, rewards) in enumerate(
        [
            (0, (1, 2, 3), (1.0, 5.0)),
            (0, (3, 4), (0.0, 1.0)),
            (1, (2, 2, 1), (2.0, 0.0)),
            (1, (4,), (5.0, 3.0)),
        ]
    )
)


class Bigram:
    """A stack whose model predicts an id from the one before it."""

    def __init__(self, **spec: Any) -> None:
        """Keep the objective."""
        self.trainer_spec = TrainerSpec(objective=RolloutSpec(scale="none", **spec))

    def next_token_logits(self, weights: Mapping[str, Tensor], ids: Sequence[int]) -> Tensor:
        return weights["table"][torch.tensor(list(ids))]


def table(seed: int) -> Tensor:
    return torch.randn((V, V), generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


OLD, NEW = table(0), table(1)


def record() -> TrainerRecord:
    return TrainerRecord(
        options={},
        initial_weights={"table": OLD},
        final_weights={"table": NEW},
        trainable=frozenset({"table"}),
        steps=(),
        evaluations=(),
        rollouts=ROWS,
        reference_weights=None,
        optimizer={},
        was_training=True,
    )


def loss_of(**spec: Any) -> float:
    """Return the oracle's loss of all rows at the new weights, sampled by the old ones."""
    return float(step_loss(Bigram(**spec), record(), {"table": NEW}, [ROWS[:2], ROWS[2:]], 1))


def logprob(weights: Tensor, before: int, token: int) -> float:
    row = weights[before].tolist()
    return row[token] - math.log(math.fsum(map(math.exp, row)))


def entropy(before: int) -> float:
    values = [logprob(NEW, before, token) for token in range(V)]
    return -math.fsum(math.exp(value) * value for value in values)


def tokens(row: Rollout) -> list[tuple[int, int]]:
    """Return (id before, id) of each token."""
    return list(zip([row.prompt_ids[0], *row.ids[:-1]], row.ids, strict=True))


def advantage(row: Rollout) -> float:
    group = [one.rewards[0] for one in ROWS if one.prompt_ids == row.prompt_ids]
    return row.rewards[0] - statistics.fmean(group)  # type: ignore[operator, type-var]


ONE = {"reward_weights": (1.0, 0.0)}
COUNT = sum(len(row.ids) for row in ROWS)


def clipped(row: Rollout, before: int, token: int) -> float:
    ratio = math.exp(logprob(NEW, before, token) - logprob(OLD, before, token))
    bounded = min(max(ratio, 0.8), 1.2)
    return -min(ratio * advantage(row), bounded * advantage(row))


def test_the_plain_objective_is_the_clipped_one() -> None:
    right = math.fsum(clipped(row, *one) for row in ROWS for one in tokens(row)) / COUNT
    assert loss_of(**ONE) == pytest.approx(right, abs=1e-12)


def test_vespo_weights_a_row_by_its_whole_ratio() -> None:
    right = 0.0
    for row in ROWS:
        w = math.exp(math.fsum(logprob(NEW, *one) - logprob(OLD, *one) for one in tokens(row)))
        k, decay = (1.5, 2.0) if advantage(row) >= 0 else (2.5, 0.5)
        weight = w**k * math.exp(decay * (1 - w))
        right -= math.fsum(weight * advantage(row) * logprob(NEW, *one) for one in tokens(row)) / COUNT
    assert loss_of(loss="vespo", vespo=((1.5, 2.0), (2.5, 0.5)), **ONE) == pytest.approx(right, abs=1e-12)


def test_tokens_of_low_entropy_have_no_policy_term() -> None:
    """The upper third of the step's nine tokens, counted over all micro-batches, stays in the divisor of nine."""
    all_tokens = [(row, *one) for row in ROWS for one in tokens(row)]
    threshold = sorted((entropy(before) for _, before, _ in all_tokens), reverse=True)[2]
    kept = [one for one in all_tokens if entropy(one[1]) >= threshold - 1e-12]
    right = math.fsum(clipped(*one) for one in kept) / COUNT
    assert len(kept) < COUNT
    assert loss_of(top_entropy=0.3, **ONE) == pytest.approx(right, abs=1e-12)


def with_steps(number: int, rows: Sequence[LoggedRow] = ()) -> TrainerRecord:
    """Return a record of so many steps on all rows, each of which leaves the new weights."""
    update = UpdateRecord(
        row_indices=(),
        micro_batches=None,
        gradients={},
        grad_norm=0.0,
        learning_rate=0.0,
        weights_after={"table": NEW},
    )
    steps = [TrainerStep(step=step, micro_batches=(ROWS,), update=update) for step in range(1, number + 1)]
    return replace(record(), steps=tuple(steps), logged_rows=tuple(rows))


def test_the_coefficient_of_the_entropy_follows_that_of_the_steps_before() -> None:
    """It changes by a fixed amount, within limits, and is 0 after a step of high entropy and in the first."""
    spec = RolloutSpec(entropy_coefficient=0.5)
    for target, due in ((100.0, (0.0, 0.8, 1.0)), (0.0, (0.0, 0.0, 0.0))):
        control = EntropyControl(target=target, delta=0.3)
        for step, right in enumerate(due, start=1):
            found = controlled_coefficient(Bigram(), with_steps(step), spec, control, step)
            assert found == pytest.approx(right)


def test_a_table_of_completions_with_other_rows_or_values_is_seen() -> None:
    """Each rollout is there once, with its own rewards and its advantage."""
    right = [LoggedRow(step=1, rollout=row, rewards=row.rewards, advantage=advantage(row)) for row in ROWS]
    swapped = [replace(right[0], rewards=ROWS[1].rewards), *right[1:]]
    wrong: Sequence[Sequence[LoggedRow]] = (
        [],
        right[1:],
        swapped,
        [replace(right[0], advantage=-right[0].advantage), *right[1:]],
        [replace(right[0], rollout=None), *right[1:]],
    )

    class Logging(Bigram):
        rows: Sequence[LoggedRow] = right

        def trainer_run(self, plan: TrainerPlan) -> TrainerRecord:
            return with_steps(1, self.rows)

    stack = Logging(**ONE)
    assert tables_hold_the_rollouts(stack, TrainerPlan()).error == 0
    for stack.rows in wrong:
        assert tables_hold_the_rollouts(stack, TrainerPlan()).error > 0


def test_rows_far_from_their_sampler_are_left_out_if_their_advantage_is_negative() -> None:
    drift = {
        row: statistics.fmean(logprob(OLD, *one) - logprob(NEW, *one) for one in tokens(row)) for row in ROWS
    }
    negative = sorted(drift[row] for row in ROWS if advantage(row) < 0)
    limit = statistics.fmean(negative)
    kept = [row for row in ROWS if advantage(row) >= 0 or drift[row] <= limit]
    assert len(kept) == len(ROWS) - 1
    right = math.fsum(clipped(row, *one) for row in kept for one in tokens(row)) / COUNT
    assert loss_of(off_policy_threshold=limit, **ONE) == pytest.approx(right, abs=1e-12)


def test_rewards_are_normalized_one_by_one_before_they_are_summed() -> None:
    def normalized(values: Sequence[float]) -> list[float]:
        mean, deviation = statistics.fmean(values), statistics.stdev(values)
        return [(value - mean) / (deviation + 1e-4) for value in values]

    sums = [0.0] * 4
    for which, weight in enumerate((0.5, 2.0)):
        columns = [
            *normalized([1.0, 0.0] if which == 0 else [5.0, 1.0]),
            *normalized([2.0, 5.0] if which == 0 else [0.0, 3.0]),
        ]
        sums = [total + weight * value for total, value in zip(sums, columns, strict=True)]
    found = advantages(Bigram(aggregation="normalized", reward_weights=(0.5, 2.0)), record(), 0)
    assert [found[row] for row in ROWS] == pytest.approx(normalized(sums), abs=1e-12)


def test_rewards_are_clipped_and_advantages_normalized() -> None:
    spec = {"estimator": "rloo", "reward_range": (0.5, 3.0), "normalizes_advantages": True, **ONE}
    clipped_rewards = [1.0, 0.5, 2.0, 3.0]
    differences = [clipped_rewards[i] - clipped_rewards[i ^ 1] for i in range(4)]
    mean, deviation = statistics.fmean(differences), statistics.stdev(differences)
    found = advantages(Bigram(**spec), record(), 0)
    right = [(value - mean) / (deviation + 1e-4) for value in differences]
    assert [found[row] for row in ROWS] == pytest.approx(right, abs=1e-12)


def test_the_routers_loss_is_added_by_micro_batch() -> None:
    """Each micro-batch has its own; the weighted mean of both is added."""
    stack = Bigram(**ONE)
    stack.trainer_spec = replace(stack.trainer_spec, balance_weight=0.5)
    stack.balance_loss = lambda weights, sequences: torch.tensor(float(sum(map(len, sequences))))  # type: ignore[attr-defined]
    loss = float(step_loss(stack, record(), {"table": NEW}, [ROWS[:2], ROWS[2:]], 1))
    assert loss - loss_of(**ONE) == pytest.approx(0.5 * (7 + 6) / 2, abs=1e-12)


def test_routers_that_choose_evenly_have_a_loss_of_the_number_they_choose() -> None:
    """Two experts of four: E * sum over experts of 1/2 * 1/4 is 2; routers that always choose the same two, more."""
    even = torch.tensor([[9.0, 9.0, 0.0, 0.0], [0.0, 0.0, 9.0, 9.0]])
    assert float(balance_loss([even], 2)) == pytest.approx(2.0, abs=1e-3)
    assert float(balance_loss([even[:1].repeat(2, 1)], 2)) == pytest.approx(4.0, abs=1e-2)


RATES: dict[str, tuple[dict[str, Any], list[float]]] = {
    "constant": ({}, [0.1, 0.1, 0.1, 0.1]),
    "constant_with_warmup": ({"warmup_steps": 2}, [0.0, 0.05, 0.1, 0.1]),
    "linear": ({"warmup_steps": 0.5}, [0.0, 0.05, 0.1, 0.05]),
    "cosine": ({}, [0.1, 0.05 * (1 + math.sqrt(0.5)), 0.05, 0.05 * (1 - math.sqrt(0.5))]),
    "cosine_with_min_lr": (
        {"min_lr": 0.02},
        [0.1, 0.02 + 0.04 * (1 + math.sqrt(0.5)), 0.06, 0.02 + 0.04 * (1 - math.sqrt(0.5))],
    ),
    "polynomial": ({"power": 2.0, "lr_end": 0.0}, [0.1, 0.05625, 0.025, 0.00625]),
}


@pytest.mark.parametrize("name", RATES)
def test_a_schedule_gives_these_rates(name: str) -> None:
    """Of four updates; the first one's rate is that before any step of the schedule."""
    given, right = RATES[name]
    options = {
        "policy.optimizer.lr": 0.1,
        "policy.scheduler.name": name,
        **{f"policy.scheduler.{key}": value for key, value in given.items()},
    }
    assert [scheduled_rate(options, update, 4) for update in range(1, 5)] == pytest.approx(right, abs=1e-12)


def test_a_schedule_without_a_closed_form_is_an_error() -> None:
    options = {"policy.optimizer.lr": 0.1, "policy.scheduler.name": "greedy"}
    with pytest.raises(ValueError, match="'greedy' has no closed form"):
        scheduled_rate(options, 1, 4)


def test_gradient_descent_is_that_of_torch() -> None:
    """Clipped, with the decay of matrices in the gradient."""
    options = {"policy.optimizer.weight_decay": 0.2, "policy.max_grad_norm": 0.5}
    weights = {"matrix": table(2), "bias": table(3)[0]}
    gradients = {"matrix": table(4), "bias": table(5)[0]}
    leaves = {name: value.clone().requires_grad_() for name, value in weights.items()}
    for name, leaf in leaves.items():
        leaf.grad = gradients[name].clone()
    torch.nn.utils.clip_grad_norm_(list(leaves.values()), 0.5)
    groups = [{"params": [leaves["matrix"]], "weight_decay": 0.2}, {"params": [leaves["bias"]]}]
    torch.optim.SGD(groups, lr=0.1).step()
    found = SGD(options, "matrices").step(weights, gradients, 0.1)
    for name, leaf in leaves.items():
        assert torch.allclose(found[name], leaf.detach(), atol=1e-6), name


def test_a_group_whose_clipped_rewards_are_equal_is_constant() -> None:
    """Its completions get no advantage, whatever they were given before the range."""
    for reward_range, share in ((None, 0.0), ((0.0, 1.5), 0.5), ((0.0, 0.5), 0.5), ((0.0, 0.0), 1.0)):
        rows = Rows(Bigram(reward_range=reward_range, **ONE), record(), [ROWS], 0)
        assert scalar(Scalar(quantity="constant group"), rows) == share


def test_a_single_completion_of_a_prompt_does_not_differ() -> None:
    """A deviation in a group that is not a number would be in every mean of it."""
    rows = Rows(Bigram(**ONE), record(), [ROWS[1:3]], 0)
    assert scalar(Scalar(quantity="deviation of the reward in a group"), rows) == 0.0
    assert math.isnan(scalar(Scalar(quantity="reward", how="deviation"), rows.part(ROWS[:1])))
