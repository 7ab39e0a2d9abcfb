"""What verl offers by name, and the adapters whose laws run it; `python -m seatrial.targets.verl.public` prints that.

A name is judged by an adapter if a law of it runs the code of that name: laws compare results, and what runs in none of
them cannot be seen to be wrong. The converse does not hold: code that runs may be called with one value of an argument.
Laws of several processes are not followed.
"""

from __future__ import annotations

import contextlib
import inspect
import io
import sys
import threading
from collections.abc import Iterator, Mapping
from types import CodeType, FrameType
from typing import Any

from seatrial.relations.registry import all_relations
from seatrial.targets.common import offered as names
from seatrial.targets.common.offered import Offered, undecorated
from seatrial.targets.common.target import Unavailable, release
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
    "verl.utils.flops_counter": "operations of models by name",
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


class _Followed:
    """Adapters by the code that ran while their laws measured."""

    def __init__(self) -> None:
        self.ran: dict[CodeType, dict[str, None]] = {}
        self.adapter = ""

    def __call__(self, frame: FrameType, event: str, _: Any) -> None:
        if event == "call":
            self.ran.setdefault(frame.f_code, {})[self.adapter] = None

    @contextlib.contextmanager
    def of(self, adapter: str) -> Iterator[None]:
        """Follow calls of this process while an adapter is judged."""
        self.adapter = adapter
        threading.setprofile(self)
        sys.setprofile(self)
        try:
            yield
        finally:
            sys.setprofile(None)
            threading.setprofile(None)


def judged() -> dict[CodeType, dict[str, None]]:
    """Return the adapters whose laws run each code."""
    from seatrial.relations.engine import run_relation

    target, followed = VerlTarget(), _Followed()
    for name, adapter in target.components().items():
        if isinstance(adapter, Unavailable):
            continue
        with followed.of(name), contextlib.redirect_stdout(io.StringIO()):
            for relation in all_relations():
                package = target.adapter_package
                run_relation(relation, adapter, seeds=(0,), adapter_package=package, shrink_seconds=0)
    return followed.ran


def codes_of(one: Any) -> Iterator[CodeType]:
    """Yield the code of a function, or of what a class itself defines."""
    members = vars(one).values() if inspect.isclass(one) else [one]
    for member in members:
        given = member.fget if isinstance(member, property) else getattr(member, "__func__", member)
        function = undecorated(given)
        if inspect.isfunction(function) and function.__module__ == one.__module__:
            yield function.__code__


def offered() -> Iterator[Offered]:
    """Yield every public class and function of the installed release, module by module."""
    ran = judged()

    def state_of(_: str, one: Any) -> str:
        codes = list(codes_of(one))
        if not codes:
            return f"{names.OUT}it has no code of its own"
        adapters = {adapter: None for code in codes for adapter in ran.get(code, {})}
        shown = list(adapters)[:3]
        return ", ".join(shown + [f"{len(adapters) - 3} others"][: len(adapters) > 3]) or names.UNCOVERED

    yield from names.offered("verl", OUT_OF_SCOPE, state_of)


HEAD = """# What verl offers, and which adapters judge it

`python -m seatrial.targets.verl.public` draws this page for the installed release, in half a minute.

A public class or function is **judged** by the adapters that have a law in which its code runs, and **uncovered** if it
runs in none. What needs inference engines, Megatron, services or other devices than a CPU is out of scope, with the
reason. A fault in code that does not run cannot be seen; one in code that runs may still not be. Laws of several
processes are not counted.
"""


def page(rows: list[Offered]) -> str:
    """Return the page docs/evidence/verl_names.md."""
    parts = [
        HEAD,
        f"{names.summary('verl ' + release('verl'), rows)}.",
        "",
        "| module | judged | uncovered |",
        "|---|---|---|",
    ]
    relevant = [row for row in rows if row.relevant]
    for module in dict.fromkeys(row.module for row in relevant):
        own = [row for row in relevant if row.module == module]
        covered = [f"`{row.name}` ({row.state})" for row in own if row.state != names.UNCOVERED]
        rest = [f"`{row.name}`" for row in own if row.state == names.UNCOVERED]
        parts.append(f"| `{module}` | {'; '.join(covered)} | {', '.join(rest)} |")
    parts += ["", "## Out of scope", "", "| reason | modules |", "|---|---|"]
    for reason in sorted({row.state for row in rows if not row.relevant}):
        modules = dict.fromkeys(row.module.removeprefix("verl.") for row in rows if row.state == reason)
        text = ", ".join(f"`{name}`" for name in modules)
        parts.append(
            f"| {reason.removeprefix(names.OUT)} | {text if len(modules) < 12 else f'{len(modules)} modules'} |"
        )
    return "\n".join(parts) + "\n"


if __name__ == "__main__":
    print(page(list(offered())), end="")
