"""A run that was stopped or killed goes on from its last whole checkpoint, and ends as if nothing had happened."""

import json
import multiprocessing
import os
import random
import signal
from collections.abc import Callable
from pathlib import Path

import pytest
from safetensors.torch import load_file
from tensorboard.backend.event_processing.event_file_loader import EventFileLoader

from refrl.checkpointing.layout import whole_checkpoints
from refrl.config import ConfigError, SFTRunConfig, load_config
from refrl.training.sft import run_sft

from .conftest import CONFIGS

Overrides = Callable[[str], list[str]]
SHORT = (
    "sft.stop_at_accuracy=null",
    "sft.val_period=2",
    "sft.max_val_samples=2",
    "sft.max_num_steps=6",
    "data.num_train=40",  # an epoch ends within the run
    "policy.train_global_batch_size=16",
    "policy.train_micro_batch_size=16",
    "policy.scheduler.name=linear",
    "checkpointing.save_period=1",
)
STOP = "checkpointing.checkpoint_must_save_by=00:00:00:00"
"""Ends every attempt after one step."""


def sft(overrides: list[str], *more: str) -> SFTRunConfig:
    """Return a run of six short steps."""
    return load_config(SFTRunConfig, CONFIGS / "sft-warmup.yaml", [*overrides, *SHORT, *more])


def last_state(config: SFTRunConfig) -> dict[str, object]:
    """Return every tensor and counter of the last checkpoint; global streams begin where the process left them."""
    checkpoint = whole_checkpoints(Path(config.checkpointing.checkpoint_dir))[-1]
    tensors = {
        f"{path.name} {name}": value.tolist()
        for path in (checkpoint.directory / "policy").iterdir()
        for name, value in load_file(path).items()
    }
    kept = checkpoint.info.model_dump(exclude={"run_id", "config", "files", "digest", "streams"})
    return {**tensors, **kept}


def series(config: SFTRunConfig) -> dict[str, dict[int, float]]:
    """Return every scalar by tag and step, of all event files together; none may be there twice.

    What depends on the clock is left out.
    """
    found: dict[str, dict[int, float]] = {}
    for path in (Path(config.logger.log_dir) / "tensorboard").iterdir():
        for event in EventFileLoader(str(path)).Load():
            for value in event.summary.value:
                of_tag = found.setdefault(value.tag, {})
                assert event.step not in of_tag, f"{value.tag} is there twice at step {event.step}"
                of_tag[event.step] = float(value.tensor.float_val[0])
    ordered = {tag: dict(sorted(values.items())) for tag, values in found.items()}
    return {tag: values for tag, values in ordered.items() if not tag.startswith(("timing/", "performance/"))}


@pytest.fixture(scope="module")
def whole_run(tiny_model: Path, tmp_path_factory: pytest.TempPathFactory) -> SFTRunConfig:
    """Run six steps at once."""
    folder = tmp_path_factory.mktemp("whole")
    config = sft(
        [
            f"policy.model_name={tiny_model}",
            f"logger.log_dir={folder / 'logs'}",
            f"checkpointing.checkpoint_dir={folder / 'checkpoints'}",
            "cluster.num_threads=1",
        ]
    )
    run_sft(config)
    return config


@pytest.mark.parametrize("background", ["true", "false"])
def test_a_run_of_one_step_at_a_time_ends_bitwise_as_one_that_was_not_stopped(
    overrides: Overrides, whole_run: SFTRunConfig, background: str
) -> None:
    """Five resumes, one of them at the end of an epoch: state, log and export."""
    config = sft(overrides("parts"), STOP, f"checkpointing.async_save={background}")
    for _ in range(6):
        run_sft(config)
    assert last_state(config) == last_state(whole_run)
    assert series(config) == series(whole_run)
    assert_same_export(config, whole_run)
    info = json.loads((Path(config.logger.log_dir) / "run_info.json").read_text())
    assert [attempt["resumed_from"] for attempt in info["attempts"]] == [None, 1, 2, 3, 4, 5]


def test_steps_after_the_checkpoint_are_in_the_log_once(
    overrides: Overrides, whole_run: SFTRunConfig
) -> None:
    """A run that logged beyond its last checkpoint takes these steps again, and the log has one series."""
    config = sft(overrides("ghosts"), "sft.max_num_steps=5", "checkpointing.save_period=2")
    run_sft(config)
    checkpoints = Path(config.checkpointing.checkpoint_dir)
    (checkpoints / "step_5").rename(checkpoints / ".step_5.killed")
    run_sft(sft(overrides("ghosts"), "checkpointing.save_period=2"))
    assert series(config) == series(whole_run)
    assert {path.name for path in checkpoints.iterdir()} == {"step_2", "step_4", "step_6", "final"}


def test_a_run_resumes_though_saving_is_now_off(overrides: Overrides, whole_run: SFTRunConfig) -> None:
    """What is there is resumed from; nothing more is saved."""
    config = sft(overrides("off"), STOP)
    run_sft(config)
    run_sft(sft(overrides("off"), "checkpointing.save_period=0"))
    assert series(config) == series(whole_run)
    assert_same_export(config, whole_run)
    assert len(whole_checkpoints(Path(config.checkpointing.checkpoint_dir))) == 1


def test_a_complete_run_is_not_trained_again(overrides: Overrides) -> None:
    """Its export keeps its time."""
    config = sft(overrides("again"), "sft.max_num_steps=1")
    run_sft(config)
    final = Path(config.checkpointing.checkpoint_dir) / "final"
    before = final.stat().st_mtime_ns
    run_sft(config)
    assert final.stat().st_mtime_ns == before
    assert list(series(config)["train/loss"]) == [1]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ("sft.seed=1", "other seed"),
        ("data.num_train=41", "other training prompts"),
        ("policy.precision=bfloat16", "is missing .* tensors .*master"),
        ("policy.lora_cfg.enabled=true", "is missing .* tensors"),
    ],
)
def test_a_checkpoint_of_another_run_is_refused(overrides: Overrides, change: str, message: str) -> None:
    """Each with a message of its own."""
    run_sft(sft(overrides("other"), STOP))
    with pytest.raises(ConfigError, match=message):
        run_sft(sft(overrides("other"), change))


def test_a_checkpoint_does_not_continue_the_log_of_another_run(overrides: Overrides, tmp_path: Path) -> None:
    """The log directory of one run and the checkpoints of another."""
    run_sft(sft(overrides("one"), STOP))
    run_sft(sft(overrides("two"), STOP))
    with pytest.raises(ConfigError, match="the log of another run"):
        run_sft(sft([*overrides("one"), f"logger.log_dir={tmp_path / 'two' / 'logs'}"]))


def assert_same_export(one: SFTRunConfig, other: SFTRunConfig) -> None:
    """Both exported the same files, to the bit."""
    folders = [Path(config.checkpointing.checkpoint_dir) / "final" for config in (one, other)]
    files = [{path.name: path.read_bytes() for path in folder.iterdir()} for folder in folders]
    assert files[0] == files[1]


def killed_at_random(config: SFTRunConfig, num_kills: int, seed: int) -> int:
    """Run until it is complete, killing it at random moments (the first so many attempts); return the kills."""
    stream = random.Random(seed)
    context = multiprocessing.get_context("fork")  # what it needs is imported already
    killed = 0
    for _ in range(num_kills + 1):
        child = context.Process(target=_quietly, args=(config,))
        child.start()
        child.join(timeout=stream.uniform(0.0, 1.2) if killed < num_kills else 300)
        if child.exitcode is None and child.pid is not None:
            os.kill(child.pid, signal.SIGKILL)
            killed += 1
            child.join()
        elif child.exitcode == 0:
            return killed
        else:
            raise AssertionError(f"an attempt ended with {child.exitcode}")
    raise AssertionError("the run did not end")


def _quietly(config: SFTRunConfig) -> None:
    with Path(os.devnull).open("w") as nowhere:
        os.dup2(nowhere.fileno(), 1)
        run_sft(config)


def assert_survives(overrides: Overrides, whole_run: SFTRunConfig, num_kills: int) -> None:
    """Kill runs until so many kills have happened; each run ends bitwise as the one that was not killed."""
    kills = 0
    for number in range(10 * num_kills):
        config = sft(overrides(f"killed {number}"), "checkpointing.keep_top_k=2")
        kills += killed_at_random(config, min(4, num_kills - kills), seed=number)
        assert last_state(config) == last_state(whole_run)
        assert series(config) == series(whole_run)
        assert_same_export(config, whole_run)
        if kills >= num_kills:
            return
    raise AssertionError(f"only {kills} kills of {num_kills} came before the end of a run")


def test_a_run_that_is_killed_ends_as_one_that_is_not(overrides: Overrides, whole_run: SFTRunConfig) -> None:
    """A few kills at random moments."""
    assert_survives(overrides, whole_run, 4)


@pytest.mark.nightly
def test_a_hundred_kills(overrides: Overrides, whole_run: SFTRunConfig) -> None:
    """At random moments of runs of short steps."""
    assert_survives(overrides, whole_run, 100)
