"""Which checkpoints are whole, which is the best, and which are kept."""

import hashlib
from pathlib import Path

import pytest

from refrl.checkpointing.base import Checkpoint, TrainingInfo
from refrl.checkpointing.layout import (
    INFO,
    latest_checkpoint,
    ranked,
    read_checkpoint,
    remove_superfluous,
    remove_unfinished,
    whole_checkpoints,
)
from refrl.config import CheckpointingConfig


def put(root: Path, step: int, metric: float | None = None) -> Path:
    """Write a checkpoint of one file of five bytes."""
    directory = root / f"step_{step}"
    (directory / "policy").mkdir(parents=True)
    (directory / "policy" / "weights").write_bytes(b"12345")
    info = TrainingInfo(
        step=step,
        finished=False,
        run_id="a",
        metric=metric,
        seed=0,
        data="",
        world_size=1,
        policy={},
        parts={},
        streams=[],
        config={},
        files={"policy/weights": 5},
        digests={"policy/weights": hashlib.sha256(b"12345").hexdigest()},
    )
    (directory / INFO).write_text(info.model_dump_json())
    return directory


def steps(root: Path) -> list[int]:
    """Return the steps of the whole checkpoints."""
    return [found.info.step for found in whole_checkpoints(root)]


def config(root: Path, **values: object) -> CheckpointingConfig:
    """Return a section that saves at every step."""
    return CheckpointingConfig.model_validate({"checkpoint_dir": str(root), "save_period": 1, **values})


def test_the_latest_is_the_one_of_the_highest_step_and_not_of_the_last_name(tmp_path: Path) -> None:
    """Sorted as text, step_9 comes after step_10."""
    for step in (9, 10, 2):
        put(tmp_path, step)
    found = latest_checkpoint(tmp_path)
    assert found is not None
    assert found.info.step == 10


@pytest.mark.parametrize("damage", ["no info", "half an info", "short file", "no file", "other schema"])
def test_a_checkpoint_that_is_not_whole_is_left_out_and_named(
    tmp_path: Path, damage: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """The one before it is taken."""
    put(tmp_path, 1)
    broken = put(tmp_path, 2)
    text = (broken / INFO).read_text()
    if damage == "no info":
        (broken / INFO).unlink()
    elif damage == "half an info":
        (broken / INFO).write_text(text[: len(text) // 2])
    elif damage == "short file":
        (broken / "policy" / "weights").write_bytes(b"123")
    elif damage == "no file":
        (broken / "policy" / "weights").unlink()
    else:
        (broken / INFO).write_text(text.replace('"schema_version":1', '"schema_version":2'))
    found = latest_checkpoint(tmp_path)
    assert found is not None
    assert found.info.step == 1
    assert "step_2, which is not complete" in capsys.readouterr().out


def test_a_checkpoint_with_changed_bytes_is_skipped_and_named(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The file has its old size, so that only the digest shows the change."""
    put(tmp_path, 9)
    (put(tmp_path, 10) / "policy" / "weights").write_bytes(b"12345"[::-1])
    found = latest_checkpoint(tmp_path)
    assert found is not None
    assert found.info.step == 9
    assert "step_10, which is damaged: policy/weights does not match" in capsys.readouterr().out


def test_a_folder_that_was_being_written_is_no_checkpoint_and_goes(tmp_path: Path) -> None:
    """A name of its own, whatever it holds."""
    put(tmp_path, 3).rename(tmp_path / ".step_3.abcd")
    assert latest_checkpoint(tmp_path) is None
    remove_unfinished(tmp_path)
    assert not list(tmp_path.iterdir())


def test_without_a_metric_the_last_are_kept(tmp_path: Path) -> None:
    """Two of twelve, by number."""
    for step in range(1, 13):
        put(tmp_path, step)
    remove_superfluous(tmp_path, config(tmp_path, keep_top_k=2))
    assert steps(tmp_path) == [11, 12]


@pytest.mark.parametrize(("higher", "kept"), [(True, [2, 4, 5]), (False, [1, 3, 5])])
def test_the_best_are_kept_and_the_latest_beside_them(tmp_path: Path, higher: bool, kept: list[int]) -> None:
    """The latest has no metric, so it is among the worst; a run goes on from it all the same."""
    for step, metric in enumerate([0.1, 0.9, 0.2, 0.8, None], start=1):
        put(tmp_path, step, metric)
    remove_superfluous(
        tmp_path, config(tmp_path, keep_top_k=2, metric_name="val:accuracy", higher_is_better=higher)
    )
    assert steps(tmp_path) == kept


def test_of_equals_the_later_is_the_better_and_nan_is_worst(tmp_path: Path) -> None:
    """A NaN compares with nothing, and must not end up first."""
    for step, metric in enumerate([0.5, 0.5, float("nan")], start=1):
        put(tmp_path, step, metric)
    whole = [found for found in map(read_checkpoint, tmp_path.iterdir()) if isinstance(found, Checkpoint)]
    for higher in (True, False):
        order = ranked(whole, config(tmp_path, metric_name="val:accuracy", higher_is_better=higher))
        assert [found.info.step for found in order] == [2, 1, 3]
