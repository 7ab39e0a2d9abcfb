"""One suite judges logs of several stacks: metrics are found by canonical names and by those of other stacks."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from tests.unit.evidence.event_writers import write_series

from seatrial.checks import parse_check
from seatrial.checks.judge import Questions, judge_logs
from seatrial.evidence.read import read_logs
from seatrial.verdict import Outcome, Verdict

NORMS = [0.5, 0.75, 2.0]
TRL = {"completions/mean_length": [10.0] * 3, "reward_std": [0.1] * 3, "loss": [0.1] * 3, "grad_norm": NORMS}
VERL = {"actor/pg_loss": [0.1] * 3, "critic/score/mean": [0.5] * 3, "actor/grad_norm": NORMS}


def state(path: Path, tags: dict[str, list[float]]) -> Path:
    rows = [{"step": step + 1, **{tag: values[step] for tag, values in tags.items()}} for step in range(3)]
    (path / "trainer_state.json").write_text(json.dumps({"global_step": 3, "log_history": rows}))
    return path / "trainer_state.json"


def events(path: Path, tags: dict[str, list[float]]) -> Path:
    write_series(path / "events.out.tfevents.1", {f"train/{tag}": values for tag, values in tags.items()})
    return path


def console(path: Path, tags: dict[str, list[float]]) -> Path:
    rows = (" - ".join(f"{tag}:{values[step]}" for tag, values in tags.items()) for step in range(3))
    (path / "run.log").write_text("".join(f"step:{step} - {row}\n" for step, row in enumerate(rows, 1)))
    return path / "run.log"


def judged(logs: Path, text: str) -> Verdict:
    [verdict] = judge_logs(logs, Questions(checks=[parse_check(text)]))
    return verdict


@pytest.mark.parametrize("asked", ["grad_norm", "train/grad_norm", "actor/grad_norm"])
@pytest.mark.parametrize(
    ("write", "tags", "held"),
    [(state, TRL, "grad_norm"), (events, TRL, "train/grad_norm"), (console, VERL, "actor/grad_norm")],
    ids=["trainer state", "TensorBoard", "console of verl"],
)
def test_one_check_judges_them_all(tmp_path: Path, asked: str, write, tags, held: str) -> None:  # type: ignore[no-untyped-def]
    logs = write(tmp_path, tags)
    good, bad = judged(logs, f'max(data["{asked}"]) < 3'), judged(logs, f'max(data["{asked}"]) < 1')
    assert (good.outcome, good.value, good.num_samples) == (Outcome.PASS, 2.0, 3)
    assert (bad.outcome, bad.value) == (Outcome.FAIL, 2.0)
    assert (f"is read from {held}" in good.reason) is (asked != held)


def test_the_two_forms_of_a_hugging_face_trainer_need_no_known_stack(tmp_path: Path) -> None:
    logs = state(tmp_path, {"my_metric": [1.0] * 3, "eval_my_metric": [2.0] * 3})
    assert judged(logs, 'max(data["train/my_metric"]) == 1').outcome is Outcome.PASS
    assert judged(logs, 'max(data["eval/my_metric"]) == 2').outcome is Outcome.PASS


def test_a_metric_that_the_log_does_not_hold_is_a_fail(tmp_path: Path) -> None:
    verdict = judged(state(tmp_path, TRL), 'max(data["mismatch/kl"]) < 1')
    assert verdict.outcome is Outcome.FAIL and "is not in the log" in verdict.reason


def test_a_range_that_is_known_holds_under_either_name(tmp_path: Path) -> None:
    verdict = judged(state(tmp_path, TRL), 'min(data["reward_std"]) >= 0')
    assert verdict.outcome is Outcome.SKIPPED and "cannot fail" in verdict.reason
    [told] = judge_logs(
        console(tmp_path, VERL), Questions(checks=[parse_check('min(data["grad_norm"]) >= 0')])
    )
    assert told.outcome is Outcome.SKIPPED and "is read from actor/grad_norm" in told.reason


def test_a_tag_read_under_another_name_is_counted_once(tmp_path: Path) -> None:
    """`check`, `tags` and `watch` give the same number for one log."""
    logs = state(tmp_path, TRL)
    questions = Questions(
        checks=[parse_check(f'max(data["{tag}"]) < 9') for tag in ("actor/grad_norm", "unknown")]
    )
    _, missing = judge_logs(logs, questions)
    assert missing.reason.endswith(f"it holds {', '.join(read_logs(logs).tags())}")
