"""Adapters of verl's workers, losses, functions, prompts and loaders: each law breaks where verl is patched."""

from collections.abc import Callable
from pathlib import Path

import pytest
from tests.peers.making import PEERS
from tests.peers.patched import judged
from tests.peers.wild.runner import layer

pytestmark = [pytest.mark.peer, pytest.mark.slow, pytest.mark.nightly, pytest.mark.timeout(900)]
NEW, OLD = "verl==0.9.1", "verl==0.5.0"
ACTOR = """
from seatrial.targets.verl.workers import worker_class
worker_class("verl.workers.actor.dp_actor", "DataParallelPPOActor")
from verl.workers.actor import dp_actor
"""
LAST_LOST = f"""{ACTOR}
policy_loss = dp_actor.compute_policy_loss
def local(**options):
    loss, *rest = policy_loss(**options)
    return loss * options["response_mask"].shape[0], *rest
dp_actor.compute_policy_loss = local
"""
KL_TWICE = f"""{ACTOR}
kl = dp_actor.kl_penalty
dp_actor.kl_penalty = lambda **options: 2 * kl(**options)
"""
RATIO_INVERSE = f"""{ACTOR}
policy_loss = dp_actor.compute_policy_loss
def inverse(*, old_log_prob, log_prob, **options):
    return policy_loss(old_log_prob=log_prob, log_prob=old_log_prob, **options)
dp_actor.compute_policy_loss = inverse
"""
VALUE_WHOLE = """
from verl.trainer.ppo import core_algos
value_loss = core_algos.compute_value_loss
def whole(**options):
    loss, *rest = value_loss(**options)
    return 2 * loss, *rest
core_algos.compute_value_loss = whole
"""
FIRST_TOKENS = """
from verl.utils.dataset.sft_dataset import SFTDataset
item = SFTDataset.__getitem__
def without_first(self, place):
    row = item(self, place)
    row["loss_mask"][int(row["loss_mask"].nonzero()[0])] = 0
    return row
SFTDataset.__getitem__ = without_first
"""
OWN_TOKENS = """
from verl.trainer.distillation import losses
aggregate = losses.agg_loss
losses.agg_loss = lambda **options: aggregate(
    **{**options, "batch_num_tokens": options["loss_mask"].sum(), "dp_size": 1}
)
"""
AS_COST = """
from verl.trainer.distillation import losses
find = losses.get_policy_loss_fn
def other_sign(name):
    return lambda advantages, **options: find(name)(advantages=-advantages, **options)
losses.get_policy_loss_fn = other_sign
"""
SIDES = """
from verl.trainer.distillation.fsdp import losses
divergence = losses.kl_divergence
losses.kl_divergence = lambda log_q, log_p: divergence(log_q=log_p, log_p=log_q)
"""
ALL_TOKENS = """
from verl.utils import torch_functional
torch_functional.masked_mean = lambda values, mask, axis=None: values.mean() if axis is None else values.mean(axis)
"""
MEAN_OF_RANKS = """
from verl.utils import torch_functional
def of_ranks(values, mask):
    mean = (values * mask).sum() / mask.sum()
    torch.distributed.all_reduce(mean)
    count = torch.ones(())
    torch.distributed.all_reduce(count)
    return mean / count
torch_functional.distributed_masked_mean = of_ranks
"""
A_TOKEN_UNSEEN = """
from verl.workers.engine.fsdp import transformer_impl
build = transformer_impl.build_attention_mask_from_nested
def without_second(*given, **options):
    found = build(*given, **options)
    found[:, 1] = 0
    return found
transformer_impl.build_attention_mask_from_nested = without_second
"""
COLD = """
from verl.utils.experimental import torch_functional
backward = torch_functional._fused_linear_for_ppo_bwd
torch_functional._fused_linear_for_ppo_bwd = lambda **options: [
    one * options["temperature"] for one in backward(**options)
]
"""
CHUNKS = """
from verl.utils import torch_functional
entropy = torch_functional.entropy_from_logits_with_chunking
def without_rest(logits, chunk_size):
    found = entropy(logits, chunk_size)
    whole = len(found) // chunk_size * chunk_size
    return torch.cat([found[:whole], found[whole:] * 0])
torch_functional.entropy_from_logits_with_chunking = without_rest
"""
NO_SHIFT = """
from verl.utils import torch_functional
logprobs = torch_functional.logprobs_from_logits
torch_functional.log_probs_from_logits_response = lambda ids, logits, length: logprobs(
    logits=logits[:, -length:], labels=ids[:, -length:]
)
"""
FIRST_BOX = """
from verl.utils.reward_score import math_reward
last = math_reward.last_boxed_only_string
math_reward.last_boxed_only_string = lambda text: last(text[: text.find("}") + 1])
"""
OTHER_KL = """
from verl.trainer.ppo import rollout_corr_helper
metrics = rollout_corr_helper.compute_offpolicy_metrics
rollout_corr_helper.compute_offpolicy_metrics = lambda old_log_prob, rollout_log_prob, response_mask: metrics(
    rollout_log_prob, old_log_prob, response_mask
)
"""
UNMASKED = """
from verl.utils.debug import metrics
metrics.calculate_log_prob_diff = lambda one, other, mask: (one - other).abs().flatten()
"""
DATA_SET = """
from seatrial.targets.common.stand_ins import import_without
from seatrial.targets.verl.estimators import UNUSED
data_set = import_without("verl.utils.dataset.rl_dataset", (*UNUSED, "qwen_vl_utils"))
"""
WITHOUT_ANSWER = f"""{DATA_SET}
def shorter(self, rows):
    def length(row):
        text = self.tokenizer.apply_chat_template(row["prompt"], tokenize=False)
        return len(self.tokenizer(text)["input_ids"])
    return rows.filter(lambda row: not self.filter_overlong_prompts or length(row) <= self.max_prompt_length)
data_set.RLHFDataset.maybe_filter_out_long_prompts = shorter
"""
OTHER_SIDE = f"""{DATA_SET}
process = data_set.verl_F.postprocess_data
def swapped(*, truncation, **options):
    return process(truncation={{"left": "right", "right": "left"}}.get(truncation, truncation), **options)
data_set.verl_F.postprocess_data = swapped
"""
ONE_SEED = """
from verl import DataProto
iterate = DataProto.make_iterator
DataProto.make_iterator = lambda self, *, seed, **options: iterate(self, seed=1, **options)
"""
WITH_PADDING = """
from verl.utils import torch_functional
torch_functional.get_response_mask = lambda response_id, eos_token: torch.ones_like(response_id)
"""
OTHER_ROWS = """
from verl import DataProto
repeat = DataProto.sample_level_repeat
def turned(self, counts):
    return repeat(self, counts[::-1])
DataProto.sample_level_repeat = turned
"""
LONGER = """
from verl.utils import seqlen_balancing
rearrange = seqlen_balancing.rearrange_micro_batches
seqlen_balancing.rearrange_micro_batches = lambda batch, limit, **options: rearrange(batch, 4 * limit, **options)
"""
MEAN_OF_TOKENS = """
from verl.trainer.ppo import metric_utils
metrics = metric_utils.compute_data_metrics
def whole(batch, use_critic=True):
    batch.batch["response_mask"] = torch.ones_like(batch.batch["response_mask"])
    return metrics(batch, use_critic)
metric_utils.compute_data_metrics = whole
"""
ONE_CALL = """
from seatrial.targets.verl.agents import ADAPTERS as adapters
adapters["tool-calls"]()
from verl.experimental.agent_loop.tool_parser import HermesToolParser
extract = HermesToolParser.extract_tool_calls
async def first(self, *arguments):
    text, calls = await extract(self, *arguments)
    return text, calls[:1]
HermesToolParser.extract_tool_calls = first
"""
ONE_MORE = """
from verl.utils.checkpoint.checkpoint_manager import BaseCheckpointManager
register = BaseCheckpointManager.register_checkpoint
BaseCheckpointManager.register_checkpoint = lambda self, path, limit: register(self, path, limit and limit + 1)
"""
ALL_TRAIN = """
from seatrial.targets.verl.turns import ADAPTERS as adapters
loop = adapters["turns-of-tools"]().loop
run = loop.run
async def whole(self, *arguments, **options):
    found = await run(self, *arguments, **options)
    found.response_mask = [1] * len(found.response_mask)
    return found
loop.run = whole
"""
R22 = "R22.named"
UNEQUAL = "means and sums, lengths unequal"
FAULTS = [
    (
        OLD,
        "workers",
        "actor-of-workers-by-tokens",
        "R1.step",
        LAST_LOST,
        "gradients add up, in micro-batches of one row",
    ),
    (OLD, "worker_metrics", "losses-of-workers", R22, KL_TWICE, UNEQUAL),
    (OLD, "worker_metrics", "metrics-of-workers", R22, RATIO_INVERSE, UNEQUAL),
    (OLD, "worker_metrics", "critic-metrics-of-workers", R22, VALUE_WHOLE, UNEQUAL),
    (OLD, "supervised", "supervised-trainer", "R12.objective", FIRST_TOKENS, "gradient, lengths unequal"),
    (OLD, "prompts", "prompts", "R16.prompt_rows", OTHER_SIDE, "cut at the start"),
    (
        NEW,
        "distillation",
        "distillation-k3-token-mean",
        "R2.ranked_loss",
        OWN_TOKENS,
        "ranks of unequal numbers of tokens",
    ),
    (NEW, "distillation", "distillation-as-reward", "R12.loss", AS_COST, "loss gradient"),
    (NEW, "distillation", "distillation-top", "R12.objective", SIDES, "gradient, lengths unequal"),
    (NEW, "functional", "masked-statistics", R22, ALL_TOKENS, "means and sums, tool output inside"),
    (
        NEW,
        "functional",
        "statistics-of-ranks",
        R22,
        MEAN_OF_RANKS,
        "means and sums, ranks of unequal numbers of tokens",
    ),
    (NEW, "engines", "engine-padded", "R5.policy", A_TOKEN_UNSEEN, "the model's own log-probabilities"),
    (NEW, "functional", "fused-linear", "R12.fused", COLD, "value and gradient"),
    (NEW, "functional", "fused-linear-of-part", "R12.fused", COLD, "value and gradient"),
    (NEW, "functional", "logits-in-chunks", "R12.fused", CHUNKS, "value and gradient"),
    (
        NEW,
        "functional",
        "token-logprobs-of-response",
        "R12.logprobs",
        NO_SHIFT,
        "log-probability of each token",
    ),
    (NEW, "scores", "score-math", "R17.reward", FIRST_BOX, "reward of each answer"),
    (NEW, "sampler_metrics", "off-policy-metrics", R22, OTHER_KL, UNEQUAL),
    (NEW, "sampler_metrics", "probability-differences", R22, UNMASKED, "means and sums, tool output inside"),
    (NEW, "prompts", "prompts", "R16.prompt_rows", WITHOUT_ANSWER, "longer prompts are left out"),
    (NEW, "small", "small-functions", "R31.sequences", WITH_PADDING, "masks of answers"),
    (NEW, "turns", "turns-of-tools", "R31.turns", ALL_TRAIN, "tokens of several turns"),
    (NEW, "agents", "tool-calls", "R31.calls", ONE_CALL, "several calls"),
    (NEW, "agents", "checkpoint-files", "R31.files", ONE_MORE, "checkpoints that are kept"),
    (NEW, "batches", "batches", "R31.batches", OTHER_ROWS, "rows repeated unequally"),
    (
        NEW,
        "small",
        "small-functions",
        "R31.partitions",
        LONGER,
        "micro-batches within a number of tokens",
    ),
    (NEW, "small", "small-functions", "R31.step_metrics", MEAN_OF_TOKENS, "metrics of a step"),
    (
        NEW,
        "mini_batches",
        "mini-batches",
        "R30.rows",
        ONE_SEED,
        "another order for another seed, the last rows dropped",
    ),
]


def judged_in(
    python: Path, release: str, module: str, adapter: str, relation: str, fault: str = ""
) -> tuple[str, list[str]]:
    """Judge a relation of an adapter on a release, with a fault in it."""
    program = ["import torch", fault, f"from seatrial.targets.verl.{module} import ADAPTERS as adapters"]
    return judged(python, program, adapter, relation, paths=[layer(python, PEERS / "layers", [release])])


@pytest.mark.parametrize(("release", "module", "adapter", "relation", "fault", "law"), FAULTS)
def test_a_patched_release_breaks_the_law(
    peer_python: Callable[[str], Path],
    release: str,
    module: str,
    adapter: str,
    relation: str,
    fault: str,
    law: str,
) -> None:
    """The law about it, whichever others."""
    outcome, broken = judged_in(peer_python("wild"), release, module, adapter, relation, fault)
    assert outcome == "Fail"
    assert law in broken


@pytest.mark.parametrize(
    ("release", "module", "adapter", "relation"),
    sorted({(release, module, adapter, relation) for release, module, adapter, relation, *_ in FAULTS}),
)
def test_the_release_as_it_is_holds(
    peer_python: Callable[[str], Path], release: str, module: str, adapter: str, relation: str
) -> None:
    """Nothing is broken but what is declared."""
    outcome, broken = judged_in(peer_python("wild"), release, module, adapter, relation)
    assert outcome in ("Pass", "Skipped")
    assert not broken
