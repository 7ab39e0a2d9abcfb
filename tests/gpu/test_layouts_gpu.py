"""Layouts of several processes over NCCL: the same raw gradient as one process on one of the devices.

Each rank has a device of its own, or shares one where NCCL allows it (2.31 and newer, asked by the variable `SHARING`).
"""

from __future__ import annotations

import os
from collections.abc import Callable

import pytest
import torch

from refrl.distributed import SHARING
from seatrial.relations.cases import make_rollout
from seatrial.relations.measures.ranks import (
    GRADIENT_BOUND,
    gradient_error,
    replica_differences,
    tensor_error,
)
from seatrial.targets.reference.layouts.training import layouts, train_alone, train_in_layouts

pytestmark = pytest.mark.gpu

BFLOAT16_BOUND = 2.0**-6
"""Two roundings to eight bits: products of other shapes take other kernels, and round at other places."""
ROWS = make_rollout(3, vocab_size=259, num_prompts=3, num_generations=3).rows


def _room(processes: int) -> bool:
    devices = torch.cuda.device_count()
    return devices >= processes or (devices > 0 and os.environ.get(SHARING) == "1")


@pytest.mark.parametrize(
    "name",
    [
        pytest.param(
            name,
            marks=pytest.mark.skipif(
                not _room(layout.processes),
                reason=f"needs {layout.processes} CUDA devices, or one and NCCL 2.31 with {SHARING}=1",
            ),
        )
        for name, layout in layouts().items()
    ],
)
def test_the_gradient_of_several_ranks_is_that_of_one(
    name: str, record_property: Callable[[str, object], None]
) -> None:
    """Before clipping, on ragged rows, dense and with experts; the ranks end with the same weights, bit for bit.

    What was measured stands in the file of `--junitxml`.
    """
    bound = BFLOAT16_BOUND if layouts()[name].policy.get("precision") == "bfloat16" else GRADIENT_BOUND
    ranks = train_in_layouts([name], ROWS, device="cuda")[name]
    alone = train_alone(name, ROWS, device="cuda")
    error, tensor = gradient_error(ranks[0], alone)
    weights, _ = tensor_error(ranks[0].weights, alone.weights)
    processes, devices = layouts()[name].processes, torch.cuda.device_count()
    record_property("placed", f"{processes} ranks on {min(processes, devices)} devices")
    record_property("measured", f"gradient {error:.1e} at {tensor}; weights {weights:.1e}")
    assert error <= bound, tensor
    assert ranks[0].grad_norm == pytest.approx(alone.grad_norm, rel=bound)
    assert not replica_differences(ranks)
