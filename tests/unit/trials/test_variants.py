"""The options that trials set besides their recipes: `variants.yaml`."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from pydantic import BaseModel

from refrl.config import GRPORunConfig, SFTRunConfig, load_config
from refrl.recipes import recipe_path
from seatrial.packaged import read_table
from seatrial.trials.architectures import Architecture, architecture_trials
from seatrial.trials.launching import own_options
from seatrial.trials.parallel import RECIPE, ParallelLayout, layout_trials

VARIANTS = read_table("seatrial.trials", "variants.yaml")
EVERY: list[Architecture | ParallelLayout] = [*architecture_trials(), *layout_trials()]
TRIALS = {trial.name: trial for trial in EVERY}
OF_LEVELS = (
    "smoke",
    "lora",
    "checkpoint-save",
    "refit-noncolocated",
    "refit-delta",
    "async",
    "generation-megatron",
)
NEVER_SET = {
    "checkpointing.checkpoint_must_save_by": "the resumed runs set it on their command line",
    "checkpointing.enabled": "the trial compares the weights",
    "cluster.device": "the machine's",
    "cluster.ray_address": "a cluster that exists already",
    "data.answer_key": "files",
    "data.environment": "several turns",
    "data.environment_args": "several turns",
    "data.on_overlap": "files",
    "data.prompt_key": "files",
    "data.solution_key": "files",
    "data.train_path": "files",
    "data.validation_path": "files",
    "data_plane.implementation": "stores in other processes",
    "data_plane.journal": "stores in other processes",
    "data_plane.lease_s": "a lost part: `seatrial chaos`",
    "data_plane.name": "stores in other processes",
    "data_plane.timeout_s": "stores in other processes",
    "grpo.advantage.options": "estimators of other packages",
    "grpo.async_grpo.drop_longer_than": "filters of the flow",
    "grpo.async_grpo.drop_zero_variance": "filters of the flow",
    "grpo.async_grpo.in_flight_weight_updates": "saves no checkpoints",
    "grpo.async_grpo.stall_timeout_seconds": "a stall",
    "grpo.max_verifier_error_share": "a verifier that cannot judge",
    "grpo.seed": "the trial's",
    "logger.log_train_data": "the trial judges the rows",
    "logger.observers": "the trial's guards",
    "logger.tensorboard_enabled": "the trial judges the log",
    "loss_fn.options": "losses of other packages",
    "policy.compile_layers": "20 s of compiling",
    "policy.draft.model_name": "a head outside of the model's folder",
    "policy.fused_kernels": "a GPU",
    "policy.generation.colocated.resources.gpus_per_node": "several GPUs",
    "policy.generation.delta_compression.transport": "there is one",
    "policy.generation.vllm_cfg.enforce_eager": "vLLM",
    "policy.generation.vllm_cfg.gpu_memory_utilization": "vLLM",
    "policy.generation.vllm_cfg.python": "vLLM",
    "policy.lora_cfg.adapter_path": "adapters that exist already",
    "policy.megatron_cfg.expert_tensor_parallel_size": "four processes",
    "policy.tokenizer.name": "a tokenizer outside of the model's folder",
}
"""Options of GRPO that no trial of levels 0 to 5 sets, with what they need or are about."""


def leaves(schema: type[BaseModel], prefix: str = "") -> Iterator[tuple[str, object]]:
    """Yield every option of a schema by its dotted name, with its default."""
    for name, field in schema.model_fields.items():
        if isinstance(field.annotation, type) and issubclass(field.annotation, BaseModel):
            yield from leaves(field.annotation, f"{prefix}{name}.")
        else:
            yield f"{prefix}{name}", field.get_default(call_default_factory=True)


def value(config: BaseModel, name: str) -> object:
    """Return the value of a dotted name."""
    found: object = config
    for part in name.split("."):
        found = getattr(found, part)
    return found


def configured() -> Iterator[GRPORunConfig]:
    """Yield the configuration of each trial of GRPO."""
    for recipe in OF_LEVELS:
        yield load_config(GRPORunConfig, recipe_path(f"grpo-{recipe}"), [])
    for name, trial in TRIALS.items():
        recipe = getattr(trial, "recipe", RECIPE)
        yield load_config(GRPORunConfig, recipe_path(recipe), [*own_options(name), *trial.words])


@pytest.mark.parametrize("name", VARIANTS)
def test_the_variants_of_a_trial_are_accepted(name: str) -> None:
    """Together with its recipe and the words that it is about; otherwise the trial runs without them."""
    trial = TRIALS[name]
    words = [*own_options(name), *trial.words]
    load_config(GRPORunConfig, recipe_path(getattr(trial, "recipe", RECIPE)), words)


def test_every_option_has_another_value_in_some_trial() -> None:
    """A new option is set by a trial, or listed here with the reason."""
    configurations = list(configured())
    unset = {
        name
        for name, default in leaves(GRPORunConfig)
        if all(value(config, name) == default for config in configurations)
    }
    assert unset == set(NEVER_SET)


def test_fine_tuning_sets_its_own_options() -> None:
    """Those that the loop of answers reads differ from their defaults in the diamond."""
    config = load_config(SFTRunConfig, recipe_path("sft-resume-diamond"), [])
    defaults = dict(leaves(SFTRunConfig))
    for name in ("sft.val_greedy", "policy.optimizer.betas", "policy.max_grad_norm", "data.system_prompt"):
        assert value(config, name) != defaults[name]
