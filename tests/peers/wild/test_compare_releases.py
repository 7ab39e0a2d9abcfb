"""`seatrial compare` on two releases of TRL names exactly the laws that are recorded for the pair."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from tests.peers.making import PEERS
from tests.peers.wild.runner import ORDINARY, RECORD, ROOT, layer

from seatrial.compare.session import RELATIONS
from seatrial.compare.verdicts import BROKE, FIXED, KIND
from seatrial.trials.rundir import read_results

pytestmark = [pytest.mark.peer, pytest.mark.slow, pytest.mark.nightly, pytest.mark.timeout(1800)]

NAMES = ("trl-6439-truncated-norm", "trl-6357-gkd-eos")
"""Two bugs that TRL 1.8.0 has and 1.9.0 has not."""


@pytest.mark.parametrize(
    ("sides", "kind", "code"), [(("fixed", "buggy"), BROKE, 1), (("buggy", "fixed"), FIXED, 0)]
)
def test_exactly_the_recorded_laws_are_named(
    sides: tuple[str, str], kind: str, code: int, tmp_path: Path, peer_python: Callable[[str], Path]
) -> None:
    pairs = [pair for pair in ORDINARY if pair["name"] in NAMES]
    recorded = {row["name"]: row for row in json.loads(RECORD.read_text())}
    expected = {
        f"{pair['adapter']}: {law}"
        for pair in pairs
        for law in recorded[pair["name"]]["buggy_breaks"]
        if law not in recorded[pair["name"]]["fixed_breaks"]
    }
    python = peer_python("wild")
    places = [layer(python, PEERS / "layers", pairs[0][side][:1]) for side in sides]
    command = [sys.executable, "-m", "seatrial", "compare", "--target", "trl", "--relations"]
    command += [f"--adapter={pair['adapter']}" for pair in pairs]
    command += ["--python", str(python), str(python), "--path", *map(str, places), "--output", str(tmp_path)]
    variables = {"TRL_EXPERIMENTAL_SILENCE": "1", "CUDA_VISIBLE_DEVICES": "", "HF_HUB_OFFLINE": "1"}
    environment = {**os.environ, **variables, "OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT / "src")}
    ran = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=1700, check=False)
    assert ran.returncode == code, ran.stdout + ran.stderr
    results = read_results(next(tmp_path.iterdir()))
    (part,) = results.requested_trials()
    assert part.name == RELATIONS
    named = {verdict.name for verdict in part.verdicts if verdict.details[KIND] in (BROKE, FIXED)}
    assert named == expected
    assert all(verdict.details[KIND] == kind for verdict in part.verdicts if verdict.name in named)
    assert "trl 1.8.0" in results.repositories["HEAD" if kind == BROKE else "BASE"]
