"""Layouts of two processes over NCCL: the same raw gradient as one process on one of the two devices."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

from seatrial.relations.cases import make_rollout
from seatrial.relations.parallel import GRADIENT_BOUND, gradient_error, replica_differences, tensor_error
from seatrial.targets.reference.layouts import layouts, train_alone, train_in_layouts

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(torch.cuda.device_count() < 2, reason="needs two CUDA devices"),
]

ROWS = make_rollout(3, vocab_size=259, num_prompts=3, num_generations=3).rows
OF_TWO = [name for name, layout in layouts().items() if layout.processes == 2]


@pytest.mark.parametrize("name", OF_TWO)
def test_the_gradient_of_two_devices_is_that_of_one(
    name: str, record_property: Callable[[str, object], None]
) -> None:
    """Before clipping, on ragged rows, dense and with experts; the ranks end with the same weights, bit for bit.

    What was measured stands in the file of `--junitxml`.
    """
    ranks = train_in_layouts([name], ROWS, device="cuda")[name]
    alone = train_alone(name, ROWS, device="cuda")
    error, tensor = gradient_error(ranks[0], alone)
    weights, _ = tensor_error(ranks[0].weights, alone.weights)
    record_property("measured", f"gradient {error:.1e} at {tensor}; weights {weights:.1e}")
    assert error <= GRADIENT_BOUND, tensor
    assert ranks[0].grad_norm == pytest.approx(alone.grad_norm, rel=GRADIENT_BOUND)
    assert not replica_differences(ranks)
