"""The prompts that verl's agent loops send to the inference server; see `contracts.rollouts.Prompted`."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Callable, Mapping, Sequence
from inspect import getsource
from pathlib import Path
from typing import Any, ClassVar

import torch

from seatrial.relations.contracts.rollouts import Prompted
from seatrial.relations.laws.utilities.agent_prompts import TEMPLATE, TOOLS
from seatrial.relations.not_served import NotServed
from seatrial.targets.common.known import KnownFailure, KnowsFailures
from seatrial.targets.common.offered import undecorated
from seatrial.targets.common.target import find_name, release
from seatrial.targets.common.tiny import tiny_tokenizer
from seatrial.targets.common.trainers import temporary_folder
from seatrial.targets.verl.rewards import objects
from seatrial.targets.verl.rollouts import LOOPS, SINGLE, import_loops, made_worker
from seatrial.targets.verl.turns import LOOP


class VerlAgentPrompts(KnowsFailures):
    """`AgentLoopWorker.generate_sequences` with the agents of one turn and of several, which answer without a call."""

    known_failures: ClassVar[Sequence[KnownFailure]] = (
        KnownFailure(
            "the agent of one turn gives the template no tools, which the data set counts in lengths of prompts",
            finding="verl: tools of an agent of one turn",
        ).of("R31.agent_prompts/prompts with tools, an agent of one turn"),
    )

    def __init__(self) -> None:
        """Find the classes.

        Raises:
            Gone: the release has no agent loops.
        """
        import_loops(SINGLE)
        import_loops(LOOP)
        self.worker = undecorated(find_name("verl", [f"{LOOPS}:AgentLoopWorker"]))
        self._proto = find_name("verl", ["verl:DataProto", "verl.protocol:DataProto"])
        self._output: Callable[..., Any] = lambda token_ids, **_: token_ids
        if ".token_ids" in getsource(sys.modules[SINGLE]):
            self._output = find_name("verl", ["verl.workers.rollout.replica:TokenOutput"])
        self._source = getsource(sys.modules[LOOP])
        self._source_of_all = self._source + getsource(sys.modules[SINGLE]) + getsource(sys.modules[LOOPS])
        # Files of older data sets give conversations as arrays.
        self._list = objects if "messages.tolist()" in getsource(sys.modules[LOOPS]) else list
        # To 0.6 the class of a loop keeps its settings, of the first run in a process.
        self._loops = [
            find_name("verl", [f"{place}:{name}"])
            for place, name in ((SINGLE, "SingleTurnAgentLoop"), (LOOP, "ToolAgentLoop"))
        ]
        self.utilities: Mapping[str, Callable[..., Any]] = {"prompts of agents": self._prompts}

    def _prompts(
        self,
        rows: Sequence[Sequence[Mapping[str, str]]],
        agents: Sequence[str],
        plan: Mapping[str, Any],
    ) -> list[Prompted]:
        if plan.get("selected") and "tool_selection" not in self._source:
            raise NotServed(f"rows of verl {release('verl')} have no tools of their own")
        if plan["options"] and "apply_chat_template_kwargs" not in self._source_of_all:
            raise NotServed(f"agents of verl {release('verl')} take no options of a template")
        return asyncio.run(self._run(rows, agents, plan))

    async def _run(
        self,
        rows: Sequence[Sequence[Mapping[str, str]]],
        agents: Sequence[str],
        plan: Mapping[str, Any],
    ) -> list[Prompted]:
        from omegaconf import OmegaConf

        tokenizer = tiny_tokenizer(padding_side="left")
        tokenizer.chat_template = TEMPLATE
        server = _Server(tokenizer, rows, self._output)
        path = _written(plan["tools"]) if plan.get("tools") else None
        turns = {"tool_config_path": path, "max_parallel_calls": 1, "format": "hermes"}
        worker = made_worker(
            self.worker, tokenizer, server, None, prompt_length=plan["limit"], response_length=8
        )
        rollout = worker.config.actor_rollout_ref.rollout
        rollout.multi_turn = OmegaConf.merge(rollout.multi_turn, turns)
        worker.config.data.tool_config_path = path
        worker.config.data.apply_chat_template_kwargs = dict(plan["options"])
        worker.tools = [_Tool({}, _schema(name)) for name in plan.get("tools", ())]
        selected = plan.get("selected", [None] * len(rows))
        batch = self._proto.from_dict(
            tensors={"dummy_tensor": torch.zeros(len(rows), 1)},
            non_tensors={
                "raw_prompt": objects([self._list([dict(turn) for turn in row]) for row in rows]),
                "agent_name": objects(agents),
                "tools_kwargs": objects([{} for _ in rows]),
                "extra_info": objects([{"tool_selection": list(one)} if one else {} for one in selected]),
            },
            meta_info={"validate": False, "global_steps": 3},
        )
        for loop in self._loops:
            if hasattr(loop, "init_class"):
                loop._class_initialized = False
        try:
            found = await worker.generate_sequences(batch)
        except (RuntimeError, ValueError) as error:
            if not any(
                one in str(error) for one in ("Sizes of tensors must match", "Unable to create tensor")
            ):
                raise
            raise NotServed(f"agents of verl {release('verl')} cut no prompts: {error}") from error
        shown = found.batch["attention_mask"].bool()
        width = found.batch["prompts"].shape[1]
        trained = [ids[own[:width]].tolist() for ids, own in zip(found.batch["prompts"], shown, strict=True)]
        return [
            Prompted(
                tokenizer.decode(server.sent[row]), tokenizer.decode(trained[row]), len(server.sent[row])
            )
            for row in range(len(rows))
        ]


class _Server:
    """A fake of the inference server: keeps the ids of each row, which its last message names, and says one word."""

    def __init__(self, tokenizer: Any, rows: Sequence[Any], output: Callable[..., Any]) -> None:
        self.tokenizer, self.rows, self.output = tokenizer, rows, output
        self.sent: dict[int, list[int]] = {}

    async def generate(self, request_id: str, *, prompt_ids: list[int], **_: Any) -> Any:
        """Return an answer without a call."""
        text = self.tokenizer.decode(prompt_ids)
        row = next(row for row, one in enumerate(self.rows) if one[-1]["content"][-5:] in text)
        self.sent[row] = list(prompt_ids)
        ids = self.tokenizer("Yes", add_special_tokens=False)["input_ids"]
        return self.output(token_ids=ids, log_probs=[-0.5] * len(ids), stop_reason="completed")


class _Tool:
    """A tool that is never called."""

    def __init__(self, config: Any, tool_schema: Any) -> None:
        self.tool_schema, self.name = tool_schema, tool_schema.function.name


def _schema(name: str) -> Any:
    properties = {one: {"type": "string", "description": one} for one in TOOLS[name]}
    parameters = {"type": "object", "properties": properties, "required": []}
    function = {"name": name, "description": name, "parameters": parameters}
    schema = find_name("verl", ["verl.tools.schemas:OpenAIFunctionToolSchema"])
    return schema.model_validate({"type": "function", "function": function})


def _written(names: Sequence[str]) -> str:
    """Return the path of a file that declares tools."""
    from omegaconf import OmegaConf

    tools = [
        {
            "class_name": f"{__name__}.{_Tool.__name__}",
            "config": {"type": "native"},
            "tool_schema": _schema(name).model_dump(exclude_unset=True, exclude_none=True),
        }
        for name in names
    ]
    path = Path(temporary_folder()) / f"{'-'.join(names)}.yaml"
    OmegaConf.save(OmegaConf.create({"tools": tools}), path)
    return str(path)


ADAPTERS: dict[str, type[Any]] = {"agent-prompts": VerlAgentPrompts}
