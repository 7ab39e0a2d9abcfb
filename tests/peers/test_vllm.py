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
from tests.faulty_trials import failed_checks

from seatrial.faults.claims import FaultyRun, faulty_runs
from seatrial.faults.matrix import first_seen
from seatrial.faults.plant import all_plants
from seatrial.trials.generation import INTERPRETER
from seatrial.trials.rundir import read_results
from seatrial.verdict import Outcome

pytestmark = [pytest.mark.peer, pytest.mark.timeout(1800)]

QUICK = {
    "VLLM_CPU_CI_ENV": "1",
    "TORCHDYNAMO_DISABLE": "1",
    "HF_HUB_OFFLINE": "1",
    "OMP_NUM_THREADS": "1",
}
SEEN_BY = {
    "keys-of-the-weights-before-kept": "R6.engine",
    "logprobs-before-temperature-and-filters": "R6.engine",
    "rows-of-a-call-share-a-seed": "R26.rows",
    "vllm-rows-without-kept-ids": "R6.engine",
}
"""The relation that sees each fault of the engine."""


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
            *("--output", str(tmp_path / "runs"), f"{INTERPRETER}={peer_python('vllm')}"),
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


@pytest.mark.nightly
@pytest.mark.parametrize(
    "one", [one for one in faulty_runs() if one.trial == "generation-vllm"], ids=lambda one: one.fault
)
def test_the_trial_fails_at_the_checks(
    one: FaultyRun,
    peer_python: Callable[[str], Path],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """With the fault planted in the training here, and in vLLM's own environment."""
    for name, value in QUICK.items():
        monkeypatch.setenv(name, value)
    overrides = [f"{INTERPRETER}={peer_python('vllm')}"]
    assert set(one.breaks.values()) <= failed_checks(one, tmp_path, overrides)


@pytest.mark.nightly
@pytest.mark.parametrize("fault", SEEN_BY)
def test_a_relation_sees_a_fault_of_the_engine(
    fault: str, peer_python: Callable[[str], Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Training here, vLLM with the fault in its own environment; without the fault the relation holds."""
    for name, value in QUICK.items():
        monkeypatch.setenv(name, value)
    (plant,) = (one for one in all_plants() if one.id == fault)
    options = {
        "policy.generation.backend": "vllm",
        "policy.generation.colocated.enabled": False,
        "policy.generation.placement": "process",
        INTERPRETER: str(peer_python("vllm")),
    }
    found = first_seen(plant, options, [SEEN_BY[fault]])
    assert found is not None
    assert found[0] == SEEN_BY[fault]
    assert "raises" not in found[1]
