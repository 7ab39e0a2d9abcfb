"""A nightly of NeMo RL's form, bisected as its guide says: a shallow clone, Slurm, killed twice on the way."""

from __future__ import annotations

import contextlib
import json
import signal
import subprocess
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

pytestmark = pytest.mark.e2e

TEST_CASE = "tests/test_suites/llm/sft-tiny-2n8g.v1.sh"
CULPRIT, COMMITS = 5, 8

_COMMON = """\
set -eou pipefail
EXP_NAME=$(basename "$0" .sh)
EXP_DIR=$(dirname "$0")/$EXP_NAME
mkdir -p "$EXP_DIR/ckpts" "$EXP_DIR/logs"
"""

_SCRIPT = """\
#!/bin/bash
source $(dirname "$0")/common.env
# ===== BEGIN CONFIG =====
NUM_NODES=2
GPUS_PER_NODE=8
STEPS_PER_RUN=10
MAX_STEPS=20
NUM_RUNS=$(( (MAX_STEPS + STEPS_PER_RUN - 1) / STEPS_PER_RUN ))  # Round up
NUM_MINUTES=30
# ===== END CONFIG =====
test -d "$HF_HOME"
test -n "$RAY_ADDRESS"
git rev-parse HEAD >> "$HF_HOME/asked"
echo "$SEATRIAL_RUN_NUMBER $SLURM_PROCID" >> "$HF_HOME/ran"
done=$(cat "$EXP_DIR/ckpts/step" 2>/dev/null || echo 0)
sleep 0.2
echo $((done + STEPS_PER_RUN)) > "$EXP_DIR/ckpts/step"
loss=$(cat loss)
echo "{\\"train/loss\\": {\\"$((done + STEPS_PER_RUN))\\": $loss}}" > "$EXP_DIR/metrics.json"
if [ "$(cat "$EXP_DIR/ckpts/step")" -ge "$MAX_STEPS" ]; then
    grep -q '"20": 0.5' "$EXP_DIR/metrics.json"
fi
"""


def _origin(make_repository: Callable[..., Any]) -> tuple[Any, list[str]]:
    repository = make_repository("origin")
    hashes = [repository.commit({"loss": "0.5\n"}, "before the test")]
    for number in range(COMMITS):
        files = {
            TEST_CASE: _SCRIPT, str(Path(TEST_CASE).parent / "common.env"): _COMMON,
            "loss": f"{0.9 if number >= CULPRIT else 0.5}\n", "n": f"{number}\n",
        }  # fmt: skip
        hashes.append(repository.commit(files, f"change {number}"))
    return repository, hashes[1:]


@pytest.mark.nightly
@pytest.mark.timeout(600)
def test_a_nightly_is_bisected_from_a_shallow_clone_though_it_is_killed_twice(
    make_repository: Callable[..., Any],
    bisect: Callable[..., Any],
    start_bisect: Callable[..., subprocess.Popen[bytes]],
    stand_ins: dict[str, str],
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
) -> None:
    origin, hashes = _origin(make_repository)
    clone = type(origin)(tmp_path / "clone")
    origin.git("clone", "-q", "--depth", "3", f"file://{origin.path}", str(clone.path))
    before = clone.state()
    home = tmp_path / "hf"
    home.mkdir()
    site = {
        **stand_ins, "ACCOUNT": "a", "PARTITION": "p", "CONTAINER": "stack:1", "MOUNTS": f"{home}:{home}",
        "HF_HOME": str(home), "HF_DATASETS_CACHE": str(home), "SED_CLAUSES": "s/^NUM_MINUTES=.*/NUM_MINUTES=45/",
    }  # fmt: skip
    good = origin.git("log", "--format=%h", "--diff-filter=A", "--", TEST_CASE).strip()
    words = ["--launcher", "slurm", "--poll", "0.3", "--launch-option=--qos=debug", "--noise", "none"]
    words += ["--good", good, "--bad", "HEAD", "--", "bash", TEST_CASE]
    for name, value in site.items():
        monkeypatch.setenv(name, value)
    state = tmp_path / "state"
    for results, number in ((1, signal.SIGKILL), (3, signal.SIGTERM)):
        process = start_bisect(clone, state, *words)
        _when(lambda results=results: _results(state) >= results and _is_running(state), process)
        process.send_signal(number)
        process.wait(timeout=120)
        assert clone.state() == before
        (journal,) = state.glob("*/journal.jsonl")
        words = ["--resume", str(journal)]
    called = bisect(clone, *words, **site)
    assert called.returncode == 0, called.out + called.err
    assert called.suspects() == [hashes[CULPRIT]]
    assert clone.state() == before
    jobs = [json.loads(path.read_text()) for path in sorted((tmp_path / "jobs").glob("1*.json"))]
    for job in jobs:
        assert {"--nodes=2", "--gres=gpu:8", "--time=45", "--qos=debug"} <= set(job["options"])
    # A job of the chain for each half, on the first node alone; those that were under way at a kill were cancelled.
    runs = [entry for entry in map(json.loads, journal.read_text().splitlines()) if entry["kind"] == "result"]
    ran = [line.split() for line in (home / "ran").read_text().splitlines()]
    of_finished = [number for number, _ in ran if int(number) in {run["number"] for run in runs}]
    assert set(Counter(of_finished).values()) == {2}
    assert {rank for _, rank in ran} == {"0"}
    assert set((home / "asked").read_text().split()) <= set(hashes)
    assert sum(job["state"] == "CANCELLED" for job in jobs) >= 1


def _results(state: Path) -> int:
    return sum(path.read_text().count('"kind": "result"') for path in state.glob("*/journal.jsonl"))


def _is_running(state: Path) -> bool:
    """Return whether the newest run has a job and no status yet."""
    runs = sorted(state.glob("*/runs/*"))
    return bool(runs) and (runs[-1] / "started.json").exists() and not (runs[-1] / "exit_status").exists()


def _when(found: Callable[[], bool], process: subprocess.Popen[bytes]) -> None:
    """Return as soon as something is so, while the command runs."""
    while not found():
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(timeout=0.05)
            raise AssertionError("the command ended first")
