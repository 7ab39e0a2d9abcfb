"""What R2 and R25 measure: a partial gradient, a lost tensor, a doubled metric and a drifted replica are all seen."""

from dataclasses import replace

import pytest
import torch

from seatrial.relations.contracts.parallel import RankRecord
from seatrial.relations.measures.ranks import (
    GRADIENT_BOUND,
    counts,
    gradient_error,
    metric_error,
    replica_differences,
    tensor_error,
)

GRADIENTS = {
    "q_proj.weight": torch.full((4, 4), 3.0),
    "q_norm.weight": torch.tensor([0.5, -0.25]),
    "k_proj.bias": torch.tensor([1e-9, -2e-9]),
}
RECORD = RankRecord(
    backend="dtensor",
    mesh={"data": 2},
    logprobs_BT=torch.zeros(1, 2),
    reference_logprobs_BT=torch.zeros(1, 2),
    gradients=GRADIENTS,
    grad_norm=12.0,
    metrics={"loss": -0.25, "global_valid_toks": 12.0},
    later_metrics=(),
    weights={"q_norm.weight": torch.ones(2)},
    random_streams_untouched=True,
)


def changed(name: str, gradient: torch.Tensor) -> RankRecord:
    """Return the record with another gradient of one tensor."""
    return replace(RECORD, gradients={**GRADIENTS, name: gradient})


def test_a_gradient_of_half_the_heads_is_seen() -> None:
    """However small the norm's gradient is beside the others: the error is relative to each tensor."""
    error, name = gradient_error(changed("q_norm.weight", GRADIENTS["q_norm.weight"] / 2), RECORD)
    assert (error, name) == (pytest.approx(0.5), "q_norm.weight")


def test_rounding_where_the_gradient_is_nothing_is_not() -> None:
    """A bias of keys moves no attention weight: its gradient is what rounding left."""
    error, _ = gradient_error(changed("k_proj.bias", -GRADIENTS["k_proj.bias"]), RECORD)
    assert error <= GRADIENT_BOUND


def test_nan_and_lost_tensors_never_agree() -> None:
    """Neither is a small error."""
    nan = changed("q_norm.weight", torch.tensor([0.5, float("nan")]))
    assert not gradient_error(nan, RECORD)[0] <= GRADIENT_BOUND
    lost = {name: value for name, value in GRADIENTS.items() if name != "q_norm.weight"}
    assert tensor_error(lost, GRADIENTS) == (float("inf"), "q_norm.weight")
    assert tensor_error({}, {})[0] == float("inf")


def test_metrics_counted_once_a_copy_are_seen() -> None:
    """A count that is doubled, and a scalar that only one side has."""
    doubled = {**RECORD.metrics, "global_valid_toks": 24.0}
    assert metric_error(counts(doubled), counts(RECORD.metrics)) == (1.0, "global_valid_toks")
    assert not metric_error({"loss": -0.25}, RECORD.metrics)[0] <= 1


def test_a_replica_that_drifts_by_one_bit_is_named() -> None:
    """With its rank."""
    drifted = replace(RECORD, weights={"q_norm.weight": torch.nextafter(torch.ones(2), torch.tensor(2.0))})
    assert replica_differences([RECORD, RECORD]) == []
    assert replica_differences([RECORD, drifted]) == ["q_norm.weight on rank 1"]
