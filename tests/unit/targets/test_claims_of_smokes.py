"""Each fault of a stack without GRPO fails its trial at the check that the table of claims names."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import yaml
from tests.unit.targets.test_command_target import FILE, reasons, run
from tests.unit.targets.toy_command import save

from seatrial.faults.claims import FaultyRun, toy_runs
from seatrial.targets import get_target
from seatrial.targets.command.target import CommandTarget
from seatrial.verdict import Outcome

TRIALS = ("sft-smoke", "dpo-smoke")


@pytest.fixture
def toy(tmp_path: Path) -> CommandTarget:
    """The toy, which has a recipe for each of the trials, and a model for it."""
    save(tmp_path / "model", {name: np.ones((3, 5), dtype=np.float32) for name in ("embed", "head")})
    content = {
        **FILE,
        "recipes": {trial: {"steps": 3} for trial in TRIALS},
    }
    (tmp_path / "toy.yaml").write_text(yaml.safe_dump(content))
    target = get_target(str(tmp_path / "toy.yaml"))
    assert isinstance(target, CommandTarget)
    return target


@pytest.mark.parametrize("trial", TRIALS)
def test_the_sound_toy_passes_and_every_claim_is_made(toy: CommandTarget, tmp_path: Path, trial: str) -> None:
    results = run(toy, tmp_path, trials=(trial,))
    (result,) = results.requested_trials()
    assert results.outcome is Outcome.PASS, [
        one for one in result.verdicts if one.outcome is not Outcome.PASS
    ]
    broken = {claim for one in toy_runs() if one.trial == trial for claim in one.breaks}
    assert broken == set(result.proves.split("; "))


@pytest.mark.parametrize("one", toy_runs(), ids=lambda one: f"{one.trial}-{one.fault}")
def test_the_trial_fails_at_the_checks(toy: CommandTarget, tmp_path: Path, one: FaultyRun) -> None:
    failed = reasons(run(toy, tmp_path, f"mode={one.fault}", trials=(one.trial,)), Outcome.FAIL)
    assert set(one.breaks.values()) <= failed.keys()
