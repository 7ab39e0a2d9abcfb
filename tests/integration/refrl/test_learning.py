"""GRPO raises the accuracy of a warmed model on held-out prompts; without a gradient, or against it, it does not.

By day the learning trial asks it, in tests/e2e/test_planted_faults.py.
"""

from collections.abc import Callable
from pathlib import Path

import pytest

from refrl.config import GRPORunConfig, SFTRunConfig, load_config
from refrl.training import build
from refrl.training.grpo import run_grpo
from refrl.training.sft import run_sft

from .conftest import CONFIGS
from .test_grpo_run import series

pytestmark = pytest.mark.slow

# Two proportions of 128 completions each differ by 0.19 by chance less than once in a thousand times
# (three standard errors of sqrt(2 * 0.25 / 128) = 0.0625).
RISE = 0.19


@pytest.fixture(scope="module")
def warm_model(tiny_model: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a model that answers about a third of the held-out prompts."""
    directory = tmp_path_factory.mktemp("warm")
    overrides = [
        f"policy.model_name={tiny_model}",
        f"logger.log_dir={directory / 'logs'}",
        f"checkpointing.checkpoint_dir={directory}",
    ]
    run_sft(load_config(SFTRunConfig, CONFIGS / "sft-warmup.yaml", overrides))
    return directory / "final"


@pytest.fixture
def learn(warm_model: Path, overrides: Callable[[str], list[str]]) -> Callable[..., tuple[float, float]]:
    """Return a function that runs GRPO for 60 steps and gives the accuracies before and after."""

    def run(*more: str) -> tuple[float, float]:
        words = [*overrides("run"), f"policy.model_name={warm_model}", "grpo.max_num_steps=60", *more]
        config = load_config(GRPORunConfig, CONFIGS / "grpo-learning.yaml", words)
        run_grpo(config)
        accuracy = series(config)["validation/accuracy"]
        return accuracy[0], accuracy[60]

    return run


@pytest.mark.nightly
def test_accuracy_rises_by_more_than_chance(learn: Callable[..., tuple[float, float]]) -> None:
    """From about a third."""
    before, after = learn()
    assert 0.2 < before < 0.65
    assert after - before > RISE


@pytest.mark.nightly
def test_without_a_learning_rate_nothing_changes(learn: Callable[..., tuple[float, float]]) -> None:
    """The same random numbers through the same weights give the same answers."""
    before, after = learn("policy.optimizer.lr=0")
    assert after == before


@pytest.mark.nightly
def test_against_the_gradient_accuracy_falls(
    learn: Callable[..., tuple[float, float]], monkeypatch: pytest.MonkeyPatch
) -> None:
    """With negated advantages the model unlearns."""
    compute = build.compute_advantages
    monkeypatch.setattr(build, "compute_advantages", lambda *args: -compute(*args))
    before, after = learn()
    assert before - after > RISE
