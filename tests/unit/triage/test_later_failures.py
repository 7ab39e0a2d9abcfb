"""Failures provoked for real (`provoke_later.py`, Slurm 22.05's own programs), labelled before triage saw them.

The boundary is the label; it is not changed by what triage says. On the first look the table as it then was named 28 of
these 46 rightly; it was mended since, by cause.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from seatrial.triage.diagnose import diagnose_file

LOGS = Path(__file__).with_name("logs_later")
LABELLED: dict[str, tuple[str, str]] = {
    "ray-segfault": ("consumer", "native-crash"),
    "ray-start": ("environment", "ray-start"),
    "seed-bridge": ("environment", "missing-package"),
    "seed-helpers": ("environment", "helpers-cpp"),
    "seed-hub-down": ("environment", "hub-unreachable"),
    "seed-hub-limit": ("environment", "hub-rate-limit"),
    "seed-link": ("environment", "disk-full"),
    "seed-lora": ("loader", "lora-targets"),
    "seed-metric": ("metric", "mult-prob-error"),
    "seed-refit-manifest": ("producer", "refit-producer"),
    "seed-refit-undecoded": ("consumer", "refit-undecoded"),
    "seed-refit-unprepared": ("producer", "refit-producer"),
    "seed-tp-guard": ("environment", "tp-accuracy-guard"),
    "seed-two-backends": ("environment", "wrong-policy-backend"),
    "slurm-cancelled": ("environment", "slurm-preempted"),
    "slurm-gres": ("environment", "slurm-refused"),
    "slurm-mem": ("environment", "slurm-refused"),
    "slurm-partition": ("environment", "slurm-refused"),
    "slurm-preempted": ("environment", "slurm-preempted"),
    "slurm-time-limit": ("environment", "slurm-time-limit"),
    "srun-damaged": ("loader", "checkpoint-load"),
    "srun-data": ("environment", "data-missing"),
    "srun-device": ("environment", "no-gpu"),
    "torchrun-alone": ("transport", "rendezvous"),
    "torchrun-batch": ("producer", "data-column"),
    "torchrun-counts": ("transport", "gloo-refused"),
    "torchrun-import": ("environment", "missing-package"),
    "torchrun-nan": ("metric", "sampling-nan"),
    "torchrun-state": ("loader", "checkpoint-load"),
    "torchrun-waits": ("transport", "peer-gone"),
    "trl-answer": ("producer", "verifier"),
    "trl-bf16": ("environment", "no-gpu"),
    "trl-cut-checkpoint": ("loader", "checkpoint-load"),
    "trl-dpo-column": ("producer", "data-column"),
    "trl-nan-weights": ("metric", "sampling-nan"),
    "trl-no-checkpoint": ("loader", "checkpoint-load"),
    "trl-no-vllm": ("environment", "missing-package"),
    "trl-short-rewards": ("producer", "verifier"),
    "trl-small-vocabulary": ("producer", "token-range"),
    "vllm-damaged": ("loader", "checkpoint-load"),
    "vllm-length": ("consumer", "engine-arguments"),
    "vllm-no-model": ("environment", "no-model-there"),
    "vllm-option": ("environment", "wrong-package-version"),
    "vllm-refit": ("loader", "weights-refused"),
    "vllm-shape": ("loader", "weights-refused"),
    "vllm-token": ("producer", "token-range"),
}
"""By the name of a log: the boundary, written down first, and the row of the table."""


@pytest.mark.parametrize("name", LABELLED)
def test_a_labelled_failure_is_named(name: str) -> None:
    """The boundary and the row."""
    boundary, row = LABELLED[name]
    pattern = diagnose_file(LOGS / f"{name}.log").pattern
    assert pattern is not None
    assert (pattern.boundary, pattern.id) == (boundary, row)


def test_every_log_has_a_label() -> None:
    """None lies there unread, and each part of a stack is there."""
    assert {path.stem for path in LOGS.glob("*.log")} == set(LABELLED)
    assert {name.partition("-")[0] for name in LABELLED} >= {
        "ray",
        "seed",
        "slurm",
        "srun",
        "torchrun",
        "trl",
        "vllm",
    }


def test_the_rank_that_raised_speaks_where_another_noticed() -> None:
    """torchrun saw rank 0 fail first, whose connection was closed; rank 1 could not read a checkpoint."""
    error = diagnose_file(LOGS / "torchrun-state.log").error
    assert error is not None
    assert error.who == "rank 1"
    assert "PytorchStreamReader failed" in error.text
