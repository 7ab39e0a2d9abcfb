"""refrl's vLLM engine, and the trial that runs it, in an environment that has vLLM's CPU build.

All of it is for the night: the environment alone takes a minute to make. tests/unit/refrl/generation/test_vllm.py
runs the engine over a stand-in for vLLM with every run of the tests.
"""

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from seatrial.trials.rundir import read_results
from seatrial.verdict import Outcome

pytestmark = [pytest.mark.peer, pytest.mark.timeout(1800)]

QUICK = {
    "VLLM_CPU_CI_ENV": "1",
    "TORCHDYNAMO_DISABLE": "1",
    "HF_HUB_OFFLINE": "1",
    "OMP_NUM_THREADS": "1",
}


@pytest.mark.nightly
@pytest.mark.parametrize("chosen", ["not nightly", "nightly"])
def test_the_engine_samples_with_the_weights_that_it_was_given(
    peer_python: Callable[[str], Path], repository: Path, chosen: str
) -> None:
    """Its own tests, where vLLM is."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith("PYTEST_")}
    ran = subprocess.run(
        [
            *(str(peer_python("vllm")), "-m", "pytest", "-q", "-p", "no:cacheprovider", "-c", os.devnull),
            *("-m", chosen, "-o", "markers=nightly: too long for every change"),
            *("--rootdir", str(repository), str(repository / "tests/peers/vllm_engine.py")),
        ],
        capture_output=True,
        text=True,
        check=False,
        env={
            **kept,
            **QUICK,
            "PYTHONPATH": os.pathsep.join([str(repository / "src"), str(repository)]),
            "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1",
        },
    )
    assert ran.returncode == 0, ran.stdout[-6000:] + ran.stderr[-3000:]


@pytest.mark.nightly
def test_the_trial_passes(peer_python: Callable[[str], Path], tmp_path: Path) -> None:
    """Training here, vLLM in its own environment."""
    ran = subprocess.run(
        [
            *(sys.executable, "-m", "seatrial", "run", "--trial", "generation-vllm"),
            *("--output", str(tmp_path / "runs"), f"policy.generation.vllm_cfg.python={peer_python('vllm')}"),
        ],
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, **QUICK},
    )
    (path,) = (tmp_path / "runs").iterdir()
    (result,) = (one for one in read_results(path).trials if one.name == "generation-vllm")
    wrong = [verdict.name for verdict in result.verdicts if verdict.outcome is not Outcome.PASS]
    assert (ran.returncode, wrong) == (0, []), ran.stdout[-4000:] + ran.stderr[-2000:]
