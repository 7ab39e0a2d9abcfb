"""SFT learns the answers and their end, with the parts of GRPO."""

from collections.abc import Callable
from pathlib import Path

import torch

from refrl.config import SFTRunConfig, load_config
from refrl.models.loading import load_model
from refrl.models.tokenization import load_tokenizer
from refrl.training.sft import run_sft

from .conftest import CONFIGS
from .test_grpo_run import series


def warmup(overrides: list[str], *more: str) -> SFTRunConfig:
    """Return the warm-up configuration under overrides."""
    return load_config(SFTRunConfig, CONFIGS / "sft-warmup.yaml", [*overrides, *more])


SHORT = (
    "sft.max_num_steps=30",
    "sft.val_period=30",
    "data.task=add",
    "data.task_args={digits: 1}",
    "data.num_train=60",
    "data.num_validation=40",
    "policy.train_global_batch_size=32",
)


def test_loss_falls_on_training_and_held_out_answers(overrides: Callable[[str], list[str]]) -> None:
    """From the logarithm of the vocabulary, where an untrained model stands, to well below."""
    config = warmup(overrides("a"), *SHORT, "sft.val_at_start=true")
    run_sft(config)
    found = series(config)  # type: ignore[arg-type]
    assert abs(found["train/loss"][1] - torch.tensor(259.0).log()) < 0.2
    assert found["train/loss"][30] < 0.5 * found["train/loss"][1]
    assert found["validation/val_loss"][30] < 0.5 * found["validation/val_loss"][0]
    assert list(found["validation/accuracy"]) == [0, 30]
    assert list(found["train/lr"]) == list(range(1, 31))


def test_answer_tokens_and_the_end_are_what_counts(overrides: Callable[[str], list[str]]) -> None:
    """Valid tokens of a step: a digit or two and the end of each answer; no prompt token."""
    config = warmup(
        overrides("a"), *SHORT, "sft.max_num_steps=1", "sft.val_period=0", "sft.stop_at_accuracy=null"
    )
    run_sft(config)
    valid = series(config)["train/global_valid_toks"][1]  # type: ignore[arg-type]
    assert 32 * 2 <= valid <= 32 * 3


def test_a_trained_model_ends_its_answers(overrides: Callable[[str], list[str]]) -> None:
    """After an answer's digits the end token is the likeliest."""
    config = warmup(overrides("a"), *SHORT)
    run_sft(config)
    final = Path(config.checkpointing.checkpoint_dir) / "final"
    model, tokenizer = load_model(final), load_tokenizer(final)
    ids = tokenizer("1+2=3")["input_ids"]
    with torch.no_grad():
        assert int(model(torch.tensor([ids])).logits[0, -1].argmax()) == tokenizer.eos_token_id


def test_it_stops_at_the_accuracy_asked_for(overrides: Callable[[str], list[str]]) -> None:
    """At the first validation that reaches it, and exports."""
    config = warmup(
        overrides("a"), *SHORT, "sft.val_period=5", "sft.stop_at_accuracy=1e-9", "sft.max_num_steps=400"
    )
    run_sft(config)
    accuracy = series(config)["validation/accuracy"]  # type: ignore[arg-type]
    *before, last = accuracy.values()
    assert all(value == 0 for value in before)
    assert last > 0
    assert (Path(config.checkpointing.checkpoint_dir) / "final" / "model.safetensors").exists()
