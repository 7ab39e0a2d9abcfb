"""Faults of verl's rollouts, queues, buffers and servers, as patches: adapter, relation and the law that breaks."""

TURNED = """
from seatrial.targets.verl.rollouts import VerlRollouts
worker = VerlRollouts().worker
post = worker._postprocess
worker._postprocess = lambda self, rows, **options: post(self, rows[::-1], **options)
"""
TRAINING_ALONE = """
from seatrial.targets.verl.rollouts import VerlRollouts
worker = VerlRollouts().worker
generate = worker.generate_sequences
async def without_validation(self, batch):
    batch.meta_info["validate"] = False
    return await generate(self, batch)
worker.generate_sequences = without_validation
"""
RESUMED_ALWAYS = """
from seatrial.targets.verl.rollouts import VerlResumedAnswers
from verl.workers.rollout.llm_server import LLMServerClient
generate = LLMServerClient.generate
async def from_prompt(self, request_id, *, prompt_ids, **options):
    return await generate(self, request_id, prompt_ids=prompt_ids[:3], **options)
LLMServerClient.generate = from_prompt
"""
NEWEST = """
from seatrial.targets.verl.asynchronous import VerlAsynchronous
queue = VerlAsynchronous().queue
put = queue.put_sample
async def first(self, sample):
    found = await put(self, sample)
    self.queue.rotate(1)
    return found
queue.put_sample = first
"""
OLD_KEPT = """
from seatrial.targets.verl.asynchronous import VerlReplayBuffer
buffers = VerlReplayBuffer()._buffers
buffers.ReplayBufferAsync._stale_terminal_keys = lambda self, steps, partition: set()
buffers.ReplayBufferAsync._has_enough_samples = lambda self, steps, partition, size, keys: len(keys) >= size
"""
UNSTUCK = """
from seatrial.targets.verl.rollouter import VerlBalancer
balancer = VerlBalancer().balancer
acquire = balancer.acquire_server
def another(self, request_id):
    self._request_id_to_server.clear()
    return acquire(self, request_id)
balancer.acquire_server = another
"""
UNLIMITED = """
from seatrial.targets.verl.rollouter import VerlRollouter
rollouter = VerlRollouter().rollouter
async def never(self):
    return False
rollouter._should_pause_generation = never
"""
NOT_MOVED = """
from seatrial.targets.verl.older_options import VerlOlderOptionsAsync
VerlOlderOptionsAsync()
from verl.experimental.fully_async_policy import fully_async_main
fully_async_main.migrate_legacy_reward_impl = lambda config: config
"""
AS_MASK = """
from seatrial.targets.verl.own_losses import VerlOwnLossOfEngine
VerlOwnLossOfEngine()
from verl.workers.utils import losses
find = losses.get_policy_loss_fn
losses.get_policy_loss_fn = lambda name: lambda advantages, response_mask, **options: find(name)(
    advantages=advantages, response_mask=advantages, **options
)
"""
SHIFTED = """
from seatrial.targets.verl.trainer_v1 import VerlTrainerV1
base = VerlTrainerV1()._base
values_of = base.response_from_nested
base.response_from_nested = lambda values, mask: values_of(values, mask) * 2
"""
NEVER_SENT = """
from seatrial.targets.verl.trainer_v1 import VerlTrainerV1
VerlTrainerV1().trainer.on_step_end = lambda self: None
"""
SAMPLED = """
from seatrial.targets.verl.rollouts import VerlRollouts
worker = VerlRollouts().worker
generate = worker.generate_sequences
async def without_greedy(self, batch):
    batch.non_tensor_batch.pop("__do_sample__", None)
    return await generate(self, batch)
worker.generate_sequences = without_greedy
"""
NO_EXPERTS = """
from seatrial.targets.verl.turns import VerlTurns
VerlTurns()
from verl.experimental.agent_loop import tool_agent_loop
output = tool_agent_loop.AgentLoopOutput
tool_agent_loop.AgentLoopOutput = lambda **columns: output(**{**columns, "routed_experts": None})
"""
FLOW_FAULTS = [
    ("rollouts", "rollouts", "R31.rollouts", SAMPLED, "rows that are sampled greedily"),
    ("turns", "turns-of-tools", "R31.turns", NO_EXPERTS, "experts of an episode"),
    ("trainer_v1", "trainer-v1", "R31.flow", SHIFTED, "rows of a step"),
    ("trainer_v1", "trainer-v1", "R31.flow", NEVER_SENT, "order of a step"),
    ("own_losses", "own-loss-of-engine", "R31.own_losses", AS_MASK, "arguments of an own loss"),
    ("older_options", "older-options-async", "R31.older", NOT_MOVED, "options under older names"),
    ("rollouts", "rollouts", "R31.rollouts", TURNED, "rows of a batch"),
    ("rollouts", "rollouts", "R31.rollouts", TRAINING_ALONE, "options of sampling of a batch"),
    ("rollouts", "resumed-answers", "R31.rollouts", RESUMED_ALWAYS, "an answer in parts"),
    ("asynchronous", "asynchronous", "R31.asynchronous", NEWEST, "a queue of rows"),
    ("asynchronous", "replay-buffer", "R31.asynchronous", OLD_KEPT, "waiting for old rows"),
    ("rollouter", "balancer", "R31.servers", UNSTUCK, "requests of conversations"),
    ("rollouter", "rollouter", "R31.servers", UNLIMITED, "limits of a rollouter"),
]
