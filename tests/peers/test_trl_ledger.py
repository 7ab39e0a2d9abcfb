"""The rows of real TRL runs: read from parquet, passed by every law that they arm, and a changed cell is named."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from tests.peers.patched import run_in, run_seatrial

from refrl.models.tiny import TinyModelSpec, make_model

pytestmark = [pytest.mark.peer, pytest.mark.slow, pytest.mark.timeout(1500)]

TRAIN = """
import sys
from datasets import Dataset
from transformers import AutoModelForCausalLM, AutoTokenizer
from trl import GRPOConfig, GRPOTrainer

model = sys.argv[1]
tokenizer = AutoTokenizer.from_pretrained(model)
if tokenizer.pad_token is None:
    tokenizer.pad_token = tokenizer.eos_token


def share_of_letters(completions, **kwargs):
    return [sum(letter.isalpha() for letter in text) / max(1, len(text)) for text in completions]


def brevity(completions, **kwargs):
    return [-len(text) / 100 for text in completions]


def train(output, num_steps, reward_funcs, **options):
    config = GRPOConfig(
        output_dir=output, max_steps=num_steps, per_device_train_batch_size=8, num_generations=4,
        max_completion_length=64, learning_rate=1e-3, beta=0.04, logging_steps=1, report_to="none",
        save_strategy="no", use_cpu=True, bf16=False, seed=0, log_completions=True, num_completions_to_print=0,
        **options,
    )
    GRPOTrainer(
        model=AutoModelForCausalLM.from_pretrained(model), reward_funcs=reward_funcs, args=config,
        train_dataset=Dataset.from_dict({"prompt": [f"say {number}" for number in range(16)]}),
        processing_class=tokenizer,
    ).train()


train("plain", 3, [share_of_letters])
train("reused", 4, [share_of_letters, brevity], num_iterations=2, scale_rewards="batch", reward_weights=[1.0, 0.5])
"""
CHANGE = """
import sys
import pyarrow as pa
from pyarrow import parquet

file, column = sys.argv[1:]
table = parquet.read_table(file)
cells = table[column].to_pylist()
cells[5] = 0.7371
place = table.column_names.index(column)
parquet.write_table(table.set_column(place, column, pa.array(cells)), file)
"""
ADVANTAGES = "advantages recomputed equal the logged"


@dataclass(frozen=True)
class Peer:
    """TRL's environment, with the folder of the runs that it made."""

    python: Path
    folder: Path

    def judge(self, *words: str) -> tuple[int, dict[str, dict[str, Any]]]:
        """Return the exit code of `seatrial ledger` and its verdicts by name."""
        ran = run_seatrial(self.python, self.folder, "ledger", *words, "--json", "verdicts.json")
        assert ran.returncode in (0, 1), ran.stdout + ran.stderr
        document = json.loads((self.folder / "verdicts.json").read_text())
        assert document["stack"] == "TRL"
        return ran.returncode, {verdict["name"]: verdict for verdict in document["verdicts"]}


@pytest.fixture(scope="module")
def trl(peer_python: Callable[[str], Path], tmp_path_factory: pytest.TempPathFactory) -> Peer:
    """Train a tiny model twice with TRL."""
    peer = Peer(peer_python("trl"), tmp_path_factory.mktemp("trl_rows"))
    make_model(TinyModelSpec(), peer.folder / "model")
    ran = run_in(peer.python, peer.folder, TRAIN, "model")
    assert ran.returncode == 0, ran.stdout[-2000:] + ran.stderr[-4000:]
    return peer


def test_rows_of_a_run_pass(trl: Peer) -> None:
    """What TRL writes arms seven laws; the estimator is found from the rows."""
    code, verdicts = trl.judge("plain", "--steps-per-batch", "1", "--group-size", "4")
    assert code == 0, verdicts
    passed = {name for name, verdict in verdicts.items() if verdict["outcome"] == "Pass"}
    assert passed == {
        "every trained row is there, once",
        "steps follow one another",
        "no row is trained again at another step",
        "every row draws its own randomness",
        "every reward is finite",
        ADVANTAGES,
        "advantages follow the rewards of their group",
    }
    assert "deviation of group over n - 1, epsilon 0.0001" in verdicts[ADVANTAGES]["reason"]
    assert verdicts[ADVANTAGES]["num_samples"] == 24


def test_a_batch_that_serves_two_steps(trl: Peer) -> None:
    """TRL writes its rows at both: no fault where the run says so, and seen where it says otherwise."""
    words = ("reused", "--reward", "share_of_letters", "--reward", "brevity=0.5")
    code, verdicts = trl.judge(*words, "--steps-per-batch", "2")
    assert code == 0, verdicts
    assert "deviation of batch over n - 1, epsilon 0.0001" in verdicts[ADVANTAGES]["reason"]
    once = "no row is trained again at another step"
    assert trl.judge(*words)[1][once]["outcome"] == "Skipped"
    assert trl.judge(*words, "--steps-per-batch", "1")[1][once]["outcome"] == "Fail"


def test_weights_that_are_not_the_runs_explain_nothing(trl: Peer) -> None:
    code, verdicts = trl.judge("reused", "--reward", "share_of_letters", "--reward", "brevity=-3")
    assert code == 1
    assert "no known estimator explains all rows" in verdicts[ADVANTAGES]["reason"]


@pytest.mark.parametrize("column", ["advantage", "share_of_letters"])
def test_a_changed_cell_is_named(trl: Peer, column: str) -> None:
    file = trl.folder / "plain" / "completions" / "completions_00002.parquet"
    before = file.read_bytes()
    try:
        ran = run_in(trl.python, trl.folder, CHANGE, str(file), column)
        assert ran.returncode == 0, ran.stderr
        code, verdicts = trl.judge("plain")
    finally:
        file.write_bytes(before)
    assert code == 1
    assert {"step": 2, "index": 5} in verdicts[ADVANTAGES]["details"]["rows"]


def test_a_truncated_file_is_blocked(trl: Peer) -> None:
    file = trl.folder / "plain" / "completions" / "completions_00003.parquet"
    before = file.read_bytes()
    try:
        file.write_bytes(before[:-20])
        ran = run_seatrial(trl.python, trl.folder, "ledger", "plain")
    finally:
        file.write_bytes(before)
    assert ran.returncode == 3, ran.stdout
    assert "completions_00003.parquet is damaged" in ran.stderr
