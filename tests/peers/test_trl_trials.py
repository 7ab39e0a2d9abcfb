"""`seatrial run --target trl`: TRL's own trainers are run, and judged by what they left.

All of it is for the night; test_trl_ledger.py and test_trl_vocabulary.py judge shorter runs of TRL with every run.
"""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

pytestmark = [pytest.mark.peer, pytest.mark.slow, pytest.mark.timeout(1500)]


@pytest.fixture(scope="module")
def trials(
    peer_python: Callable[[str], Path], repository: Path, tmp_path_factory: pytest.TempPathFactory
) -> Callable[..., tuple[int, dict[str, Any]]]:
    """Return a function that runs trials in TRL's environment and gives the exit code and the results."""
    python = peer_python("trl")

    def run(*words: str) -> tuple[int, dict[str, Any]]:
        folder = tmp_path_factory.mktemp("trials")
        command = [str(python), "-m", "seatrial", "run", "--target", "trl", "--output", str(folder), *words]
        ran = subprocess.run(
            command,
            env={**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": str(repository / "src")},
            capture_output=True,
            text=True,
            timeout=1400,
            check=False,
        )
        found = list(folder.glob("*/results.json"))
        assert found, ran.stdout[-2000:] + ran.stderr[-3000:]
        return ran.returncode, json.loads(found[0].read_text())

    return run


def verdicts_of(results: dict[str, Any], trial: str) -> dict[str, dict[str, Any]]:
    """Verdicts of a trial by name."""
    (found,) = [one for one in results["trials"] if one["name"] == trial]
    return {verdict["name"]: verdict for verdict in found["verdicts"]}


@pytest.mark.nightly
def test_a_smoke_of_grpo_passes(trials: Callable[..., tuple[int, dict[str, Any]]]) -> None:
    """What TRL writes is judged; what it never writes is not asked, by name."""
    code, results = trials("--level", "0")
    verdicts = verdicts_of(results, "grpo-smoke")
    assert code == 0, [verdict for verdict in verdicts.values() if verdict["outcome"] == "Fail"]
    passed = {name for name, verdict in verdicts.items() if verdict["outcome"] == "Pass"}
    assert passed >= {
        "training ends with status 0",
        "steps reached",
        "every series finite",
        'max(data["train/clip_ratio/region_mean"]) <= 0',
        'min(data["train/grad_norm"]) > 0',
        "every trainable tensor moved",
        "ledger: every trained row is there, once",
        "ledger: rewards recomputed equal the logged",
        "ledger: advantages recomputed equal the logged",
    }
    not_asked = [verdict for verdict in verdicts.values() if verdict["outcome"] == "NotRequested"]
    assert len(not_asked) == 3
    assert all("the stack does not log" in verdict["reason"] for verdict in not_asked)


@pytest.mark.nightly
def test_a_run_that_trains_nothing_is_seen(trials: Callable[..., tuple[int, dict[str, Any]]]) -> None:
    """It ends with status 0 all the same, and logs a loss and a gradient at every step."""
    code, results = trials("--level", "0", "learning_rate=0.0")
    verdicts = verdicts_of(results, "grpo-smoke")
    assert code == 1
    assert verdicts["training ends with status 0"]["outcome"] == "Pass"
    assert verdicts['min(data["train/grad_norm"]) > 0']["outcome"] == "Pass"
    assert "did not move" in verdicts["every trainable tensor moved"]["reason"]


@pytest.mark.nightly
@pytest.mark.parametrize("level", ["1", "6"])
def test_higher_levels_pass(trials: Callable[..., tuple[int, dict[str, Any]]], level: str) -> None:
    """Adapters, checkpoints, a resume, and a rise of the reward on held-out prompts over three seeds."""
    code, results = trials("--level", level)
    failed = [
        (trial["name"], verdict["name"], verdict["reason"])
        for trial in results["trials"]
        for verdict in trial["verdicts"]
        if verdict["outcome"] in ("Fail", "Blocked")
    ]
    assert code == 0, failed
