"""Layouts of processes over gloo: raw gradients, scores, metrics and weights are those of one process."""

from collections.abc import Sequence

import pytest

from seatrial.relations.cases import make_rollout
from seatrial.relations.contracts.parallel import RankRecord
from seatrial.relations.measures.ranks import (
    GRADIENT_BOUND,
    counts,
    gradient_error,
    metric_error,
    replica_differences,
    tensor_error,
)
from seatrial.targets.reference.layouts.training import layouts, train_alone, train_in_layouts
from seatrial.targets.reference.runs.forking import RANK_COMMAND

pytestmark = pytest.mark.usefixtures("forked_processes")

ROWS = make_rollout(3, vocab_size=259, num_prompts=3, num_generations=3).rows


def check(name: str, ranks: Sequence[RankRecord]) -> None:
    """Hold every rank of a layout to one process."""
    alone = train_alone(name, ROWS)
    assert len(ranks) == layouts()[name].processes
    assert not replica_differences(ranks)
    for record in ranks:
        error, tensor = gradient_error(record, alone)
        assert error <= GRADIENT_BOUND, f"{name}: {tensor}"
        assert record.grad_norm == pytest.approx(alone.grad_norm, rel=GRADIENT_BOUND)
        assert metric_error(record.metrics, alone.metrics)[0] <= 1e-4
        assert counts(record.metrics) == counts(alone.metrics)
        assert tensor_error(record.weights, alone.weights)[0] <= 1e-4
        assert float((record.logprobs_BT - alone.logprobs_BT).abs().max()) <= 1e-4
        assert record.random_streams_untouched


def test_a_planted_fault_reaches_the_processes_of_a_layout(monkeypatch: pytest.MonkeyPatch) -> None:
    """Gradients averaged, and not summed: half of what one process has."""
    monkeypatch.setenv(RANK_COMMAND, "seatrial.faults.ranks spread-gradients-averaged")
    record, _ = train_in_layouts(["fsdp2"], ROWS)["fsdp2"]
    assert gradient_error(record, train_alone("fsdp2", ROWS))[0] == pytest.approx(0.5, rel=1e-4)


@pytest.mark.nightly
@pytest.mark.parametrize("processes", [2, 4])
def test_every_layout_trains_as_one(processes: int) -> None:
    """Every commit holds those of two processes to R2 and R25 (tests/unit/relations/test_reference.py)."""
    names = [name for name, layout in layouts().items() if layout.processes == processes]
    found = train_in_layouts(names, ROWS)
    for name in names:
        check(name, found[name])
