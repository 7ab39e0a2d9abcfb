"""The laws of advantages of tokens: estimators on whole tensors obey, and each planted fault is seen."""

from dataclasses import dataclass

import pytest
import torch
from torch import Tensor

from seatrial.relations.contracts.estimators import EstimatorInputs, EstimatorSpec
from seatrial.relations.engine import run_relation
from seatrial.relations.oracles.estimators import TokenRow, advantages
from seatrial.relations.registry import select
from seatrial.verdict import Outcome

RELATIONS = select(["R12.estimator", "R5.estimator", "R3.estimator", "R27.estimator"])


@dataclass
class PlainEstimator:
    """Estimators on whole tensors; a fault is one expression that differs."""

    estimator_spec: EstimatorSpec
    fault: str = ""

    def token_advantages(self, inputs: EstimatorInputs) -> tuple[Tensor, Tensor]:
        if self.fault == "in place":
            inputs.rewards_BT[:, 0] += 1.0
        found_BT, returns_BT = getattr(self, f"_{self.estimator_spec.kind}")(inputs)
        if self.estimator_spec.whitened:
            flat = found_BT[inputs.mask_BT.bool()]
            found_BT = (found_BT - flat.mean()) / flat.std(correction=0 if self.fault == "over n" else 1)
        return found_BT * inputs.mask_BT, returns_BT

    def _members(self, inputs: EstimatorInputs) -> Tensor:
        """Return [B, B]: 1 where two rows are of one group."""
        ids = (
            torch.arange(len(inputs.prompt_ids_B)) // 3
            if self.fault == "by position"
            else inputs.prompt_ids_B
        )
        return (ids[:, None] == ids[None, :]).double()

    def _grpo(self, inputs: EstimatorInputs) -> tuple[Tensor, Tensor]:
        same, scores = self._members(inputs), inputs.rewards_BT.sum(1)
        counts = same.sum(1)
        centred = scores - same @ scores / counts
        spread = (
            (same * (scores[None, :] - (same @ scores / counts)[:, None]) ** 2).sum(1) / (counts - 1)
        ).sqrt()
        if self.fault == "floor":
            spread = spread.clamp(min=1e-3)
        if self.estimator_spec.scaled or self.fault == "always scaled":
            centred = centred / (spread + 1e-6)
        found = centred[:, None].expand_as(inputs.mask_BT)
        return found, found

    def _opo(self, inputs: EstimatorInputs) -> tuple[Tensor, Tensor]:
        same, scores = self._members(inputs), inputs.rewards_BT.sum(1)
        lengths = inputs.mask_BT.sum(1)
        if self.fault == "padded lengths":
            lengths = torch.full_like(lengths, inputs.mask_BT.shape[1])
        found = (scores - same @ (scores * lengths) / (same @ lengths))[:, None].expand_as(inputs.mask_BT)
        return found, found

    def _gae(self, inputs: EstimatorInputs) -> tuple[Tensor, Tensor]:
        spec, mask = self.estimator_spec, inputs.mask_BT
        found, following, last = torch.zeros_like(mask), torch.zeros(len(mask)), torch.zeros(len(mask))
        for t in reversed(range(mask.shape[1])):
            on = mask[:, t].bool() | (self.fault == "values of masked tokens")
            error = inputs.rewards_BT[:, t] + spec.gamma * following - inputs.values_BT[:, t]
            last = torch.where(on, error + spec.gamma * spec.lam * last, last)
            following = torch.where(on, inputs.values_BT[:, t], following)
            found[:, t] = last
        return found, found if self.fault == "returns without values" else found + inputs.values_BT


def broken(stack: PlainEstimator, *, tidy: bool = False) -> list[str]:
    """Return the laws that an estimator breaks."""
    verdicts = [run_relation(relation, stack, tidy=tidy) for relation in RELATIONS]
    assert all(verdict.outcome in (Outcome.PASS, Outcome.FAIL) for verdict in verdicts), verdicts
    return [law for verdict in verdicts for law in verdict.details.get("laws_broken", [])]


GRPO, UNSCALED = EstimatorSpec(kind="grpo"), EstimatorSpec(kind="grpo", scaled=False)
GAE = EstimatorSpec(kind="gae", gamma=0.9, lam=0.8, whitened=True)
OPO = EstimatorSpec(kind="opo")


@pytest.mark.parametrize("spec", [GRPO, UNSCALED, GAE, OPO], ids=["grpo", "unscaled", "gae", "opo"])
def test_a_plain_estimator_obeys(spec: EstimatorSpec) -> None:
    assert broken(PlainEstimator(spec)) == []


@pytest.mark.parametrize(
    ("spec", "fault", "law"),
    [
        (GRPO, "by position", "reordered rows"),
        (GRPO, "floor", "advantages of outcomes, rewards close together"),
        (UNSCALED, "always scaled", "advantages of outcomes"),
        (GAE, "over n", "advantages of rewards of tokens"),
        (GAE, "values of masked tokens", "values and log-probabilities of masked tokens"),
        (GAE, "returns without values", "returns of rewards of tokens"),
        (OPO, "padded lengths", "advantages of outcomes"),
        (OPO, "in place", "inputs unchanged"),
    ],
)
def test_a_planted_fault_is_seen(spec: EstimatorSpec, fault: str, law: str) -> None:
    """By the law about it."""
    assert law in broken(PlainEstimator(spec, fault))


def test_tidy_rows_hide_the_length() -> None:
    """With rows of one length, weights by length change nothing."""
    assert broken(PlainEstimator(OPO, "padded lengths"), tidy=True) == []


def _row(prompt_id: int, *rewards: float, variances: tuple[float, ...] = ()) -> TokenRow:
    return TokenRow(
        prompt_id=prompt_id,
        rewards=rewards,
        values=(0.0,) * len(rewards),
        variances=variances or (1.0,) * len(rewards),
        baseline=0.5,
        components=(),
    )


def test_the_oracles_in_closed_form() -> None:
    """A group of rewards 1 and 0, of two tokens and of one."""
    rows = [_row(1, 0.0, 1.0), _row(1, 0.0)]
    assert advantages(rows, EstimatorSpec(kind="rloo")) == [[1.0, 1.0], [-1.0]]
    assert advantages(rows, EstimatorSpec(kind="opo")) == [
        pytest.approx([1 / 3, 1 / 3]),
        pytest.approx([-2 / 3]),
    ]
    assert advantages(rows, EstimatorSpec(kind="remax")) == [[0.5, 0.5], [-0.5]]
    assert advantages(rows, EstimatorSpec(kind="passk", scaled=False)) == [[1.0, 1.0], [0.0]]
    assert advantages(rows, EstimatorSpec(kind="token_baseline")) == [[0.5, 1.0], [-0.5]]
    # Half of the rows have a gradient: the others are doubled.
    assert advantages([*rows, _row(2, 1.0), _row(2, 1.0)], EstimatorSpec(kind="gpg")) == [
        [1.0, 1.0],
        [-1.0],
        [0.0],
        [0.0],
    ]
