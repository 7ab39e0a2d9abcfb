"""Adapters of verl's rollouts, their metrics and scores: each law breaks where verl is patched."""

from collections.abc import Callable
from pathlib import Path

import pytest
from tests.peers.making import PEERS
from tests.peers.patched import judged
from tests.peers.verl_flow_faults import FLOW_FAULTS
from tests.peers.wild.runner import layer

pytestmark = [pytest.mark.peer, pytest.mark.slow, pytest.mark.nightly, pytest.mark.timeout(900)]
NEW = "verl==0.9.1"
SCORE_AS_MEAN = """
from verl.trainer.ppo import core_algos
group = core_algos.compute_grpo_outcome_advantage
def without_alone(token_level_rewards, response_mask, index, **options):
    found, other = group(token_level_rewards, response_mask, index, **options)
    for row, label in enumerate(index):
        if list(index).count(label) == 1:
            found[row] = 0
    return found, other
core_algos.compute_grpo_outcome_advantage = without_alone
"""
LAST_SLOT = """
from verl.trainer.ppo import metric_utils
count = metric_utils._compute_rollout_moe_load_counts
def with_last(routed_experts, response_mask, num_experts):
    after = torch.nn.functional.pad(response_mask, (1, 0))[:, :-1]
    return count(routed_experts, response_mask | after, num_experts)
metric_utils._compute_rollout_moe_load_counts = with_last
"""
NEVER_RESET = """
from verl.trainer.ppo import metric_utils
metric_utils.RolloutMoELoadBalanceMetricsAccumulator.reset = lambda self: None
"""
TOP_ONE = """
from verl.trainer.ppo import metric_utils
metric_utils.infer_moe_num_experts = lambda config: getattr(config, "num_experts", None)
"""
WHOLE_ROW = """
from verl.trainer.ppo import metric_utils
mean = metric_utils.verl_F.masked_mean
metric_utils.verl_F.masked_mean = lambda values, mask, axis=None: values.mean(axis)
"""
NEVER_EMPTY = """
from verl.trainer.ppo import metric_utils
info = metric_utils._compute_response_info
def never_empty(batch):
    found = info(batch)
    return {**found, "response_length": found["response_length"].clamp(min=1)}
metric_utils._compute_response_info = never_empty
"""
IN_PLACE = """
from verl.utils import torch_functional
torch_functional.masked_sum = lambda values, mask, axis=None: values.mul_(mask.bool()).nan_to_num_().sum(axis)
"""
NO_BREAK = """
from verl.utils.tokenizer.continuous_token import ContinuousTokenBuilder, QwenContinuousTokenBuilder
QwenContinuousTokenBuilder._merge_context_token_ids = ContinuousTokenBuilder._merge_context_token_ids
"""
STOP_TWICE = """
from verl.utils.tokenizer.continuous_token import ContinuousTokenBuilder, GLMContinuousTokenBuilder
GLMContinuousTokenBuilder._merge_context_token_ids = ContinuousTokenBuilder._merge_context_token_ids
"""
CONTEXT_TRAINS = """
from verl.utils.tokenizer.continuous_token import ContinuousTokenBuilder
align = ContinuousTokenBuilder.align_response_metadata
def trains(self, merged, mask, logprobs=None, **options):
    found, values = align(self, merged, mask, logprobs, **options)
    return [1] * len(found), values
ContinuousTokenBuilder.align_response_metadata = trains
"""
TURNED = """
from verl.model_merger.fsdp_model_merger import FSDPModelMerger
merge = FSDPModelMerger._merge_by_placement
FSDPModelMerger._merge_by_placement = lambda self, tensors, placement: merge(self, tensors[::-1], placement)
"""
FRESH_HEAD = """
from verl.model_merger.fsdp_model_merger import FSDPModelMerger
save = FSDPModelMerger.save_hf_model_and_tokenizer
def without_score(self, state):
    return save(self, {name: tensor for name, tensor in state.items() if "score" not in name})
FSDPModelMerger.save_hf_model_and_tokenizer = without_score
"""
OWN_SETTINGS = """
from verl.model_merger.fsdp_model_merger import FSDPModelMerger
FSDPModelMerger.patch_model_generation_config = lambda self, model: model
"""
LAST_COLUMN = """
from seatrial.targets.verl.padded import ADAPTERS as adapters
worker = adapters["padded-episodes"]().worker
join = worker._postprocess
def at_the_end(self, rows, *arguments, **options):
    batch = join(self, rows, *arguments, **options)
    if "rm_scores" in batch.batch:
        scores = batch.batch["rm_scores"]
        batch.batch["rm_scores"] = torch.cat([scores[:, 1:], scores[:, :1]], 1)
    return batch
worker._postprocess = at_the_end
"""
WITHOUT_FACTS = """
from seatrial.targets.verl.scored_episodes import ADAPTERS as adapters
manager = adapters["scored-episodes"]().manager
score = manager.run_single
async def without(self, data):
    data.non_tensor_batch.pop("tool_extra_fields")
    return await score(self, data)
manager.run_single = without
"""
INPUT_AS_TEXT = """
from verl.utils.reward_score.sandbox_fusion import utils
process = utils._process_single_case
utils._process_single_case = lambda number, read, *others, **more: process(number, str(read), *others, **more)
"""
TENSORS_ALONE = """
from verl import DataProto
def reorder(self, order):
    self.batch = self.batch[order]
DataProto.reorder = reorder
"""
TWICE = """
from seatrial.targets.verl.trainer_loop import ADAPTERS as adapters
trainer = adapters["trainer-loop"]().trainer
validate = trainer._validate
def twice(self, *arguments):
    validate(self, *arguments)
    return validate(self, *arguments)
trainer._validate = twice
"""
FROM_THE_BEGINNING = """
from seatrial.targets.verl.trainer_loop import ADAPTERS as adapters
trainer = adapters["trainer-loop"]().trainer
load = trainer._load_checkpoint
def without_place(self):
    load(self)
    self.train_dataloader.load_state_dict({"epoch": 0, "place": 0})
trainer._load_checkpoint = without_place
"""
OTHER_SOURCES = """
from seatrial.targets.verl.trainer_loop import ADAPTERS as adapters
trainer = adapters["trainer-loop"]().trainer
update = trainer._val_metrics_update
trainer._val_metrics_update = lambda self, sources, *rest: update(self, sources[::-1], *rest)
"""
OTHER_SCORES = """
from seatrial.targets.verl.trainer_loop import ADAPTERS as adapters
trainer = adapters["trainer-loop"]().trainer
dump = trainer._dump_generations
trainer._dump_generations = lambda self, *, scores, **columns: dump(self, scores=scores[::-1], **columns)
"""
CALLS_TWICE = """
from verl.utils.reward_score import rlla
reward = rlla.compute_tool_call_reward
def repeated(right, given, *rest):
    return reward(right, given * len(right) if len(given) == 1 else given, *rest)
rlla.compute_tool_call_reward = repeated
"""
LAST_LETTERS = """
from verl.utils.reward_score import math_reward
boxed = math_reward.last_boxed_only_string
math_reward.last_boxed_only_string = lambda text: boxed(text[-300:])
"""
PARTS_REVERSED = """
from verl.utils import tensordict_utils
divide = tensordict_utils.chunk_tensordict
tensordict_utils.chunk_tensordict = lambda batch, chunks: divide(batch, chunks)[::-1]
"""
FAILED_AS_SEEN = """
from verl.trainer.ppo import metric_utils
process = metric_utils.process_validation_metrics
def without_failures(sources, prompts, columns, seed=42, expected_acc_counts=None):
    return process(sources, prompts, columns, seed)
metric_utils.process_validation_metrics = without_failures
"""
SIDES_EXCHANGED = """
from verl.models.transformers import qwen2_vl
positions = qwen2_vl.get_rope_index
def turned(processor, image_grid_thw=None, **given):
    grid = None if image_grid_thw is None else image_grid_thw[:, [0, 2, 1]]
    return positions(processor, image_grid_thw=grid, **given)
qwen2_vl.get_rope_index = turned
"""
ZEROS = """
from verl.utils import ulysses
pad = ulysses.ulysses_pad
def zeros(ids, positions=None, ranks=1, pad_value=0):
    return pad(ids, positions, ranks)
ulysses.ulysses_pad = zeros
"""
LAST_TILE = """
from verl.models.transformers.tiled_mlp import GradientAccumulator
install = GradientAccumulator.install_hooks
def clears(self, is_last_shard):
    for value in self.accumulated_grads.values():
        value.zero_()
    install(self, is_last_shard)
GradientAccumulator.install_hooks = clears
"""
LAST_MICRO_BATCH = """
from verl.utils.metric.utils import Metric
Metric.aggregate_dp = classmethod(lambda cls, lists: lists[0].values[-1])
"""
SQUARED = """
from verl.trainer.ppo import core_algos
cispo = core_algos.POLICY_LOSS_REGISTRY["cispo"]
def squared(*given, rollout_is_weights=None, **named):
    weights = rollout_is_weights
    return cispo(*given, **named, rollout_is_weights=None if weights is None else weights**2)
squared.__signature__ = __import__("inspect").signature(cispo)
core_algos.POLICY_LOSS_REGISTRY["cispo"] = squared
"""
NEXT_STEP = """
from verl.utils.tracking import FileLogger
write = FileLogger.log
FileLogger.log = lambda self, data, step: write(self, data, step + 1)
"""
ALL_TOKENS = """
import torch
from verl.trainer.distillation import losses
extremes = losses.compute_distillation_loss_range
def of_all(distillation_losses, response_mask):
    return extremes(distillation_losses, torch.ones_like(distillation_losses))
losses.compute_distillation_loss_range = of_all
"""
FAULTS = [
    ("media", "media", "R31.media", SIDES_EXCHANGED, "positions of text, images and videos"),
    (
        "sequence_parallel",
        "sequence-parallel",
        "R31.sequence_parallel",
        ZEROS,
        "packed rows padded for ranks",
    ),
    ("worker_parts", "worker-parts", "R31.worker_parts", LAST_TILE, "an MLP in tiles"),
    (
        "model_updates",
        "model-updates",
        "R31.model_updates",
        LAST_MICRO_BATCH,
        "losses that updates log",
    ),
    ("weighted_losses", "weighted-losses", "R31.weighted_losses", SQUARED, "weights of tokens"),
    ("trainer_tools", "trainer-tools", "R31.trainer_tools", NEXT_STEP, "what a run logs"),
    ("distilled", "distilled", "R31.distilled", ALL_TOKENS, "what distillation logs"),
    ("scores", "score-math", "R17.reward", LAST_LETTERS, "reward of each answer"),
    ("step_parts", "step-parts", "R31.step_parts", PARTS_REVERSED, "rows of unequal lengths"),
    (
        "step_metrics",
        "step-metrics",
        "R31.step_metrics",
        FAILED_AS_SEEN,
        "validations with answers that failed",
    ),
    (
        "estimators",
        "estimator-grpo",
        "R12.estimator",
        SCORE_AS_MEAN,
        "advantages of outcomes, rows that are alone in their group",
    ),
    ("step_metrics", "step-metrics", "R31.expert_load", LAST_SLOT, "the load of one batch"),
    ("step_metrics", "step-metrics", "R31.expert_load", NEVER_RESET, "the load of several steps"),
    ("step_metrics", "step-metrics", "R31.expert_load", TOP_ONE, "numbers of experts of models"),
    (
        "step_metrics",
        "step-metrics",
        "R31.step_metrics",
        WHOLE_ROW,
        "proxies of the variance of the gradient",
    ),
    (
        "step_metrics",
        "step-metrics",
        "R31.step_metrics",
        NEVER_EMPTY,
        "metrics of rows with an answer, of turns and of calls",
    ),
    ("small", "small-functions", "R31.repeated", IN_PLACE, "arguments, and a second call"),
    ("merged", "merged-checkpoints", "R31.merged", TURNED, "weights"),
    ("merged", "merged-checkpoints", "R31.merged", FRESH_HEAD, "weights, a head of values"),
    ("merged", "merged-checkpoints", "R31.merged", OWN_SETTINGS, "weights, a head that is the embedding"),
    ("trainer_loop", "trainer-loop", "R31.flow", TENSORS_ALONE, "rows of a step"),
    ("trainer_loop", "trainer-loop", "R31.flow", TWICE, "order of a step"),
    ("trainer_loop", "trainer-loop", "R31.flow", FROM_THE_BEGINNING, "prompts after a resume"),
    ("trainer_loop", "trainer-loop", "R31.flow", OTHER_SOURCES, "metrics of the loop"),
    ("trainer_loop", "trainer-loop", "R31.flow", OTHER_SCORES, "rows that are written"),
    ("scores", "score-calls", "R17.reward", CALLS_TWICE, "reward of each answer"),
    (
        "scored_episodes",
        "scored-episodes",
        "R31.reward_calls",
        WITHOUT_FACTS,
        "what a reward function is given of an episode",
    ),
    ("sandbox", "score-sandbox", "R17.reward", INPUT_AS_TEXT, "reward of each answer"),
    ("padded", "padded-episodes", "R31.padded", LAST_COLUMN, "a batch of episodes"),
    ("continued", "continued-tokens", "R31.continuous", NO_BREAK, "turns one by one, qwen"),
    ("continued", "continued-tokens", "R31.continuous", STOP_TWICE, "turns one by one, glm"),
    ("continued", "continued-tokens", "R31.continuous", CONTEXT_TRAINS, "turns one by one, default"),
    *FLOW_FAULTS,
]


def judged_in(
    python: Path, module: str, adapter: str, relation: str, fault: str = ""
) -> tuple[str, list[str]]:
    """Judge a relation of an adapter on the newest release, with a fault in it."""
    program = ["import torch", fault, f"from seatrial.targets.verl.{module} import ADAPTERS as adapters"]
    return judged(python, program, adapter, relation, paths=[layer(python, PEERS / "layers", [NEW])])


@pytest.mark.parametrize(
    ("module", "adapter", "relation", "fault", "law"),
    FAULTS,
)
def test_a_patched_release_breaks_the_law(
    peer_python: Callable[[str], Path], module: str, adapter: str, relation: str, fault: str, law: str
) -> None:
    """The law about it, whichever others."""
    outcome, broken = judged_in(peer_python("wild"), module, adapter, relation, fault)
    assert outcome == "Fail"
    assert law in broken


@pytest.mark.parametrize(
    ("module", "adapter", "relation"),
    sorted({(module, adapter, relation) for module, adapter, relation, *_ in FAULTS}),
)
def test_the_release_as_it_is_holds(
    peer_python: Callable[[str], Path], module: str, adapter: str, relation: str
) -> None:
    """Nothing is broken but what is declared."""
    outcome, broken = judged_in(peer_python("wild"), module, adapter, relation)
    assert outcome in ("Pass", "Skipped")
    assert not broken
