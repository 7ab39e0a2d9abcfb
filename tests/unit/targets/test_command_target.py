"""A stack by a YAML file: its trials on a toy command, what each fault of the command ends in, and wrong files."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml
from tests.unit.targets.toy_command import save

from seatrial.errors import BlockedError, UsageError
from seatrial.evidence.identity.redaction import Redactor
from seatrial.targets import get_target
from seatrial.targets.base import JobRequest
from seatrial.targets.command.evidence import unlogged
from seatrial.targets.command.schema import read_stack
from seatrial.targets.command.target import CommandTarget
from seatrial.trials.plan import select_trials
from seatrial.trials.results import Results
from seatrial.trials.rundir import RunDirectory
from seatrial.trials.runner import Request, new_results, run_trials
from seatrial.verdict import Outcome

TOY = Path(__file__).parent / "toy_command.py"
FILE: dict[str, Any] = {
    "run": [sys.executable, str(TOY)],
    "options": {"kind": "{kind}", "model": "{model}", "out": "{out}", "seed": "{seed}", "steps": "{steps}"},
    "resume": {"from": "{checkpoint}"},
    "logs": "{out}/run-*",
    "checkpoints": "{out}/checkpoint-{step}",
    "export": "{out}/final",
    "recipes": {"sft-smoke": {"steps": 3}, "sft-resume-diamond": {"steps": 3}},
}


@pytest.fixture
def target(tmp_path: Path) -> Callable[..., CommandTarget]:
    """Return a function that makes a target of the toy's file with other keys."""

    def make(**keys: Any) -> CommandTarget:
        path = tmp_path / "toy.yaml"
        content = {key: value for key, value in {**FILE, **keys}.items() if value is not None}
        path.write_text(yaml.safe_dump(content, sort_keys=False))
        found = get_target(str(path))
        assert isinstance(found, CommandTarget)
        return found

    return make


@pytest.fixture
def model(tmp_path: Path) -> Path:
    """A folder of two tensors."""
    import numpy as np

    folder = tmp_path / "model"
    save(folder, {name: np.ones((3, 5), dtype=np.float32) for name in ("embed", "head")})
    return folder


def run(target: CommandTarget, base: Path, *words: str, trials: tuple[str, ...] = ("sft-smoke",)) -> Results:
    """Take the toy through trials."""
    request = Request(
        trials=select_trials(None, trials, target.trials),
        words="trials",
        seed=0,
        overrides=(f"model={base / 'model'}", *words),
        timeout_seconds=60,
    )
    with RunDirectory.create(base / "runs", target.name) as directory:
        results = new_results(directory, target, request, Redactor())
        return run_trials(directory, results, target, request, lambda text: None)


def reasons(results: Results, outcome: Outcome) -> dict[str, str]:
    """Return the reasons of the verdicts with an outcome, by name."""
    (trial,) = results.requested_trials()
    return {one.name: one.reason for one in trial.verdicts if one.outcome is outcome}


def test_a_sound_command_passes_and_names_what_it_cannot_show(
    target: Callable[..., CommandTarget], model: Path, tmp_path: Path
) -> None:
    results = run(target(), tmp_path)
    (trial,) = results.requested_trials()
    assert results.outcome is Outcome.PASS, trial.verdicts
    assert "every trainable tensor moves" in trial.proves
    assert any("the rows that were trained on are not judged" in one for one in trial.limitations)


def test_claims_shrink_by_name_and_nothing_left_is_blocked(
    target: Callable[..., CommandTarget], model: Path, tmp_path: Path
) -> None:
    """Without an exported model nothing is said of the weights, and the file's missing key is named."""
    results = run(target(export=None, checkpoints=None, recipes={"sft-smoke": {"steps": 3}}), tmp_path)
    (trial,) = results.requested_trials()
    assert results.outcome is Outcome.PASS
    assert "every trainable tensor moves" not in trial.proves
    assert any(
        one.startswith("not judged: every trainable tensor moves") and "add `export:`" in one
        for one in trial.limitations
    )


def test_a_resume_is_tried_from_the_middle_of_a_whole_run(
    target: Callable[..., CommandTarget], model: Path, tmp_path: Path
) -> None:
    results = run(target(), tmp_path, trials=("sft-resume-diamond",))
    (trial,) = results.requested_trials()
    assert results.outcome is Outcome.PASS, [one for one in trial.verdicts if one.outcome is not Outcome.PASS]
    assert "diamond: same weights" in trial.key_verdicts
    assert any("resuming keeps the counters" in one for one in trial.limitations)


EPOCHS: dict[str, Any] = {
    "options": {**FILE["options"], "epoch": "{epoch_steps}"},
    "checkpoints": "{out}/epoch-{epoch}",
    "epoch_steps": 2,
}


def test_checkpoints_by_epoch_are_those_of_the_last_step_of_each(
    target: Callable[..., CommandTarget], model: Path, tmp_path: Path
) -> None:
    """Six steps in epochs of two: `epoch-1` is of step 4, from which the state beside it continues."""
    made = target(**EPOCHS, state="{out}/state.txt", recipes={"sft-resume-diamond": {"steps": 6}})
    results = run(made, tmp_path, trials=("sft-resume-diamond",))
    (trial,) = results.requested_trials()
    assert results.outcome is Outcome.PASS, [one for one in trial.verdicts if one.outcome is not Outcome.PASS]
    continued = next(one for one in trial.verdicts if one.name.startswith("diamond: the second start"))
    assert continued.reason == "it logged the steps [5, 6]"


def test_the_steps_of_saved_epochs_are_compared_with_those_that_exist(
    target: Callable[..., CommandTarget], model: Path, tmp_path: Path
) -> None:
    """And moments that are beside the checkpoints are not judged, by name."""
    recipe = {"kind": "sft", "steps": 6, "saves": [2, 4, 6]}
    made = target(**EPOCHS, state="{out}/state.txt", recipes={"checkpoint-save": recipe})
    results = run(made, tmp_path, trials=("checkpoint-save",))
    (trial,) = results.requested_trials()
    assert results.outcome is Outcome.PASS, trial.verdicts
    assert any("moments are not in the checkpoint folders" in one for one in trial.limitations)
    made = target(**EPOCHS, first_epoch=1, recipes={"checkpoint-save": recipe})
    results = run(made, tmp_path, trials=("checkpoint-save",))
    reason = reasons(results, Outcome.FAIL)["checkpoints: those to be kept are there, whole and finite"]
    assert reason == "there are checkpoints of the steps [0, 2, 4]"


def test_a_checkpoint_is_not_compared_with_itself(
    target: Callable[..., CommandTarget], model: Path, tmp_path: Path
) -> None:
    """Without `export` the last checkpoint is the export."""
    made = target(export=None, recipes={"checkpoint-save": {"kind": "sft", "steps": 3, "saves": [1, 2, 3]}})
    results = run(made, tmp_path, trials=("checkpoint-save",))
    reason = reasons(results, Outcome.NOT_REQUESTED)["checkpoints: the last one holds the exported model"]
    assert reason == "the last checkpoint is the export itself, so the two cannot differ"


@pytest.mark.parametrize(
    ("mode", "saves", "outcome", "reason"),
    [
        ("right", [1, 2, 3], Outcome.PASS, "the checkpoints of the steps [1, 2, 3] hold different weights"),
        (
            "old-saves",
            [1, 2, 3],
            Outcome.FAIL,
            "the weights of step 2 are those of step 1; the weights of step 3 are those of step 2",
        ),
        (
            "right",
            [3],
            Outcome.NOT_REQUESTED,
            "the run keeps one checkpoint, so there are no two to compare",
        ),
    ],
)
def test_checkpoints_that_hold_the_weights_of_an_older_step_fail(
    target: Callable[..., CommandTarget],
    model: Path,
    tmp_path: Path,
    mode: str,
    saves: list[int],
    outcome: Outcome,
    reason: str,
) -> None:
    """Also where the stack exports nothing that the last one could be compared with."""
    recipe = {"kind": "sft", "steps": 3, "saves": saves, "options": {"mode": mode}}
    results = run(
        target(export=None, recipes={"checkpoint-save": recipe}), tmp_path, trials=("checkpoint-save",)
    )
    assert reasons(results, outcome)["checkpoints: each holds other weights than the one before"] == reason


def test_a_state_that_is_not_there_is_named(
    target: Callable[..., CommandTarget], model: Path, tmp_path: Path
) -> None:
    made = target(**EPOCHS, state="{out}/recipe.pt", recipes={"sft-resume-diamond": {"steps": 4}})
    results = run(made, tmp_path, trials=("sft-resume-diamond",))
    assert (
        "recipe.pt matches nothing that this run wrote"
        in reasons(results, Outcome.BLOCKED)["the trial can run"]
    )


def test_folders_are_absolute_also_where_the_runs_folder_is_relative(
    target: Callable[..., CommandTarget], model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    job = target().job(JobRequest(recipe="sft-smoke", model=Path("model"), directory=Path(), seed=0))
    assert {f"model={tmp_path / 'model'}", f"out={tmp_path / 'out'}"} <= set(job.argv)


@pytest.mark.parametrize(
    ("mode", "outcome", "name", "reason"),
    [
        ("crashes", Outcome.FAIL, "training ends with status 0", "ValueError: the model has another shape"),
        ("nan", Outcome.FAIL, "every series finite", "nan"),
        ("stale-export", Outcome.FAIL, "every trainable tensor moved", "did not move"),
        ("stops", Outcome.FAIL, "steps reached", "reached step 1 of 3"),
        ("no-log", Outcome.BLOCKED, "the trial can run", "matches nothing that this run wrote"),
        ("two-runs", Outcome.BLOCKED, "the trial can run", "matches 2 folders that this run wrote"),
        ("forks", Outcome.BLOCKED, "the trial can run", "use a command that waits for them"),
    ],
)
def test_what_is_wrong_with_a_run_is_named(
    target: Callable[..., CommandTarget],
    model: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    mode: str,
    outcome: Outcome,
    name: str,
    reason: str,
) -> None:
    monkeypatch.setattr("seatrial.targets.command.evidence.PATIENCE_SECONDS", 0.0)
    results = run(target(), tmp_path, f"mode={mode}")
    assert results.outcome is outcome
    assert reason in reasons(results, outcome)[name]


def test_an_exit_status_of_0_after_a_traceback_says_so(
    target: Callable[..., CommandTarget], model: Path, tmp_path: Path
) -> None:
    results = run(target(), tmp_path, "mode=stops")
    assert "ValueError: lost" in reasons(results, Outcome.PASS)["training ends with status 0"]


def test_a_second_start_that_begins_again_fails(
    target: Callable[..., CommandTarget], model: Path, tmp_path: Path
) -> None:
    results = run(target(), tmp_path, "mode=forgets", trials=("sft-resume-diamond",))
    assert results.outcome is Outcome.FAIL
    assert "extra: 1" in reasons(results, Outcome.FAIL)["resumed: steps reached"]
    name = "diamond: the second start continues where the first ended"
    assert reasons(results, Outcome.FAIL)[name] == "it logged the steps [1, 2, 3]"


def test_files_of_an_older_run_are_not_judged(
    target: Callable[..., CommandTarget], model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The pattern names a folder outside the trial's that holds a log already."""
    monkeypatch.setattr("seatrial.targets.command.evidence.PATIENCE_SECONDS", 0.0)
    old = tmp_path / "shared"
    old.mkdir()
    (old / "log.jsonl").write_text("".join(f'{{"step": {step}, "loss": 1.0}}\n' for step in (1, 2, 3)))
    results = run(target(logs=str(old)), tmp_path)
    assert results.outcome is Outcome.BLOCKED
    assert "all older than this run" in reasons(results, Outcome.BLOCKED)["the trial can run"]


def test_a_log_that_appears_late_is_waited_for(
    target: Callable[..., CommandTarget], model: Path, tmp_path: Path
) -> None:
    from dataclasses import replace

    from seatrial.launch import Launched

    job = target().job(JobRequest(recipe="sft-smoke", model=model, directory=tmp_path, seed=0))

    def late(seconds: float) -> None:
        (tmp_path / "out" / "run-1").mkdir(exist_ok=True)
        (tmp_path / "out" / "run-1" / "log.jsonl").write_text('{"step": 1, "loss": 1.0}\n')

    launched = Launched(
        argv=job.argv,
        returncode=0,
        seconds=1.0,
        timed_out=False,
        log_path=tmp_path / "run.log",
        num_stragglers=0,
    )
    assert job.collect is not None
    found, _ = replace(job.collect, wait=late)(job, launched, lambda command: launched)  # type: ignore[type-var]
    assert (found.log_dir / "log.jsonl").is_file()


@pytest.mark.parametrize(
    ("keys", "message"),
    [
        ({"recipe": {}}, "recipe is unknown; did you mean 'recipes'?"),
        ({"recipes": {"sft-smok": {"steps": 1}}}, "recipes.sft-smok is unknown; did you mean 'sft-smoke'?"),
        ({"recipes": {"sft-smoke": {"step": 1}}}, "recipes.sft-smoke.step is unknown; did you mean 'steps'?"),
        ({"recipes": {"sft-smoke": {}}}, "recipes.sft-smoke has no steps"),
        ({"recipes": {"sft-smoke": {"steps": "3"}}}, "recipes.sft-smoke.steps is '3'; expected int"),
        ({"recipes": {"sft-smoke": {"steps": True}}}, "expected int"),
        ({"logs": None}, "logs is missing"),
        ({"run": "trl sft"}, "write a list of arguments"),
        ({"options": {"model": "{model}", "out": "{out}", "steps": "{steps}"}}, "{seed} is in neither run"),
        ({"options": {"model": "{modle}"}}, "the placeholder {modle}; did you mean 'model'?"),
        ({"checkpoints": "{out}/checkpoint"}, "checkpoints has neither {step} nor {epoch}"),
        ({"checkpoints": "{out}/{epoch}"}, "recipes.sft-smoke has no epoch_steps"),
        ({"options": {"epochs": "{epochs}"}}, "recipes.sft-smoke has {epochs} and no epoch_steps"),
        ({"epoch_steps": 2}, "epoch_steps is 2 and steps 3; write whole epochs"),
        ({"epoch_steps": 3}, "has 3 steps, of 3 an epoch; a run that is resumed needs 2 checkpoints"),
        ({"logs": "{outt}/runs"}, "logs has the placeholder {outt}; did you mean 'out'?"),
        ({"resume": {}}, "needs resume with {checkpoint}"),
        ({"override": "yaml"}, "{config} is not in run"),
        ({"recipes": {"learning-signal": {"steps": 3}}}, "{data} is not used"),
    ],
)
def test_a_wrong_file_is_one_line_with_the_key(
    target: Callable[..., CommandTarget], keys: dict[str, Any], message: str
) -> None:
    with pytest.raises(UsageError) as refused:
        target(**keys)
    assert message in str(refused.value)
    assert "\n" not in str(refused.value)


def test_a_missing_program_is_blocked(target: Callable[..., CommandTarget]) -> None:
    with pytest.raises(BlockedError, match="'no-such-stack' is not found"):
        target(run=["no-such-stack"]).preflight()


def test_a_trial_without_recipe_is_not_requested_by_level_and_refused_by_name(
    target: Callable[..., CommandTarget],
) -> None:
    made = target()
    assert [trial.name for trial in select_trials([0, 1], [], made.trials)] == [
        "sft-smoke",
        "sft-resume-diamond",
    ]
    with pytest.raises(UsageError, match="no recipe grpo-smoke"):
        select_trials(None, ["grpo-smoke"], made.trials)
    with pytest.raises(UsageError, match="no recipe for level 6: add one of learning-signal"):
        select_trials([6], [], made.trials)


@pytest.mark.parametrize(
    ("style", "words"),
    [
        ("{name}={value}", ["a.b=1", "flag=true", "names=[x,y]"]),
        (["--{name}", "{value}"], ["--a.b", "1", "--flag", "true", "--names", "x", "y"]),
        (["--{name}={value}"], ["--a.b=1", "--flag=true"]),
    ],
)
def test_options_are_written_in_the_style_of_the_stack(
    target: Callable[..., CommandTarget], model: Path, tmp_path: Path, style: Any, words: list[str]
) -> None:
    options = {**FILE["options"], "a.b": 1, "flag": True, "names": ["x", "y"]}
    job = target(override=style, options=options).job(
        JobRequest(recipe="sft-smoke", model=model, directory=tmp_path, seed=0)
    )
    text = "\0".join(job.argv)
    assert "\0".join(words) in text


def test_options_go_to_a_file_with_their_types(
    target: Callable[..., CommandTarget], model: Path, tmp_path: Path
) -> None:
    made = target(
        override="yaml", run=[sys.executable, str(TOY), "{config}"], options={**FILE["options"], "a.b": 1.5}
    )
    job = made.job(
        JobRequest(recipe="sft-smoke", model=model, directory=tmp_path, seed=2, overrides=("a.c=x",))
    )
    assert job.argv[-1] == str(tmp_path / "options.yaml")
    written = yaml.safe_load((tmp_path / "options.yaml").read_text())
    assert (written["a"], written["steps"], written["seed"]) == ({"b": 1.5, "c": "x"}, 3, 2000)


def test_an_option_that_the_trial_sets_is_refused(target: Callable[..., CommandTarget]) -> None:
    with pytest.raises(UsageError, match="steps is set by the trial"):
        target().check_overrides(["steps=4"])


def test_series_that_a_stack_never_writes_come_from_the_vocabulary() -> None:
    """TRL logs a gradient norm, so a log of TRL without it is incomplete; counts of a step it has none of."""
    tags = {"train/loss", "train/num_tokens", "train/mean_token_accuracy", "train/learning_rate"}
    found = unlogged(tags)
    assert "train/global_valid_toks" in found
    assert "train/grad_norm" not in found
    assert "train/lr" not in found


def test_examples_are_read(repository_files: list[Path]) -> None:
    """And have at most 25 lines."""
    for path in repository_files:
        assert read_stack(path).recipes
        assert len(path.read_text().splitlines()) <= 25, path


@pytest.fixture
def repository_files() -> list[Path]:
    """The files of examples/targets."""
    found = sorted((Path(__file__).parents[3] / "examples" / "targets").glob("*.yaml"))
    assert found
    return found
