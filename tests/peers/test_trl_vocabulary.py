"""The vocabulary of TRL against a real TRL run: its log is read, recognised, and says what the table says."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from tests.peers.patched import run_in

from refrl.models.tiny import TinyModelSpec, make_model
from seatrial.evidence.read import read_logs
from seatrial.evidence.runlog import RunLog
from seatrial.vocabulary import canonical, recognise, stacks

pytestmark = [pytest.mark.peer, pytest.mark.slow]

NUM_STEPS = 3
NOT_IN_THIS_RUN = {
    "train/sampling/sampling_logp_difference/mean": "logged with vLLM only",
    "train/sampling/importance_sampling_ratio/mean": "logged with vLLM only",
    "eval/reward": "logged with an evaluation set",
    "eval/loss": "logged with an evaluation set",
    "train/mean_token_accuracy": "logged by SFTTrainer, and this run is of GRPOTrainer",
    "eval/completions/mean_length": "logged with an evaluation set",
}

TRAIN = """
import os, sys
os.environ["TENSORBOARD_LOGGING_DIR"] = "logs"
from datasets import Dataset
from transformers import AutoModelForCausalLM, AutoTokenizer
from trl import GRPOConfig, GRPOTrainer

model, output, num_steps = sys.argv[1:]
tokenizer = AutoTokenizer.from_pretrained(model)
if tokenizer.pad_token is None:
    tokenizer.pad_token = tokenizer.eos_token


def share_of_e(completions, **kwargs):
    return [text.count("e") / max(1, len(text)) for text in completions]


config = GRPOConfig(
    output_dir=output, max_steps=int(num_steps), per_device_train_batch_size=8, num_generations=4,
    max_completion_length=8, learning_rate=1e-3, beta=0.04, logging_steps=1, report_to="tensorboard",
    save_strategy="no", use_cpu=True, bf16=False, seed=0,
)
GRPOTrainer(
    model=AutoModelForCausalLM.from_pretrained(model), reward_funcs=share_of_e, args=config,
    train_dataset=Dataset.from_dict({"prompt": ["say e", "more e", "e", "write"] * 8}), processing_class=tokenizer,
).train()
"""


@pytest.fixture(scope="module")
def trl_log(peer_python: Callable[[str], Path], tmp_path_factory: pytest.TempPathFactory) -> RunLog:
    python = peer_python("trl")
    folder = tmp_path_factory.mktemp("trl")
    make_model(TinyModelSpec(), folder / "model")
    ran = run_in(python, folder, TRAIN, "model", "output", str(NUM_STEPS))
    assert ran.returncode == 0, ran.stdout[-2000:] + ran.stderr[-4000:]
    return read_logs(folder)


@pytest.mark.timeout(1500)
def test_a_trl_log_is_recognised(trl_log: RunLog) -> None:
    found = recognise(trl_log.tags())
    assert found is not None
    assert found.name == "trl"
    assert not trl_log.damage


def test_every_tag_of_the_table_is_logged_at_every_step(trl_log: RunLog) -> None:
    for tag in stacks()["trl"].tags:
        if tag in NOT_IN_THIS_RUN:
            continue
        assert tag in trl_log.series, f"{tag} is in the table and not in a TRL run; it logs {trl_log.tags()}"
        assert trl_log.series[tag].steps.tolist()[:NUM_STEPS] == list(range(1, NUM_STEPS + 1)), tag


def test_values_lie_within_the_ranges_of_the_vocabulary(trl_log: RunLog) -> None:
    stack = stacks()["trl"]
    for tag in set(stack.tags) & set(trl_log.series):
        metric = canonical(tag, stack)
        assert metric is not None
        values = trl_log.series[tag].values
        assert metric.low is None or (values >= metric.low).all(), tag
        assert metric.high is None or (values <= metric.high).all(), tag


def test_nothing_that_matters_is_left_without_a_name(trl_log: RunLog) -> None:
    """Tags that the table lacks are details beside a named one, sums at the end, or the user's own rewards."""
    stack = stacks()["trl"]
    details = (
        "train/rewards/",
        "train/clip_ratio/",
        "train/completions/",
        "train/total_flos",
        "train/train_",
    )
    unknown = [tag for tag in trl_log.series if canonical(tag, stack) is None and not tag.startswith(details)]
    assert unknown == []
