"""metrics.json in NeMo RL's form."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import pytest

from seatrial.errors import BlockedError
from seatrial.evidence.read import read_logs


def put(tmp_path: Path, text: str, name: str = "metrics.json") -> Path:
    (tmp_path / name).write_text(text)
    return tmp_path / name


def test_series_and_bare_numbers(tmp_path: Path) -> None:
    log = read_logs(
        put(tmp_path, '{"train/loss": {"10": NaN, "9": "0.5", "11": null}, "score": 0.3, "why": "x"}')
    )
    series = log.series["train/loss"]
    assert series.steps.tolist() == [9, 10, 11]
    np.testing.assert_array_equal(series.values, [0.5, math.nan, math.nan])
    assert series.nulls is not None
    assert series.nulls.tolist() == [False, False, True]
    assert log.scalars == {"score": 0.3}
    assert log.unread == {"why": "text"}


def test_a_filter(tmp_path: Path) -> None:
    log = read_logs(put(tmp_path, '{"a": {"1": 1}, "b": {"1": 1}, "c": 1}'), {"b", "c"})
    assert (set(log.series), dict(log.scalars), list(log.other_tags)) == ({"b"}, {"c": 1.0}, ["a"])


def test_a_key_that_stands_twice_is_a_conflict(tmp_path: Path) -> None:
    series = read_logs(put(tmp_path, '{"a": {"1": 1.0, "2": 2.0, "1": 5.0}}')).series["a"]
    assert series.values.tolist() == [5.0, 2.0]
    assert (series.duplicates, series.conflicts) == (1, 1)


def test_an_empty_series_is_kept(tmp_path: Path) -> None:
    assert len(read_logs(put(tmp_path, '{"a": {}}')).series["a"]) == 0


def test_values_that_are_no_numbers_are_damage(tmp_path: Path) -> None:
    log = read_logs(put(tmp_path, '{"a": {"1": 1, "2": "abc", "x": 1, "3": {"y": 1}}}'))
    assert log.series["a"].steps.tolist() == [1]
    assert len(log.damage) == 3


@pytest.mark.parametrize(
    "text", ["{}", "[]", "3", '{"a": ', '{"a": {"1": 1}} {"a": {"1": 2}}', "[" * 100_000]
)
def test_documents_without_a_metric_are_blocked(tmp_path: Path, text: str) -> None:
    with pytest.raises(BlockedError):
        read_logs(put(tmp_path, text))


def test_two_of_them_in_a_folder_must_be_named(tmp_path: Path) -> None:
    put(tmp_path, '{"a": {"1": 1}}', "one.json")
    put(tmp_path, '{"a": {"1": 2}}', "two.json")
    with pytest.raises(BlockedError, match="name one of them"):
        read_logs(tmp_path)
    assert read_logs(tmp_path / "two.json").series["a"].values.tolist() == [2.0]


def test_a_configuration_in_a_folder_is_no_log(tmp_path: Path) -> None:
    put(tmp_path, '{"hidden_size": 64, "rope": {"theta": 10000}}', "config.json")
    with pytest.raises(BlockedError, match="no log can be read"):
        read_logs(tmp_path)
    assert read_logs(tmp_path / "config.json").scalars == {"hidden_size": 64.0}
