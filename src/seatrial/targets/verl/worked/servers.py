"""Worked examples of verl's tools, servers and routers: what is loaded, returned and chosen."""

from __future__ import annotations

import contextlib
import io
from collections.abc import Callable, Mapping, Sequence
from types import SimpleNamespace
from typing import Any

from seatrial.targets.common.target import find_name
from seatrial.targets.common.worked_rows import Row
from seatrial.targets.verl.worked.tools import folder, raised
from seatrial.targets.verl.worked.values import refused_calls

TOOL = """
tools:
  - class_name: verl.tools.base_tool.BaseTool
    config: {type: native, own: 3}
    tool_schema:
      type: function
      function:
        name: first
        description: d
        parameters: {type: object, properties: {a: {type: string, enum: [x, y]}}, required: [a]}
"""


FUNCTIONS = '''
from verl.tools.function_tool import function_tool


@function_tool
def seatrial_second(a: str, b: int = 2) -> str:
    """Return both.

    Args:
        a: A text.
        b: A number.
    """
    return f"{a}{b}"


@function_tool("seatrial_third")
async def other(a: str) -> tuple:
    """Return a reward.

    Args:
        a: A text.
    """
    return a, 0.5, {"m": 1}
'''


def _tools(load: Callable[..., Any]) -> dict[str, Any]:
    """Return tools of both files, what they give, and names that are there twice."""
    import asyncio

    root = folder()
    (root / "tools.yaml").write_text(TOOL, encoding="utf-8")
    (root / "functions.py").write_text(FUNCTIONS, encoding="utf-8")
    (root / "same.py").write_text(FUNCTIONS.replace("seatrial_second", "first").replace("_third", "_fourth"))
    paths = [str(root / name) for name in ("tools.yaml", "functions.py", "same.py")]
    with contextlib.redirect_stdout(io.StringIO()):
        tools = load(paths[0], paths[1])
        again = load(None, paths[1])
        refused = [raised(load, paths[0], paths[2]), raised(load, None, paths[1] + "x")]
    first, second, third = tools
    instance = asyncio.run(first.create())[0]
    response, reward, metrics = asyncio.run(first.execute(instance, {}))
    return {
        "names": [tool.name for tool in tools],
        "again": [tool.name for tool in again],
        "none": load(None, None),
        "schema": first.tool_schema.function.parameters.model_dump(exclude_none=True),
        "config": first.config,
        "instances": [len(instance) > 8, asyncio.run(first.create("own"))[0]],
        "executed": [response.text, reward, metrics, asyncio.run(first.calc_reward(instance))],
        "required": second.tool_schema.function.parameters.required,
        "called": [asyncio.run(second.call({"a": "x"})), asyncio.run(second.call({"a": "x", "b": 5}))],
        "later": [third.is_async, second.is_async, list(asyncio.run(third.call({"a": "x"})))],
        "refused": refused,
    }


TOOLS: Mapping[str, Any] = {
    "names": ["first", "seatrial_second", "seatrial_third"],
    "again": ["seatrial_second", "seatrial_third"],
    "none": [],
    "schema": {
        "type": "object",
        "properties": {"a": {"type": "string", "enum": ["x", "y"]}},
        "required": ["a"],
    },
    "config": {"type": "native", "own": 3},
    "instances": [True, "own"],
    "executed": ["Updated the tool state.", 0.0, {}, 0.0],
    "required": ["a"],
    "called": ["x2", "x5"],
    "later": [True, False, ["x", 0.5, {"m": 1}]],
    "refused": ["ValueError", "FileNotFoundError"],
}


def _returned(normalize: Callable[..., Any]) -> list[Any]:
    """Return texts, rewards and metrics of what functions return."""
    response = find_name("verl", ["verl.tools.schemas:ToolResponse"])
    given: Sequence[Any] = (
        response(text="a"),
        "a",
        {"b": "ä"},
        ("a",),
        ("a", 2),
        ("a", None, None),
        ({"b": 1}, 0.5, {"m": 1}),
        (response(text="r"), 1),
        (3, 1),
        7,
        None,
    )
    found = [normalize(one) for one in given]
    return [
        [[one.text, reward, metrics] for one, reward, metrics in found],
        refused_calls(normalize, ((),), ((1,) * 4,)),
    ]


def _answers(response: Any) -> list[Any]:
    """Return whether answers of tools are empty or texts alone, and what is no list."""
    made = [
        response(),
        response(text=""),
        response(text="a"),
        response(text="a", image=[1]),
        response(video=[1]),
    ]
    return [
        [bool(one.is_empty()) for one in made],
        [bool(one.is_text_only()) for one in made],
        [raised(response, image=1), raised(response, video="v")],
    ]


def _arguments(schema: Any) -> list[Any]:
    parsed = find_name("verl", ["verl.tools.schemas:OpenAIFunctionParsedSchema"])
    found = []
    for text in ('{"a": 1}', "[1]", "{", "{}", "null"):
        call, wrong = schema.from_openai_function_parsed_schema(parsed(name="f", arguments=text))
        found.append([call.name, call.arguments, wrong])
    return found


def _chosen(router: Any) -> list[Any]:
    """Return the servers that requests go to: the one with the fewest, the first of equal ones, by content if fixed."""
    made = router(worker_urls=["a", "b", "c"])
    found = [made._select_worker() for _ in range(4)]
    made._release_worker("b")
    found.append(made._select_worker())
    for _ in range(5):
        made._release_worker("c")
    found.append(made._select_worker())
    counts = dict(made.request_counts)
    fixed = [router(worker_urls=["a", "b", "c"])._select_worker(text) for text in (b"x", b"y", b"x", b"abc")]
    import zlib

    return [found, counts, fixed == ["abc"[zlib.crc32(text) % 3] for text in (b"x", b"y", b"x", b"abc")]]


def _positions(of: Callable[..., Any]) -> list[Any]:
    return [
        of(SimpleNamespace(max_position_embeddings=8)),
        of(SimpleNamespace(text_config=SimpleNamespace(max_position_embeddings=9))),
        of(
            SimpleNamespace(max_position_embeddings=8, text_config=SimpleNamespace(max_position_embeddings=9))
        ),
        [raised(of, SimpleNamespace()), raised(of, SimpleNamespace(text_config=SimpleNamespace()))],
    ]


def _single_images(dedup: Callable[..., Any]) -> list[Any]:
    """Return prompts whose repeated tokens of an image are one, and those of other processors."""
    processor = SimpleNamespace(
        image_processor=type("Qwen2VLImageProcessorFast", (), {})(), image_token_id=7, video_token_id=8
    )
    ids = [7, 7, 1, 1, 7, 1, 8, 8, 2, 7, 7]
    return [dedup(ids, processor), dedup(ids, None), dedup(ids, SimpleNamespace(image_processor=1))]


def _items(iterate: Callable[..., Any]) -> list[Any]:
    import asyncio

    async def later() -> Any:
        for number in range(2):
            yield number

    async def collected(given: Any) -> list[Any]:
        return [one async for one in iterate(given)]

    return [asyncio.run(collected(given)) for given in ([1, 2], later())]


ROWS: Sequence[Row] = (
    Row("rollouts", "verl.tools.tool_registry:load_all_tools", "tools of files", _tools, TOOLS, since="0.4"),
    Row(
        "rollouts",
        "verl.tools.function_tool:normalize_function_tool_return",
        "results",
        _returned,
        [
            [
                ["a", 0.0, {}],
                ["a", 0.0, {}],
                ['{"b": "ä"}', 0.0, {}],
                ["a", 0.0, {}],
                ["a", 2.0, {}],
                ["a", 0.0, {}],
                ['{"b": 1}', 0.5, {"m": 1}],
                ["r", 1.0, {}],
                ["3", 1.0, {}],
                ["7", 0.0, {}],
                ["None", 0.0, {}],
            ],
            [True, True],
        ],
    ),
    Row(
        "rollouts",
        "verl.tools.schemas:ToolResponse",
        "kinds",
        _answers,
        [
            [True, True, False, False, False],
            [False, False, True, False, False],
            ["ValidationError", "ValidationError"],
        ],
    ),
    Row(
        "rollouts",
        "verl.tools.schemas:OpenAIFunctionCallSchema",
        "arguments",
        _arguments,
        [["f", {"a": 1}, False], ["f", {}, True], ["f", {}, True], ["f", {}, False], ["f", {}, True]],
    ),
    Row(
        "rollouts",
        "verl.experimental.reward_loop.router.naive_router:NaiveRouter",
        "servers of requests",
        _chosen,
        [["a", "b", "c", "a", "b", "c"], {"a": 2, "b": 1, "c": 1}, True],
        since="0.4",
    ),
    Row(
        "rollouts",
        "verl.workers.rollout.utils:get_max_position_embeddings",
        "configurations",
        _positions,
        [8, 9, 8, ["ValueError", "ValueError"]],
    ),
    Row(
        "rollouts",
        "verl.workers.rollout.utils:qwen2_5_vl_dedup_image_tokens",
        "repeated tokens",
        _single_images,
        [[7, 1, 1, 7, 1, 8, 2, 7], *[[7, 7, 1, 1, 7, 1, 8, 8, 2, 7, 7]] * 2],
    ),
    Row(
        "rollouts", "verl.workers.rollout.utils:ensure_async_iterator", "both kinds", _items, [[1, 2], [0, 1]]
    ),
)
