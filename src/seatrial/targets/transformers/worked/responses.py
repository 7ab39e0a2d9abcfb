"""Worked examples of answers that are read into messages by a response template."""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

from seatrial.targets.common.tiny import tiny_tokenizer
from seatrial.targets.common.worked_rows import Row
from seatrial.targets.transformers.worked.schemas import weather

PLACE = "transformers.utils.chat_parsing:ResponseParser"
FIELDS: Mapping[str, Any] = {
    "thinking": {"open": "<think>", "close": "</think>"},
    "tool_calls": {
        "open_pattern": r"<call (?P<name>\w+)>", "close": "</call>", "repeats": True, "content": "json",
        "content_args": {"unquoted_keys": True},
        "transform": {"type": "function", "function": {"name": "{name}", "arguments": "{content}"}},
    },
    "content": {"close": "<end>"},
}  # fmt: skip
TEMPLATE: Mapping[str, Any] = {
    "start_anchor": "<assistant>",
    "defaults": {"role": "assistant"},
    "fields": FIELDS,
}
ANSWER = '<think> a b </think> c d \n<call f>{x: 1, "y": "z: 2, u:"}</call><call g>{}</call><end>rest'
MESSAGE: Mapping[str, Any] = {
    "role": "assistant",
    "thinking": "a b",
    "content": "rest",
    "tool_calls": [
        {"type": "function", "function": {"name": "f", "arguments": {"x": 1, "y": "z: 2, u:"}}},
        {"type": "function", "function": {"name": "g", "arguments": {}}},
    ],
}


def _template(**field: Any) -> dict[str, Any]:
    return {"start_anchor": "<a>", "fields": {"x": {"open": "<x>", "close": "</x>", **field}, "content": {}}}


def _parsed(answer: Any, template: Mapping[str, Any] | None = None, prefix: Any = "", **options: Any) -> Any:
    return tiny_tokenizer().parse_response(answer, dict(template or TEMPLATE), prefix=prefix, **options)


def _row(name: str, call: Callable[[], Any], right: Any, *, since: str = "5") -> Row:
    return Row("chats", PLACE, name, lambda made: call(), right, since=since)


def _value(text: str, **field: Any) -> Any:
    """Return what a field makes of a text."""
    return _parsed(f"<x>{text}</x>", _template(**field)).get("x", "none")


def _streamed(answer: str, size: int, template: Mapping[str, Any] = TEMPLATE, prefix: str = "") -> Any:
    """Return the message of an answer in pieces, and the events without chunks, and chunks by field."""
    parser = tiny_tokenizer().get_response_parser(dict(template), prefix=prefix)
    events = list(parser.initial_events)
    for start in range(0, len(answer), size):
        events += parser.feed(answer[start : start + size])
    found, last = parser.finalize()
    events += last
    chunks: dict[str, str] = {}
    for event in events:
        if event["type"] == "region_chunk":
            chunks[event["field"]] = chunks.get(event["field"], "") + event["text"]
    kinds = [f"{event['type'][7:]} {event['field']}" for event in events if event["type"] != "region_chunk"]
    return [found, kinds, chunks]


def _pieces() -> list[str]:
    """Return where an answer in pieces of any size is not read as at once."""
    due = _streamed(ANSWER, len(ANSWER))
    rng = random.Random(3)
    wrong = [
        f"{size}: {_streamed(ANSWER, size)}" for size in (1, 2, 3, 5, 7, 11) if _streamed(ANSWER, size) != due
    ]
    for _ in range(20):
        parser = tiny_tokenizer().get_response_parser(dict(TEMPLATE), prefix="")
        place = 0
        while place < len(ANSWER):
            size = rng.randint(1, 9)
            parser.feed(ANSWER[place : place + size])
            place += size
        found = parser.finalize()[0]
        wrong += [] if found == MESSAGE else [str(found)]
    return wrong


def _dirty() -> list[bool]:
    parser = tiny_tokenizer().get_response_parser(dict(TEMPLATE), prefix="")
    events = parser.feed("<think>ab</think><call f>{")
    return [event["dirty"] for event in events if event["type"] == "region_chunk"]


CALLS: Sequence[tuple[str, Any]] = (
    ("[f(a=1, b='x')]", [{"name": "f", "arguments": {"a": 1, "b": "x"}}]),
    ("[f(), g.h(x=[1, {'k': None, \"l\": 2}], y=true)]", [
        {"name": "f", "arguments": {}}, {"name": "g.h", "arguments": {"x": [1, {"k": None, "l": 2}], "y": True}}]),
    ("[]", "none"),
    (r'[f(a="q\"\n\u0041", b=-1.5e1)]', [{"name": "f", "arguments": {"a": 'q"\nA', "b": -15.0}}]),
    ("[f(a=1, a=2)]", "ValueError"),
    ("[f(1)]", "ValueError"),
    ("[f(a=1)] x", "ValueError"),
)  # fmt: skip


def _calls() -> list[Any]:
    found: list[Any] = []
    for text, _ in CALLS:
        try:
            found.append(_value(text, content="python-call-list"))
        except ValueError:
            found.append("ValueError")
    return found


TOOL = {
    "type": "function",
    "function": {
        "name": "f",
        "parameters": {
            "type": "object",
            "properties": {
                "number": {"type": "integer"}, "part": {"type": "number"}, "yes": {"type": "boolean"},
                "word": {"type": "string"}, "maybe": {"type": "integer", "nullable": True}, "list": {"type": "array"},
                "several": {"type": ["integer", "string"]}, "any": {"anyOf": [{"type": "number"}, {"type": "null"}]},
                "table": {"type": "object"},
            },
        },
    },
}  # fmt: skip
ARGUMENTS = {
    "number": "7", "part": "1.50", "yes": "true", "word": "7", "maybe": "null", "list": "[1]", "several": "x",
    "any": "2",
    "table": '{"a": 1}', "other": "5",
}  # fmt: skip
CAST = {
    "number": 7, "part": 1.5, "yes": True, "word": "7", "maybe": None, "list": [1], "several": "x", "any": 2,
    "table": {"a": 1}, "other": "5",
}  # fmt: skip
XML: Mapping[str, Any] = {
    "content": "xml-inline",
    "content_args": {"tag_pattern": r"<p=(?P<key>\w+)>(?P<value>.*?)</p>"},
}
OF_CALLS: Mapping[str, Any] = {
    "start_anchor": "<a>",
    "fields": {
        "tool_calls": {
            "open_pattern": r"<call (?P<name>\w+)>", "close": "</call>", "repeats": True, **XML,
            "transform": {"function": {"name": "{name}", "arguments": "{content}"}},
        },
        "content": {},
    },
}  # fmt: skip


def _cast(tools: Any) -> Any:
    body = "".join(f"<p={name}>{value}</p>" for name, value in ARGUMENTS.items())
    found = _parsed(f"<call f>{body}</call>", OF_CALLS, tools=tools)
    return found["tool_calls"][0]["function"]["arguments"]


def _ids(text: str) -> list[int]:
    return list(tiny_tokenizer().encode(text, add_special_tokens=False))


def _refused(call: Callable[[], Any]) -> str:
    try:
        return f"no error: {call()}"
    except (ValueError, AttributeError, KeyError, RuntimeError) as error:
        return type(error).__name__


def _twice() -> Any:
    """Return messages of one template, whose defaults each message may change."""
    template = {**TEMPLATE, "defaults": {"role": "assistant", "more": []}}
    first = tiny_tokenizer().parse_response("a", template, prefix="")
    first["more"].append(1)
    return [first, tiny_tokenizer().parse_response("b", template, prefix=""), template["defaults"]]


BAD: Sequence[Mapping[str, Any]] = (
    {"fields": {"x": {}}}, {"start_anchor": "a", "fields": {}}, {"start_anchor": "a", "fields": {"x": {}, "y": {}}},
    {"start_anchor": "a", "fields": {"x": {"opens": "b"}}}, {"start_anchor": "a", "fields": {"x": {"content": "yaml"}}},
    {"start_anchor": "a", "fields": {"x": {"open": "b", "open_pattern": "b"}}}, {"start_anchor": "a", "version": 2},
    {"start_anchor": "a", "fields": {"x": {"join": ","}}}, {"start_anchor": "a", "fields": {"x": {"open": ""}}},
    {"start_anchor": "a", "fields": {"x": {"transform": "a {content}"}}}, {"start_anchor": "a", "fieldz": {}},
    {"start_anchor": "a", "fields": {"x": {"open_pattern": "(?P<n>a)"}}},
    {"start_anchor": "a", "fields": {"x": {"transform_each": True}}},
)  # fmt: skip
RESPONSE_ROWS: Sequence[Row] = (
    _row("an answer", lambda: _parsed(ANSWER), MESSAGE),
    _row("ids of an answer", lambda: _parsed(_ids(ANSWER)), MESSAGE),
    _row("several answers", lambda: _parsed([ANSWER, "a"]), [MESSAGE, {"role": "assistant", "content": "a"}]),
    _row("ids of several answers", lambda: _parsed([_ids("<think>a</think>b"), _ids("c")]),
         [{"role": "assistant", "thinking": "a", "content": "b"}, {"role": "assistant", "content": "c"}]),
    _row("a prompt that begins the answer", lambda: [
        _parsed("a</think>b", prefix="<think>no</think><assistant>x<assistant>\n<think>"),
        _parsed("a</think>b", prefix=_ids("<assistant>\n<think>")), _parsed("b",
        prefix="<think>no</think><assistant>")],
        [{"role": "assistant", "thinking": "a", "content": "b"}] * 2 + [{"role": "assistant", "content": "b"}]),
    _row("prompts of several answers", lambda: [
        _parsed(["a</think>b", "c"], prefix=["<assistant><think>", "<assistant>"]),
        _parsed(["a</think>", "b</think>"], prefix="<assistant><think>")],
        [[{"role": "assistant", "thinking": "a", "content": "b"}, {"role": "assistant", "content": "c"}],
         [{"role": "assistant", "thinking": "a"}, {"role": "assistant", "thinking": "b"}]]),
    _row("prompts that are missing", lambda: [
        _refused(lambda: _parsed("a", prefix=None)), _refused(lambda: _parsed(["a", "b"], prefix=["a"])),
        _refused(lambda: tiny_tokenizer().parse_response("a", prefix=""))],
        ["ValueError", "ValueError", "AttributeError"]),
    _row("an answer that is cut", lambda: [_parsed("<think> a "), _parsed("<think>a</think>b<en"), _parsed("")],
         [{"role": "assistant", "thinking": "a"}, {"role": "assistant", "thinking": "a", "content": "b<en"},
          {"role": "assistant"}]),
    _row("numbers and truth", lambda: [
        _value(" 7 ", content="int"), _value("1.5", content="float"), _value(" True", content="bool"),
        _value("no", content="bool"), _value(" a ", content_args={"strip": False}), _value(" a ")],
        [7, 1.5, True, False, " a ", "a"]),
    _row("JSON", lambda: [
        _value('{"a": [1, null]}', content="json"), _value("{a: 1, b: {c : 2}}", content="json",
        content_args={"unquoted_keys": True}),
        _value("{a: <q>x\"y<q>}", content="json", content_args={"unquoted_keys": True, "string_delims": [["<q>",
        "<q>"]]}),
        _value(" no ", content="json", content_args={"allow_non_json": True}), _refused(lambda: _value("no",
        content="json"))],
        [{"a": [1, None]}, {"a": 1, "b": {"c": 2}}, {"a": 'x"y'}, "no", "ValueError"], since="5.24"),
    _row("tags", lambda: [
        _value("<p=a>1</p> <p=b>x\ny</p>", **XML), _value("<p=a>1</p><p=a>2</p><p=a>3</p>", **XML),
        _value("<p=a>1</p><p=a>2</p><p=a>3</p>", content="xml-inline", content_args={
            **XML["content_args"], "merge_duplicates": True, "value_parser": {"name": "int"}})],
        [{"a": "1", "b": "x\ny"}, {"a": "3"}, {"a": [1, 2, 3]}]),
    _row("lines of names and values", lambda: [
        _value("a: 1\n\nb: x: y\nno", content="kv-lines"),
        _value("a=1;b=2", content="kv-lines", content_args={"line_sep": ";", "kv_sep": "=",
        "value_parser": {"name": "int"}})],
        [{"a": "1", "b": "x: y"}, {"a": 1, "b": 2}]),
    _row("lists of calls", _calls, [right for _, right in CALLS], since="5.24"),
    _row("fields that repeat", lambda: [
        _parsed("<x>a</x>b<x>c</x>", _template(repeats=True)), _parsed("<x>a</x><x>b</x>", _template(repeats=True,
        join="-")),
        _parsed("<x>a</x><x>b</x>", _template())],
        [{"x": ["a", "c"], "content": "b"}, {"x": "a-b"}, {"x": "b"}]),
    _row("fields in another form", lambda: [
        _value('{"a": {"b": 2}}', content="json", transform={"n": "{content.a.b}", "l": ["{content.a}", "k"]}),
        _value('[{"a": 1}, {"a": 2}]', content="json", transform={"n": "{a}"}, transform_each=True)],
        [{"n": 2, "l": [{"b": 2}, "k"]}, [{"n": 1}, {"n": 2}]]),
    _row("words of what opens and closes", lambda: _parsed("<b 1>t</b 2>", {"start_anchor": "<a>", "fields": {"x": {
        "open_pattern": r"<b (?P<n>\d)>", "close_pattern": r"</b (?P<m>\d)>", "transform": ["{n}", "{content}",
        "{m}"]}}}),
        {"x": ["1", "t", "2"]}, since="5.24"),
    _row("several words that open", lambda: [
        _parsed(f"{first}a</x>", _template(open=["<x", "<x>", "<y>"])) for first in ("<x>", "<y>", "<x")],
        [{"x": "a"}] * 3),
    _row("fields that are due", lambda: _refused(lambda: _parsed("a", _template(optional=False))), "ValueError"),
    _row("arguments of tools", lambda: [_cast([TOOL]), _cast(None)], [CAST, ARGUMENTS]),
    _row("arguments of functions", lambda: _parsed(
        "<call weather><p=days>7</p><p=city>7</p></call>", OF_CALLS, tools=[weather])["tool_calls"][0]["function"],
        {"name": "weather", "arguments": {"days": 7, "city": "7"}}, since="5.24"),
    _row("answers in pieces", _pieces, []),
    _row("events", lambda: _streamed(ANSWER, 4)[1:], [
        ["open thinking", "close thinking", "open content", "close content", "open tool_calls", "close tool_calls",
         "open tool_calls", "close tool_calls", "open content", "close content"],
        {"thinking": " a b ", "content": " c d \nrest", "tool_calls": '{x: 1, "y": "z: 2, u:"}{}'}]),
    _row("events of a prompt", lambda: _streamed("b</think>c", 2, prefix="<assistant><think>a")[1:], [
        ["open thinking", "close thinking", "open content", "close content"], {"thinking": "ab", "content": "c"}]),
    _row("pieces that may change", _dirty, [False, True]),
    _row("a stream that has ended", lambda: _refused(_ended), "RuntimeError"),
    _row("defaults", _twice, [
        {"role": "assistant", "more": [1], "content": "a"}, {"role": "assistant", "more": [], "content": "b"},
        {"role": "assistant", "more": []}], since="5.21"),
    _row("templates that are refused", lambda: [_refused(partial(_parsed, "a", one)) for one in BAD],
         ["ValueError"] * len(BAD)),
)  # fmt: skip


def _ended() -> Any:
    parser = tiny_tokenizer().get_response_parser(dict(TEMPLATE), prefix="")
    parser.finalize()
    return parser.feed("a")
