"""Worked examples of verl's agents: calls of tools, values that are parsed, what is logged of rollouts."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Mapping, Sequence
from types import SimpleNamespace
from typing import Any

import numpy
import torch

from seatrial.targets.common.stand_ins import import_without
from seatrial.targets.common.target import find_name
from seatrial.targets.common.worked_rows import Row
from seatrial.targets.verl.estimators import UNUSED
from seatrial.targets.verl.rollouts import LOOPS, import_loops
from seatrial.targets.verl.turns import LOOP

ANY = "verl:DataProto"
PARSERS = "verl.experimental.agent_loop.tool_parser"


def _loop() -> Any:
    """Return the class of agents with tools, without what it does not use."""
    import_loops(LOOP)
    return find_name("verl", [f"{LOOP}:ToolAgentLoop"])


def _call(name: str, arguments: str, own_id: str | None = None) -> Any:
    return SimpleNamespace(name=name, arguments=arguments, tool_call_id=own_id)


class _Own:
    """A tool with instances, of which those that are released are kept."""

    def __init__(self, text: Any, fails: bool = False) -> None:
        self.text, self.fails = text, fails
        self.created: list[Any] = []
        self.executed: list[Any] = []
        self.released: list[str] = []

    async def create(self, create_kwargs: Any = None) -> tuple[str, None]:
        """Return the name of an instance."""
        self.created.append(create_kwargs)
        return f"instance {len(self.created)}", None

    async def execute(self, instance: str, arguments: Any, agent_data: Any = None) -> Any:
        """Return a text, a reward and metrics."""
        self.executed.append([instance, arguments, agent_data is not None])
        if self.fails:
            raise ValueError("no")
        return SimpleNamespace(text=self.text, image=None, video=None), 0.5, {"m": 1}

    async def release(self, instance: str) -> None:
        """Keep the name."""
        self.released.append(instance)


def _called(of: Any) -> dict[str, Any]:
    """Return what calls give: of a tool, of a function, of one that fails, of an unknown one, with odd arguments."""
    loop = _loop()
    function = find_name("verl", ["verl.tools.function_tool:FunctionTool"])
    own, failing = _Own("abcdefgh"), _Own("", fails=True)
    plain = function(name="plain", fn=lambda a, b=2: (f"{a}{b}", 0.25), tool_schema=None)
    data = SimpleNamespace(_active_tools={"own": own, "failing": failing, "plain": plain})

    def given(call: Any, length: int = 99, side: str = "left", kwargs: Any = None) -> Any:
        self = SimpleNamespace(tools={}, max_tool_response_length=length, tool_response_truncate_side=side)
        response, reward, metrics = asyncio.run(loop._call_tool(self, call, kwargs or {}, data))
        return [response.text, reward, metrics]

    one = _call("own", '{"a": 1}')
    return {
        "whole": given(
            one, kwargs={"own": {"create_kwargs": {"x": 1}}, "plain": {"create_kwargs": {"x": 2}}}
        ),
        "cut": [given(one, 4, side)[0] for side in ("left", "right", "middle")],
        "at the limit": [given(one, 8)[0], given(one, 5, "middle")[0]],
        "function": [given(_call("plain", '{"a": "x"}')), given(_call("plain", '{"a": "x", "b": "y"}'))],
        "fails": given(_call("failing", "{}")),
        "function fails": given(_call("plain", '{"c": 1}'))[1:],
        "unknown": given(_call("none", "{}")),
        "no JSON": [given(_call("own", "{"))[1:], given(_call("own", "{"))[0].startswith("Invalid JSON")],
        "instances": [
            own.created[:2],
            own.executed[0],
            own.released == [own_call[0] for own_call in own.executed],
        ],
        "released": failing.released,
    }


CALLED: Mapping[str, Any] = {
    "whole": ["abcdefgh", 0.5, {"m": 1}],
    "cut": ["(truncated)...efgh", "abcd...(truncated)", "ab...(truncated)...gh"],
    "at the limit": ["abcdefgh", "ab...(truncated)...gh"],
    "function": [["x2", 0.25, {}], ["xy", 0.25, {}]],
    "fails": ["Error executing tool 'failing': no", 0.0, {}],
    "function fails": [0.0, {}],
    "unknown": ["Unknown function 'none'. Available tools: ['own', 'failing', 'plain']", 0.0, {}],
    "no JSON": [[0.0, {}], True],
    "instances": [[{"x": 1}, {}], ["instance 1", {"a": 1}, True], True],
    "released": ["instance 1"],
}


def _messages(of: Any) -> list[Any]:
    """Return the message of an answer with calls: as many as run, their arguments, those that are no object."""
    self = SimpleNamespace(max_parallel_calls=2)
    calls = [_call("f", '{"a": 1}', "c1"), _call("g", "{"), _call("h", "{}")]
    build = _loop()._build_assistant_message
    return [
        build(self, "text", SimpleNamespace(tool_calls=calls)),
        build(self, None, SimpleNamespace(tool_calls=[])),
    ]


MESSAGES: Sequence[Any] = [
    {
        "role": "assistant",
        "content": "text",
        "tool_calls": [
            {"type": "function", "function": {"name": "f", "arguments": {"a": 1}}, "id": "c1"},
            {"type": "function", "function": {"name": "g", "arguments": "{"}},
        ],
    },
    {"role": "assistant", "content": ""},
]


def _tool_schemas(types: Mapping[str, Mapping[str, Any]], required: Sequence[str] = ()) -> list[Any]:
    schema = find_name("verl", ["verl.tools.schemas:OpenAIFunctionToolSchema"])
    return [
        schema.model_validate(
            {
                "type": "function",
                "function": {
                    "name": name,
                    "description": "",
                    "parameters": {
                        "type": "object",
                        "properties": {key: {"type": kind} for key, kind in own.items()},
                        "required": [key for key in own if key in required],
                    },
                },
            }
        )
        for name, own in types.items()
    ]


def _values(of: Any) -> dict[str, Any]:
    """Return the values of arguments in tags, by the types that a tool declares."""
    parser = import_without(PARSERS, (*UNUSED, "openai")).ToolParser.get_tool_parser
    made = parser("qwen3_coder", SimpleNamespace(decode=None))
    kinds = ("string", "integer", "number", "boolean", "object", "array")
    given: Sequence[tuple[str, str]] = (
        ("string", "12"),
        ("string", "null"),
        ("integer", "12"),
        ("integer", "1.5"),
        ("number", "1.5"),
        ("number", "2.0"),
        ("number", "x"),
        ("boolean", "True"),
        ("boolean", "yes"),
        ("object", '{"a": true}'),
        ("object", "{'a': 1}"),
        ("array", "[1, 2]"),
        ("array", "x"),
        ("none", "5"),
    )
    tools = _tool_schemas({"f": {kind: kind for kind in kinds}})

    def parsed(text: str, own: Any = tools) -> Any:
        call = made._parse_xml_function_call(text, own)
        return None if call is None else [call.name, json.loads(call.arguments)]

    return {
        "values": [parsed(f"f><parameter={name}>\n{text}\n</parameter>")[1][name] for name, text in given],
        "two": parsed("f><parameter=string>a\n\nb</parameter><parameter=integer>3"),
        "unknown": parsed("g><parameter=integer>3</parameter>"),
        "no tools": parsed("f><parameter=integer>3</parameter>", None),
        "broken": [parsed("f"), parsed("f><parameter=string</parameter>")],
        "functions": made._get_function_calls(
            "<tool_call><function=f>1</function><function=g>2</function></tool_call><tool_call><function=h>3"
        ),
    }


VALUES: Mapping[str, Any] = {
    "values": [
        *("12", None, 12, "1.5", 1.5, 2, "x", True, False),
        *({"a": True}, {"a": 1}, [1, 2], "x", "5"),
    ],
    "two": ["f", {"string": "a\n\nb", "integer": 3}],
    "unknown": ["g", {"integer": "3"}],
    "no tools": ["f", {"integer": "3"}],
    "broken": [None, ["f", {}]],
    "functions": ["f>1", "g>2", "h>3"],
}


def _named(of: Any) -> dict[str, Any]:
    """Return the tools of Kimi's calls: by name, by a part of it, by the arguments that are required; and arguments."""
    made = import_without(PARSERS, (*UNUSED, "openai")).ToolParser.get_tool_parser(
        "kimi", SimpleNamespace(decode=None, convert_tokens_to_ids=lambda token: 7)
    )
    tools = _tool_schemas({"get_time": {"zone": "string"}, "look_up": {"word": "string"}}, ["zone", "word"])
    names: Sequence[tuple[str, Mapping[str, Any]]] = (
        ("get_time", {}),
        ("functions.Get-Time:0", {}),
        ("other", {"word": "w"}),
        ("other", {"word": "w", "zone": "z"}),
        ("get_time.look_up", {}),
    )
    return {
        "names": [made._infer_tool_name(name, dict(arguments), tools) for name, arguments in names],
        "no tools": made._infer_tool_name("functions.get_time:0", {}, None),
        "arguments": [made._parse_arguments(text) for text in (' {"a": 1} ', "[1]", "{")],
        "stops": made.stop_token_ids,
    }


NAMED: Mapping[str, Any] = {
    "names": ["get_time", "get_time", "look_up", "other", "get_time.look_up"],
    "no tools": "functions.get_time:0",
    "arguments": [{"a": 1}, {}, {}],
    "stops": [7],
}


def _trajectories(of: Any) -> list[Any]:
    """Return steps and numbers of samples of a prompt, which come one after another."""
    import_loops(LOOP)
    get = find_name("verl", [f"{LOOPS}:get_trajectory_info"])
    found = asyncio.run(get(4, [7, 7, 8, 7], True))
    return [[one[name] for name in ("step", "sample_index", "rollout_n", "validate")] for one in found]


def _times(of: Any) -> dict[str, float]:
    """Return seconds of parts of rollouts of two workers, and those of the slowest one with its lengths."""
    import_loops(LOOP)
    manager = find_name("verl", [f"{LOOPS}:AgentLoopManager"])
    metrics = [
        [{"generate_sequences": 1.0, "tool_calls": 5.0, "compute_score": 1.0, "num_preempted": 2}],
        [
            {"generate_sequences": 4.0, "tool_calls": 1.0, "compute_score": 0.5, "num_preempted": 0},
            {"generate_sequences": 2.0, "tool_calls": 0.0, "compute_score": 0.0, "num_preempted": 1},
        ],
    ]
    batch = {
        "prompts": torch.zeros(3, 2),
        "attention_mask": torch.tensor([[0, 1, 1, 1, 0], [1, 1, 1, 0, 0], [1, 1, 1, 1, 1]]),
    }
    found = manager._performance_metrics(None, metrics, SimpleNamespace(batch=batch))
    return {name.removeprefix("agent_loop/"): float(value) for name, value in found.items()}


TIMES: Mapping[str, float] = {
    **{
        f"{part}/{name}": value
        for part, values in (
            ("num_preempted", (0.0, 2.0, 1.0)),
            ("generate_sequences", (1.0, 4.0, 7 / 3)),
            ("tool_calls", (0.0, 5.0, 2.0)),
            ("compute_score", (0.0, 1.0, 0.5)),
        )
        for name, value in zip(("min", "max", "mean"), values, strict=True)
    },
    "slowest/generate_sequences": 1.0,
    "slowest/tool_calls": 5.0,
    "slowest/compute_score": 1.0,
    "slowest/num_preempted": 2.0,
    "slowest/prompt_length": 1.0,
    "slowest/response_length": 2.0,
}


def _padded(of: Any) -> list[Any]:
    """Return ids on either side of padding, with a mask and without, and none at all."""
    from seatrial.targets.common.tiny import tiny_tokenizer

    import_loops(LOOP)
    worker = find_name("verl", [f"{LOOPS}:AgentLoopWorker"])
    found = []
    tokenizer = tiny_tokenizer()
    for ids, side, masked in (
        ([8, 9], "left", True),
        ([8, 9], "right", True),
        ([8, 9], "right", False),
        ([], "left", True),
    ):
        given = worker._pad_token_ids(
            SimpleNamespace(tokenizer=tokenizer),
            ids,
            max_length=3,
            padding_side=side,
            return_attention_mask=masked,
        )
        found.append([given["input_ids"].tolist(), given["attention_mask"].tolist() if masked else None])
    return found


def _requests(of: Any) -> list[Any]:
    make = _loop()._make_request_id
    return [make(5, True), make(5, False) != make(5, False), len(make(5, False))]


def _dictionary(of: Any) -> dict[str, Any]:
    """Return the columns of an episode: its mask, score and experts, which are as long as the row."""
    import_loops(LOOP)
    output_class = find_name("verl", [f"{LOOPS}:AgentLoopOutput"])
    metrics = find_name("verl", [f"{LOOPS}:AgentLoopMetrics"])
    one = output_class(
        prompt_ids=[1, 2],
        response_ids=[3, 4, 5],
        response_mask=[1, 0, 1],
        response_logprobs=[-0.5, 0.0, -0.25],
        routed_experts=numpy.array([[[1]], [[2]], [[3]], [[4]]]),
        reward_score=2.0,
        num_turns=3,
        metrics=metrics(),
        extra_fields={"teacher_ids": torch.tensor([[1]]), "own": 1},
    ).as_dict()
    names = ("prompts", "responses", "response_mask", "rm_scores", "rollout_log_probs")
    return {
        **{name: one[name].tolist() for name in names if name in one},
        "experts": one["routed_experts"].flatten().tolist(),
        "extra": one["extra_fields"],
        "teacher": one["teacher_ids"].tolist(),
    }


ROWS: Sequence[Row] = (
    Row("rollouts", ANY, "calls of tools", _called, CALLED, since="0.8"),
    Row("rollouts", ANY, "messages with calls", _messages, MESSAGES, since="0.9.1"),
    Row("rollouts", ANY, "values of arguments in tags", _values, VALUES, since="0.9"),
    Row("rollouts", ANY, "tools of Kimi's calls", _named, NAMED, since="0.9"),
    Row(
        "rollouts",
        ANY,
        "samples of prompts",
        _trajectories,
        [[4, 7, 0, True], [4, 7, 1, True], [4, 8, 0, True], [4, 7, 0, True]],
        since="0.4",
    ),
    Row("rollouts", ANY, "seconds of rollouts", _times, TIMES, since="0.8"),
    Row(
        "rollouts",
        ANY,
        "ids and their padding",
        _padded,
        [
            [[[0, 8, 9]], [[0, 1, 1]]],
            [[[8, 9, 0]], [[1, 1, 0]]],
            [[[8, 9, 0]], None],
            [[[0, 0, 0]], [[0, 0, 0]]],
        ],
        since="0.9",
    ),
    Row("rollouts", ANY, "names of requests", _requests, ["det-5", True, 32], since="0.4"),
    Row(
        "rollouts",
        ANY,
        "columns of an episode",
        _dictionary,
        {
            "prompts": [1, 2],
            "responses": [3, 4, 5],
            "response_mask": [1, 0, 1],
            "rm_scores": [0.0, 0.0, 2.0],
            "rollout_log_probs": [-0.5, 0.0, -0.25],
            "experts": [1, 2, 3, 4, 0],
            "extra": {"own": 1},
            "teacher": [[1]],
        },
        since="0.9",
    ),
)
