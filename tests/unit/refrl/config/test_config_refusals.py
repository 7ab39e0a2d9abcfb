"""Options that exclude one another, or would do nothing, are refused when the configuration is read."""

import pytest

from refrl.config import ConfigError, GRPORunConfig, load_config
from refrl.recipes import recipe_path

SMOKE = recipe_path("grpo-smoke")
PACKED, DYNAMIC = "policy.sequence_packing.enabled=true", "policy.dynamic_batching.enabled=true"
APART = "policy.generation.colocated.enabled=false"
SHAPED = "grpo.reward_shaping.enabled=true"


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ([PACKED, DYNAMIC], "exclude each other"),
        ([PACKED, "policy.sequence_length_buckets=[48]"], "sequence_length_buckets has no effect with policy.seq"),
        ([DYNAMIC, "policy.sequence_length_buckets=[48]"], "sequence_length_buckets has no effect with policy.dyn"),
        (["policy.sequence_packing.train_mb_tokens=96"], "no effect without policy.sequence_packing.enabled=true"),
        ([DYNAMIC, "policy.dynamic_batching.logprob_mb_tokens=47"], "logprob_mb_tokens=47 is less than one row of"),
        (["policy.logprob_chunk_size=-1"], "policy.logprob_chunk_size"),
        (["policy.optimizer.betas=[1.5,0.9]"], "policy.optimizer.betas.0: input should be less than 1, got 1.5"),
        (["logger.log_dir="], "logger.log_dir: expected a directory (an unset"),
        (["checkpointing.checkpoint_dir="], "checkpointing.checkpoint_dir: expected a directory (an unset"),
        (["policy.model_name="], "policy.model_name: expected a directory (an unset"),
        (["policy.tokenizer.chat_template=chatml"], "'chatml' is not a Jinja template"),
        (["data.system_prompt=be brief"], "set policy.tokenizer.chat_template"),
        (["data.verifiers={exact_match: 1}"], "replaces data.verifier"),
        (["data.verifier=null", "data.verifiers={}"], "at least one"),
        (["data.verifier=null", "data.verifiers={exact_match: 0}"], "data.verifiers.exact_match"),
        (["cluster.num_processes=3"], "is not a multiple of cluster.num_processes=3"),
        (["cluster.num_processes=2", "data_plane.implementation=ray"], "ray serves one training process"),
        ([APART, "cluster.num_processes=2", "policy.generation.placement=ray"], "set cluster.placement=ray, or use"),
        (["cluster.ray_address=head:6379"], "cluster.ray_address has no effect"),
        (["data_plane.journal=a.jsonl"], "data_plane.journal is for a store in separate processes"),
        (["data_plane.timeout_s=1"], "implementation=local has none: leave timeout_s out"),
        (["grpo.use_dynamic_sampling=true", "grpo.zero_variance_filter=true"], "zero_variance_filter has no effect"),
        (["grpo.dynamic_sampling_max_gen_batches=3"], "no effect without grpo.use_dynamic_sampling=true"),
        (["grpo.use_dynamic_sampling=true", "data.num_train=7"], "raise it to 8 or more"),
        ([SHAPED], "needs grpo.reward_shaping.overlong_buffer_length"),
        (["grpo.reward_shaping.overlong_buffer_length=4"], "no effect without grpo.reward_shaping.enabled=true"),
        ([SHAPED, "grpo.reward_shaping.overlong_buffer_length=9"], "a buffer of 9 tokens before 8 has no effect"),
        (
            [
                SHAPED,
                "grpo.reward_shaping.overlong_buffer_length=4",
                "grpo.reward_shaping.max_response_length=12",
            ],
            "a buffer of 4 tokens before 12 has no effect on completions",
        ),
    ],
)  # fmt: skip
def test_what_cannot_work_together_is_told_with_the_remedy(words: list[str], message: str) -> None:
    """One message, before torch is loaded."""
    with pytest.raises(ConfigError) as caught:
        load_config(GRPORunConfig, SMOKE, words)
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    "words",
    [
        [PACKED, "policy.sequence_packing.train_mb_tokens=48", "policy.logprob_chunk_size=8"],
        [DYNAMIC, "policy.activation_checkpointing=true", "cluster.num_processes=2"],
        [SHAPED, "grpo.reward_shaping.overlong_buffer_length=4", "grpo.reward_shaping.max_response_length=11"],
        ["grpo.use_dynamic_sampling=true", "grpo.overlong_filtering=true", "data.num_train=8"],
        ["policy.tokenizer.chat_template=byte", "data.system_prompt=be brief"],
        ["cluster.placement=ray", "cluster.num_processes=2", "cluster.ray_address=head:6379"],
        [APART, "policy.generation.placement=ray", "cluster.placement=ray", "cluster.num_processes=2"],
        ["data.verifier=null", "data.verifiers={exact_match: 1, byte_closeness: 0.2}"],
    ],
)  # fmt: skip
def test_what_works_together_is_read(words: list[str]) -> None:
    """And written down again, it reads the same."""
    config = load_config(GRPORunConfig, SMOKE, words)
    assert GRPORunConfig.model_validate(config.model_dump()) == config
