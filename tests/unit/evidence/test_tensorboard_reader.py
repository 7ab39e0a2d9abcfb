"""The TensorBoard reader, against tensorboard's EventAccumulator on files of torch's SummaryWriter."""

from __future__ import annotations

import math
import random
from pathlib import Path

import numpy as np
import pytest
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
from tensorboard.compat.proto import event_pb2, summary_pb2, tensor_pb2, types_pb2
from tensorboard.util import tensor_util
from tests.unit.evidence.event_writers import record_offsets, scalar, write_events, write_series

from seatrial.errors import BlockedError
from seatrial.evidence.read import read_logs
from seatrial.evidence.runlog import Series


def same(series: Series, expected: dict[int, tuple[float, float]]) -> None:
    assert series.steps.tolist() == sorted(expected)
    values = [expected[step][0] for step in sorted(expected)]
    np.testing.assert_array_equal(series.values, values)
    assert series.wall_times is not None
    assert series.wall_times.tolist() == [expected[step][1] for step in sorted(expected)]


def accumulated(folder: Path) -> dict[str, dict[int, tuple[float, float]]]:
    """Read a folder as NeMo RL's dump does; tensor scalars as well."""
    accumulator = EventAccumulator(str(folder), size_guidance={"scalars": 0, "tensors": 0})
    accumulator.Reload()
    read = {
        tag: {event.step: (event.value, event.wall_time) for event in accumulator.Scalars(tag)}
        for tag in accumulator.Tags()["scalars"]
    }
    for tag in accumulator.Tags()["tensors"]:
        if accumulator.SummaryMetadata(tag).plugin_data.plugin_name == "scalars":
            read[tag] = {
                event.step: (float(tensor_util.make_ndarray(event.tensor_proto)), event.wall_time)
                for event in accumulator.Tensors(tag)
            }
    return read


ODD = [math.nan, math.inf, -math.inf, 0.0, -0.0, 1e-40, 3.4e38, 1.0]


@pytest.mark.parametrize("seed", range(3))
def test_what_summary_writer_writes_is_read_as_tensorboard_reads_it(tmp_path: Path, seed: int) -> None:
    tensorboard = pytest.importorskip("torch.utils.tensorboard", reason="torch is not installed")
    generator = random.Random(seed)
    writer = tensorboard.SummaryWriter(str(tmp_path))
    for step in range(150):
        for tag in range(9):
            value = generator.choice([*ODD, generator.gauss(0, 1), generator.gauss(0, 1e6)])
            at = {3: step * 10**7, 4: -step, 5: 2**40 + step}.get(tag, step)
            writer.add_scalar(f"train/m{tag}", value, at, new_style=tag == 1, double_precision=tag == 2)
        if step % 40 == 0:
            writer.add_histogram("weights", np.arange(20.0), step)
            writer.add_text("sample", "a completion", step)
            writer.add_image("picture", np.zeros((3, 4, 4)), step)
    writer.close()
    log = read_logs(tmp_path)
    expected = accumulated(tmp_path)
    assert set(log.series) == set(expected)
    assert len(expected) == 9
    for tag, points in expected.items():
        same(log.series[tag], points)
    assert log.unread == {"weights": "histogram", "sample/text_summary": "text", "picture": "image"}
    assert log.damage == []


def test_more_points_than_tensorboard_keeps(tmp_path: Path) -> None:
    write_series(tmp_path / "events.out.tfevents.1", {"loss": [float(step) for step in range(12_000)]})
    assert len(read_logs(tmp_path).series["loss"]) == 12_000


def tensor(dtype: int, **fields: object) -> tensor_pb2.TensorProto:
    return tensor_pb2.TensorProto(dtype=dtype, **fields)


@pytest.mark.parametrize(
    ("held", "expected"),
    [
        (tensor(types_pb2.DT_FLOAT, float_val=[1.5]), 1.5),
        (tensor(types_pb2.DT_FLOAT, tensor_content=np.float32(2.5).tobytes()), 2.5),
        (tensor(types_pb2.DT_DOUBLE, double_val=[math.nan]), math.nan),
        (tensor(types_pb2.DT_INT64, int64_val=[-3]), -3.0),
        (tensor(types_pb2.DT_INT32, tensor_content=np.int32(7).tobytes()), 7.0),
        (tensor(types_pb2.DT_HALF, half_val=[int(np.float16(0.5).view(np.uint16))]), 0.5),
        (tensor(types_pb2.DT_BFLOAT16, half_val=[0x3FC0]), 1.5),
        (tensor(types_pb2.DT_BOOL, bool_val=[True]), 1.0),
        (tensor(types_pb2.DT_FLOAT), 0.0),
    ],
)
def test_tensor_scalars_of_every_type(tmp_path: Path, held: tensor_pb2.TensorProto, expected: float) -> None:
    value = summary_pb2.Summary.Value(tag="t", tensor=held)
    value.metadata.plugin_data.plugin_name = "scalars"
    events = [
        event_pb2.Event(wall_time=5.0 + step, step=step, summary=summary_pb2.Summary(value=[value]))
        for step in range(1, 8)
    ]
    log = read_logs(write_events(tmp_path / "events.out.tfevents.1", events))
    np.testing.assert_array_equal(log.series["t"].values, [expected] * 7)


def test_events_with_several_values_and_records_of_one_tag_in_several_forms(tmp_path: Path) -> None:
    both = summary_pb2.Summary(
        value=[summary_pb2.Summary.Value(tag=tag, simple_value=2.0) for tag in ("left", "right")]
    )
    events = [event_pb2.Event(wall_time=1.0, step=1, summary=both)]
    events += [scalar("left", step, step, 2.0) for step in range(2, 300)]
    log = read_logs(write_events(tmp_path / "events.out.tfevents.1", events))
    assert log.series["left"].values.tolist() == [2.0, *map(float, range(2, 300))]
    assert log.series["right"].steps.tolist() == [1]


def test_thousands_of_tags_of_equal_length(tmp_path: Path) -> None:
    events = [
        scalar(f"moe/layer_{tag:05d}", step, tag + step / 8, 1.0) for step in (1, 2) for tag in range(3000)
    ]
    log = read_logs(write_events(tmp_path / "events.out.tfevents.1", events))
    assert len(log.series) == 3000
    assert log.series["moe/layer_02345"].values.tolist() == [2345.125, 2345.25]


def test_sub_folders_with_brackets_and_one_file_by_its_own_path(tmp_path: Path) -> None:
    path = write_series(tmp_path / "exp [1]*" / "deep?" / "events.out.tfevents.1", {"loss": [1.0, 2.0]})
    for where in (tmp_path / "exp [1]*", path):
        assert read_logs(where).series["loss"].values.tolist() == [1.0, 2.0]


def test_a_renamed_event_file_is_known_by_its_content(tmp_path: Path) -> None:
    path = write_series(tmp_path / "log.bin", {"loss": [1.0]})
    assert set(read_logs(path).series) == {"loss"}


def test_a_filter_reads_the_tags_asked_for_and_names_the_others(tmp_path: Path) -> None:
    names = [f"train/m{tag}" for tag in range(30)]
    write_series(tmp_path / "events.out.tfevents.1", {name: [float(len(name)), math.nan] for name in names})
    log = read_logs(tmp_path, {"train/m7", "train/absent"})
    assert set(log.series) == {"train/m7"}
    assert len(log.series["train/m7"]) == 2
    assert log.other_tags == sorted(set(names) - {"train/m7"})
    assert log.truncated_tags
    assert log.tags() == sorted(names)


def test_folders_written_at_the_same_time_are_kept_apart(tmp_path: Path) -> None:
    """Keras and SummaryWriter.add_scalars log one tag from two folders."""
    for lane, value in (("train", 1.0), ("validation", 2.0)):
        write_series(tmp_path / lane / "events.out.tfevents.1", {"epoch_loss": [value] * 4, lane: [0.0]})
    log = read_logs(tmp_path)
    assert log.series["train/epoch_loss"].values.tolist() == [1.0] * 4
    assert log.series["validation/epoch_loss"].values.tolist() == [2.0] * 4
    assert "epoch_loss" not in log.series
    assert any("precedes the tag" in note for note in log.notes)
    only = read_logs(tmp_path, {"validation/epoch_loss"})
    assert set(only.series) == {"validation/epoch_loss"}


@pytest.mark.parametrize("cut", [1, 11, 12, 17, 30])
def test_a_cut_file_says_after_which_step(tmp_path: Path, cut: int) -> None:
    path = write_series(tmp_path / "events.out.tfevents.1", {"loss": [1.0] * 100})
    blob = path.read_bytes()
    path.write_bytes(blob[: record_offsets(blob)[50] + cut])
    log = read_logs(tmp_path)
    assert log.series["loss"].steps.tolist() == list(range(1, 50))
    assert [item.what for item in log.damage] == [f"truncated after step 49: {cut} bytes of a record"]
    assert log.damage[0].path == str(path)


@pytest.mark.parametrize("tags", [None, {"loss"}])
def test_a_flipped_bit_loses_one_record_and_reading_goes_on(tmp_path: Path, tags: set[str] | None) -> None:
    path = write_series(tmp_path / "events.out.tfevents.1", {"loss": [1.0] * 100, "other": [2.0] * 100})
    whole = path.read_bytes()
    begin, end = record_offsets(whole)[99:101]
    for place in range(begin, end):
        blob = bytearray(whole)
        blob[place] ^= 0x04
        path.write_bytes(bytes(blob))
        log = read_logs(tmp_path, tags)
        assert log.series["loss"].steps.tolist() == [step for step in range(1, 101) if step != 50], place
        assert len(log.damage) == 1, place
        assert log.damage[0].what.startswith("damaged after step 49: "), place
        assert "reading continued" in log.damage[0].what


def test_a_bit_that_turns_one_tag_into_another_is_seen_by_either_filter(tmp_path: Path) -> None:
    """`loss_1` and `loss_3` are one bit apart."""
    path = write_series(tmp_path / "events.out.tfevents.1", {"loss_1": [1.0] * 50, "loss_3": [3.0] * 50})
    blob = path.read_bytes()
    path.write_bytes(blob[:1000] + blob[1000:].replace(b"loss_1", b"loss_3", 1))
    for tag in ("loss_1", "loss_3"):
        log = read_logs(path, {tag})
        assert len(log.damage) == 1
        assert len(log.series[tag]) == (49 if tag == "loss_1" else 50)


def test_many_losses_are_summed(tmp_path: Path) -> None:
    path = write_series(tmp_path / "events.out.tfevents.1", {"loss": [1.0] * 100})
    blob = bytearray(path.read_bytes())
    for begin in record_offsets(bytes(blob))[1:-1:2]:
        blob[begin + 20] ^= 1
    path.write_bytes(bytes(blob))
    log = read_logs(tmp_path)
    assert len(log.series["loss"]) == 50
    assert len(log.damage) == 9
    assert log.damage[-1].what.startswith("42 more places are damaged")


def test_a_record_that_is_no_event_is_named(tmp_path: Path) -> None:
    from tensorboard.summary.writer.record_writer import RecordWriter

    path = write_series(tmp_path / "events.out.tfevents.1", {"loss": [1.0, 2.0]})
    with path.open("ab") as stream:
        RecordWriter(stream).write(b"\xff\xff\xff")
    log = read_logs(tmp_path)
    assert "is not an event" in log.damage[0].what
    assert "after step 2" in log.damage[0].what


@pytest.mark.parametrize("content", [b"", b"\x00" * 400, b"garbage, not a log at all" * 16])
def test_a_file_without_any_event_is_blocked(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "events.out.tfevents.1").write_bytes(content)
    with pytest.raises(BlockedError, match="no readable event"):
        read_logs(tmp_path)


def test_an_empty_file_beside_a_good_one_is_damage(tmp_path: Path) -> None:
    write_series(tmp_path / "events.out.tfevents.1", {"loss": [1.0]})
    (tmp_path / "events.out.tfevents.2").touch()
    log = read_logs(tmp_path)
    assert len(log.series["loss"]) == 1
    assert [item.what for item in log.damage] == ["the file is empty: nothing was flushed to it"]


def test_a_run_that_logged_nothing_is_an_empty_log(tmp_path: Path) -> None:
    log = read_logs(write_events(tmp_path / "events.out.tfevents.1", []))
    assert log.tags() == []
    assert log.damage == []
