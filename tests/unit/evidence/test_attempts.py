"""Attempts of one run: the newest says what a step was, and what was abandoned is named."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import pytest
from tests.unit.evidence.event_writers import scalar, start, write_events, write_series

from seatrial.evidence.read import read_logs
from seatrial.evidence.readers.attempts import merge
from seatrial.evidence.readers.points import Points, Segment


def name(number: int) -> str:
    return f"exp_{number:03d}/tensorboard/events.out.tfevents.{number}"


@pytest.mark.parametrize("touched", ["older", "newer"])
def test_order_is_by_the_events_own_time(tmp_path: Path, touched: str) -> None:
    old = write_series(tmp_path / "events.out.tfevents.z", {"loss": dict.fromkeys(range(1, 8), 1.0)}, 1000.0)
    new = write_series(tmp_path / "events.out.tfevents.a", {"loss": dict.fromkeys(range(4, 7), 2.0)}, 2000.0)
    first, second = (old, new) if touched == "newer" else (new, old)
    os.utime(first, (1, 1))
    os.utime(second, (2, 2))
    series = read_logs(tmp_path).series["loss"]
    assert dict(zip(series.steps.tolist(), series.values.tolist(), strict=True)) == {
        1: 1.0,
        2: 1.0,
        3: 1.0,
        4: 2.0,
        5: 2.0,
        6: 2.0,
    }
    assert (series.abandoned, series.duplicates, series.conflicts) == (4, 3, 3)
    assert series.attempts is not None
    assert series.attempts.tolist() == [0, 0, 0, 1, 1, 1]


def test_steps_past_the_resume_point_are_abandoned_and_named(tmp_path: Path) -> None:
    """Run 1 reached step 12, run 2 resumed from 10 and redid 11 only."""
    write_series(tmp_path / name(1), {"train/loss": [1.0] * 12, "val/acc": {4: 0.1, 8: 0.2, 12: 0.3}}, 1000.0)
    write_series(tmp_path / name(2), {"train/loss": {11: 5.0}}, 2000.0)
    log = read_logs(tmp_path)
    assert log.series["train/loss"].steps.tolist() == list(range(1, 12))
    assert log.series["train/loss"].values[-1] == 5.0
    assert log.series["train/loss"].abandoned == 2
    assert log.series["val/acc"].steps.tolist() == [4, 8], "the weights of step 12 were thrown away"
    notes = "\n".join(log.notes)
    assert "logged by abandoned attempts: 3 points at steps 11 to 12" in notes
    assert "took over at step 11" in notes


@pytest.mark.parametrize("tag", ["train/loss", "val/acc"])
def test_a_filter_does_not_change_what_is_abandoned(tmp_path: Path, tag: str) -> None:
    write_series(tmp_path / name(1), {"train/loss": [1.0] * 12, "val/acc": {4: 0.1, 8: 0.2, 12: 0.3}}, 1000.0)
    write_series(tmp_path / name(2), {"train/loss": {11: 5.0}}, 2000.0)
    np.testing.assert_array_equal(
        read_logs(tmp_path, {tag}).series[tag].values, read_logs(tmp_path).series[tag].values
    )


def test_set_up_tags_at_step_0_do_not_void_the_first_attempt(tmp_path: Path) -> None:
    setup = {f"timing/setup/{part}_s": {0: 1.0} for part in "abcdefgh"}
    write_series(tmp_path / name(1), {"train/loss": [1.0] * 10, **setup}, 1000.0)
    write_series(tmp_path / name(2), {"train/loss": dict.fromkeys(range(9, 15), 2.0), **setup}, 2000.0)
    log = read_logs(tmp_path)
    assert log.series["train/loss"].values.tolist() == [1.0] * 8 + [2.0] * 6
    assert log.series["timing/setup/a_s"].steps.tolist() == [0]


def test_three_attempts_of_which_the_last_goes_back_furthest(tmp_path: Path) -> None:
    write_series(tmp_path / name(1), {"x": [1.0] * 10}, 1000.0)
    write_series(tmp_path / name(2), {"x": {8: 2.0, 9: 2.0}}, 2000.0)
    write_series(tmp_path / name(3), {"x": {5: 3.0, 6: 3.0}}, 3000.0)
    series = read_logs(tmp_path).series["x"]
    assert series.values.tolist() == [1.0] * 4 + [3.0] * 2
    assert series.attempts is not None
    assert series.attempts.tolist() == [0] * 4 + [2] * 2
    assert series.abandoned == 8


def test_a_writer_that_continues_abandons_nothing(tmp_path: Path) -> None:
    write_series(tmp_path / "events.out.tfevents.1", {"x": [1.0] * 5}, 1000.0)
    write_series(tmp_path / "events.out.tfevents.2", {"x": {6: 2.0}}, 2000.0)
    series = read_logs(tmp_path).series["x"]
    assert series.steps.tolist() == [1, 2, 3, 4, 5, 6]
    assert series.abandoned == 0


def test_files_with_other_tags_are_no_attempts(tmp_path: Path) -> None:
    write_series(tmp_path / "events.out.tfevents.1", {"train/loss": [1.0] * 50}, 1000.0)
    write_series(tmp_path / "events.out.tfevents.2", {"eval/score": {10: 0.5}}, 2000.0)
    log = read_logs(tmp_path)
    assert len(log.series["train/loss"]) == 50
    assert log.series["train/loss"].attempts is None


def test_a_writer_that_says_where_it_resumes_is_believed(tmp_path: Path) -> None:
    events = [scalar("x", step, 1.0, step) for step in range(1, 11)]
    events += [start(6, 20.0), *(scalar("x", step, 2.0, 20.0 + step) for step in range(8, 10))]
    series = read_logs(write_events(tmp_path / "events.out.tfevents.1", events)).series["x"]
    assert series.steps.tolist() == [1, 2, 3, 4, 5, 8, 9]
    assert series.abandoned == 5


@pytest.mark.parametrize("tags", [None, {"val"}])
def test_a_start_without_points_after_it_abandons_steps_all_the_same(
    tmp_path: Path, tags: set[str] | None
) -> None:
    events = [scalar("x", step, 1.0, step) for step in range(1, 11)]
    events += [scalar("val", 4, 1.0, 4.5), scalar("val", 8, 1.0, 8.5), start(6, 20.0)]
    log = read_logs(write_events(tmp_path / "events.out.tfevents.1", events), tags)
    assert log.series["val"].steps.tolist() == [4]


def test_summary_writer_with_purge_step(tmp_path: Path) -> None:
    tensorboard = pytest.importorskip("torch.utils.tensorboard", reason="torch is not installed")
    for value, steps, purge in ((1.0, range(1, 11), None), (2.0, range(7, 9), 5)):
        writer = tensorboard.SummaryWriter(str(tmp_path), purge_step=purge, filename_suffix=f".{value}")
        for step in steps:
            writer.add_scalar("x", value, step)
        writer.close()
    assert read_logs(tmp_path).series["x"].steps.tolist() == [1, 2, 3, 4, 7, 8]


def test_a_step_written_twice_keeps_the_last_value_and_counts(tmp_path: Path) -> None:
    values = [(1, 1.0), (2, 2.0), (2, 2.0), (3, 3.0), (3, 9.0), (3, float("nan"))]
    events = [scalar("x", step, value, 5.0 + place) for place, (step, value) in enumerate(values)]
    log = read_logs(write_events(tmp_path / "events.out.tfevents.1", events))
    series = log.series["x"]
    np.testing.assert_array_equal(series.values, [1.0, 2.0, float("nan")])
    assert (series.duplicates, series.conflicts, series.abandoned) == (3, 2, 0)
    assert any("with another value, of which the last counts: 2 points" in note for note in log.notes)


def test_the_clock_of_each_attempt_is_kept(tmp_path: Path) -> None:
    """NeMo RL's ray/* restarts at 0: the peak of the first attempt stays visible."""
    tag = "ray/node.0.gpu.0.mem_gb"
    write_series(tmp_path / name(1), {tag: {0: 10.0, 10: 79.0}, "train/loss": [1.0] * 3}, 1000.0)
    write_series(tmp_path / name(2), {tag: {0: 9.0, 10: 10.0}, "train/loss": {3: 2.0}}, 2000.0)
    series = read_logs(tmp_path).series[tag]
    assert sorted(series.values.tolist()) == [9.0, 10.0, 10.0, 79.0]
    assert series.steps.tolist() == [0, 0, 10, 10]
    assert series.attempts is not None
    assert series.attempts.tolist() == [0, 1, 0, 1]
    assert series.abandoned == 0


def test_two_samples_in_one_second_are_both_kept(tmp_path: Path) -> None:
    events = [scalar("ray/x", 5, value, 10.0) for value in (1.0, 8.0, 2.0)]
    series = read_logs(write_events(tmp_path / "events.out.tfevents.1", events)).series["ray/x"]
    assert series.values.tolist() == [1.0, 8.0, 2.0]


def points(*steps: int) -> Points:
    return Points(steps=np.array(steps), values=np.zeros(len(steps)))


def test_segments_without_times_follow_each_other_as_given() -> None:
    parts = [Segment(source="f", points={"x": points(1, 2, 3)}), Segment(source="f", points={"x": points(2)})]
    series = merge(parts).series["x"]
    assert series.steps.tolist() == [1, 2]
    assert series.abandoned == 2


def test_runs_are_never_attempts_of_one_another() -> None:
    parts = [Segment(source="db", lane=run, points={"x": points(1, 2)}) for run in ("one", "two")]
    merged = merge(parts, lanes_are_runs=True)
    assert set(merged.series) == {"one/x", "two/x"}
    assert [len(series) for series in merged.series.values()] == [2, 2]
