"""Each fault in a ledger is found by the sensor that is for it, and a right ledger passes."""

import json
import math
import random
from collections.abc import Callable
from dataclasses import asdict, replace
from pathlib import Path

import numpy as np
import pytest
from tests.unit.trials.ledger_cases import make_job, right_rows

from seatrial.errors import BlockedError
from seatrial.evidence.ledger.laws.advantages import advantages_of, rule_named
from seatrial.evidence.ledger.laws.logprobs import is_stale
from seatrial.evidence.ledger.read import read_ledger
from seatrial.evidence.ledger.readers.refrl import read_validation
from seatrial.evidence.ledger.schema import LedgerRow
from seatrial.trials.sensors.ledger import LEDGER_SENSORS, ledger_verdicts
from seatrial.verdict import Outcome

Rows = list[LedgerRow]

rows_complete = LEDGER_SENSORS["ledger: every trained row is there, once"]
tokens_valid = LEDGER_SENSORS["ledger: tokens are valid and are the rewarded text"]
sampler_agrees_with_trainer = LEDGER_SENSORS["ledger: sampler and trainer agree per token"]
rewards_right = LEDGER_SENSORS["ledger: rewards recomputed equal the logged"]
advantages_right = LEDGER_SENSORS["ledger: advantages recomputed equal the logged"]


def test_a_right_ledger_passes_every_sensor(tmp_path: Path) -> None:
    """Advantages of the made rows are known in closed form (see `make_row`); their short answers may well repeat."""
    verdicts = ledger_verdicts(right_rows(), make_job(tmp_path))
    outcomes = {verdict.name: verdict.outcome for verdict in verdicts}
    for law in ("every row draws its own randomness", "no row is trained again at another step"):
        assert outcomes.pop(f"ledger: {law}") is Outcome.SKIPPED
    assert outcomes == dict.fromkeys(outcomes, Outcome.PASS)


def test_an_empty_ledger_passes_none(tmp_path: Path) -> None:
    """No rows are no evidence."""
    for verdict in ledger_verdicts([], make_job(tmp_path)):
        assert verdict.outcome is Outcome.FAIL, verdict


def change(place: int, /, **fields: object) -> Callable[[Rows], Rows]:
    """Return a spoiler of one row."""

    def spoil(rows: Rows) -> Rows:
        rows[place] = replace(rows[place], **fields)  # type: ignore[arg-type]
        return rows

    return spoil


def swap_rewards(rows: Rows) -> Rows:
    """Give two rows of a group one another's reward, and the advantages that go with it."""
    first, second = rows[0], rows[1]
    rows[0] = replace(first, reward=second.reward, advantage=second.advantage)
    rows[1] = replace(second, reward=first.reward, advantage=first.advantage)
    return rows


@pytest.mark.parametrize(
    ("spoil", "sensor", "words"),
    [
        (lambda rows: rows[:-1], rows_complete, "step 2 has 3 rows, not 4"),
        (lambda rows: rows[:4], rows_complete, "step 2 has 0 rows"),
        (change(1, index=0), rows_complete, "step 1 row 0 is there 2 times"),
        (change(1, prompt_id=11), rows_complete, "prompt 10 has 1 completions"),
        (change(0, token_ids=(1, 2, 300)), tokens_valid, "outside the vocabulary of 259"),
        (change(0, token_ids=(1, 2, -1)), tokens_valid, "outside the vocabulary"),
        (change(0, prompt_length=0), tokens_valid, "prompt of 0"),
        (change(0, prompt_length=9), tokens_valid, "prompt of 9 of 9 tokens"),
        (change(2, generation_logprobs=(-0.1,)), tokens_valid, "4 sampled tokens, 1 and 4"),
        (change(2, completion="cba"), tokens_valid, "the rewarded text 'cba' is not the text of its tokens"),
        (change(2, prompt="reverse abd="), tokens_valid, "the prompt 'reverse abd='"),
        (
            change(4, prev_logprobs=(-0.18, -0.28, -0.3802)),
            sampler_agrees_with_trainer,
            "step 2 row 0 token 2",
        ),
        (change(4, prev_logprobs=(-0.18, math.nan, -0.38)), sampler_agrees_with_trainer, "scored at nan"),
        (swap_rewards, rewards_right, "step 1 row 0: '19' for '12+7=' earns 1, logged is 0"),
        (change(2, reward=0.01), rewards_right, "earns 0, logged is 0.01"),
        (change(2, reward=math.nan), rewards_right, "logged is nan"),
        (change(0, answer="20"), rewards_right, "the answer of '12+7=' is '19', logged is '20'"),
        (
            lambda rows: [replace(row, advantage=-row.advantage) for row in rows],
            advantages_right,
            "opposite sign",
        ),
        (change(0, advantage=0.708), advantages_right, "step 1 row 0: advantage 0.708"),
        (change(0, advantage=math.nan), advantages_right, "advantage nan"),
        (
            lambda rows: [replace(row, advantage=row.advantage / 2) for row in rows],
            advantages_right,
            "0.353553",
        ),
        (lambda rows: [replace(row, advantage=row.reward) for row in rows], advantages_right, "advantage 1"),
        (lambda rows: [replace(row, prompt_id=0) for row in rows], advantages_right, "advantage"),
    ],
)
def test_a_spoilt_ledger_fails_where_it_should(
    tmp_path: Path, spoil: Callable[[Rows], Rows], sensor: Callable[..., object], words: str
) -> None:
    """The message names the row and what is wrong with it."""
    verdict = sensor(spoil(right_rows()), make_job(tmp_path))
    assert verdict.outcome is Outcome.FAIL, verdict  # type: ignore[attr-defined]
    assert words in verdict.reason, verdict  # type: ignore[attr-defined]


def test_zero_variance_does_not_trigger_the_sign(tmp_path: Path) -> None:
    """FP40: where all rewards of a group are equal an advantage of 0 has no sign to judge."""
    flat = [replace(row, reward=0.25, advantage=0.0) for row in right_rows()]
    assert advantages_right(flat, make_job(tmp_path)).outcome is Outcome.SKIPPED
    noisy = [replace(row, reward=0.25, advantage=1e-3) for row in right_rows()]
    assert advantages_right(noisy, make_job(tmp_path)).outcome is Outcome.FAIL


@pytest.mark.parametrize(
    ("changes", "sensor"),
    [
        ({"verifier": "somebody's own"}, rewards_right),
        ({"advantage": None}, advantages_right),
    ],
)
def test_what_cannot_be_worked_out_again_is_skipped(
    tmp_path: Path, changes: dict[str, object], sensor: Callable[..., object]
) -> None:
    """With the reason; never Pass."""
    verdict = sensor(right_rows(), make_job(tmp_path, **changes))
    assert verdict.outcome is Outcome.SKIPPED  # type: ignore[attr-defined]


def test_half_precision_is_held_to_a_wider_bound(tmp_path: Path) -> None:
    """Rounding of half precision passes; a token that is e^3 times as likely does not, nor does NaN."""
    job = make_job(tmp_path, precision="bfloat16")
    for third, outcome in ((-0.40, Outcome.PASS), (-3.38, Outcome.FAIL), (math.nan, Outcome.FAIL)):
        rows = change(4, prev_logprobs=(-0.18, -0.28, third))(right_rows())
        assert sampler_agrees_with_trainer(rows, job).outcome is outcome, third


def test_an_unknown_prompt_is_held_to_the_logged_answer_or_skipped(tmp_path: Path) -> None:
    """There is no independent answer to a question of another form; the rule is held to the one that was logged."""
    rows = [replace(row, prompt="What is 12 plus 7?") for row in right_rows()]
    assert rewards_right(rows, make_job(tmp_path)).outcome is Outcome.PASS
    wrong = [replace(rows[0], reward=1.0 - (rows[0].reward or 0.0)), *rows[1:]]
    assert rewards_right(wrong, make_job(tmp_path)).outcome is Outcome.FAIL
    unanswered = [replace(row, answer=None) for row in rows]
    assert rewards_right(unanswered, make_job(tmp_path)).outcome is Outcome.SKIPPED


@pytest.mark.parametrize("estimator", ["grpo", "dr_grpo", "rloo", "reinforce_plus_plus_baseline"])
@pytest.mark.parametrize("scale", ["group", "batch", "none"])
def test_advantages_against_numpy(estimator: str, scale: str) -> None:
    """The same definitions written with arrays, on groups whose rows do not stand together."""
    source = random.Random(3)
    template = right_rows()[0]
    rows = [
        replace(template, index=place, prompt_id=place % 3, reward=source.choice([0.0, 0.25, 1 / 3, 1.0]))
        for place in range(24)
    ]
    rewards = np.array([row.reward for row in rows]).reshape(8, 3)
    wanted = rewards - rewards.mean(0)
    if estimator == "rloo":
        wanted = rewards - (rewards.sum(0) - rewards) / 7
    if scale == "group":
        wanted = wanted / (rewards.std(0, ddof=1) + 1e-6)
    if scale == "batch":
        spread = rewards - rewards.mean(0) if estimator == "reinforce_plus_plus_baseline" else rewards
        wanted = wanted / (spread.std(ddof=1) + 1e-6)
    found = advantages_of(rows, rule_named(estimator, scale, 1e-6))
    np.testing.assert_allclose(found, wanted.ravel(), atol=1e-12)


def write(directory: Path, step: int, rows: list[dict[str, object]], kind: str = "train") -> Path:
    """Write one step's file."""
    directory.mkdir(exist_ok=True)
    path = directory / f"{kind}_data_step{step}.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def test_a_ledger_is_read_in_the_order_of_its_steps(tmp_path: Path) -> None:
    """Step 10 comes after step 2, whatever the names' order."""
    for step in (10, 2, 1):
        write(tmp_path, step, [asdict(replace(row, step=step)) for row in right_rows()[:4]])
    rows = read_ledger(tmp_path).rows
    assert [row.step for row in rows] == [1] * 4 + [2] * 4 + [10] * 4
    assert rows[0] == right_rows()[0]


@pytest.mark.parametrize(
    "line",
    [
        '{"step": 1',
        '{"step": 2, "index": 0}',
        '{"step": 1, "index": 0}',
        "[]",
        "null",
        '{"step": 1, "index": "x"}',
    ],
)
def test_a_damaged_line_is_blocked_and_named(tmp_path: Path, line: str) -> None:
    """A torn, misplaced or incomplete row is not left out in silence."""
    good = [asdict(row) for row in right_rows()[:3]]
    path = write(tmp_path, 1, good)
    path.write_text(path.read_text() + line + "\n")
    with pytest.raises(BlockedError, match=r"train_data_step1\.jsonl line 4 is damaged"):
        read_ledger(tmp_path)


def test_validations_by_step(tmp_path: Path) -> None:
    """Each with its rows."""
    for step in (0, 10):
        rows = [
            {"step": step, "index": i, "prompt_id": 5 * i, "reward": i / 4, "more": "x"} for i in range(3)
        ]
        write(tmp_path, step, rows, "validation")
    read = read_validation(tmp_path)
    assert list(read) == [0, 10]
    assert [(row.prompt_id, row.reward) for row in read[10]] == [(0, 0.0), (5, 0.25), (10, 0.5)]
    assert read_validation(tmp_path / "nothing here") == {}


@pytest.mark.parametrize(
    ("version", "num_updates", "stale"), [(2, 1, False), (1, 1, True), (4, 2, False), (2, 2, True)]
)
def test_a_row_is_stale_by_the_updates_before_its_step(version: int, num_updates: int, stale: bool) -> None:
    """Versions count updates, of which a step may take several."""
    assert is_stale(replace(right_rows()[0], step=3, weight_version=version), num_updates) is stale
