"""The battery on a stack that we did not write: TRL's GRPO loss and advantages, in an environment of its own."""

import json
from collections.abc import Callable
from pathlib import Path

import pytest
from tests.peers.patched import run_seatrial


@pytest.mark.peer
@pytest.mark.slow
def test_the_battery_says_of_trl_what_the_findings_say(
    peer_python: Callable[[str], Path], repository: Path, tmp_path: Path
) -> None:
    """TRL 1.16.0's loss and advantages equal the oracles; its mask multiplies, so NaN in padding comes through."""
    ran = run_seatrial(
        peer_python("trl"),
        repository / "examples",
        *("relations", "trl_adapter:TRLAdapter", "--json", str(tmp_path / "verdicts.json")),
    )
    assert ran.returncode == 1, ran.stdout + ran.stderr
    verdicts = json.loads((tmp_path / "verdicts.json").read_text())["verdicts"]
    outcomes = {verdict["name"].split()[0]: verdict["outcome"] for verdict in verdicts}
    exercised = {name: outcome for name, outcome in outcomes.items() if outcome != "NotRequested"}
    assert exercised == {
        "R1.loss": "Pass",
        "R3.loss": "Fail",
        "R5.advantages": "Pass",
        "R5.loss": "Pass",
        "R9.loss": "Pass",
        "R11.bandit": "Pass",
        "R12.advantages": "Pass",
        "R12.loss": "Pass",
        "R17.advantages": "Pass",
        "R27.advantages": "Pass",
        "R27.loss": "Pass",
    }
    (failed,) = [verdict for verdict in verdicts if verdict["outcome"] == "Fail"]
    assert failed["details"]["laws_broken"] == ["content of masked positions"]
