"""What the recipes of trials feed a stack: equal, tidy inputs hide faults of padding, micro-batches and epochs."""

import math

import pytest

from refrl.config import GRPORunConfig, SFTRunConfig, load_config
from refrl.recipes import recipe_loop, recipe_path
from refrl.tasks import make_splits

GRPO = (
    "grpo-smoke",
    "grpo-lora",
    "grpo-checkpoint-save",
    "grpo-refit-noncolocated",
    "grpo-refit-delta",
    "grpo-async",
    "grpo-generation-vllm",
    "grpo-generation-megatron",
)
MEDIA = ("grpo-vlm", "grpo-audio")
SFT = ("sft-resume-diamond",)


def loaded(name: str) -> GRPORunConfig | SFTRunConfig:
    """Return the configuration of a recipe."""
    schema = {"grpo": GRPORunConfig, "sft": SFTRunConfig}[recipe_loop(name)]
    return load_config(schema, recipe_path(name))


@pytest.mark.parametrize("name", [*GRPO, *SFT])
def test_prompts_differ_in_length(name: str) -> None:
    """So that the sampler and the trainer pad."""
    lengths = {len(example.prompt) for example in make_splits(loaded(name).data).train}
    assert len(lengths) >= 3


@pytest.mark.parametrize("name", [*GRPO, *MEDIA])
def test_completions_can_end_early(name: str) -> None:
    """Random weights seldom sample the one end token: several others end a completion."""
    stops = loaded(name).policy.generation.stop_token_ids
    assert stops is not None
    assert len(stops) >= 16


@pytest.mark.parametrize("name", [*GRPO, *MEDIA, *SFT])
def test_an_update_has_several_micro_batches_of_unequal_size(name: str) -> None:
    """The last one is smaller."""
    policy = loaded(name).policy
    for size in (policy.train_micro_batch_size, policy.logprob_batch_size):
        assert math.ceil(policy.train_global_batch_size / size) > 1
        assert policy.train_global_batch_size % size


@pytest.mark.parametrize("name", [*GRPO, *SFT])
def test_a_run_crosses_an_epoch_within_a_step(name: str) -> None:
    """The cursor of the data passes the end of the split."""
    config = loaded(name)
    num_train = len(make_splits(config.data).train)
    if isinstance(config, GRPORunConfig):
        per_step, num_steps = config.grpo.num_prompts_per_step, config.grpo.max_num_steps
    else:
        per_step, num_steps = config.policy.train_global_batch_size, config.sft.max_num_steps
    assert num_train < per_step * num_steps
    assert num_train % per_step


@pytest.mark.parametrize("name", GRPO)
def test_a_group_has_equal_rewards(name: str) -> None:
    """Every completion of the empty word scores 0."""
    assert any(not example.answer for example in make_splits(loaded(name).data).train)


def test_the_resumed_run_starts_past_an_epoch_with_another_rate_at_every_step() -> None:
    """A cursor that restarts in its epoch, or a schedule an update late, gives another run."""
    config = loaded("sft-resume-diamond")
    assert isinstance(config, SFTRunConfig)
    assert config.sft.max_num_steps >= 3
    assert len(make_splits(config.data).train) < config.policy.train_global_batch_size
    assert config.policy.scheduler.warmup_steps == 0
    assert config.policy.scheduler.name == "linear"
