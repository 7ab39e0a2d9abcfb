"""refrl offers every component; its options are all turned; its cases know every verifier."""

import re
from importlib import resources

import pytest

from refrl.config import GRPORunConfig
from refrl.config.loading import leaf_annotations
from refrl.rewards import VERIFIERS
from seatrial.relations.contracts import COMPONENTS
from seatrial.relations.engine import run_relation
from seatrial.relations.registry import select
from seatrial.targets.reference.components import ReferenceComponents
from seatrial.targets.reference.configuration import other_model_directory, wide_model_directory
from seatrial.targets.reference.runs.architectures import architecture_directory
from seatrial.verdict import Outcome

STACK = ReferenceComponents()
ADDED = (
    "R10.update", "R14.prompts", "R15.clamp", "R16.chat", "R17.filter", "R17.reward", "R23.evaluation",
    "R24.learning_rate", "R24.staleness",
)  # fmt: skip
NOT_REFRL = {
    "accumulated_training", "adapted_family", "adapter_histories", "loop_histories",
    "adapter_groups", "adapters", "adapters_elsewhere", "any_model",
    "collators", "collectives", "combined_adapters", "compared_trainer", "configurations", "decoding",
    "default_sampling", "drawn_tokens", "executable_batch_size", "functions", "kl_controller",
    "length_balance", "masking", "metric_gather", "model_calls", "model_family", "model_files", "model_heads",
    "model_options", "named_schedules", "nested_exchanges", "own_generation", "pairs", "placed_models",
    "process_splits", "prepared_adapters", "prompt_rows", "readiness", "recorded_model", "rollout_window", "rotary",
    "routed_adapters", "row_loader", "row_tables", "sampler_correction", "saved_loops", "seeded_draws",
    "settings", "supervised_evaluation", "supervised_run", "supervised_step", "token_advantages", "tracker",
    "trained_tokens", "utilities", "validation_metrics", "value_loss", "varied_adapters", "whole_trainer",
}  # fmt: skip
"""Components of other stacks; the laws about them have a plain implementation beside their tests."""


def test_processes_that_judge_side_by_side_make_models_in_folders_of_their_own() -> None:
    """They are forked after the tiny model was made; without the cache, two calls are two processes."""
    folders = [architecture_directory.__wrapped__("drafts") for _ in range(2)]
    folders += [wide_model_directory.__wrapped__(tied=False) for _ in range(2)]
    folders += [other_model_directory.__wrapped__("window") for _ in range(2)]
    assert len(set(folders)) == len(folders)
    assert all((folder / "config.json").is_file() for folder in folders)


@pytest.mark.parametrize("name", ["defaults", "layouts", "options"])
def test_no_entry_of_a_table_appears_twice(name: str) -> None:
    """YAML would keep the last one, and drop the other silently."""
    text = resources.files("seatrial.targets.reference").joinpath(f"tables/{name}.yaml").read_text()
    entries = re.findall(r"^([\w.-]+):", text, re.MULTILINE)
    assert entries
    assert sorted(entries) == sorted(set(entries))


@pytest.mark.parametrize("component", sorted(set(COMPONENTS) - NOT_REFRL))
def test_every_component_is_offered(component: str) -> None:
    """Nothing of the battery is left out on refrl."""
    assert isinstance(STACK, COMPONENTS[component])


@pytest.mark.parametrize("name", ADDED)
def test_the_law_holds(name: str) -> None:
    """One seed; the battery itself runs more."""
    (relation,) = select([name])
    verdict = run_relation(relation, STACK, seeds=[0])
    assert verdict.outcome is Outcome.PASS, verdict.reason


NOT_TURNED = {
    "grpo.seed": "the seed that every short run is given",
    "loss_fn.force_on_policy_ratio": "saves a pass and changes no number",
    "policy.generation.backend": "vLLM lives in an environment of its own: tests/peers/vllm_engine.py",
    "policy.generation.vllm_cfg.": "of vLLM alone",
    "policy.generation.colocated.enabled": "must change nothing: the equivalence class grpo-colocated",
    "policy.generation.quantization": "rounds the sampler's weights: the guard of int8, arch-quantised",
    "policy.generation.colocated.resources.": "devices: tests/gpu/test_weight_sync_gpu.py",
    "policy.generation.placement": "must change nothing: grpo-colocated",
    "policy.generation.delta_compression.": "must change nothing: grpo-colocated",
    "policy.generation.weight_bucket_size_bytes": "must change nothing: tests of the weight sync",
    "policy.generation.weight_transport": "must change nothing: tests/integration/refrl/test_generator_process.py",
    "policy.generation.timeout_seconds": "how long a generator's process may be silent",
    "policy.sequence_packing.": "must change nothing: grpo-batch-forms",
    "policy.dynamic_batching.": "must change nothing: grpo-batch-forms",
    "policy.logprob_batch_size": "must change nothing: grpo-microbatches",
    "policy.logprob_chunk_size": "must change nothing: grpo-batch-forms",
    "policy.fused_kernels": "must change nothing: tests/gpu/test_fused_training_gpu.py",
    "policy.compile_layers": "must change nothing: tests/unit/refrl/policy/test_compiled_layers.py",
    "policy.generation.block_tokens": "must change nothing: cells, tests/unit/refrl/generation/test_static_decoder.py",
    "policy.activation_checkpointing": "must change nothing: grpo-checkpointed",
    "policy.sequence_length_buckets": "must change nothing: padding",
    "policy.max_total_sequence_length": "refused where a row could be longer",
    "policy.precision": "rounding: the equivalence of precisions is not a matter of two values",
    "policy.model_name": "the adapter's own",
    "policy.tokenizer.": "the adapter's own; R16",
    "loss_fn.options": "of losses that are not built in",
    "grpo.advantage.options": "of estimators that are not built in",
    "loss_fn.importance_sampling_": "beside loss_fn.importance_sampling: held by R12.loss",
    "grpo.max_verifier_error_share": "ends the run: tests/integration/refrl/test_bad_conditions.py",
    "grpo.zero_variance_filter": "rows without an advantage: only counts change",
    "grpo.use_dynamic_sampling": "tests/integration/refrl/test_grpo_filters.py",
    "grpo.dynamic_sampling_max_gen_batches": "tests/integration/refrl/test_grpo_filters.py",
    "grpo.async_grpo.": "R14.async and R19.async; tests/integration/refrl/test_async_grpo.py",
    "grpo.batch_multiplier": "of asynchronous rollouts: tests/integration/refrl/test_async_grpo.py",
    "grpo.reward_shaping.": "turned beside grpo.reward_shaping.enabled",
    "data.": "turned one by one where two values of the made task differ; the rest by tests of tasks and files",
    "logger.": "where evidence goes",
    "checkpointing.": "what is left at the end; R13.run",
    "policy.router_aux_loss_coef": "of a mixture of experts: tests/unit/refrl/policy/test_routers.py, arch-moe",
    "policy.draft.": "trains a head beside the policy: tests/unit/refrl/policy/test_draft.py, arch-draft",
    "policy.lora_cfg.": "R10.adapters, R7.adapters",
    "policy.dtensor_cfg.": "must change nothing: R2, R25",
    "policy.megatron_cfg.": "must change nothing: tests/unit/refrl/policy/megatron",
    "data_plane.": "must change nothing: tests/peers/test_data_plane.py",
    "cluster.": "must change nothing: grpo-processes",
}
"""Options, or the beginnings of their names, that `run_options` leaves out, with the reason."""


def test_every_option_is_turned_or_says_why_not() -> None:
    """A new option without two values in options.yaml would be an option that nothing watches."""
    left = set(leaf_annotations(GRPORunConfig)) - set(STACK.run_options())
    assert [name for name in sorted(left) if not name.startswith(tuple(NOT_TURNED))] == []


def test_every_verifier_has_a_right_and_a_wrong_answer() -> None:
    """A verifier that always says yes, or no, would be seen."""
    rewards = {name: set() for name in VERIFIERS}
    for problem, _, reward in STACK.reward_cases():
        rewards[problem.verifier].add(reward)
    assert [name for name, seen in rewards.items() if not seen] == []
    assert [name for name, seen in rewards.items() if len(seen) < 2] == ["byte_closeness"]


class DrawsWhenItEvaluates(ReferenceComponents):
    """Evaluation takes numbers from the stream that trains."""

    def train_with_evaluation(self, *, evaluate, seed):
        """Move one stream."""
        state = dict(super().train_with_evaluation(evaluate=evaluate, seed=seed))
        return {**state, "global streams untouched": not evaluate}


def test_an_evaluation_that_moves_a_stream_is_seen() -> None:
    """The law can fail."""
    (relation,) = select(["R23.evaluation"])
    verdict = run_relation(relation, DrawsWhenItEvaluates(), seeds=[0])
    assert verdict.outcome is Outcome.FAIL
    assert "global streams untouched" in verdict.reason
