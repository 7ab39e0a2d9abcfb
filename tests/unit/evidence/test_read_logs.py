"""Which reader is picked, and what becomes of several files."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from tests.unit.evidence.event_writers import write_series

from seatrial.errors import BlockedError
from seatrial.evidence.read import all_readers, read_logs


def put_rows(path: Path, rows: list[dict[str, object]]) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def test_a_training_folder_is_read_by_its_event_files_and_the_rest_is_named(tmp_path: Path) -> None:
    write_series(tmp_path / "runs" / "events.out.tfevents.1", {"train/loss": [1.0]})
    state = {"global_step": 1, "log_history": [{"step": 1, "loss": 1.0}]}
    (tmp_path / "checkpoint-1").mkdir()
    (tmp_path / "checkpoint-1" / "trainer_state.json").write_text(json.dumps(state))
    put_rows(tmp_path / "samples.jsonl", [{"step": 1, "reward": 1.0}])
    (tmp_path / "config.json").write_text('{"hidden_size": 64}')
    log = read_logs(tmp_path)
    assert set(log.series) == {"train/loss"}
    assert any("1 Hugging Face trainer state file(s) lie there too" in note for note in log.notes)


def test_experiments_of_verl_in_one_folder_are_no_attempts_of_each_other(tmp_path: Path) -> None:
    for name, value in (("one", 1.0), ("two", 2.0)):
        put_rows(
            tmp_path / f"{name}.jsonl", [{"step": step, "data": {"loss": value}} for step in range(1, 4)]
        )
    log = read_logs(tmp_path)
    assert {tag: series.values.tolist() for tag, series in log.series.items()} == {
        "one/loss": [1.0] * 3,
        "two/loss": [2.0] * 3,
    }


def test_processes_of_prime_rl_log_side_by_side(tmp_path: Path) -> None:
    for name in ("trainer", "orchestrator"):
        rows: list[dict[str, object]] = [
            {"step": step, "time": 1.7e9 + step, name: 1, "lag": 2} for step in range(5)
        ]
        put_rows(tmp_path / name / "metrics.jsonl", rows)
    log = read_logs(tmp_path)
    assert set(log.series) == {"trainer", "orchestrator", "trainer/metrics/lag", "orchestrator/metrics/lag"}
    assert all(len(series) == 5 for series in log.series.values())


def test_attempts_of_prime_rl_in_two_files_follow_each_other(tmp_path: Path) -> None:
    for attempt, steps in ((0, range(8)), (1, range(5, 7))):
        rows: list[dict[str, object]] = [
            {"step": step, "time": 1.7e9 + 100 * attempt + step, "loss": attempt} for step in steps
        ]
        put_rows(tmp_path / f"run{attempt}" / "metrics.jsonl", rows)
    series = read_logs(tmp_path).series["loss"]
    assert series.values.tolist() == [0, 0, 0, 0, 0, 1, 1]
    assert series.abandoned == 3


def test_a_link_to_a_file_is_not_read_twice(tmp_path: Path) -> None:
    path = write_series(tmp_path / "run" / "events.out.tfevents.1", {"loss": [1.0, 2.0]})
    (tmp_path / "events.out.tfevents.latest").symlink_to(path)
    (tmp_path / "run" / "again").symlink_to(tmp_path / "run", target_is_directory=True)
    log = read_logs(tmp_path)
    assert len(log.sources) == 1
    assert log.series["loss"].duplicates == 0


def test_a_file_that_cannot_be_opened_is_damage(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_series(tmp_path / "events.out.tfevents.1", {"loss": [1.0]})
    locked = tmp_path / "events.out.tfevents.2"
    locked.touch()
    opened = Path.open

    def refuse(path: Path, *arguments: object, **options: object) -> object:
        if path == locked:
            raise PermissionError(13, "Permission denied", str(path))
        return opened(path, *arguments, **options)  # type: ignore[call-overload]

    monkeypatch.setattr(Path, "open", refuse)
    log = read_logs(tmp_path)
    assert [(item.path, item.what) for item in log.damage] == [
        (str(locked), "cannot be opened: Permission denied")
    ]
    with pytest.raises(BlockedError, match="Permission denied"):
        read_logs(locked)


def test_every_reader_has_a_name_and_a_priority_of_its_own() -> None:
    readers = all_readers()
    assert (
        len({reader.NAME for reader in readers})
        == len({reader.PRIORITY for reader in readers})
        == len(readers)
    )
    assert readers[0].NAME == "TensorBoard"
