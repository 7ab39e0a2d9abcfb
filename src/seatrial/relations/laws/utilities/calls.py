"""R31.calls: calls of tools in a model's text are read with the names, arguments and types that the text has."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from seatrial.relations.law import Measure
from seatrial.relations.laws.utilities.numbers import Numbers, without
from seatrial.relations.laws.utilities.plain import relation_of

Call = tuple[str, dict[str, Any]]
CALLS = relation_of(
    "calls",
    "tool-calls-are-read-as-written",
    "A model's text gives the calls that it has, in their order, with each argument's value and type.",
)


def _hermes(call: Call) -> str:
    name, arguments = call
    return (
        "<tool_call>\n"
        + json.dumps({"name": name, "arguments": arguments}, ensure_ascii=False)
        + "\n</tool_call>"
    )


def _word(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)


def _tagged(begin: str, end: str) -> Callable[[Call], str]:
    def written(call: Call) -> str:
        name, arguments = call
        lines = [f"<parameter={key}>\n{_word(value)}\n</parameter>" for key, value in arguments.items()]
        return "\n".join([begin, f"<function={name}>", *lines, "</function>", end])

    return written


def _glm(call: Call) -> str:
    name, arguments = call
    pairs = [
        f"<arg_key>{key}</arg_key>\n<arg_value>{_word(value)}</arg_value>" for key, value in arguments.items()
    ]
    return "\n".join([f"<tool_call>{name}", *pairs, "</tool_call>"])


def _minimax(call: Call) -> str:
    name, arguments = call
    lines = [f'<parameter name="{key}">{_word(value)}</parameter>' for key, value in arguments.items()]
    return "\n".join(
        ["<minimax:tool_call>", f'<invoke name="{name}">', *lines, "</invoke>", "</minimax:tool_call>"]
    )


def _deepseek(call: Call) -> str:
    name, arguments = call
    lines = [
        f'<｜DSML｜parameter name="{key}" string="{str(isinstance(value, str)).lower()}">{_word(value)}'
        "</｜DSML｜parameter>"
        for key, value in arguments.items()
    ]
    invoked = "\n".join([f'<｜DSML｜invoke name="{name}">', *lines, "</｜DSML｜invoke>"])
    return f"<｜DSML｜tool_calls>\n{invoked}\n</｜DSML｜tool_calls>"


def _kimi(call: Call) -> str:
    name, arguments = call
    return (
        f"<|tool_calls_section_begin|><|tool_call_begin|>functions.{name}:0<|tool_call_argument_begin|>"
        f"{json.dumps(arguments, ensure_ascii=False)}<|tool_call_end|><|tool_calls_section_end|>"
    )


def _harmony(call: Call) -> str:
    name, arguments = call
    written = json.dumps(arguments, ensure_ascii=False)
    return f"<|start|>assistant<|channel|>commentary to=functions.{name} <|constrain|>json<|message|>{written}<|call|>"


def _gemma(call: Call) -> str:
    def word(value: Any) -> str:
        if isinstance(value, str):
            return f'<|"|>{value}<|"|>'
        if isinstance(value, dict):
            return f"{{{','.join(f'{key}:{word(one)}' for key, one in value.items())}}}"
        return f"[{','.join(map(word, value))}]" if isinstance(value, list) else json.dumps(value)

    name, arguments = call
    return f"<|tool_call>call:{name}{word(arguments)}<tool_call|>"


WRITTEN: Mapping[str, Callable[[Call], str]] = {
    "hermes": _hermes,
    "qwen3_coder": _tagged("<tool_call>", "</tool_call>"),
    "seed": _tagged("<seed:tool_call>", "</seed:tool_call>"),
    "glm": _glm,
    "minimax": _minimax,
    "deepseek_v4": _deepseek,
    "kimi": _kimi,
    "gpt-oss": _harmony,
    "gemma4": _gemma,
}
"""How the chat template of a family of models writes a call."""
TYPES = {
    "city": "string",
    "days": "integer",
    "share": "number",
    "metric": "boolean",
    "names": "array",
    "place": "object",
}
WHOLE: Call = (
    "weather",
    {
        "city": 'Zürich "HB", <b>\nplatform 7',
        "days": 3,
        "share": 0.25,
        "metric": True,
        "names": ["a", "b"],
        "place": {"lat": 47.4, "on": [1, 2]},
    },
)
NEGATIVE: Call = ("weather", {"city": "it's", "days": -12, "share": -1.5, "metric": False})
NONE: Call = ("weather", {})
FLAT: Call = (
    "weather",
    {"city": "Bern, {west}", "days": 0, "share": 0.5, "metric": True, "when": "today: 7"},
)


FORMS = tuple(form for form in WRITTEN if form != "gemma4")
"""Those that can write every argument."""


def _compared(
    stack: Any,
    cases: Sequence[tuple[str, Sequence[Call]]],
    shape: Callable[[Sequence[str]], str],
    forms: Sequence[str] = FORMS,
) -> Measure | None:
    """Compare the calls that a stack reads in texts with those written; None if it reads none of the forms."""
    wrong = []
    served = set(stack.utilities["call formats"]()) & set(forms)
    if not served:
        return None
    for form in sorted(served):
        write = WRITTEN[form]
        for what, calls in cases:
            text = shape([write(call) for call in calls])
            _, given = stack.utilities["tool calls"](form, text, {"weather": TYPES})
            if [(name, json.loads(arguments)) for name, arguments in given] != list(calls):
                wrong.append(f"{form}, {what}: {given}")
    return Measure.count(wrong, "texts whose calls are read otherwise")


@CALLS.law("one call", "a type lost, text decoded twice", excluded=without("tool calls"))
def one_call_is_read(stack: Any, case: Numbers) -> Measure | None:
    """Check a call with arguments of each type, with negative numbers, and with none."""
    cases = [("each type", [WHOLE]), ("negative", [NEGATIVE]), ("no arguments", [NONE])]
    return _compared(stack, cases, lambda texts: f"I look it up.\n{texts[0]}")


@CALLS.law(
    "calls of Gemma 4",
    "a type lost, a call lost",
    excluded=without("tool calls"),
    calls=(NEGATIVE, NONE, FLAT),
)
@CALLS.law(
    "calls of Gemma 4, lines and nested values",
    "a text that ends with its first line, lists and objects in parts",
    excluded=without("tool calls"),
    calls=(WHOLE,),
)
def calls_of_gemma_are_read(stack: Any, case: Numbers, calls: Sequence[Call]) -> Measure | None:
    """Check calls whose arguments are written without quotes around their names."""
    return _compared(stack, [("calls", list(calls))], "\n".join, ("gemma4",))


@CALLS.law("several calls", "the first or the last alone, another order", excluded=without("tool calls"))
def several_calls_are_read(stack: Any, case: Numbers) -> Measure | None:
    """Check three calls in succession."""
    return _compared(stack, [("three calls", [NEGATIVE, WHOLE, NEGATIVE])], "\n".join)


@CALLS.law(
    "texts that look like numbers",
    "a text argument that becomes a number or a truth value",
    excluded=without("tool calls"),
    forms=("hermes", "qwen3_coder", "deepseek_v4", "kimi", "gpt-oss", "gemma4"),
)
@CALLS.law(
    "texts that look like numbers, of formats with tags",
    "a text argument that becomes a number or a truth value",
    excluded=without("tool calls"),
    forms=("seed", "glm", "minimax"),
)
def texts_stay_texts(stack: Any, case: Numbers, forms: Sequence[str]) -> Measure | None:
    """Check that arguments which the tool declares as texts are texts, however they look."""
    cases: list[tuple[str, list[Call]]] = [
        (word, [("weather", {"city": word})]) for word in ("72", "1.50", "true", "[1]")
    ]
    return _compared(stack, cases, lambda texts: texts[0], forms)


@CALLS.law(
    "text around calls",
    "the call left in the text, text lost before it, a text without a call that is cut",
    excluded=without("tool calls"),
)
def text_around_is_kept(stack: Any, case: Numbers) -> Measure:
    """Check what is before the calls, and a text without any."""
    wrong = []
    formats = stack.utilities["call formats"]()
    for form, write in WRITTEN.items():
        if form not in formats:
            continue
        for before, calls in (("I look it up. ", [NEGATIVE]), ("No calls, 3 < 4.", []), ("", [NEGATIVE])):
            text = before + "".join(write(call) for call in calls)
            given, found = stack.utilities["tool calls"](form, text, {"weather": TYPES})
            if given != before or len(found) != len(calls):
                wrong.append(f"{form}: {given!r}, {before!r} is right, {len(found)} calls")
    return Measure.count(wrong, "texts that are kept otherwise")


@CALLS.law(
    "calls without an end",
    "the begin of a call, cut by the longest answer, run as a whole one; an end without a begin",
    excluded=without("tool calls"),
)
def calls_without_an_end_are_texts(stack: Any, case: Numbers) -> Measure | None:
    """Check that the end of a call alone is none, and that hermes, whose arguments are JSON, reads no part of one.

    Formats with tags may read the arguments that are complete.
    """
    wrong = []
    served = set(stack.utilities["call formats"]()) & set(WRITTEN)
    for form in sorted(served):
        text = WRITTEN[form](NEGATIVE)
        cuts = {"end": text[-len("</tool_call>") :]}
        if form == "hermes":
            cuts["begin"] = text[: len(text) // 2]
        for what, cut in cuts.items():
            kept, given = stack.utilities["tool calls"](form, f"Well.\n{cut}", {"weather": TYPES})
            if given or (form == "hermes" and kept != f"Well.\n{cut}"):
                wrong.append(f"{form}, {what}: {given}, {kept!r}")
    return Measure.count(wrong, "texts whose calls are read otherwise") if served else None
