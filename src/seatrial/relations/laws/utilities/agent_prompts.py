"""R31.agent_prompts: an agent sends the inference server the prompt that the template writes of its row."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from seatrial.relations.contracts.rollouts import Prompted
from seatrial.relations.law import Measure
from seatrial.relations.laws.utilities.numbers import Numbers, without
from seatrial.relations.laws.utilities.plain import relation_of

AGENT_PROMPTS = relation_of(
    "agent_prompts",
    "agents-send-what-the-template-writes",
    "The server and the batch get the prompt that the template writes of a row's messages, tools and options.",
)
PROMPTS = "prompts of agents"
TEMPLATE = (
    "{% if tools %}{{ '<|im_start|>system\n' }}{% for tool in tools %}"
    "{{ tool.function.name + ':' + (tool.function.parameters.properties | join(',')) + ';' }}"
    "{% endfor %}{{ '<|im_end|>\n' }}{% endif %}"
    "{% for message in messages if message.role %}"
    "{{ '<|im_start|>' + message['role'] + '\n' + message['content'] + '<|im_end|>\n' }}"
    "{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}"
    "{% if think %}{{ '<think>' }}{% endif %}{% endif %}"
)
"""Writes the names of tools and of their parameters, and an option at the end."""
TOOLS: Mapping[str, Sequence[str]] = {"weather": ("city", "day"), "bank": ("sum",)}
"""Parameters of the tools that a run has."""
LONG = 400
ROWS: Sequence[Sequence[Mapping[str, str]]] = (
    ({"role": "user", "content": "row 0"},),
    ({"role": "system", "content": "Be."}, {"role": "user", "content": "row 1"}),
    (
        {"role": "user", "content": "row 2"},
        {"role": "assistant", "content": "Yes."},
        {"role": "user", "content": "And row 2?"},
    ),
)
"""Messages of rows."""
AGENTS = ("single_turn_agent", "tool_agent")


def written(messages: Sequence[Mapping[str, str]], tools: Sequence[str], think: bool) -> str:
    """Return the text of a prompt, by Python's own means."""
    named = "".join(f"{name}:{','.join(TOOLS[name])};" for name in tools)
    head = f"<|im_start|>system\n{named}<|im_end|>\n" if tools else ""
    turns = "".join(f"<|im_start|>{one['role']}\n{one['content']}<|im_end|>\n" for one in messages)
    return f"{head}{turns}<|im_start|>assistant\n{'<think>' if think else ''}"


def _sent(stack: Any, agents: Sequence[str], **plan: Any) -> list[Prompted]:
    """Return the prompts of the rows, whose agents take turns."""
    of_rows = [agents[row % len(agents)] for row in range(len(ROWS))]
    given: list[Prompted] = stack.utilities[PROMPTS](ROWS, of_rows, {"limit": LONG, **plan})
    return given


def _wrong(given: Sequence[Prompted], due: Sequence[str], what: str) -> list[str]:
    found = []
    for row, (one, text) in enumerate(zip(given, due, strict=True)):
        for place, own in (("server", one.sent), ("batch", one.trained)):
            found += [f"{what}, row {row}, {place}: {own!r}, {text!r} is right"] if own != text else []
    return found


@AGENT_PROMPTS.law(
    "prompts with options of the template",
    "an option that one agent does not pass on, an option of another row",
    excluded=without(PROMPTS),
)
def options_reach_the_template(stack: Any, case: Numbers) -> Measure:
    """Check the prompts of each agent, and of rows with both, with and without an option; also of a run with a tool."""
    wrong = []
    for agents in (AGENTS[:1], AGENTS[1:], AGENTS):
        for options in ({}, {"think": True}, {"think": False}):
            due = [written(one, (), options.get("think", False)) for one in ROWS]
            wrong += _wrong(_sent(stack, agents, options=options), due, f"{' and '.join(agents)}, {options}")
    due = [written(one, ("bank",), True) for one in ROWS]
    wrong += _wrong(
        _sent(stack, AGENTS[1:], tools=("bank",), options={"think": True}), due, "a tool, an option"
    )
    return Measure.count(wrong, "prompts that are not what the template writes")


@AGENT_PROMPTS.law(
    "prompts with tools, an agent of several turns",
    "tools that are configured and that the model does not get",
    excluded=without(PROMPTS),
    agent=AGENTS[1],
)
@AGENT_PROMPTS.law(
    "prompts with tools, an agent of one turn",
    "tools that count for the length of a prompt and that the model does not get",
    excluded=without(PROMPTS),
    agent=AGENTS[0],
)
def tools_reach_the_template(stack: Any, case: Numbers, agent: str) -> Measure:
    """Check the prompts of runs with one tool and with two."""
    wrong = []
    for tools in (tuple(TOOLS), ("bank",)):
        due = [written(one, tools, False) for one in ROWS]
        wrong += _wrong(_sent(stack, (agent,), tools=tools, options={}), due, f"{tools}")
    return Measure.count(wrong, "prompts that are not what the template writes")


@AGENT_PROMPTS.law(
    "prompts with tools of their rows",
    "all tools for a row that has one, the tools of another row",
    excluded=without(PROMPTS),
)
def rows_have_their_own_tools(stack: Any, case: Numbers) -> Measure:
    """Check the prompts of rows that name some of the run's tools, and of one that names none."""
    own = (("bank",), None, ("weather",))
    given = _sent(stack, AGENTS[1:], tools=tuple(TOOLS), options={}, selected=own)
    due = [written(one, some or tuple(TOOLS), False) for one, some in zip(ROWS, own, strict=True)]
    return Measure.count(_wrong(given, due, "tools of rows"), "prompts that are not what the template writes")


@AGENT_PROMPTS.law(
    "prompts that are too long",
    "the end of a prompt cut, which has the question; a prompt that is cut for the batch and not for the server",
    excluded=without(PROMPTS),
)
def long_prompts_lose_their_beginning(stack: Any, case: Numbers) -> Measure:
    """Check prompts at the limit, and one token beyond it: the batch has what the server was sent, and its end."""
    wrong, whole = [], [written(one, (), False) for one in ROWS]
    ids = [one.size for one in _sent(stack, AGENTS[:1], options={})]
    for limit in (max(ids), max(ids) - 1, min(ids) - 3):
        for agent in AGENTS:
            given = _sent(stack, (agent,), options={}, limit=limit)
            for row, one in enumerate(given):
                what = f"{agent}, limit {limit}, row {row}"
                if one.sent != one.trained:
                    wrong.append(f"{what}: the server was sent {one.sent!r}, the batch has {one.trained!r}")
                if not whole[row].endswith(one.trained) or one.size != min(limit, ids[row]):
                    wrong.append(f"{what}: {one.trained!r}, {one.size} tokens")
    return Measure.count(wrong, "prompts that are cut otherwise")
