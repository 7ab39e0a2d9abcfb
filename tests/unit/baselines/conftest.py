"""Runs made by hand: a trajectory with noise between runs, as logs and as files."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
import pytest

from seatrial.comparisons.baselines import Baseline, Provenance, learn
from seatrial.evidence.runlog import RunLog, Series

PROVENANCE = Provenance(commit="0" * 40, dirty=False, packages={}, host={})
Learn = Callable[..., Baseline]
WriteRuns = Callable[..., list[Path]]


def make_log(values: Sequence[float], tag: str = "train/loss", first_step: int = 1) -> RunLog:
    steps = np.arange(first_step, first_step + len(values))
    series = Series(tag=tag, steps=steps, values=np.array(values, dtype=float))
    return RunLog(sources=["by hand"], series={tag: series})


def noisy_runs(
    num_runs: int, seed: int, *, shift: float = 0.0, num_steps: int = 20, step_noise: float = 0.3
) -> list[RunLog]:
    """Each run is off by a normal number of its own (sd 1) at all steps, with small noise at each step."""
    random = np.random.default_rng(seed)
    curve = 100 * np.exp(-np.arange(num_steps) / 5)
    return [
        make_log(
            list(curve + random.normal() + shift + step_noise * random.normal(size=num_steps)),
        )
        for _ in range(num_runs)
    ]


def learned(runs: Sequence[RunLog], **changes: object) -> Baseline:
    settings = {"window": 10, "provenance": PROVENANCE, **changes}
    tags = list(runs[0].series)
    baseline, faults = learn({f"run {number}": run for number, run in enumerate(runs)}, tags, **settings)
    assert baseline is not None, faults
    return baseline


@pytest.fixture
def write_runs(tmp_path: Path) -> WriteRuns:
    """Return a function that writes runs as metrics.json, each in a folder of its own."""

    def write(runs: Sequence[RunLog], name: str = "run") -> list[Path]:
        places = []
        for number, run in enumerate(runs):
            folder = tmp_path / f"{name}-{number}"
            folder.mkdir()
            content = {
                tag: {
                    str(step): value for step, value in zip(series.steps, series.values.tolist(), strict=True)
                }
                for tag, series in run.series.items()
            }
            (folder / "metrics.json").write_text(json.dumps(content))
            places.append(folder)
        return places

    return write
