"""What a log lost or leaves open is never passed; what already fails, fails; what is whole before a cut can pass."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from tests.unit.evidence.event_writers import record_offsets, write_series

from seatrial.checks import parse_check
from seatrial.checks.judge import Questions, judge_logs
from seatrial.checks.language.doubts import Terms
from seatrial.checks.suites import read_suite
from seatrial.errors import UsageError
from seatrial.verdict import Outcome, Verdict

PASS, FAIL, BLOCKED = Outcome.PASS, Outcome.FAIL, Outcome.BLOCKED


def judged(logs: Path, text: str, **terms: Any) -> Verdict:
    return judge_logs(logs, Questions(checks=[parse_check(text)], terms=Terms(**terms)))[-1]


def jsonl(path: Path, values: Mapping[int, float], tail: str = "") -> Path:
    rows = [json.dumps({"step": step, "x": value}) + "\n" for step, value in values.items()]
    (path / "log.jsonl").write_text("".join(rows) + tail)
    return path / "log.jsonl"


def events(path: Path, values: Mapping[int, float]) -> Path:
    """Write a file whose last record, of a further step, is cut."""
    last = max(values) + 1
    file = write_series(path / "events.out.tfevents.1", {"x": {**values, last: 1.0}})
    blob = file.read_bytes()
    file.write_bytes(blob[: record_offsets(blob)[-2] + 17])
    return file


def cut(path: Path, values: Mapping[int, float]) -> list[Path]:
    return [jsonl(path, values, '{"step": 99, "x": 0.'), events(path, values)]


SPIKE = {1: 0.5, 2: 15.3, 3: 0.5, 4: 0.5}


@pytest.mark.parametrize(
    ("text", "outcome"),
    [
        ('max(data["x"]) < 5', FAIL),
        ('5 > max(data["x"])', FAIL),
        ('min(data["x"]) > 0.6', FAIL),
        ('max(data["x"]) - 1 <= 5', FAIL),
        ('-max(data["x"]) > -5', FAIL),
        ('data["x"]["2"] < 5', FAIL),
        ('max(data["x"]) < 5 and mean(data["x"]) > 0', FAIL),
        ('not max(data["x"]) > 5', FAIL),
        ('mean(data["x"], steps(1, 2)) < 5', FAIL),
        ('mean(data["x"], steps(1, 2)) < 50', PASS),
        ('data["x"]["1"] < 5', PASS),
        ('max(data["x"]) > 5', PASS),
        ('"2" in data["x"]', PASS),
        ('max(data["x"]) < 50', BLOCKED),
        ('mean(data["x"]) < 1', BLOCKED),
        ('mean(data["x"], last(2)) > 1', BLOCKED),
        ('mean(data["x"], steps(1, 9)) < 1', BLOCKED),
        ('max(data["x"]) < 5 or mean(data["x"]) < 1', BLOCKED),
        ('data["x"]["9"] < 5', BLOCKED),
        ('"9" in data["x"]', BLOCKED),
        ('max(data["y"]) < 5', BLOCKED),
    ],
)
def test_a_log_without_its_end_settles_what_nothing_more_can_change(
    tmp_path: Path, text: str, outcome: Outcome
) -> None:
    for log in cut(tmp_path, SPIKE):
        verdict = judged(log, text)
        assert verdict.outcome is outcome, verdict.reason
        assert "truncated" in verdict.reason


def test_nan_before_the_cut_fails(tmp_path: Path) -> None:
    for log in cut(tmp_path, {**SPIKE, 3: float("nan")}):
        assert judged(log, 'mean(data["x"]) < 50').outcome is FAIL


def test_a_suite_passes_when_its_steps_are_whole_before_the_cut(tmp_path: Path) -> None:
    for log in cut(tmp_path, SPIKE):
        assert judged(log, 'mean(data["x"]) < 50', steps=4).outcome is PASS
        assert judged(log, 'mean(data["x"]) < 1', steps=4).outcome is FAIL
        assert judged(log, 'mean(data["x"]) < 50', steps=5).outcome is BLOCKED


def test_damage_in_the_middle_blocks_whatever_is_left(tmp_path: Path) -> None:
    log = jsonl(tmp_path, SPIKE)
    log.write_text(log.read_text().replace('{"step": 3', '{"step" 3'))
    assert judged(log, 'max(data["x"]) < 5', steps=4).outcome is BLOCKED


def test_two_ranks_that_write_one_folder_do_not_pass(tmp_path: Path) -> None:
    good = dict.fromkeys(range(1, 21), 1.0)
    write_series(tmp_path / "events.out.tfevents.1.rank1", {"x": dict.fromkeys(good, float("nan"))}, 1000.0)
    write_series(tmp_path / "events.out.tfevents.2.rank0", {"x": good}, 1000.25)
    verdict = judged(tmp_path, 'max(data["x"]) < 2')
    assert verdict.outcome is BLOCKED
    assert "values that differ at steps 1, 2, 3, 4, 5 and 15 more" in verdict.reason
    assert judged(tmp_path, 'max(data["x"]) < 2', conflicts="last").outcome is PASS


def test_values_that_differ_outside_the_range_read_do_not_matter(tmp_path: Path) -> None:
    text = json.dumps({"x": {"1": 1.0, "2": 1.0, "3": 1.0}}).replace('"3": 1.0', '"3": 1.0, "3": 9.0')
    (tmp_path / "metrics.json").write_text(text)
    assert judged(tmp_path, 'max(data["x"], steps(1, 2)) < 2').outcome is PASS
    assert judged(tmp_path, 'max(data["x"]) < 99').outcome is BLOCKED
    assert judged(tmp_path, 'max(data["x"]) < 2').outcome is FAIL


@pytest.mark.parametrize("first", [21, 15])
def test_a_resume_on_a_machine_whose_clock_is_behind_does_not_pass(tmp_path: Path, first: int) -> None:
    write_series(tmp_path / "a" / "events.out.tfevents.1", {"x": dict.fromkeys(range(1, 21), 1.0)}, 9000.0)
    resumed = {step: 1.0 if step < 25 else float("nan") for step in range(first, 31)}
    write_series(tmp_path / "b" / "events.out.tfevents.2", {"x": resumed}, 4000.0)
    verdict = judged(tmp_path, 'max(data["x"]) < 2')
    assert verdict.outcome is BLOCKED and "looks like 2 runs" in verdict.reason


def test_a_folder_of_many_runs_asks_which_or_judges_each(tmp_path: Path) -> None:
    for number, value in enumerate([1.0, 5.0, 1.0], start=1):
        write_series(
            tmp_path / f"events.out.tfevents.{number}", {"x": [value] * (4 + number)}, 1000.0 * number
        )
    assert judged(tmp_path, 'max(data["x"]) < 2').outcome is BLOCKED
    assert judged(tmp_path, 'max(data["x"]) < 2', several_runs="newest").outcome is PASS
    each = judge_logs(tmp_path, Questions(checks=[parse_check('max(data["x"]) < 2')], each_run=True))
    assert [verdict.outcome for verdict in each] == [PASS, FAIL, PASS]
    assert [verdict.num_samples for verdict in each] == [5, 6, 7]
    assert each[1].name.endswith("in " + str(tmp_path / "events.out.tfevents.2"))


def test_an_attempt_that_goes_on_is_no_other_run(tmp_path: Path) -> None:
    write_series(tmp_path / "events.out.tfevents.1", {"x": [1.0] * 9}, 1000.0)
    write_series(tmp_path / "events.out.tfevents.2", {"x": dict.fromkeys(range(5, 12), 1.5)}, 2000.0)
    assert judged(tmp_path, 'max(data["x"]) < 2').outcome is PASS


def test_set_up_work_of_each_attempt_makes_no_other_run(tmp_path: Path) -> None:
    """Some tags are logged once, at step 0, whenever a process starts."""
    for number, steps in ((1, range(1, 10)), (2, range(6, 12))):
        series = {"timing/setup": {0: 30.0}, "x": dict.fromkeys(steps, 1.0), "y": dict.fromkeys(steps, 1.0)}
        write_series(tmp_path / f"events.out.tfevents.{number}", series, 1000.0 * number)
    assert judged(tmp_path, 'max(data["x"]) < 2').outcome is PASS


def test_an_older_checkpoint_of_another_run_is_not_taken_for_this_one(tmp_path: Path) -> None:
    def state(last: int, value: float) -> None:
        rows = [{"step": step, "loss": value} for step in range(1, last + 1)]
        (tmp_path / f"checkpoint-{last}").mkdir(exist_ok=True)
        text = json.dumps({"global_step": last, "log_history": rows})
        (tmp_path / f"checkpoint-{last}" / "trainer_state.json").write_text(text)

    state(10, 1.0)
    state(5, 1.0)
    assert judged(tmp_path, 'max(data["loss"]) < 2').outcome is PASS
    state(5, 7.0)
    assert judged(tmp_path, 'max(data["loss"]) < 2').outcome is BLOCKED
    assert judged(tmp_path / "checkpoint-5", 'max(data["loss"]) < 2').outcome is FAIL


GOOD = '{"step": 1, "x": 1.0}\n{"step": 2, "x": 1.0}\n'


@pytest.mark.parametrize(
    ("lost", "told"),
    [
        ('{"x": NaN}', "no step"),
        ('{"step": 2.5, "x": NaN}', "no step"),
        ('{"step": 99999999999999999999, "x": NaN}', "no step"),
        ('{"step": 3, "x": [NaN]}', "no numbers"),
        ('{"step": 3, "x": {"mean": NaN}}', "no numbers"),
        ('{"step": 3, "x": NaN, "x": 1.0}', "appears twice"),
        ('{"step": 3, "y": {"a": 1, "a": 2}, "x": 1.0}', "appears twice"),
    ],
)
def test_a_value_that_a_line_loses_blocks(tmp_path: Path, lost: str, told: str) -> None:
    (tmp_path / "log.jsonl").write_text(GOOD + lost + "\n")
    verdict = judged(tmp_path / "log.jsonl", 'max(data["x"]) < 2')
    assert verdict.outcome is BLOCKED and told in verdict.reason


def test_a_row_of_other_numbers_without_a_step_stands_for_the_run(tmp_path: Path) -> None:
    (tmp_path / "log.jsonl").write_text('{"seed": 7}\n' + GOOD)
    assert judged(tmp_path / "log.jsonl", 'max(data["x"]) < 2').outcome is PASS
    assert judged(tmp_path / "log.jsonl", 'data["seed"] == 7').outcome is PASS


def test_two_columns_or_keys_of_one_name_block(tmp_path: Path) -> None:
    (tmp_path / "log.csv").write_text("step,x,x\n1,nan,1.0\n")
    assert judged(tmp_path / "log.csv", 'max(data["x"]) < 2').outcome is BLOCKED
    (tmp_path / "metrics.json").write_text('{"x": {"1": NaN}, "x": {"1": 1.0}}')
    assert judged(tmp_path / "metrics.json", 'max(data["x"]) < 2').outcome is BLOCKED


def test_a_summary_alone_is_no_series(tmp_path: Path) -> None:
    (tmp_path / "wandb-summary.json").write_text('{"x": 1.0, "_step": 100, "_runtime": 3.5}')
    verdict = judged(tmp_path / "wandb-summary.json", 'max(data["x"]) < 2')
    assert verdict.outcome is FAIL and "is one number" in verdict.reason


def test_a_suite_of_steps_alone_and_one_of_nothing(tmp_path: Path) -> None:
    suite = read_suite({"name": "s", "steps": 3, "checks": []}, "s")
    [short] = judge_logs(jsonl(tmp_path, {1: 1.0, 2: 1.0}), Questions(suites=[suite]))
    assert (short.name, short.outcome, short.value) == ("steps", FAIL, 2.0)
    [whole] = judge_logs(jsonl(tmp_path, {1: 1.0, 3: 1.0}), Questions(suites=[suite]))
    assert whole.outcome is PASS
    with pytest.raises(UsageError, match="nothing would be judged"):
        read_suite({"name": "s", "checks": []}, "s")


def test_the_steps_of_one_tag(tmp_path: Path) -> None:
    write_series(tmp_path / "events.out.tfevents.1", {"train/loss": [1.0] * 3, "val/loss": {9: 1.0}})
    suite = {"name": "s", "steps": 5, "checks": []}
    [any_tag] = judge_logs(tmp_path, Questions(suites=[read_suite(suite, "s")]))
    [one_tag] = judge_logs(tmp_path, Questions(suites=[read_suite({**suite, "steps_of": "train/loss"}, "s")]))
    assert (any_tag.outcome, one_tag.outcome) == (PASS, FAIL)


def test_a_series_compared_with_a_number_is_wrong_usage(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="choose a step"):
        judged(jsonl(tmp_path, SPIKE), 'data["x"] < 2')


def test_a_tag_of_several_writers_is_not_said_to_be_held_and_missing(tmp_path: Path) -> None:
    for name in ("a", "b"):
        write_series(tmp_path / name / "events.out.tfevents.1", {"loss": [1.0] * 4})
    verdict = judged(tmp_path, 'max(data["loss"]) < 2')
    assert verdict.outcome is FAIL and verdict.reason.endswith("it holds a/loss, b/loss")
