"""Failures of CUDA graphs, provoked on an H200 with PyTorch 2.11 (`provoke_cuda_graphs.py`).

Labelled before triage saw them: on the first look 4 of these 9 boundaries were right, and four logs were named by no
row. `generator`, `replay` and `transfer` ended alike, at the first matrix product inside a capture: one log is kept.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from seatrial.triage.diagnose import diagnose_file

LOGS = Path(__file__).with_name("logs_cuda_graphs")
LABELLED: dict[str, tuple[str, str]] = {
    "callables": ("consumer", "cuda-graph-warmup"),
    "default-stream": ("consumer", "cuda-graph-capture"),
    "first-product": ("consumer", "cuda-fault"),
    "item": ("consumer", "cuda-graph-capture"),
    "memory": ("environment", "gpu-memory"),
    "nonzero": ("consumer", "cuda-graph-capture"),
    "overwritten": ("consumer", "cuda-graph-capture"),
    "token": ("producer", "token-range-on-gpu"),
    "warmup": ("consumer", "cuda-graph-warmup"),
}
"""By the name of a log: the boundary, written down first, and the row of the table."""


@pytest.mark.parametrize("name", LABELLED)
def test_a_failure_of_cuda_graphs_is_named(name: str) -> None:
    """The boundary and the row."""
    boundary, row = LABELLED[name]
    pattern = diagnose_file(LOGS / f"{name}.log").pattern
    assert pattern is not None
    assert (pattern.boundary, pattern.id) == (boundary, row)


def test_every_log_has_a_label() -> None:
    """None lies there unread."""
    assert {path.stem for path in LOGS.glob("*.log")} == set(LABELLED)


def test_what_failed_first_is_shown_where_the_end_of_the_capture_fails_after_it() -> None:
    """The call inside the capture, not the error that its end raises while the first one is handled."""
    error = diagnose_file(LOGS / "item.log").error
    assert error is not None
    assert "operation not permitted when stream is capturing" in error.text
    assert "previous error during capture" not in error.text
