"""The laws of scalars under a stack's own names: a plain log obeys, and each planted fault is seen."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import pytest
import torch
from torch import Tensor

from seatrial.relations.cases import make_rollout
from seatrial.relations.contracts.named_metrics import MetricPart, MetricSpec
from seatrial.relations.engine import run_relation
from seatrial.relations.facts import StackFacts
from seatrial.relations.oracles.metrics import metric
from seatrial.relations.registry import select
from seatrial.relations.tensors import inputs_of
from seatrial.verdict import Outcome

SPECS = {
    "actor/ppo_kl": MetricSpec(quantity="old_minus_current"),
    "actor/clipfrac": MetricSpec(quantity="clipped", clip=(0.2, 0.28)),
    "actor/entropy": MetricSpec(quantity="entropy", over="row_means"),
    "reward/mean": MetricSpec(quantity="reward", over="rows"),
    "length/max": MetricSpec(quantity="length", over="rows", how="max"),
    "ratio/min": MetricSpec(quantity="ratio", how="min"),
}


@dataclass
class PlainLog:
    """Sums of numerators and counts over all parts; a fault is one line that differs."""

    fault: str = ""
    metric_specs: Mapping[str, MetricSpec] = field(default_factory=lambda: SPECS)
    facts: StackFacts = StackFacts()  # noqa: RUF009  frozen

    def named_metrics(self, ranks: Sequence[Sequence[MetricPart]]) -> Mapping[str, float]:
        """Return the scalars of all parts together."""
        if self.fault == "first rank":
            ranks = ranks[:1]
        logged = [self._parts(rank) for rank in ranks]
        if self.fault == "mean over ranks":
            of_ranks = [self._merged(parts) for parts in logged]
            return {name: sum(one[name] for one in of_ranks) / len(of_ranks) for name in SPECS}
        return self._merged([part for parts in logged for part in parts])

    def _parts(self, rank: Sequence[MetricPart]) -> list[dict[str, tuple[Tensor, float]]]:
        return [self._part(part) for part in (rank[-1:] if self.fault == "last micro-batch" else rank)]

    def _part(self, part: MetricPart) -> dict[str, tuple[Tensor, float]]:
        """Return (sum or extremum, count) of each."""
        inputs, rows = part.inputs, part.rows
        mask = inputs.mask_BT
        if self.fault == "attention mask":
            lengths = torch.tensor([len(row.completion_ids) for row in rows])
            mask = (torch.arange(mask.shape[1]) < lengths[:, None]).to(mask)
        real = mask.bool()
        current, old, entropy = (
            values.detach() if self.fault == "multiplies" else values.detach().where(real, 0.0)
            for values in (inputs.logprobs_BT, inputs.old_logprobs_BT, inputs.entropy_BT)
        )
        ratio = (current - old).exp()
        difference = current - old if self.fault == "inverted" else old - current
        advantages = inputs.advantages_B[:, None]
        clipped = ((ratio < 0.8) & (advantages < 0)) | ((ratio > 1.28) & (advantages > 0))
        if self.fault == "sign of the advantage":
            clipped = (ratio < 0.8) | (ratio > 1.28)
        trained = mask.sum(1) > 0
        means = (entropy * mask).sum(1) / mask.sum(1).clamp_min(1)
        rewards = torch.tensor([row.reward for row in rows]).double()
        values_of_all = (
            ratio * mask if self.fault == "extrema over padding" else ratio.where(real, float("inf"))
        )
        return {
            "actor/ppo_kl": ((difference * mask).sum(), float(mask.sum())),
            "actor/clipfrac": ((clipped * mask).sum(), float(mask.sum())),
            "actor/entropy": (
                means.sum(),
                float(len(rows) if self.fault == "all rows" else trained.sum()),
            ),
            "reward/mean": (rewards[trained].sum(), float(trained.sum())),
            "length/max": (inputs.mask_BT.sum(1).max(), 1.0),
            "ratio/min": (values_of_all.min() if self.fault != "never moves" else torch.tensor(1.0), 1.0),
        }

    def _merged(self, parts: Sequence[Mapping[str, tuple[Tensor, float]]]) -> dict[str, float]:
        merged = {}
        for name, spec in SPECS.items():
            sums, counts = zip(*(part[name] for part in parts), strict=True)
            if spec.how in ("min", "max") and self.fault != "extrema averaged":
                merged[name] = float(min(sums) if spec.how == "min" else max(sums))
            elif self.fault == "mean of means":
                merged[name] = sum(float(one) / count for one, count in zip(sums, counts, strict=True)) / len(
                    parts
                )
            else:
                merged[name] = float(sum(sums)) / sum(counts)
        if self.fault == "not logged":
            del merged["reward/mean"]
        return merged


def broken(stack: PlainLog, *, tidy: bool = False) -> list[str]:
    """Return the laws that a log breaks."""
    (relation,) = select(["R22.named"])
    verdict = run_relation(relation, stack, seeds=[0], tidy=tidy)
    assert verdict.outcome in (Outcome.PASS, Outcome.FAIL), verdict
    return list(verdict.details.get("laws_broken", []))


def test_a_plain_log_obeys() -> None:
    """Every law, on the made rows and on tidy ones."""
    assert broken(PlainLog()) == []
    assert broken(PlainLog(), tidy=True) == []


@pytest.mark.parametrize(
    ("fault", "law"),
    [
        ("inverted", "means and sums, lengths unequal"),
        ("sign of the advantage", "means and sums, lengths unequal"),
        ("not logged", "means and sums, lengths unequal"),
        ("attention mask", "means and sums, tool output inside"),
        ("all rows", "means and sums, a row without a training token"),
        ("multiplies", "means and sums, anything in the padding"),
        ("last micro-batch", "means and sums, micro-batches of unequal numbers of tokens"),
        ("last micro-batch", "means and sums, micro-batches of equal numbers of tokens"),
        ("mean of means", "means and sums, micro-batches of unequal numbers of tokens"),
        ("first rank", "means and sums, ranks of unequal numbers of tokens"),
        ("mean over ranks", "means and sums, ranks of unequal numbers of tokens"),
        ("extrema averaged", "extrema, micro-batches"),
        ("extrema over padding", "extrema, lengths unequal"),
        ("extrema over padding", "extrema, micro-batches"),
        ("mean over ranks", "extrema, ranks"),
        ("never moves", "not constant"),
    ],
)
def test_a_planted_fault_is_seen(fault: str, law: str) -> None:
    """By the law about it."""
    assert law in broken(PlainLog(fault))


@pytest.mark.parametrize(
    "fault", ["attention mask", "mean of means", "mean over ranks", "multiplies", "all rows"]
)
def test_tidy_rows_hide_it(fault: str) -> None:
    """Rows of one length that train whole: every mean is a mean of means, and minima alone tell of ranks."""
    seen = broken(PlainLog(fault), tidy=True)
    assert [law for law in seen if not law.startswith("extrema")] == []


def test_the_oracle_of_two_rows_in_closed_form() -> None:
    """A row of one token with entropy a and one of n: the mean of rows is the mean of both rows' own."""
    rows = make_rollout(0, masked_row=False).rows[:2]
    inputs = inputs_of(make_rollout(0, masked_row=False), rows)
    means = [
        float(values[mask.bool()].mean())
        for values, mask in zip(inputs.entropy_BT, inputs.mask_BT, strict=True)
    ]
    assert metric(SPECS["actor/entropy"], inputs, rows) == pytest.approx(sum(means) / 2)
    assert metric(SPECS["length/max"], inputs, rows) == max(sum(row.completion_mask) for row in rows)
    with pytest.raises(ValueError, match="no quantity of a row"):
        metric(MetricSpec(quantity="ratio", over="rows"), inputs, rows)
