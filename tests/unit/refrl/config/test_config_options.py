"""The set of options is deliberate: each is listed here, and each is read by code."""

import ast
import functools
from pathlib import Path

import pytest

import refrl
from refrl.config import GRPORunConfig, SFTRunConfig, load_config
from refrl.config.loading import leaf_annotations
from refrl.recipes import FOLDER

OPTIONS = """
checkpointing.async_save
checkpointing.checkpoint_dir
checkpointing.checkpoint_must_save_by
checkpointing.enabled
checkpointing.higher_is_better
checkpointing.keep_top_k
checkpointing.metric_name
checkpointing.save_period
cluster.device
cluster.num_processes
cluster.num_threads
cluster.placement
cluster.ray_address
data.answer_key
data.environment
data.environment_args
data.num_train
data.num_validation
data.on_overlap
data.prompt_key
data.seed
data.shuffle
data.solution_key
data.system_prompt
data.task
data.task_args
data.train_path
data.validation_path
data.verifier
data.verifiers
data_plane.implementation
data_plane.journal
data_plane.lease_s
data_plane.name
data_plane.timeout_s
grpo.advantage.epsilon
grpo.advantage.estimator
grpo.advantage.options
grpo.advantage.scale
grpo.async_grpo.drop_longer_than
grpo.async_grpo.drop_zero_variance
grpo.async_grpo.enabled
grpo.async_grpo.in_flight_weight_updates
grpo.async_grpo.max_trajectory_age_steps
grpo.async_grpo.num_replicas
grpo.async_grpo.stall_timeout_seconds
grpo.batch_multiplier
grpo.dynamic_sampling_max_gen_batches
grpo.max_num_steps
grpo.max_val_samples
grpo.max_verifier_error_share
grpo.num_generations_per_prompt
grpo.num_prompts_per_step
grpo.overlong_filtering
grpo.reward_shaping.enabled
grpo.reward_shaping.max_response_length
grpo.reward_shaping.overlong_buffer_length
grpo.reward_shaping.overlong_buffer_penalty
grpo.seed
grpo.use_dynamic_sampling
grpo.val_at_end
grpo.val_at_start
grpo.val_greedy
grpo.val_period
grpo.zero_variance_filter
logger.log_dir
logger.log_train_data
logger.observers
logger.tensorboard_enabled
loss_fn.entropy_coefficient
loss_fn.fixed_length
loss_fn.force_on_policy_ratio
loss_fn.importance_sampling
loss_fn.importance_sampling_max
loss_fn.importance_sampling_min
loss_fn.kind
loss_fn.kl_in
loss_fn.options
loss_fn.ratio_clip_c
loss_fn.ratio_clip_max
loss_fn.ratio_clip_min
loss_fn.reduction
loss_fn.reference_policy_kl_gradient
loss_fn.reference_policy_kl_importance_sampling
loss_fn.reference_policy_kl_penalty
loss_fn.reference_policy_kl_type
policy.activation_checkpointing
policy.compile_layers
policy.draft.enabled
policy.draft.model_name
policy.dtensor_cfg.context_parallel_size
policy.dtensor_cfg.enabled
policy.dtensor_cfg.expert_parallel_size
policy.dtensor_cfg.sequence_parallel
policy.dtensor_cfg.tensor_parallel_size
policy.dynamic_batching.enabled
policy.dynamic_batching.logprob_mb_tokens
policy.dynamic_batching.train_mb_tokens
policy.fused_kernels
policy.generation.backend
policy.generation.block_tokens
policy.generation.colocated.enabled
policy.generation.colocated.resources.gpus_per_node
policy.generation.delta_compression.delta_load_batch_size_bytes
policy.generation.delta_compression.dtype
policy.generation.delta_compression.enabled
policy.generation.delta_compression.full_sync_interval
policy.generation.delta_compression.sparse_bucket_size_bytes
policy.generation.delta_compression.transport
policy.generation.max_new_tokens
policy.generation.placement
policy.generation.quantization
policy.generation.stop_token_ids
policy.generation.temperature
policy.generation.timeout_seconds
policy.generation.top_k
policy.generation.top_p
policy.generation.vllm_cfg.enforce_eager
policy.generation.vllm_cfg.gpu_memory_utilization
policy.generation.vllm_cfg.python
policy.generation.weight_bucket_size_bytes
policy.generation.weight_transport
policy.logprob_batch_size
policy.logprob_chunk_size
policy.lora_cfg.adapter_path
policy.lora_cfg.alpha
policy.lora_cfg.dim
policy.lora_cfg.enabled
policy.lora_cfg.exclude_modules
policy.lora_cfg.seed
policy.lora_cfg.target_modules
policy.max_grad_norm
policy.max_total_sequence_length
policy.megatron_cfg.context_parallel_size
policy.megatron_cfg.enabled
policy.megatron_cfg.expert_model_parallel_size
policy.megatron_cfg.expert_tensor_parallel_size
policy.megatron_cfg.pipeline_model_parallel_size
policy.megatron_cfg.sequence_parallel
policy.megatron_cfg.tensor_model_parallel_size
policy.model_name
policy.optimizer.betas
policy.optimizer.eps
policy.optimizer.lr
policy.optimizer.weight_decay
policy.precision
policy.router_aux_loss_coef
policy.scheduler.min_lr_ratio
policy.scheduler.name
policy.scheduler.warmup_steps
policy.sequence_length_buckets
policy.sequence_packing.enabled
policy.sequence_packing.logprob_mb_tokens
policy.sequence_packing.train_mb_tokens
policy.tokenizer.chat_template
policy.tokenizer.name
policy.train_global_batch_size
policy.train_micro_batch_size
sft.max_num_steps
sft.max_val_samples
sft.seed
sft.stop_at_accuracy
sft.val_at_end
sft.val_at_start
sft.val_greedy
sft.val_period
"""

SOURCES = Path(refrl.__file__).parent


def options() -> dict[str, object]:
    """Return every dotted key of the two schemas."""
    return {**leaf_annotations(GRPORunConfig), **leaf_annotations(SFTRunConfig)}


def test_the_set_of_options_is_frozen() -> None:
    """Whoever adds or renames an option changes this list, and thinks of those who use it."""
    assert sorted(options()) == sorted(OPTIONS.split())


@pytest.mark.parametrize("key", sorted(options()))
def test_every_option_is_read_by_code(key: str) -> None:
    """Some module takes the attribute; validators of the schema do not count."""
    assert key.rpartition(".")[2] in attributes_read()


@functools.cache
def attributes_read() -> frozenset[str]:
    """Return the names of all attributes that refrl reads, the schema's own validators aside."""
    names: set[str] = set()
    for path in SOURCES.rglob("*.py"):
        for node in ast.walk(without_validators(ast.parse(path.read_text()))):
            if isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Load):
                names.add(node.attr)
    return frozenset(names)


def without_validators(tree: ast.Module) -> ast.Module:
    """Drop functions that are decorated as validators of a model."""
    for node in ast.walk(tree):
        if isinstance(node, ast.ClassDef):
            node.body = [
                item
                for item in node.body
                if not (
                    isinstance(item, ast.FunctionDef)
                    and any("model_validator" in ast.unparse(decorator) for decorator in item.decorator_list)
                )
            ] or [ast.Pass()]
    return tree


@pytest.mark.parametrize("path", sorted(FOLDER.glob("*.yaml")), ids=lambda path: path.name)
def test_every_recipe_is_valid(path: Path) -> None:
    """The recipes read under the schema of their loop."""
    load_config(SFTRunConfig if path.name.startswith("sft") else GRPORunConfig, path)
