"""Which engine served a run is read from what the run says of itself."""

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from seatrial.errors import BlockedError
from seatrial.trials.generation import served_by
from seatrial.verdict import Outcome


def evidence(folder: Path) -> Any:
    """Return what the sensor asks of a run's evidence."""
    return SimpleNamespace(job=SimpleNamespace(ledger_dir=folder))


@pytest.mark.parametrize(
    ("library", "info", "outcome"),
    [
        ("vLLM", {"generator": "vllm 0.32.0"}, Outcome.PASS),
        ("vLLM", {"generator": "torch 2.13.0"}, Outcome.FAIL),
        ("vLLM", {}, Outcome.FAIL),
        ("Megatron-core", {"generator": "megatron-core 0.16.1"}, Outcome.PASS),
        ("Megatron-core", {"generator": "vllm 0.32.0"}, Outcome.FAIL),
    ],
)
def test_the_engine_is_what_the_process_said(
    tmp_path: Path, library: str, info: dict[str, str], outcome: Outcome
) -> None:
    """Another engine, or none named, is not the one that was asked for."""
    (tmp_path / "run_info.json").write_text(json.dumps(info))
    assert served_by(library).judge(evidence(tmp_path)).outcome is outcome


@pytest.mark.parametrize("text", [None, "{"])
def test_a_run_that_says_nothing_is_blocked(tmp_path: Path, text: str | None) -> None:
    """Missing and damaged alike."""
    if text is not None:
        (tmp_path / "run_info.json").write_text(text)
    with pytest.raises(BlockedError, match=r"run_info\.json cannot be read"):
        served_by("vLLM").judge(evidence(tmp_path))
