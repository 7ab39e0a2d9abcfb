"""The Megatron-core policy on CUDA: one GPU against the Hugging Face model there, two GPUs over NCCL against one."""

from pathlib import Path

import pytest
import torch
from tests.unit.refrl.policy.megatron.conftest import models as models  # a fixture
from tests.unit.refrl.policy.megatron.layouts import TWO, Layout, above, measure

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
]
TOLERANCE = 1e-4
"""Of float32 on a GPU, whose sums are ordered otherwise than a CPU's."""


def test_one_gpu_computes_what_the_hugging_face_model_does(models: dict[str, Path], tmp_path: Path) -> None:
    layouts = {family: Layout(family) for family in models} | {"packed": Layout("qwen3", packs=True)}
    results = measure(layouts, models, tmp_path, size=1, device="cuda")
    print(results)
    assert above(results, list(layouts), TOLERANCE) == {}


@pytest.mark.skipif(torch.cuda.device_count() < 2, reason="needs two CUDA devices")
def test_two_gpus_compute_what_one_does(models: dict[str, Path], tmp_path: Path) -> None:
    results = measure(TWO, models, tmp_path, size=2, device="cuda")
    print(results)
    assert above(results, list(TWO), TOLERANCE) == {}
