"""However a model is spread over processes, scores, raw gradients, updates and state are those of one process."""

from pathlib import Path

import pytest
import torch
from tests.unit.refrl.policy.megatron.layouts import FOUR, TWO, above, measure

pytestmark = pytest.mark.skipif(
    torch.cuda.is_available(), reason="Megatron-core takes the CUDA devices: tests/gpu/test_megatron_gpu.py"
)
TOLERANCE = 1e-5
COMMON = ("TP2, SP, tied", "PP2, tied", "PP2, tied, adapters")
"""Weights that two layers share, also frozen; every commit holds the others of two ranks to R2, the night to this."""


@pytest.mark.nightly
def test_two_processes_compute_what_one_does(models: dict[str, Path], tmp_path: Path) -> None:
    chosen = {name: TWO[name] for name in COMMON}
    assert above(measure(chosen, models, tmp_path, size=2, device="cpu"), COMMON, TOLERANCE) == {}


@pytest.mark.nightly
@pytest.mark.parametrize(("size", "layouts"), [(2, TWO), (4, FOUR)])
def test_every_layout_computes_what_one_process_does(
    models: dict[str, Path], tmp_path: Path, size: int, layouts: dict[str, object]
) -> None:
    results = measure(layouts, models, tmp_path, size=size, device="cpu")  # type: ignore[arg-type]
    assert above(results, list(layouts), TOLERANCE) == {}
