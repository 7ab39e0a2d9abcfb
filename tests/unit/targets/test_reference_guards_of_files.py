"""Guards that read again what refrl read or wrote: files of rows, the command line, checkpoints, the log."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from refrl.config import GRPORunConfig, load_config
from refrl.recipes import find_config
from refrl.tasks import make_splits
from refrl.training.grpo import run_grpo
from refrl.training.session import Observer, Observers, Session, TrainedStep
from refrl.training.sft import run_sft
from seatrial.guards import Guards
from seatrial.targets.reference.configuration import configuration, tuning_configuration
from seatrial.targets.reference.guards.checkpoints import SAVED_FILE
from seatrial.targets.reference.guards.examples import ExampleGuard
from seatrial.targets.reference.guards.masks import check_kept_ids
from seatrial.targets.reference.guards.observer import RecordingGuards
from seatrial.targets.reference.guards.options import check_options
from seatrial.targets.reference.guards.refusals import check_refusals
from seatrial.targets.reference.guards.schedule import ScheduleGuard
from seatrial.targets.reference.guards.specifications import check_specifications
from seatrial.targets.reference.runs.short import quiet


def failed(guards: RecordingGuards) -> set[str]:
    """Return the guards that failed."""
    return {verdict.name.removeprefix("guard ") for verdict in guards.guards.failures}


def on_files(folder: Path, answer: int = 3) -> dict[str, Any]:
    """Write rows of two files; return the options that name them."""
    (folder / "rows").mkdir()
    for part in range(2):
        rows = [{"q": f"say {part}{number}", "a": answer} for number in range(6)]
        (folder / "rows" / f"train-{part}.jsonl").write_text("\n".join(map(json.dumps, rows)))
    return {
        "data.task": None,
        "data.train_path": str(folder / "rows"),
        "data.prompt_key": "q",
        "data.answer_key": "a",
        "data.num_train": None,
        "data.num_validation": 2,
        "logger.log_dir": str(folder / "log"),
        "logger.tensorboard_enabled": True,
    }


@pytest.mark.parametrize(
    ("lost", "seen"),
    [
        (lambda rows: rows, set()),
        (lambda rows: rows[:-1], {"splits as seeded"}),
        (lambda rows: rows[::-1], {"splits as seeded"}),
        (lambda rows: [replace(row, answer="3.0") for row in rows], {"rows of the files"}),
        (lambda rows: [replace(row, prompt_id=row.prompt_id % 2) for row in rows], {"ids of prompts"}),
    ],
    ids=["sound", "a row lost", "another order", "another text", "shared ids"],
)
def test_rows_are_those_of_the_files(tmp_path: Path, lost: Any, seen: set[str]) -> None:
    """Whatever of them is lost, turned or read as something else."""

    class Misread(RecordingGuards):
        def started(self, session: Session) -> None:
            super().started(replace(session, train_examples=lost(list(session.train_examples))))

    config = tuning_configuration(on_files(tmp_path))
    guards = Misread(config)
    with quiet():
        run_sft(config, guards)
    told = {"splits as seeded", "rows of the files", "ids of prompts"}
    assert failed(guards) & told == seen
    assert {f"guard {name}" for name in told} <= guards.guards.asked.keys()


@pytest.mark.parametrize(
    ("word", "good"),
    [
        ("grpo.seed=3", True),
        ("policy.optimizer.lr=1e-3", True),
        ("policy.optimizer={lr: 0.001}", True),
        ("data.verifier=null", True),
        ("grpo.seed=4", False),
        ("policy.optimizer.lr=2e-3", False),
        ("data.verifier=exact_match", False),
    ],
)
def test_options_are_those_of_the_command_line(word: str, good: bool) -> None:
    """The last word wins, whatever stands before it."""
    name = word.partition("=")[0]
    inert = ["grpo.seed=3", "data.verifier=null"]
    config = load_config(GRPORunConfig, find_config("grpo-smoke"), inert)
    guards = Guards(raises=False)
    given = ["refrl", "grpo", "--config", "grpo-smoke", *inert, f"{name}=7", word]
    check_options(config, guards, given)
    assert (not guards.failures) is good
    assert guards.asked["guard options as asked for"] == 1


def test_without_a_command_line_nothing_is_asked() -> None:
    """As in a test, or where refrl is called from a program."""
    guards = Guards(raises=False)
    check_options(configuration({}), guards, ["pytest", "-q"])
    assert not guards.asked


def resumed(folder: Path, between: Any) -> RecordingGuards:
    """Take two steps with a checkpoint after each, change something, and take the third in another attempt."""
    options = {
        "policy.train_global_batch_size": 8,
        "logger.log_dir": str(folder / "log"),
        "logger.tensorboard_enabled": True,
        "checkpointing.enabled": True,
        "checkpointing.save_period": 1,
        "checkpointing.checkpoint_dir": str(folder / "checkpoints"),
    }
    first, second = (configuration({**options, "grpo.max_num_steps": steps}) for steps in (2, 3))
    with quiet():
        run_grpo(first, RecordingGuards(first))
        between(folder / "log")
        guards = RecordingGuards(second)
        run_grpo(second, guards)
    return guards


def test_a_run_goes_on_as_it_was_saved(tmp_path: Path) -> None:
    """Nothing fails, and what the first attempt found is in the findings of both."""
    guards = resumed(tmp_path, lambda log: None)
    assert failed(guards) == set()
    found = json.loads((tmp_path / "log" / "guards.json").read_text())
    assert found["guard resumed as saved"]["asked"] == 1
    assert found["guard checkpoint is whole"]["asked"] == 3


def test_a_moment_that_is_not_back_is_seen(tmp_path: Path) -> None:
    """As of an optimizer that starts anew; and a failure of the first attempt is not forgotten."""

    def between(log: Path) -> None:
        saved = json.loads((log / SAVED_FILE).read_text())
        name = next(name for name in saved["2"] if name.endswith("exp_avg_sq"))
        saved["2"][name] = "another"
        (log / SAVED_FILE).write_text(json.dumps(saved))
        found = json.loads((log / "guards.json").read_text())
        found["guard endings"]["failed"] = {"reason": "of the first attempt"}
        (log / "guards.json").write_text(json.dumps(found))

    guards = resumed(tmp_path, between)
    assert failed(guards) == {"resumed as saved"}
    found = json.loads((tmp_path / "log" / "guards.json").read_text())
    assert found["guard endings"]["failed"] == {"reason": "of the first attempt"}


def test_a_run_that_is_complete_begins_in_vain(tmp_path: Path) -> None:
    """Started again it takes no step and makes no validation, and none is missed."""
    guards = Guards(raises=False)
    scheduled = ScheduleGuard(configuration({"grpo.max_num_steps": 2, "grpo.val_at_end": True}), guards)
    scheduled.ended(last_step=2, first_step=3)
    assert not guards.failures
    scheduled.ended(last_step=2, first_step=1)
    assert [one.name for one in guards.failures] == ["guard validations as configured"]


@pytest.mark.parametrize("kept", [0.5, 2.0])
def test_parts_of_the_users_own_have_their_options(tmp_path: Path, kept: float) -> None:
    """A loss and an estimator that read other options than the configured ones are seen by what they compute."""
    own = "tests.unit.targets.own_parts"
    options = {
        "policy.train_global_batch_size": 8,
        "grpo.max_num_steps": 1,
        "grpo.advantage.estimator": f"{own}:Scaled",
        "loss_fn.kind": f"{own}:Weighed",
        "logger.log_dir": str(tmp_path / "log"),
    }
    run, told = (
        configuration(
            {**options, "grpo.advantage.options": {"factor": factor}, "loss_fn.options": {"factor": factor}}
        )
        for factor in (2.0, kept)
    )
    guards = RecordingGuards(told)
    with quiet():
        run_grpo(run, guards)
    seen = {"advantages as configured", "gradient of the loss", "loss of the rows"}
    assert failed(guards) == (set() if kept == 2.0 else seen)


@pytest.mark.parametrize("task", ["code_print", "lookup"])
def test_examples_are_those_of_the_task(tmp_path: Path, task: str) -> None:
    """Every made task has its form; an example of another one, or with another answer, is seen."""
    config = tuning_configuration(
        {
            "data.task": task,
            "data.verifier": None,
            "data.num_train": 7,
            "logger.log_dir": str(tmp_path / "log"),
        }
    )

    class Misread(RecordingGuards):
        def started(self, session: Session) -> None:
            examples = [replace(one, prompt="12+7=") for one in session.train_examples]
            super().started(replace(session, train_examples=examples))

    sound, misread = RecordingGuards(config), Misread(config)
    with quiet():
        run_sft(config, Observers([sound, misread]))
    assert failed(sound) == set()
    assert "examples of the task" in failed(misread)


def test_a_text_with_more_than_the_last_turn_is_seen(tmp_path: Path) -> None:
    """What is judged is what the model said last."""

    class Misled(RecordingGuards):
        def trained(self, session: Session, step: TrainedStep) -> None:
            texts = [f"=7;{text}" for text in step.rollouts.texts]
            super().trained(session, replace(step, rollouts=replace(step.rollouts, texts=texts)))

    config = configuration(
        {
            "policy.train_global_batch_size": 8,
            "logger.log_dir": str(tmp_path / "log"),
            "grpo.max_num_steps": 1,
        }
    )
    guards = Misled(config)
    with quiet():
        run_grpo(config, guards)
    assert failed(guards) == {"texts that are judged", "rewards judged again"}


def test_a_log_that_says_something_else_is_seen(tmp_path: Path) -> None:
    """A scalar of the step before, a phase under another name, counts that nobody counted."""

    class Misled(RecordingGuards):
        def trained(self, session: Session, step: TrainedStep) -> None:
            super().trained(
                session, replace(step, metrics={**step.metrics, "loss": 5.0, "num_verifier_errors": 3.0})
            )

    config = configuration(
        {
            "policy.train_global_batch_size": 8,
            "logger.log_dir": str(tmp_path / "log"),
            "logger.tensorboard_enabled": True,
        }
    )
    sound, misled = RecordingGuards(config), Misled(config)
    with quiet():
        run_grpo(config, Observers([sound, misled]))
    assert failed(sound) == set()
    assert failed(misled) == {"log as computed", "loss of the rows", "counts of the step"}
    asked = {"guard phases as documented", "guard seconds and rates", "guard log as computed"}
    assert asked <= sound.guards.asked.keys()


@pytest.mark.parametrize(("name", "value", "more"), [("top_p", 0.5, 0.9), ("top_k", 3, 4)])
def test_what_a_filter_kept_has_its_mass(tmp_path: Path, name: str, value: float, more: float) -> None:
    """A sampler that keeps less than top_p, or fewer than top_k, is seen by what it kept."""
    options = {"policy.train_global_batch_size": 8, "logger.log_dir": str(tmp_path / "log")}
    config, other = (
        configuration({**options, f"policy.generation.{name}": kept, "grpo.max_num_steps": 1})
        for kept in (value, more)
    )
    found = [(config, Guards(raises=False)), (other, Guards(raises=False))]

    class Sampling(Observer):
        def synced(self, session: Session) -> None:
            prompts = session.encoder.prompts([one.prompt for one in session.train_examples[:3]])
            stream = torch.Generator().manual_seed(3)
            completions = session.generator.generate(prompts, session.sampling, stream)
            for told, guards in found:
                check_kept_ids(session, told, guards, completions)

    with quiet():
        run_grpo(config, Sampling())
    assert [len(guards.failures) for _, guards in found] == [0, 1]
    assert [guards.asked["guard kept ids as configured"] for _, guards in found] == [1, 1]


@pytest.mark.parametrize("precision", ["float32", "bfloat16"])
def test_a_policy_that_saves_copies_is_sound(tmp_path: Path, precision: str) -> None:
    """Megatron-core's weights are converted on their way out; of the sampler's types only what is sent counts."""
    pytest.importorskip("megatron.core", reason="needs megatron-core")
    config = configuration(
        {
            "grpo.max_num_steps": 1,
            "policy.megatron_cfg.enabled": True,
            "policy.precision": precision,
            "logger.log_dir": str(tmp_path / "log"),
            "checkpointing.enabled": True,
            "checkpointing.save_period": 1,
            "checkpointing.checkpoint_dir": str(tmp_path / "checkpoints"),
        }
    )
    guards = RecordingGuards(config)
    with quiet():
        run_grpo(config, guards)
    assert failed(guards) == set()
    found = json.loads((tmp_path / "log" / "guards.json").read_text())
    assert found["guard checkpoint is whole"]["asked"] == 1
    assert found["guard types after sync"]["asked"] > 0


@pytest.mark.parametrize("answer", [None, "", "another option is wrong"])
def test_options_that_contradict_one_another_are_refused(
    monkeypatch: pytest.MonkeyPatch, answer: str | None
) -> None:
    """By name; and options close to them are not."""
    if answer is not None:
        monkeypatch.setattr("seatrial.targets.reference.guards.refusals.refusal_of", lambda options: answer)
    guards = Guards(raises=False)
    check_refusals(guards)
    assert bool(guards.failures) is (answer is not None)


@pytest.mark.parametrize("penalty", [0.0, 0.5])
def test_what_a_loss_says_of_itself_is_checked(monkeypatch: pytest.MonkeyPatch, penalty: float) -> None:
    """A KL in the reward is no term of the loss."""
    options = {"loss_fn.kl_in": "reward", "loss_fn.reference_policy_kl_penalty": 0.5}
    place = "seatrial.targets.reference.guards.specifications.loss_specification"
    monkeypatch.setattr(place, lambda loss: {"kl_penalty": penalty, "reduction": "token"})
    guards = Guards(raises=False)
    check_specifications(configuration(options), guards)
    assert [verdict.name for verdict in guards.failures] == (["guard loss as specified"] if penalty else [])


@pytest.mark.parametrize("kind", ["ppo_clip", "gspo", "cispo"])
def test_built_in_losses_say_what_they_are(kind: str) -> None:
    """Every value that they name is that of the options."""
    guards = Guards(raises=False)
    reduction = "sequence" if kind == "gspo" else "token"
    check_specifications(configuration({"loss_fn.kind": kind, "loss_fn.reduction": reduction}), guards)
    assert not guards.failures
    assert len(guards.asked) == 2


def test_the_empty_word_is_a_prompt_to_look_up(tmp_path: Path) -> None:
    """Where the arguments of the task allow it."""
    words = ["data.task=lookup", "data.task_args={min_length: 0, max_length: 3, alphabet_size: 2}"]
    config = load_config(GRPORunConfig, find_config("grpo-smoke"), words)
    guards = Guards(raises=False)
    examples = [*make_splits(config.data).train, *make_splits(config.data).validation]
    assert "price :" in [example.prompt for example in examples]
    ExampleGuard(config, guards)._check_examples(examples)
    assert not guards.failures
    ExampleGuard(config, guards)._check_examples([replace(examples[0], prompt="price 1:")])
    assert guards.failures
