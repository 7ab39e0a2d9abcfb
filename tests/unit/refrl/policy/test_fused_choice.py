"""What computes a training pass is chosen by device, model and options, and named."""

from __future__ import annotations

import pytest

from .conftest import MakePolicy


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        ({}, "the model is on cpu"),
        ({"fused_kernels": False}, "policy.fused_kernels=false"),
        ({"activation_checkpointing": True}, "policy.activation_checkpointing=true"),
    ],
)
def test_a_run_names_why_its_passes_are_not_fused(
    make_policy: MakePolicy,
    options: dict[str, object],
    reason: str,
) -> None:
    assert make_policy(**options).backend.kernels == f"the model's own: {reason}"
