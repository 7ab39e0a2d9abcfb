"""A log that is written while it is read: it grows, is cut in the middle of a row, is truncated, rotated, resumed."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path

import pytest
from tests.unit.rules.made_logs import Floats, healthy

from seatrial.rules.engine import all_rules, select
from seatrial.rules.monitor import Look, Monitor
from seatrial.rules.rule import Level

AT = 60


def rows(columns: Mapping[str, Floats], start: int, stop: int) -> str:
    """Return rows of JSON Lines."""
    return "".join(
        json.dumps({"step": place + 1, **{tag: float(values[place]) for tag, values in columns.items()}})
        + "\n"
        for place in range(start, stop)
    )


def alarms(look: Look) -> dict[str, int | None]:
    """Return the step of each alarm by rule."""
    return {item.rule.id: item.finding.step for item in look.judged if item.finding.level is Level.ALARM}


@pytest.fixture
def broken() -> dict[str, Floats]:
    """A run whose KL leaves at a step."""
    columns = healthy()
    columns["train/kl"][AT:] += 5
    return columns


def test_a_growing_log_alarms_as_the_whole_one_does(tmp_path: Path, broken: dict[str, Floats]) -> None:
    """At the same step, told once; rows that are cut in the middle are waited for."""
    whole = tmp_path / "whole.jsonl"
    whole.write_text(rows(broken, 0, 120))
    expected = alarms(Monitor(path=whole, rules=all_rules()).look())
    assert set(expected) == {"kl-drift"}
    log = tmp_path / "grows.jsonl"
    monitor = Monitor(path=log, rules=all_rules())
    assert "no such file" in monitor.look().waiting
    log.write_text("")
    assert monitor.look().streams is None
    text = rows(broken, 0, 120)
    news: list[str] = []
    for end in range(5000, len(text) + 5000, 5000):
        log.write_text(text[:end])
        news += [item.rule.id for item in monitor.look().news if item.finding.level is Level.ALARM]
    assert news == ["kl-drift"]
    assert alarms(monitor.look()) == expected


def test_an_alarm_stands_when_the_log_is_truncated_or_replaced(
    tmp_path: Path, broken: dict[str, Floats]
) -> None:
    """The run goes on under the same name from an earlier step, sound."""
    log = tmp_path / "metrics.jsonl"
    log.write_text(rows(broken, 0, 100))
    monitor = Monitor(path=log, rules=select(["kl"]))
    assert alarms(monitor.look()) == {"kl-drift": 66}
    log.write_text(rows(healthy(), 0, 30))
    look = monitor.look()
    assert look.shrunk
    assert alarms(look) == {"kl-drift": 66}
    assert not look.news
    log.unlink()
    look = monitor.look()
    assert look.streams is None
    assert alarms(look) == {"kl-drift": 66}


def test_a_rest_is_long_enough_for_half_a_percent() -> None:
    """Whatever a look costs, within bounds."""
    for seconds, rest in ((0.001, 1.0), (0.05, 10.0), (5.0, 60.0)):
        assert Look(streams=None, judged=[], news=[], seconds=seconds).rest == rest
