"""`seatrial dump` and `seatrial tags`."""

from __future__ import annotations

import errno
import json
import math
import os
import re
import tempfile
from pathlib import Path

import numpy as np
import pytest
from tests.unit.evidence.event_writers import record_offsets, write_series

from seatrial.cli import main
from seatrial.evidence import quick_json
from seatrial.evidence.read import read_logs
from seatrial.evidence.readers.metrics_json import PROVENANCE_KEY


@pytest.fixture
def logs(tmp_path: Path) -> Path:
    values = {"train/loss": [2.0, math.nan, math.inf, 0.1], "val/acc": {0: 0.5, 4: -0.0}}
    write_series(tmp_path / "logs" / "events.out.tfevents.1", values)
    return tmp_path / "logs"


def test_the_form_is_nemo_rls(logs: Path, tmp_path: Path) -> None:
    assert main(["dump", str(logs), "--output", str(tmp_path / "metrics.json")]) == 0
    data = json.loads((tmp_path / "metrics.json").read_text())
    provenance = data.pop(PROVENANCE_KEY)
    assert list(data) == ["train/loss", "val/acc"]
    assert list(data["train/loss"]) == ["1", "2", "3", "4"]
    assert data["train/loss"]["1"] == 2.0
    assert math.isnan(data["train/loss"]["2"])
    assert data["train/loss"]["3"] == math.inf
    assert data["train/loss"]["4"] == float(np.float32(0.1))
    assert provenance["sources"] == [str(logs / "events.out.tfevents.1")]
    assert sorted(path.name for path in tmp_path.iterdir()) == ["logs", "metrics.json"]


def test_reading_the_dump_gives_the_log(logs: Path, tmp_path: Path) -> None:
    main(["dump", str(logs), "--output", str(tmp_path / "metrics.json")])
    before, after = read_logs(logs), read_logs(tmp_path / "metrics.json")
    assert set(before.series) == set(after.series)
    for tag, series in before.series.items():
        np.testing.assert_array_equal(series.steps, after.series[tag].steps)
        np.testing.assert_array_equal(series.values, after.series[tag].values)


def test_nulls_and_bare_numbers_survive(tmp_path: Path) -> None:
    (tmp_path / "in.json").write_text('{"a": {"1": null, "2": NaN}, "score": 0.25}')
    assert main(["dump", str(tmp_path / "in.json"), "--output", str(tmp_path / "out.json")]) == 0
    log = read_logs(tmp_path / "out.json")
    nulls = log.series["a"].nulls
    assert nulls is not None
    assert nulls.tolist() == [True, False]
    assert log.scalars == {"score": 0.25}


def test_both_writers_give_the_same(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("orjson")
    values = np.random.default_rng(0).standard_normal(200) * 10.0 ** np.arange(-100, 100)
    rows = [{"step": step, "a": value, "b": -0.0} for step, value in enumerate(values.tolist())]
    rows += [{"step": 999, "odd": None}, {"step": 1000, "odd": math.inf}, {"step": 998, "odd": 1e22}]
    (tmp_path / "in.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    assert main(["dump", str(tmp_path / "in.jsonl"), "--output", str(tmp_path / "quick.json")]) == 0
    monkeypatch.setattr(quick_json, "orjson", None)
    assert main(["dump", str(tmp_path / "in.jsonl"), "--output", str(tmp_path / "slow.json")]) == 0
    quick, slow = (json.loads((tmp_path / name).read_text()) for name in ("quick.json", "slow.json"))
    assert list(quick) == list(slow)
    for tag in ("a", "b", "odd"):
        assert [(step, repr(value)) for step, value in quick[tag].items()] == [
            (step, repr(value)) for step, value in slow[tag].items()
        ]


def test_damage_is_said_and_stays_with_the_dump(
    logs: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = logs / "events.out.tfevents.1"
    blob = file.read_bytes()
    file.write_bytes(blob[: record_offsets(blob)[-2] + 20])
    assert main(["dump", str(logs), "--output", str(tmp_path / "metrics.json")]) == 3
    assert "truncated after step 4" in capsys.readouterr().err
    assert "truncated after step 4" in read_logs(tmp_path / "metrics.json").damage[0].what
    assert main(["check", str(tmp_path / "metrics.json"), 'max(data["val/acc"]) < 1']) == 3


def test_conflicts_are_refused_on_request(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write_series(tmp_path / "logs" / "events.out.tfevents.1", {"loss": [1.0] * 5, "same": [1.0] * 5}, 1000.0)
    write_series(tmp_path / "logs" / "events.out.tfevents.2", {"loss": {4: 7.0}, "same": {4: 1.0}}, 2000.0)
    words = ["dump", str(tmp_path / "logs"), "--output", str(tmp_path / "metrics.json")]
    assert main([*words, "--error-on-conflicts"]) == 1
    assert "logged again with another value: 1 point (loss 1)" in capsys.readouterr().err
    assert not (tmp_path / "metrics.json").exists()
    assert main(words) == 0
    assert "abandoned" in capsys.readouterr().out


@pytest.mark.parametrize(("prefix", "code"), [("train/", 0), ("generation_metrics/", 1)])
def test_a_required_prefix(logs: Path, tmp_path: Path, prefix: str, code: int) -> None:
    words = ["dump", str(logs), "--output", str(tmp_path / "metrics.json"), "--require-tag-prefix", prefix]
    assert main(words) == code
    assert (tmp_path / "metrics.json").exists() is (code == 0)


def test_peaks_of_every_attempt_of_a_clock_are_dumped(tmp_path: Path) -> None:
    tag = "ray/node.0.gpu.0.mem_gb"
    for number, values in ((1, {0: 10.0, 10: 79.0}), (2, {0: 9.0, 10: 10.0})):
        path = tmp_path / f"exp_{number}" / f"events.out.tfevents.{number}"
        write_series(path, {tag: values, "x": {number: 0.0}}, 1000.0 * number)
    main(["dump", str(tmp_path), "--output", str(tmp_path / "metrics.json")])
    data = json.loads((tmp_path / "metrics.json").read_text())
    assert data[tag] == {"0": 10.0, "10": 79.0, "1000": 9.0, "1010": 10.0}


@pytest.mark.parametrize(("where", "code"), [("absent/metrics.json", 2), ("logs", 2)])
def test_a_wrong_output_is_said_before_work(
    logs: Path, tmp_path: Path, where: str, code: int, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["dump", str(tmp_path / "no-such-log"), "--output", str(tmp_path / where)]) == code
    message = capsys.readouterr().err
    assert message.count("\n") == 1
    assert str(tmp_path / where) in message


def test_a_folder_that_may_not_be_written_is_said_before_reading(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def refuse(**_: object) -> tuple[int, str]:
        raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))

    monkeypatch.setattr(tempfile, "mkstemp", refuse)
    assert main(["dump", str(tmp_path / "no-such-log"), "--output", str(tmp_path / "metrics.json")]) == 3
    assert f"{tmp_path} cannot be written to: Permission denied" in capsys.readouterr().err


def test_a_full_disk_keeps_what_was_there(
    logs: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def full(handle: int) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    (tmp_path / "metrics.json").write_text("old")
    monkeypatch.setattr(os, "fsync", full)
    assert main(["dump", str(logs), "--output", str(tmp_path / "metrics.json")]) == 3
    assert re.search(r"No space left.*\n$", capsys.readouterr().err)
    assert (tmp_path / "metrics.json").read_text() == "old"
    assert sorted(path.name for path in tmp_path.iterdir()) == ["logs", "metrics.json"]


def test_a_tag_named_like_the_provenance_is_refused(tmp_path: Path) -> None:
    write_series(tmp_path / "events.out.tfevents.1", {PROVENANCE_KEY: [1.0]})
    assert main(["dump", str(tmp_path), "--output", str(tmp_path / "metrics.json")]) == 3
    assert not (tmp_path / "metrics.json").exists()


def test_tags_shows_what_was_found(logs: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["tags", str(logs)]) == 0
    shown = capsys.readouterr().out
    assert "2 tags" in shown
    assert re.search(r"train/loss\W+4\W+1\.\.4\W+0\.1\W+2\W+0\.1\W+2\W", shown)


def test_tags_as_json(logs: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["tags", str(logs), "--json", "--prefix", "train/"]) == 0
    (row,) = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert (row["tag"], row["num_points"], row["first_step"], row["last_step"]) == ("train/loss", 4, 1, 4)
    assert (row["num_nonfinite"], row["num_nulls"], row["maximum"]) == (2, 0, 2.0)


@pytest.mark.parametrize("command", ["tags", "dump"])
def test_a_missing_log_is_one_message(
    tmp_path: Path, command: str, capsys: pytest.CaptureFixture[str]
) -> None:
    options = ["--output", str(tmp_path / "m.json")] if command == "dump" else []
    assert main([command, str(tmp_path / "absent"), *options]) == 3
    assert capsys.readouterr().err.count("\n") == 1


def test_brackets_in_tags_are_no_markup(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write_series(tmp_path / "events.out.tfevents.1", {"a[bold]/[/x]": [1.0]})
    assert main(["tags", str(tmp_path)]) == 0
    assert "a[bold]/[/x]" in capsys.readouterr().out


def test_many_tags_are_plain_aligned_lines_with_the_same_cells(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "metrics.json"
    path.write_text(json.dumps({f"train/m{number}": {"1": number, "3": 0.5} for number in range(30)}))
    main(["tags", str(path)])
    table = capsys.readouterr().out
    monkeypatch.setattr("seatrial.cli.tags.MAX_TABLE_ROWS", 29)
    main(["tags", str(path)])
    plain = capsys.readouterr().out.splitlines()
    drawn = [line.strip("│").replace("│", " ").split() for line in table.splitlines() if "train/m" in line]
    assert [line.split() for line in plain if line.startswith("train/m")] == drawn
    assert plain[0].startswith("30 tags in 1 file")
    assert len({line.index(" 1..3 ") for line in plain[2:32]}) == 1


@pytest.mark.parametrize("case", ["two ranks", "two runs", "a cut"])
def test_a_dump_passes_no_more_than_its_log(tmp_path: Path, case: str) -> None:
    logs, dumped = tmp_path / "logs", tmp_path / "dumped.json"
    if case == "two ranks":
        write_series(logs / "events.out.tfevents.1", {"x": [1.0] * 9}, 1000.0)
        write_series(logs / "events.out.tfevents.2", {"x": [0.5] * 9}, 1000.25)
    elif case == "two runs":
        for number in (1, 2):
            write_series(logs / f"events.out.tfevents.{number}", {"x": [1.0] * 9}, 1000.0 * number)
    else:
        file = write_series(logs / "events.out.tfevents.1", {"x": [1.0] * 9})
        file.write_bytes(file.read_bytes()[:-9])
    check = 'max(data["x"]) < 2'
    assert main(["check", str(logs), check]) == 3
    assert main(["dump", str(logs), "--output", str(dumped)]) == (3 if case == "a cut" else 0)
    assert main(["check", str(dumped), check]) == 3
    assert main(["check", str(dumped), 'max(data["x"]) < 0.1']) == 1
