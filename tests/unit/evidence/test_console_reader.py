"""Consoles as stacks print them: every row is read with its step, behind any prefix, and nothing else is."""

from __future__ import annotations

import math
from pathlib import Path

import pytest

from seatrial.errors import BlockedError
from seatrial.evidence.read import read_logs
from seatrial.evidence.readers.console import parse_row


def written(tmp_path: Path, text: str, name: str = "run.log") -> Path:
    path = tmp_path / name
    path.write_bytes(text.encode())
    return path


def test_a_console_of_verl_behind_rays_prefix_and_colours(tmp_path: Path) -> None:
    lines = [
        "2025-01-01 INFO worker.py:1 -- Started a local Ray instance.",
        "\x1b[36m(TaskRunner pid=77)\x1b[0m {'actor_rollout_ref': {'actor': {'clip_ratio': 0.2,",
        "\x1b[36m(TaskRunner pid=77)\x1b[0m step:0 - val/test_score/gsm8k:0.521",
        "\x1b[36m(TaskRunner pid=77)\x1b[0m step:1 - actor/pg_loss:-0.018 - critic/lr(1e-4):0.100 - "
        "actor/grad_norm:np.float64(8.5) - actor/entropy:nan",
        "step:2 - actor/pg_loss:1e-05 - actor/grad_norm:np.float64(inf) [repeated 2x across cluster]",
        "step:none of these",
    ]
    log = read_logs(written(tmp_path, "\n".join(lines) + "\n"))
    assert not log.damage
    assert log.series["val/test_score/gsm8k"].steps.tolist() == [0]
    assert log.series["actor/pg_loss"].values.tolist() == [-0.018, 1e-05]
    assert log.series["critic/lr(1e-4)"].values.tolist() == [0.1]
    assert log.series["actor/grad_norm"].values.tolist() == [8.5, math.inf]
    assert math.isnan(log.series["actor/entropy"].values[0])
    assert len(log.series) == 5


@pytest.mark.parametrize(
    "prefix", ["", "0: ", "(main_task pid=1) ", "\r 50%|#####     | 1/2 [00:01<00:01, 1.0s/it]"]
)
@pytest.mark.parametrize("quote", ["", "'"], ids=["numbers", "text values"])
def test_dictionaries_of_a_trainer(tmp_path: Path, prefix: str, quote: str) -> None:
    rows = [
        {"loss": 0.25, "grad_norm": "nan", "epoch": 0.5},
        {"loss": 0.5, "grad_norm": 2.0, "rewards/format": 1.0, "epoch": 1.0},
    ]
    text = "Updated tokens: {'eos_token_id': 248046, 'pad_token_id': 248044}.\n"
    for row in rows:
        items = ", ".join(f"'{key}': {quote}{value}{quote}" for key, value in row.items())
        text += f"{prefix}{{{items}}}\n"
    text += (
        prefix
        + "{'eval_loss': 0.75, 'epoch': 1.0}\n"
        + prefix
        + "{'train_runtime': 3.5, 'train_loss': 0.1, 'epoch': 1.0}\n"
    )
    log = read_logs(written(tmp_path, text, "slurm-1.out"))
    assert not log.damage
    assert log.series["loss"].steps.tolist() == [1, 2]
    assert log.series["loss"].values.tolist() == [0.25, 0.5]
    assert math.isnan(log.series["grad_norm"].values[0]) and log.series["grad_norm"].values[1] == 2.0
    assert (log.series["eval_loss"].steps.tolist(), log.series["train_loss"].steps.tolist()) == ([2], [2])
    assert log.series["rewards/format"].steps.tolist() == [2]
    assert "eos_token_id" not in log.series
    assert any("2 rows name no step; they are counted from 1" in note for note in log.notes)


def test_a_step_that_names_the_last_one_is_a_step(tmp_path: Path) -> None:
    text = "".join(f"{{'loss': {step}.5, 'global_step/max_steps': '{step}/438'}}\n" for step in (1, 5))
    assert read_logs(written(tmp_path, text)).series["loss"].steps.tolist() == [1, 5]


@pytest.mark.parametrize(
    ("line", "step", "metrics"),
    [
        (
            "[x]   7/100 | loss=-9.93 | reward=0.250 | acc=25.0%",
            7,
            {"loss": "-9.93", "reward": "0.250", "acc": "25.0"},
        ),
        (
            "Epoch:[2/3](20/400), loss: 0.66, epoch_time: 9.000min",
            420,
            {"loss": "0.66", "epoch_time": "9.000"},
        ),
        ("INFO step 12: loss=0.5, reward=1e-3", 12, {"loss": "0.5", "reward": "1e-3"}),
        ("INFO:root:step=12 loss=0.5 reward=0.25", 12, {"loss": "0.5", "reward": "0.25"}),
        ("[GRPO] step=3/200 loss=0.5 kl=0.1 time=3.2s", 3, {"loss": "0.5", "kl": "0.1"}),
        ("Step 3/200 | Loss 0.5 | Mean Reward 0.25", 3, {"Loss": "0.5", "Mean Reward": "0.25"}),
        ("Episode 3/200 - loss: 0.5 - reward: -0.25", 3, {"loss": "0.5", "reward": "-0.25"}),
        ("Training step 3 completed: reward=0.25, loss=0.5", 3, {"reward": "0.25", "loss": "0.5"}),
        ("12:00 - INFO - Iteration 3: mean reward 0.25, loss 0.5", 3, {"mean reward": "0.25", "loss": "0.5"}),
        ("m.py:3 - rollout 3: {'rollout/raw_reward': 0.25}", 3, {"rollout/raw_reward": "0.25"}),
        ('INFO {"step": 3, "loss": 0.5, "tags": ["a"], "done": true}', 3, {"loss": "0.5"}),
    ],
)
def test_rows_of_loops_of_ones_own(line: str, step: int, metrics: dict[str, str]) -> None:
    row = parse_row(line)
    assert row is not None and (row.step, row.metrics) == (step, metrics)


@pytest.mark.parametrize(
    "line",
    [
        "step:3 - this is where it hangs",
        "{'model': 'x', 'epochs': 3}",
        "Loaded 3/10 | shards",
        "  0%|          | 1/936 [03:11<49:48:26, 191.77s/it]",
        "2025-01-01 12:00:00 - INFO - step 3 took 5 seconds",
        "INFO step 3 of 10 | saved to checkpoint 5 | in 2 files",
        "step 3: {'prompt': 'x', 'answer': 'y'}",
        'POST {"step": 3, "state": "running"}',
        'Updated {"loss": 0.5}',
        "Iteration 3: wrote 12 files, read 4 rows",
        "Generating train split: 17166 examples [00:00, 167057.45 examples/s]",
    ],
)
def test_what_is_no_row(line: str) -> None:
    assert parse_row(line) is None


def test_a_row_that_is_cut_is_said(tmp_path: Path) -> None:
    verl = read_logs(written(tmp_path, "step:1 - a:0.5 - b:0.5\nstep:2 - a:0.5 - b:0.", "verl.log"))
    assert [item.what for item in verl.damage] == [
        "truncated in line 2, whose row of metrics may not be whole"
    ]
    assert (verl.series["a"].steps.tolist(), verl.series["b"].steps.tolist()) == ([1, 2], [1])
    trl = read_logs(written(tmp_path, "{'loss': 0.5, 'epoch': 0.1}\n{'loss': 0.5, 'reward': 0.", "trl.log"))
    assert len(trl.damage) == 1 and trl.series["loss"].steps.tolist() == [1, 2]


def test_a_line_that_wandb_cut_loses_its_last_value_alone(tmp_path: Path) -> None:
    row = "step:1 - " + " - ".join(f"metric/{number:04}:0.125" for number in range(300))
    log = read_logs(written(tmp_path, f"{row[:4096]}\nstep:2 - metric/0000:0.5\n", "output.log"))
    assert [(item.what, item.is_cut) for item in log.damage] == [
        ("truncated in line 1, whose row of metrics may not be whole", True)
    ]
    assert log.series["metric/0000"].values.tolist() == [0.125, 0.5]
    last = row[:4096].count(" - ") - 1
    assert f"metric/{last - 1:04}" in log.series and f"metric/{last:04}" not in log.series


@pytest.mark.parametrize("torn", [False, True])
def test_many_cut_lines_are_cuts_and_one_torn_row_is_not(tmp_path: Path, torn: bool) -> None:
    """Of 20 cut lines the first eight are named and the rest counted; a torn one among these is damage."""
    rows = [f"step:{step} - " + " - ".join(f"m/{one:04}:0.125" for one in range(400)) for step in range(20)]
    text = "".join(f"{row[:4096]}\n" for row in rows) + ("step:20 - a:1 - step:21 - a:2\n" if torn else "")
    damage = read_logs(written(tmp_path, text, "output.log")).damage
    assert [item.is_cut for item in damage] == [True] * 8 + [not torn]


@pytest.mark.parametrize("width", [40, 80, 132])
@pytest.mark.parametrize("form", ["verl", "trainer"])
def test_rows_that_a_terminal_wrapped_are_whole(tmp_path: Path, width: int, form: str) -> None:
    """Every value is that of the console as it was, also one that the wrapping cut in two."""
    rows = [
        {
            "loss": 0.125 + step,
            "reward": 0.1234567 * step,
            "grad_norm": 1.5,
            "kl": 0.25,
            "entropy": 0.0625 * step,
        }
        for step in range(1, 30)
    ]
    if form == "verl":
        lines = [
            f"step:{step} - " + " - ".join(f"actor/{name}:{value}" for name, value in row.items())
            for step, row in enumerate(rows, start=1)
        ]
    else:
        lines = [str(row) for row in rows]
    lines.insert(3, "Saving model checkpoint to a folder with a name that is longer than any row " + "x" * 99)
    text = "".join(line[at : at + width] + "\n" for line in lines for at in range(0, len(line), width))
    series = read_logs(written(tmp_path, text)).series
    for name in rows[0]:
        values = series[f"actor/{name}" if form == "verl" else name].values.tolist()
        assert values == [row[name] for row in rows]


def test_rows_of_one_width_are_not_joined(tmp_path: Path) -> None:
    rows = [f"step {step:04} | loss=0.{step:04} | reward=0.{step:04}" for step in range(1, 20)]
    rows.insert(5, "x" * len(rows[0]))
    log = read_logs(written(tmp_path, "\n".join(rows) + "\n"))
    assert log.series["reward"].values.tolist() == [step / 10000 for step in range(1, 20)]


@pytest.mark.parametrize(
    ("bar", "steps"),
    [
        ("100%|####| 23/23 [01:00<00:00, 2.0s/it]", [5, 10, 15, 20]),
        (" 91%|### | 21/23 [01:00<00:04, 2.0s/it]", [1, 2, 3, 4]),
        ("Generating: 100%|####| 23/23 [01:00<00:00, 2.0s/it]", [1, 2, 3, 4]),
        ("100%|####| 9/9 [01:00<00:00, 2.0s/it]", [2, 4, 6, 8]),
        ("100%|####| 120/120 [01:00<00:00, 2.0s/it]", [1, 2, 3, 4]),
    ],
    ids=["to its end", "still running", "of another work", "every second step", "of several distances"],
)
def test_a_finished_progress_bar_gives_the_steps_of_rows_without_one(
    tmp_path: Path, bar: str, steps: list[int]
) -> None:
    rows = "".join(f"{{'loss': 0.5, 'reward': 0.{place}, 'epoch': 0.{place}}}\n" for place in range(4))
    log = read_logs(written(tmp_path, f"{bar}\n{rows}"))
    assert log.series["reward"].steps.tolist() == steps


def test_a_text_without_a_row_is_named_as_such(tmp_path: Path) -> None:
    with pytest.raises(BlockedError, match="text in which no line is a row of metrics"):
        read_logs(written(tmp_path, "Traceback (most recent call last):\nNotImplementedError\n"))


def test_rows_of_words_with_lists_and_shares(tmp_path: Path) -> None:
    """A share is its value, a list its mean; what is neither is left out, and a sentence is no row."""
    text = (
        "[step 1/200] correct=3/4 rewards=['0.80', '0.01', '0.80', '0.39'] loss=-0.0051 lr=0.00e+00 mode=grpo\n"
        "[step 2/200] correct=1/4 rewards=[1, 0] loss=0.5 lr=1e-6\n"
        "[step 3] see a=b and c=d\n"
        "[step 4] loss=0.1399 rewards(c/r)=-0.02/-0.01\n"
    )
    log = read_logs(written(tmp_path, text))
    assert not log.damage
    assert log.series["correct"].values.tolist() == [0.75, 0.25]
    assert log.series["rewards"].values.tolist() == [0.5, 0.5]
    assert log.series["loss"].steps.tolist() == [1, 2, 4]
    assert log.total_steps == 200
    assert "rewards(c/r)" not in log.series


def test_names_of_several_words(tmp_path: Path) -> None:
    """minimind's GRPO prints `Avg Response Len: 205.12` and counts its steps within an epoch."""
    row = (
        "Epoch:[2/2](3/10), Reward: -1.8, KL_ref: -0.02, Avg Response Len: 205.12, Learning Rate: 0.0000003\n"
    )
    log = read_logs(written(tmp_path, row))
    assert log.series["Avg Response Len"].steps.tolist() == [13]
    assert log.series["Learning Rate"].values.tolist() == [3e-7]
