"""What verl offers by name, and the adapters whose laws run it; `python -m seatrial.targets.verl.public` prints it."""

from __future__ import annotations

from collections.abc import Mapping

from seatrial.targets.common.followed import page
from seatrial.targets.verl.target import VerlTarget

ENGINES = "an inference engine"
OTHER_DEVICES = "kernels of GPUs and NPUs"
OUT_OF_SCOPE: Mapping[str, str] = {
    "verl.third_party": "code of other projects",
    "verl.models": "models for Megatron, and patches of Transformers' models for kernels",
    "verl.utils.megatron*": "Megatron",
    "verl.utils.mcore*": "Megatron",
    "verl.workers.engine.megatron": "Megatron",
    "verl.workers.megatron": "Megatron",
    "verl.workers.actor.megatron*": "Megatron",
    "verl.workers.critic.megatron*": "Megatron",
    "verl.workers.reward_model": "an inference engine, or Megatron",
    "verl.workers.sharding_manager": ENGINES,
    "verl.utils.checkpoint.megatron*": "Megatron",
    "verl.model_merger.megatron*": "Megatron",
    "verl.workers.engine.veomni": "VeOmni",
    "verl.utils.veomni": "VeOmni",
    "verl.workers.engine.torchtitan": "torchtitan",
    "verl.workers.engine.automodel": "NeMo AutoModel",
    "verl.workers.engine.mindspeed": "MindSpeed",
    "verl.workers.rollout.vllm*": ENGINES,
    "verl.workers.rollout.sglang*": ENGINES,
    "verl.workers.rollout.trtllm*": ENGINES,
    "verl.workers.rollout.replica": ENGINES,
    "verl.utils.vllm*": ENGINES,
    "verl.utils.sglang*": ENGINES,
    "verl.utils.trtllm*": ENGINES,
    "verl.utils.modelopt*": ENGINES,
    "verl.utils.qat": ENGINES,
    "verl.utils.fp8*": OTHER_DEVICES,
    "verl.utils.kernel": OTHER_DEVICES,
    "verl.utils.device": OTHER_DEVICES,
    "verl.utils.memory*": OTHER_DEVICES,
    "verl.utils.nccl*": OTHER_DEVICES,
    "verl.utils.npu*": OTHER_DEVICES,
    "verl.utils.ulysses": "sequences shared by processes with flash_attn",
    "verl.utils.activation_offload": OTHER_DEVICES,
    "verl.checkpoint_engine": "transports between GPUs",
    "verl.utils.profiler": "profiling",
    "verl.utils.debug": "profiling",
    "verl.utils.logg*": "printing",
    "verl.utils.tracking": "trackers of other services",
    "verl.utils.rollout_trace": "trackers of other services",
    "verl.utils.import_utils": "whether packages are installed",
    "verl.utils.hdfs*": "a file system of another service",
    "verl.utils.fs": "a file system of another service",
    "verl.utils.ray_utils": "processes of Ray",
    "verl.single_controller.ray": "processes of Ray",
    "verl.tools": "tools that are services or examples",
    "verl.interactions": "examples of answers to a model",
    "verl.utils.reward_score.sandbox_fusion": "a service",
    "verl.trainer.main*": "commands",
    "verl.trainer.runtime_env": "commands",
    "verl.experimental.vla": "robots",
}
"""By module, or by the beginning of its name: what a run on a CPU without other services or packages does not have."""

HEAD = """# What verl offers, and which adapters judge it

`python -m seatrial.targets.verl.public` draws this page for the installed release, in half a minute.

A public class or function is **judged** by the adapters that have a law in which its code runs, and **uncovered** if it
runs in none. What needs inference engines, Megatron, services or other devices than a CPU is out of scope, with the
reason. A fault in code that does not run cannot be seen; one in code that runs may still not be. Laws of several
processes are not counted.
"""


if __name__ == "__main__":
    verl = VerlTarget()
    print(page(verl, verl.components(), OUT_OF_SCOPE, HEAD), end="")
