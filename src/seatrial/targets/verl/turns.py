"""verl's `ToolAgentLoop` with a server that gives prepared answers; see `contracts.utilities.Episode`."""

from __future__ import annotations

import asyncio
import contextlib
import io
import json
import re
import sys
from collections.abc import Callable, Mapping, Sequence
from importlib.util import find_spec
from inspect import getsource, signature
from pathlib import Path
from types import SimpleNamespace
from typing import Any, ClassVar
from unittest import mock

import torch

from seatrial.relations.contracts.utilities import Episode
from seatrial.relations.laws.utilities.turns import MADE_WITH, TEMPLATE, TEMPLATE_OPTIONS
from seatrial.relations.not_served import NotServed
from seatrial.targets.common.known import KnownFailure, KnowsFailures, before, between
from seatrial.targets.common.stand_ins import import_without
from seatrial.targets.common.target import Gone, find_name, release
from seatrial.targets.common.tiny import tiny_tokenizer
from seatrial.targets.verl.estimators import UNUSED

LOOP = "verl.experimental.agent_loop.tool_agent_loop"
LONG = 4000
ROLLOUT: Mapping[str, Any] = {"prompt_length": LONG, "response_length": LONG, "full_determinism": False}
TURNS: Mapping[str, Any] = {
    "max_user_turns": None,
    "max_assistant_turns": None,
    "max_parallel_calls": 1,
    "max_tool_response_length": 256,
    "tool_response_truncate_side": "middle",
    "format": "hermes",
    "tool_config_path": None,
    "interaction_config_path": None,
}


class VerlTurns(KnowsFailures):
    """`ToolAgentLoop.run`: one tool, the formats of Hermes and of gpt-oss, no images."""

    known_failures: ClassVar[Sequence[KnownFailure]] = (
        KnownFailure(
            "the answer is the last 0 of all ids, which are all: the prompt becomes the answer, without a mask",
            finding="verl: an episode whose answer has no token",
        ).of("R31.turns/an answer without a token"),
        KnownFailure(
            "the side that is named is kept, and the other one cut",
            finding="verl: an episode whose answer has no token",
            releases=before("verl", "0.8"),
        ).of("R31.turns/texts of tools that are cut"),
        KnownFailure(
            "the line break after a turn that the model ended is lost",
            finding="verl: an episode whose answer has no token",
            releases=before("verl", "0.9"),
        ).of("R31.turns/line breaks between turns"),
        KnownFailure(
            "a tool's answer is rendered without the options that the system prompt is measured with",
            finding="verl: an episode whose answer has no token",
            releases=before("verl", "0.7"),
        ).of("R31.turns/turns as the template writes them"),
        KnownFailure(
            "the system prompt that is stripped is measured without the options of the template",
            finding="verl: an episode whose answer has no token",
            releases=between("verl", "0.7.1", "0.8"),
        ).of("R31.turns/turns as the template writes them"),
        KnownFailure(
            "the experts of an answer are not passed on (verl#5368)",
            finding="verl: small functions of older releases",
            releases=before("verl", "0.7.1"),
        ).of("R31.turns/experts of an episode"),
        KnownFailure(
            "the results of earlier calls of a turn are added again with each further one",
            finding="verl: small functions of older releases",
            releases=before("verl", "0.6.1"),
        ).of("R31.turns/messages of an interaction, several calls in a turn"),
        KnownFailure(
            "an interaction is given each result of a tool twice, and not what it answered",
            finding="verl: small functions of older releases",
            releases=before("verl", "0.6"),
        ).of("R31.turns/messages of an interaction"),
        KnownFailure(
            "a turn of the model counts after its limit is checked",
            finding="verl: small functions of older releases",
            releases=before("verl", "0.6"),
        ).of("R31.turns/limits of turns"),
    )

    def __init__(self) -> None:
        """Find the loop.

        Raises:
            Gone: loops of this release are made in another form.
        """
        if find_spec("verl.experimental") is None:
            raise Gone(f"verl {release('verl')} has no agent loops")
        for module in ("verl.tools.schemas", "verl.experimental.agent_loop.agent_loop", LOOP):
            import_without(module, (*UNUSED, "openai", "qwen_vl_utils"))
        if "raw_prompt" not in getsource(sys.modules[LOOP]):
            raise Gone(f"loops of verl {release('verl')} are given a conversation in another form")
        self.loop = find_name("verl", [f"{LOOP}:ToolAgentLoop"])
        parsers = find_name("verl", ["verl.experimental.agent_loop.tool_parser:ToolParser"])
        self.formats = frozenset(parsers._registry)
        self._rewards = "tool_rewards" in getsource(sys.modules[LOOP])
        self.schemas = import_without("verl.tools.schemas", (*UNUSED, "openai"))
        self.utilities: Mapping[str, Callable[..., Any]] = {"arguments of tools": self._arguments}
        try:
            self._own_tool = import_without("verl.tools.gsm8k_tool", (*UNUSED, "openai")).Gsm8kTool
            self.utilities = {**self.utilities, "score of a tool": self._score}
        except ImportError:  # from 0.8
            pass
        # To 0.5 a server gives ids alone, and an episode has no log-probabilities.
        self._takes_outputs = ".token_ids" in getsource(sys.modules[LOOP])
        if not self._takes_outputs:
            return
        self.utilities = {**self.utilities, "agent episode": self._episode}
        if "gpt-oss" in getsource(sys.modules[LOOP]):
            self.utilities = {**self.utilities, "agent episode as gpt-oss writes it": self._episode}
        if "routed_experts" in getsource(sys.modules[f"{LOOP.rpartition('.')[0]}.agent_loop"]):
            self.utilities = {**self.utilities, "experts of episodes": self._episode}
        if hasattr(self.loop, "_initialize_interactions"):  # to 0.7
            own: Mapping[str, Callable[..., Any]] = {
                "messages of an interaction": self._messages,
                "arguments of interactions": self._given,
            }
            self.utilities = {**self.utilities, **own}

    def _episode(
        self,
        answers: Sequence[str],
        tool_text: str,
        sampling: Mapping[str, Any],
        options: Mapping[str, Any],
    ) -> Episode:
        """Return what an episode leaves."""
        return asyncio.run(self._run(answers, _Tool(self.schemas, tool_text), sampling, options, MADE_WITH))

    def _messages(
        self, answers: Sequence[str], replies: Sequence[str], tool_text: str
    ) -> list[list[Mapping[str, Any]]]:
        """Return the conversation that the interaction is given each time."""
        return self._interaction(answers, replies, tool_text, {}).given

    def _given(
        self, answers: Sequence[str], replies: Sequence[str], facts: Mapping[str, Any]
    ) -> tuple[list[Any], list[Any]]:
        """Return what the interaction is started with, and what it is given besides each conversation."""
        found = self._interaction(answers, replies, "", facts)
        return found.started, found.asked

    def _interaction(
        self, answers: Sequence[str], replies: Sequence[str], tool_text: str, facts: Mapping[str, Any]
    ) -> _Interaction:
        interaction = _Interaction(replies)
        options = {"interaction_config_path": "made", "max_parallel_calls": 2}
        with mock.patch.object(
            self.loop, "_initialize_interactions", lambda *_: {interaction.name: interaction}
        ):
            asyncio.run(self._run(answers, _Tool(self.schemas, tool_text), {}, options, facts))
        return interaction

    def _arguments(self, answers: Sequence[str], tool_text: str, facts: Mapping[str, Any]) -> list[Any]:
        tool = _Tool(self.schemas, tool_text, self._takes_outputs)
        asyncio.run(self._run(answers, tool, {}, {}, facts))
        return tool.created

    def _score(self, right: str, answer: str) -> float:
        """Return the score in the text that the tool of GSM8K answers a call with."""
        schema = _schema(self.schemas, "score_answer", "answer")
        with contextlib.redirect_stdout(io.StringIO()):
            tool = self._own_tool({}, schema)
        call = {"name": "score_answer", "arguments": {"answer": answer}}
        answers = [f"<tool_call>\n{json.dumps(call)}\n</tool_call>", "Done."]
        found = asyncio.run(self._run(answers, tool, {}, {}, {"ground_truth": right}))
        scores = re.findall(r"reward=(\S*\d)", found.text)
        if len(scores) != 1:
            raise ValueError(f"one score is due in {found.text!r}")
        return float(scores[0])

    async def _run(
        self,
        answers: Sequence[str],
        tool: Any,
        sampling: Mapping[str, Any],
        options: Mapping[str, Any],
        facts: Mapping[str, Any],
    ) -> Episode:
        """Return what an episode leaves whose row has these facts for its tool and its interaction."""
        if options.get("format", "hermes") not in self.formats:
            raise NotServed(f"verl {release('verl')} reads no calls of {options['format']}")
        tokenizer = tiny_tokenizer(padding_side="left")
        if options.get("templated"):
            tokenizer.chat_template = TEMPLATE
        server = _Server(tokenizer, answers, self._takes_outputs)
        loop = self._made(tokenizer, server, options)
        loop.tools, loop.tool_schemas = {tool.name: tool}, []
        prompt = [{"role": "user", "content": "What is the weather?"}]
        found = await loop.run(
            dict(sampling),
            raw_prompt=prompt,
            tools_kwargs={tool.name: {"create_kwargs": dict(facts)}},
            extra_info={"interaction_kwargs": {"name": _Interaction.name, **facts}},
        )
        return Episode(
            prompt_ids=found.prompt_ids,
            response_ids=found.response_ids,
            mask=found.response_mask,
            logprobs=getattr(found, "response_logprobs", None) or [],
            num_turns=found.num_turns,
            rewards=found.extra_fields.get("tool_rewards", []) if self._rewards else None,
            text=tokenizer.decode(found.response_ids),
            requests=server.requests,
            sampling=server.sampling,
            sampled=server.sampled,
            sampled_logprobs=server.logprobs,
            called=getattr(tool, "called", ()),
            created=getattr(tool, "created", ()),
            experts=_flat(getattr(found, "routed_experts", None)),
        )

    def _made(self, tokenizer: Any, server: _Server, options: Mapping[str, Any]) -> Any:
        from omegaconf import OmegaConf

        rollout: dict[str, Any] = {name: options.get(name, value) for name, value in ROLLOUT.items()}
        rollout["multi_turn"] = {name: options.get(name, value) for name, value in TURNS.items()}
        merged = OmegaConf.merge(own_settings("rollout/rollout.yaml"), rollout)
        of_template = TEMPLATE_OPTIONS if options.get("templated") else {}
        data = OmegaConf.merge(
            own_settings("data/legacy_data.yaml"), {"apply_chat_template_kwargs": dict(of_template)}
        )
        config = OmegaConf.create({"actor_rollout_ref": {"rollout": merged, "model": {}}, "data": data})
        given = {
            "trainer_config": SimpleNamespace(config=config),
            "server_manager": server,
            "tokenizer": tokenizer,
            "processor": None,
            "dataset_cls": NoImages,
            # The template is in the form of Qwen's.
            **({"hf_model_type": "qwen2"} if options.get("templated") else {}),
            "data_config": SimpleNamespace(config=data),
            "dataset_config": OmegaConf.create({}),
        }
        if hasattr(
            self.loop, "init_class"
        ):  # to 0.6 a class keeps its settings, and renders a message without a role
            rows = "{% for message in messages"
            tokenizer.chat_template = tokenizer.chat_template.replace(
                f"{rows} %}}", f"{rows} if message.role %}}"
            )
            self.loop._class_initialized = False
            self.loop.init_class(config, tokenizer, processor=None)
        takes = signature(self.loop.__mro__[1].__init__).parameters
        return self.loop(**{name: value for name, value in given.items() if name in takes})


def _schema(schemas: Any, name: str, argument: str) -> Any:
    """Return the schema of a tool that takes a text."""
    properties = {argument: {"type": "string", "description": ""}}
    parameters = {"type": "object", "properties": properties, "required": []}
    function = {"name": name, "description": "", "parameters": parameters}
    return schemas.OpenAIFunctionToolSchema.model_validate({"type": "function", "function": function})


def own_settings(name: str) -> Any:
    """Return the release's own settings, by the name of their file; none if it has no such file."""
    from omegaconf import OmegaConf

    spec = find_spec("verl")
    assert spec is not None and spec.origin is not None
    own = Path(spec.origin).parent / "trainer" / "config" / name
    return OmegaConf.load(own) if own.exists() else OmegaConf.create({})


def _flat(experts: Any) -> list[int] | None:
    return None if experts is None else torch.as_tensor(experts).flatten().tolist()


class _Server:
    """Answers requests in turn, and keeps them."""

    def __init__(self, tokenizer: Any, answers: Sequence[str], gives_outputs: bool = True) -> None:
        self.tokenizer, self.answers, self.gives_outputs = tokenizer, list(answers), gives_outputs
        self.requests: list[list[int]] = []
        self.sampling: list[dict[str, Any]] = []
        self.sampled: list[list[int]] = []
        self.logprobs: list[list[float]] = []

    async def generate(
        self, request_id: str, *, prompt_ids: list[int], sampling_params: dict[str, Any], **_: Any
    ) -> Any:
        """Return the next answer; log-probabilities are all different."""
        text = self.answers[len(self.requests)]
        self.requests.append(list(prompt_ids))
        self.sampling.append(dict(sampling_params))
        ids = self.tokenizer(text, add_special_tokens=False)["input_ids"]
        ids += [self.tokenizer.eos_token_id] if text else []
        self.sampled.append(list(ids))
        self.logprobs.append([-0.01 * (place + 1) - len(self.requests) for place in range(len(ids))])
        if not self.gives_outputs:
            return list(ids)
        return SimpleNamespace(
            token_ids=list(ids),
            log_probs=list(self.logprobs[-1]),
            num_preempted=0,
            extra_fields={},
            routed_experts=torch.arange(len(prompt_ids) + len(ids)).view(-1, 1, 1),
            stop_reason="completed",
        )


class _Tool:
    """Gives one text for every city, and a reward."""

    name = "weather"

    def __init__(self, schemas: Any, text: str, gives_outputs: bool = True) -> None:
        self.tool_schema = _schema(schemas, self.name, "city")
        self.schemas, self.text, self.gives_outputs = schemas, text, gives_outputs
        self.called: list[str] = []
        self.created: list[Mapping[str, Any]] = []

    async def create(self, *_: Any, **given: Any) -> Any:
        self.created.append(given.get("create_kwargs", {}))
        return ("instance", None) if self.gives_outputs else "instance"

    async def execute(
        self, _: str, parameters: dict[str, Any], **__: Any
    ) -> tuple[Any, float, dict[str, Any]]:
        self.called.append(parameters["city"])
        return self.schemas.ToolResponse(text=self.text) if self.gives_outputs else self.text, 0.5, {}

    async def release(self, *_: Any, **__: Any) -> None:
        pass


class _Interaction:
    """Gives replies in turn, the last of which ends the episode, and keeps the conversations."""

    name = "made"

    def __init__(self, replies: Sequence[str]) -> None:
        self.replies = list(replies)
        self.given: list[list[Mapping[str, Any]]] = []
        self.started: list[Mapping[str, Any]] = []
        self.asked: list[Mapping[str, Any]] = []

    async def start_interaction(self, *_: Any, **facts: Any) -> None:
        self.started.append({name: value for name, value in facts.items() if name != "name"})

    async def generate_response(
        self, _: str, messages: Sequence[Mapping[str, Any]], **facts: Any
    ) -> tuple[bool, str, float, dict[str, Any]]:
        self.asked.append({name: value for name, value in facts.items() if name != "name"})
        self.given.append([dict(one) for one in messages])
        number = len(self.given)
        return number == len(self.replies), self.replies[number - 1], 0.25, {}


class NoImages:
    """A data set of texts."""

    @classmethod
    async def process_vision_info(cls, *_: Any, **__: Any) -> tuple[None, None]:
        return None, None

    @classmethod
    async def process_multi_modal_info(cls, *_: Any, **__: Any) -> dict[str, Any]:
        return {}


ADAPTERS: dict[str, type[Any]] = {"turns-of-tools": VerlTurns}
