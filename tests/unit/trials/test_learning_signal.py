"""The learning trial on a toy stack, and its statistic: only a rise that chance does not explain passes."""

import random
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from tests.unit.trials.toy_target import TOY, ToyTarget, run_toy

from seatrial.trials.learning_signal import LearningSignal, learning_sensors
from seatrial.trials.results import TrialResult
from seatrial.trials.sensors.learning import rise_verdict
from seatrial.trials.sensors.recomputed import RECOMPUTED
from seatrial.verdict import Outcome, Verdict

PASS, FAIL, BLOCKED = Outcome.PASS, Outcome.FAIL, Outcome.BLOCKED
RISE = "validation reward rises by more than chance (2 seeds)"


@pytest.fixture(autouse=True)
def _toystack_is_importable(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(TOY))


def learning(tmp_path: Path, mode: str) -> tuple[TrialResult, dict[str, Verdict]]:
    """Run the trial with two seeds."""
    _, results = run_toy(tmp_path, ToyTarget(mode), [LearningSignal(num_seeds=2)])
    (trial,) = results.requested_trials()
    return trial, {verdict.name: verdict for verdict in trial.verdicts}


def test_a_stack_that_learns_passes(tmp_path: Path) -> None:
    """Forty prompts, half right before and nine in ten after: sixteen better, none worse."""
    trial, verdicts = learning(tmp_path, "right")
    assert trial.outcome is PASS, trial.verdicts
    rise = verdicts[RISE]
    assert rise.value == pytest.approx(0.4)
    assert rise.details["p_value"] == pytest.approx(0.5**16)
    assert rise.num_samples == 80
    assert "16 prompts better, 0 worse of 40" in rise.reason
    assert "passes with probability 0.001 at most" in rise.reason


@pytest.mark.parametrize(
    ("mode", "name", "words"),
    [
        ("flat", RISE, "0 prompts better, 0 worse"),
        ("collapse", RISE, "not every run rose"),
        ("collapse", "seed 0: training reward: last window above the first", "best 0.900"),
        ("zero-variance", "seed 1: no silent freeze: the gradient is alive", "10 of 10 steps"),
        ("zero-variance", "seed 0: training reward: last window above the first", "the same at every step"),
        ("lr-zero", "seed 1: every trainable tensor moved", "did not move"),
    ],
)
def test_a_stack_that_does_not_learn_fails(tmp_path: Path, mode: str, name: str, words: str) -> None:
    """FP36: a best step does not count; FP40: a run that cannot learn is a Fail here."""
    trial, verdicts = learning(tmp_path, mode)
    assert trial.outcome is FAIL
    assert verdicts[name].outcome is FAIL, verdicts[name]
    assert words in verdicts[name].reason, verdicts[name]


def test_a_killed_run_is_no_evidence_about_learning(tmp_path: Path) -> None:
    """The rise is not judged on what the others did."""
    trial, verdicts = learning(tmp_path, "killed")
    assert trial.outcome is BLOCKED
    assert verdicts[RISE].outcome is BLOCKED
    assert "killed by signal 9" in verdicts[RISE].reason


def outcomes(values: list[float]) -> dict[int, float]:
    """Return outcomes by prompt."""
    return dict(enumerate(values))


def test_the_error_rate_holds_for_runs_that_share_prompts() -> None:
    """Three runs, the same luck with each prompt: counting 3 x 60 pairs would reject far too often, prompts do not."""
    source = random.Random(1)
    alpha, draws = 0.05, 2000
    passed = 0
    for _ in range(draws):
        luck = source.choices([1.0, -1.0, 0.0], [0.2, 0.2, 0.6], k=60)
        run = (outcomes([0.0] * 60), outcomes(luck))
        passed += rise_verdict([run] * 3, 10, alpha=alpha).outcome is PASS
    assert passed / draws <= alpha + 3 * (alpha * (1 - alpha) / draws) ** 0.5


def test_every_run_must_rise() -> None:
    """Two runs that learn well do not carry one that got worse."""
    up = (outcomes([0.0] * 50), outcomes([1.0] * 50))
    down = (outcomes([0.5] * 50), outcomes([0.4] * 50))
    assert rise_verdict([up, up], 10).outcome is PASS
    verdict = rise_verdict([up, down], 10)
    assert verdict.outcome is FAIL
    assert "not every run rose: -0.100" in verdict.reason


@pytest.mark.parametrize("runs", [[], [(outcomes([0.0]), {}), ({}, {})]])
def test_no_shared_prompt_is_no_evidence(runs: list[tuple[dict[int, float], dict[int, float]]]) -> None:
    """Zero samples never pass."""
    assert rise_verdict(runs, 10).outcome is FAIL


def test_every_scalar_of_a_learning_run_is_computed_again() -> None:
    """Such as the shares of groups that teach, which solved groups do not."""
    job: Any = SimpleNamespace(has_reference=True)
    assert set(RECOMPUTED) <= set(learning_sensors(job))
