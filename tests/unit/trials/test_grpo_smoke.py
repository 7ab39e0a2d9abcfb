"""The smoke trial on a toy stack: every way to end has its verdict, and nothing is left implicit."""

import json
import shutil
import sys
from dataclasses import replace
from pathlib import Path

import pytest
from tests.unit.trials.toy_target import TOY, ToyTarget, run_toy

from seatrial.targets.base import JobRequest, TrainingJob
from seatrial.trials.results import TrialResult, TrialState
from seatrial.trials.rundir import read_results
from seatrial.trials.sensors.recomputed import RECOMPUTED
from seatrial.verdict import Outcome, Verdict

PASS, FAIL, BLOCKED, SKIPPED = Outcome.PASS, Outcome.FAIL, Outcome.BLOCKED, Outcome.SKIPPED
EXIT = "training ends with status 0"
ORIGIN = "origin of toystack in the run"
RANDOMNESS = "ledger: every row draws its own randomness"


@pytest.fixture(autouse=True)
def _toystack_is_importable(monkeypatch: pytest.MonkeyPatch) -> None:
    """The driver finds the toy where it should be."""
    monkeypatch.syspath_prepend(str(TOY))


def smoke(tmp_path: Path, mode: str, **options: float) -> tuple[TrialResult, dict[str, Verdict]]:
    """Run the trial on a misbehaving toy; what is on disk is what was concluded."""
    path, results = run_toy(tmp_path, ToyTarget(mode), **options)
    assert read_results(path).to_text() == results.to_text()
    (trial,) = results.requested_trials()
    assert trial.state is TrialState.CONCLUDED
    return trial, {verdict.name: verdict for verdict in trial.verdicts}


def test_a_right_run_passes(tmp_path: Path) -> None:
    """All pass, but for laws that short answers do not arm; the claims and their key verdicts are those of the run."""
    trial, verdicts = smoke(tmp_path, "right")
    assert trial.outcome is PASS
    skipped = {name for name, verdict in verdicts.items() if verdict.outcome is SKIPPED}
    assert "likely enough to be sampled twice" in verdicts[RANDOMNESS].reason
    assert skipped == {RANDOMNESS, "ledger: no row is trained again at another step"}
    assert not [name for name in verdicts if "clamped" in name]
    assert "every trainable tensor moves" in trial.proves
    assert {verdicts[name].outcome for name in trial.key_verdicts} == {PASS}
    others = {name: verdict for name, verdict in verdicts.items() if name not in skipped}
    # The toy does not say how it is configured: nothing is computed again, and nothing is claimed by it.
    not_given = [one.name for one in RECOMPUTED]
    assert {verdict.outcome for name, verdict in others.items() if name not in not_given} == {PASS}
    assert {verdicts[name].outcome for name in not_given} == {Outcome.NOT_REQUESTED}
    assert not set(not_given) & set(trial.key_verdicts)
    assert [text for text in trial.limitations if "TrainingJob.configuration" in text]


NAMES = 46
"""Verdicts of the trial, whatever happens."""


@pytest.mark.parametrize(
    ("mode", "outcome", "name", "words"),
    [
        ("stop-early", FAIL, "steps reached", "reached step 1 of 2; missing: 2"),
        (
            "no-loss",
            FAIL,
            "steps reached",
            "'train/loss', by which steps are counted, is not in the log; it holds ",
        ),
        ("nan-at-2", FAIL, "every series finite", "train/loss is nan at step 2"),
        ("lr-zero", FAIL, "every trainable tensor moved", "2 tensors did not move: embed, head"),
        ("no-ratio", FAIL, 'min(data["train/probs_ratio_min"]) > 0.79', "train/probs_ratio_min"),
        ("crash", FAIL, EXIT, "exit status 1; last words: RuntimeError: a bug in the stack"),
        ("hang", FAIL, EXIT, "time limit"),
        ("truncated", BLOCKED, "log undamaged", "truncated"),
        ("empty-log", BLOCKED, "log undamaged", "log"),
        ("garbage-log", BLOCKED, "log undamaged", "log"),
        ("no-log", BLOCKED, "log undamaged", "log"),
        ("killed", BLOCKED, EXIT, "killed by signal 9 (SIGKILL)"),
        ("terminated", BLOCKED, EXIT, "killed by signal 15 (SIGTERM), exit status 143"),
        ("disk-full", BLOCKED, EXIT, "No space left on device"),
        ("refused", BLOCKED, EXIT, "unknown key 'grpo.sede'"),
    ],
)
def test_each_way_to_go_wrong(tmp_path: Path, mode: str, outcome: Outcome, name: str, words: str) -> None:
    """The trial's outcome, and the verdict that says why."""
    trial, verdicts = smoke(tmp_path, mode, timeout_seconds=4.0 if mode == "hang" else 60.0)
    assert trial.outcome is outcome, trial.verdicts
    assert verdicts[name].outcome is outcome, verdicts[name]
    assert words in verdicts[name].reason, verdicts[name]
    assert len(verdicts) == NAMES
    if name == EXIT and outcome is BLOCKED:
        # Half a run is no evidence for or against the stack: the rest is Blocked, each by name.
        rest = [verdict for key, verdict in verdicts.items() if key != EXIT and "origin of" not in key]
        assert {verdict.outcome for verdict in rest} == {BLOCKED}
        assert all(verdict.reason.startswith(f"not judged: {EXIT}") for verdict in rest)


def test_zero_variance_is_not_triggered_at_level_0(tmp_path: Path) -> None:
    """FP40: no reward differs: gradient and weights cannot be asked to move; what they prove is then not proved."""
    trial, verdicts = smoke(tmp_path, "zero-variance")
    names = (
        'min(data["train/grad_norm"]) > 0',
        "every trainable tensor moved",
        "ledger: advantages recomputed equal the logged",
    )
    for name in names:
        assert verdicts[name].outcome is SKIPPED, verdicts[name]
        assert "not triggered" in verdicts[name].reason
    claims = {name: verdict for name, verdict in verdicts.items() if name.startswith("claim: ")}
    assert sorted(claims) == [
        "claim: a gradient flows at every step",
        "claim: advantages belong to their rows",
        "claim: every trainable tensor moves",
    ]
    assert all("gave no answer (not triggered" in verdict.reason for verdict in claims.values())
    assert trial.outcome is FAIL


def test_another_copy_in_the_run_blocks_everything(tmp_path: Path) -> None:
    """FP35: the driver is right, the launched process is not."""
    shutil.copytree(TOY, tmp_path / "other")
    _, results = run_toy(tmp_path / "runs", ToyTarget(place=tmp_path / "other"))
    (trial,) = results.requested_trials()
    verdicts = {verdict.name: verdict for verdict in trial.verdicts}
    assert trial.outcome is BLOCKED
    assert verdicts["origin of toystack on the driver"].outcome is PASS
    assert verdicts[ORIGIN].outcome is BLOCKED
    assert str(tmp_path / "other" / "toystack.py") in verdicts[ORIGIN].reason
    assert verdicts["steps reached"].reason.startswith("not judged: origin of toystack in the run")
    assert not [verdict for verdict in trial.verdicts if verdict.outcome is FAIL]


def test_another_copy_on_the_driver_blocks_everything(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """FP35: the run is right, the driver is not."""
    shutil.copytree(TOY, tmp_path / "other")
    monkeypatch.syspath_prepend(str(tmp_path / "other"))
    monkeypatch.delitem(sys.modules, "toystack", raising=False)
    _, results = run_toy(tmp_path / "runs", ToyTarget())
    (trial,) = results.requested_trials()
    verdicts = {verdict.name: verdict for verdict in trial.verdicts}
    assert verdicts["origin of toystack on the driver"].outcome is BLOCKED
    assert verdicts["steps reached"].outcome is BLOCKED
    assert trial.outcome is BLOCKED


def test_what_is_missing_before_the_run_is_blocked_with_the_remedy(tmp_path: Path) -> None:
    """Such as an extra that is not installed."""
    _, results = run_toy(tmp_path, ToyTarget(missing="torch is not installed: pip install 'seatrial[stack]'"))
    (trial,) = results.requested_trials()
    assert trial.outcome is BLOCKED
    assert "pip install 'seatrial[stack]'" in trial.verdicts[-1].reason


def test_the_run_directory_holds_what_the_design_says(tmp_path: Path) -> None:
    """Identity, commands, console log, and where each process imported the stack from."""
    path, results = run_toy(tmp_path, ToyTarget())
    trial = path / "trials" / "0-grpo-smoke"
    assert results.requested_trials()[0].directory == "trials/0-grpo-smoke"
    assert "toystack.main()" in (trial / "command.txt").read_text()
    assert (trial / "run.log").read_text() == "step 1/2\nstep 2/2\n"
    identity = json.loads((path / "identity.json").read_text())
    assert set(identity["repositories"]) == {"seatrial", "toystack"}
    imports = identity["runs"]["grpo-smoke"]
    assert {item["file"] for item in imports} == {str(TOY / "toystack.py")}
    assert len({item["pid"] for item in imports}) == 2
    assert identity["driver"]["origins"]["toystack"] == str(TOY / "toystack.py")


def test_metrics_of_the_run_are_kept_as_json(tmp_path: Path) -> None:
    """NeMo RL's form: tag, step, value; a value that is not finite is kept."""
    path, _ = run_toy(tmp_path, ToyTarget("nan-at-2"))
    metrics = json.loads((path / "trials" / "0-grpo-smoke" / "metrics.json").read_text())
    assert metrics["train/grad_norm"] == {"1": 0.5, "2": 0.5}
    assert str(metrics["train/loss"]["2"]).lower() == "nan"


class _Quiet(ToyTarget):
    """A toy that says which series it never writes, and has a check of its own."""

    def __init__(self, mode: str, unlogged: dict[str, str], own_checks: dict[str, str]) -> None:
        super().__init__(mode)
        self.unlogged, self.own_checks = unlogged, own_checks

    def job(self, request: JobRequest) -> TrainingJob:
        """See `ToyTarget`."""
        return replace(super().job(request), unlogged=self.unlogged, own_checks=self.own_checks)


def quiet_smoke(
    tmp_path: Path, mode: str, *tags: str, **own_checks: str
) -> tuple[TrialResult, dict[str, Verdict]]:
    """Run the trial on a toy that declares these series as never written."""
    checks = dict.fromkeys(own_checks.values(), "the toy says so")
    _, results = run_toy(tmp_path, _Quiet(mode, dict.fromkeys(tags, "it has no sampler"), checks))
    (trial,) = results.requested_trials()
    return trial, {verdict.name: verdict for verdict in trial.verdicts}


def test_a_series_that_the_stack_never_writes_is_not_requested(tmp_path: Path) -> None:
    """Without the declaration its absence is a failure; with it the verdict says why it is not asked."""
    trial, verdicts = quiet_smoke(tmp_path, "no-ratio", "train/probs_ratio_min")
    verdict = verdicts['min(data["train/probs_ratio_min"]) > 0.79']
    assert verdict.outcome is Outcome.NOT_REQUESTED
    assert "it has no sampler" in verdict.reason
    assert trial.outcome is PASS


def test_a_series_that_is_there_all_the_same_is_judged(tmp_path: Path) -> None:
    """A declaration excuses an absence, and no value."""
    _, verdicts = quiet_smoke(tmp_path, "right", "train/probs_ratio_min")
    assert verdicts['min(data["train/probs_ratio_min"]) > 0.79'].outcome is PASS


def test_what_is_not_logged_is_not_claimed(tmp_path: Path) -> None:
    trial, _ = quiet_smoke(tmp_path, "no-agreement", "train/token_mult_prob_error")
    assert trial.outcome is PASS
    assert "sampler and trainer agree" not in trial.proves
    assert any(line.startswith("not judged: sampler and trainer agree: ") for line in trial.limitations)


def test_a_targets_own_check_is_asked(tmp_path: Path) -> None:
    text = 'max(data["train/loss"]) < -100'
    trial, verdicts = quiet_smoke(tmp_path, "right", own=text)
    assert verdicts[text].outcome is FAIL
    assert verdicts[text].details["why"] == "the toy says so"
    assert trial.outcome is FAIL
