"""R31.templates: chat templates write every turn, train the assistant's alone, and are read back as written."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from itertools import pairwise
from typing import Any

from seatrial.relations.contracts.utilities import Template
from seatrial.relations.law import Measure
from seatrial.relations.laws.utilities.numbers import Numbers, without
from seatrial.relations.laws.utilities.plain import relation_of
from seatrial.relations.laws.utilities.records import random_words
from seatrial.relations.not_served import NotServed

TEMPLATES = relation_of(
    "templates",
    "chat-templates-keep-conversations",
    "A template writes each turn once and in order; one for training trains the assistant's turns and nothing else.",
)
Turn = dict[str, Any]
TOOL = "weather"
ARGUMENTS: Mapping[str, tuple[str, Any]] = {
    "city": ("string", "Bern"),
    "days": ("integer", 7),
    "share": ("number", 0.25),
}
"""Type and value of the arguments of a call."""
SCHEMA: Mapping[str, Any] = {
    "type": "function",
    "function": {
        "name": TOOL,
        "description": "Weather of a city.",
        "parameters": {
            "type": "object",
            "properties": {
                name: {"type": kind, "description": name} for name, (kind, _) in ARGUMENTS.items()
            },
            "required": list(ARGUMENTS),
        },
    },
}


def _called(name: str, arguments: Mapping[str, Any]) -> Mapping[str, Any]:
    return {"type": "function", "function": {"name": name, "arguments": dict(arguments)}}


CALL = _called(TOOL, {name: value for name, (_, value) in ARGUMENTS.items()})


def _conversations(case: Numbers, template: Template) -> Iterable[list[Turn]]:
    """Yield conversations of one answer and of several, with a system turn, and with a call of a tool."""
    words = [f"{word}{place}" for place, word in enumerate(random_words(case, 6))]
    asked, answered = [{"role": "user", "content": word} for word in words[:2]], words[2:4]
    answers = [{"role": "assistant", "content": word} for word in answered]
    yield [asked[0], answers[0]]
    yield [asked[0], answers[0], asked[1], answers[1]]
    if template.takes_system:
        yield [{"role": "system", "content": words[4]}, asked[0], answers[0], asked[1], answers[1]]
    if template.takes_tools:
        result = {"role": "tool", "name": TOOL, "content": words[5]}
        yield [asked[0], {"role": "assistant", "content": "", "tool_calls": [CALL]}, result, answers[0]]


def _pieces(turn: Turn) -> list[str]:
    """Return what has to be found of a turn, in this order."""
    if calls := turn.get("tool_calls"):
        return [TOOL, *(str(value) for value in calls[0]["function"]["arguments"].values())]
    return [turn["content"]]


def _ends(text: str, turns: Sequence[Turn]) -> list[int] | None:
    """Return where each turn ends in a text; None if one is missing or follows a later one."""
    place, found = 0, []
    for turn in turns:
        for piece in _pieces(turn):
            start = text.find(piece, place)
            if start < 0:
                return None
            place = start + len(piece)
        found.append(place)
    return found


def _templates(stack: Any, *, training: bool) -> list[Template]:
    """Return the templates, or those for training.

    Raises:
        NotServed: there are none.
    """
    found = [one for one in stack.utilities["templates"]() if one.trains or not training]
    if not found:
        raise NotServed("the release has no templates for training")
    return found


@TEMPLATES.law(
    "turns are written",
    "a role or a column that the template drops, another order",
    excluded=without("templates"),
)
def turns_are_written(stack: Any, case: Numbers) -> Measure:
    """Check that the text of each conversation has every turn, in order, and a text of one place once."""
    wrong = []
    for template in _templates(stack, training=False):
        for turns in _conversations(case, template):
            text = stack.utilities["written"](template, turns, False)
            twice = [one["content"] for one in turns if one["content"] and text.count(one["content"]) > 1]
            if _ends(text, turns) is None or twice:
                wrong.append(f"{template.name}: {text!r}")
    return Measure.count(wrong, "conversations that are written otherwise")


@TEMPLATES.law(
    "trained part of a conversation",
    "markers around other turns, an end of a turn outside the markers, a call of a tool that is not trained",
    excluded=without("trained spans"),
)
def answers_are_trained(stack: Any, case: Numbers) -> Measure:
    """Check that each trained span has the assistant's turn, an end after it, and nothing of the other turns."""
    wrong = []
    for template in _templates(stack, training=True):
        for turns in _conversations(case, template):
            spans = stack.utilities["trained spans"](template, turns)
            answers = [one for one in turns if one["role"] == "assistant"]
            others = [one["content"] for one in turns if one["role"] != "assistant"]
            ends = [_ends(span, [answer]) for span, answer in zip(spans, answers, strict=False)]
            fits = len(spans) == len(answers) and all(
                end is not None and end[0] < len(span.rstrip()) for end, span in zip(ends, spans, strict=True)
            )
            if not fits or any(word in span for word in others for span in spans):
                wrong.append(f"{template.name}: {spans}")
    return Measure.count(wrong, "conversations of which something else is trained")


@TEMPLATES.law(
    "trained part and the prompt",
    "markers that begin before what opens the assistant's turn",
    excluded=without("trained spans"),
)
def prompts_are_not_trained(stack: Any, case: Numbers) -> Measure:
    """Check that the opening of the assistant's turn, which sampling gives as part of the prompt, is not trained."""
    wrong = []
    for template in _templates(stack, training=True):
        turns = next(iter(_conversations(case, template)))
        opened = _opening(stack, template, turns[:1])
        text = stack.utilities["written"](template, turns, False)
        (span,) = stack.utilities["trained spans"](template, turns)
        start = text.rindex(span)
        if start < len(opened):
            wrong.append(f"{template.name}: {text[start : len(opened)]!r} is trained")
    return Measure.count(wrong, "templates that train a part of the prompt")


def _opening(stack: Any, template: Template, turns: Sequence[Turn]) -> str:
    """Return the prompt for an answer, without a thought that it opens: an answer may have none."""
    text: str = stack.utilities["written"](template, turns, True)
    return text.split("<think>")[0]


@TEMPLATES.law(
    "prompt of an answer",
    "a prompt that training never writes",
    excluded=without("templates"),
)
def prompts_precede_answers(stack: Any, case: Numbers) -> Measure:
    """Check that the prompt for each answer begins the text of the conversation."""
    wrong = []
    for template in _templates(stack, training=True):
        for turns in _conversations(case, template):
            text = stack.utilities["written"](template, turns, False)
            for place, turn in enumerate(turns):
                if turn["role"] == "assistant":
                    prompt = _opening(stack, template, turns[:place])
                    if not text.startswith(prompt):
                        wrong.append(f"{template.name}: {prompt!r} before {text!r}")
    return Measure.count(wrong, "prompts that do not precede their answers")


@TEMPLATES.law(
    "first turns of a conversation",
    "an earlier turn that is written otherwise if others follow",
    excluded=without("templates"),
)
def first_turns_stay(stack: Any, case: Numbers) -> Measure:
    """Check that a conversation's first turns, without what follows their last word, begin its text."""
    wrong = []
    for template in _templates(stack, training=True):
        for turns in _conversations(case, template):
            texts = [
                (stack.utilities["written"](template, turns[: place + 1], False), turns[: place + 1])
                for place, turn in enumerate(turns)
                if turn["role"] == "assistant"
            ]
            for (short, own), (long, _) in pairwise(texts):
                ends = _ends(short, own)
                if ends is None or not long.startswith(short[: ends[-1]]):
                    wrong.append(f"{template.name}: {short!r} and {long!r}")
    return Measure.count(wrong, "conversations whose first turns change")


@TEMPLATES.law(
    "template for training and the one it replaces",
    "a turn that is written otherwise than the model has learned",
    excluded=without("templates"),
)
def training_writes_the_same(stack: Any, case: Numbers) -> Measure:
    """Check that a question with its answer is written as by the template that is replaced; an end may follow."""
    own = {one.name: one for one in stack.utilities["templates"]()}
    wrong = []
    for template in _templates(stack, training=True):
        turns = next(iter(_conversations(case, template)))
        replaced = own[template.replaces]
        for open_, given in ((False, turns), (True, turns[:1])):
            text = stack.utilities["written"](template, given, open_)
            due = stack.utilities["written"](replaced, given, open_)
            if not text.startswith(due):
                wrong.append(f"{template.name}: {text!r} for {due!r}")
    return Measure.count(wrong, "templates that write otherwise")


@TEMPLATES.law(
    "choice of a template",
    "the template of another model, one for one of its own",
    excluded=without("templates"),
)
def templates_are_chosen(stack: Any, case: Numbers) -> Measure:
    """Check that each template is replaced by its own one for training, and that this one needs none."""
    wrong = []
    for template in _templates(stack, training=True):
        for name, due in ((template.replaces, template.name), (template.name, None)):
            given = stack.utilities["template for training"](name)
            wrong += [] if given == due else [f"{name}: {given}"]
    return Measure.count(wrong, "templates that are replaced by another one")


@TEMPLATES.law(
    "tools of a template",
    "a template that drops calls or results and is said to take them",
    excluded=without("takes tools"),
)
def tools_are_recognised(stack: Any, case: Numbers) -> Measure:
    """Compare whether a template is said to take tools with whether call and result are found in what it writes."""
    (word,) = random_words(case, 1)
    turns: list[Turn] = [
        {"role": "user", "content": "hi"},
        {"role": "assistant", "content": "", "tool_calls": [CALL]},
        {"role": "tool", "name": TOOL, "content": word},
    ]
    wrong = []
    for template in _templates(stack, training=False):
        said = stack.utilities["takes tools"](template)
        try:
            text = stack.utilities["written"](template, turns, False)
        except Exception:  # noqa: BLE001  a template refuses roles with errors of its own
            continue
        takes = _ends(text, turns[1:]) is not None
        wrong += [] if said == takes else [f"{template.name}: {said}"]
    return Measure.count(wrong, "templates that are said to do otherwise")


ANSWERS: Sequence[tuple[str, Turn]] = (
    ("a text", {"content": "well, here\nit is"}),
    ("a call", {"content": "", "tool_calls": [CALL]}),
    ("a call after a text", {"content": "I look.", "tool_calls": [CALL]}),
    (
        "two calls",
        {"content": "", "tool_calls": [CALL, _called(TOOL, {**CALL["function"]["arguments"], "days": -2})]},
    ),
)


@TEMPLATES.law(
    "answers are read as written",
    "a call or a text lost, another type of an argument, an end left in the text",
    excluded=without("read answer"),
)
def answers_are_read(stack: Any, case: Numbers) -> Measure:
    """Write answers by each template that the stack reads, and read what follows the prompt."""
    wrong, found = [], 0
    (word,) = random_words(case, 1)
    asked = [{"role": "user", "content": word}]
    for template in _templates(stack, training=False):
        if not template.reads:
            continue
        for what, answer in ANSWERS:
            turn = {"role": "assistant", **answer}
            try:
                prompt = stack.utilities["written"](template, asked, True)
                text = stack.utilities["written"](template, [*asked, turn], False)
            except Exception:  # noqa: BLE001  some templates write one call alone, and say so in an error of their own
                continue
            written = text.removeprefix(prompt)
            whole = answer["content"] in written and written.count(TOOL) == len(answer.get("tool_calls", ()))
            if not text.startswith(prompt) or not whole:
                continue  # a thought is opened that the answer does not have, or the template writes a part of it
            found += 1
            given = stack.utilities["read answer"](template, prompt, written, [dict(SCHEMA)])
            if {"content": given.get("content"), "calls": _plain(given)} != {
                "content": answer["content"],
                "calls": _plain(turn),
            } and not (template.thinks and given.get("thinking") == answer["content"]):
                wrong.append(f"{template.name}, {what}: {given}")
    if not found:
        raise NotServed("no answer could be written")
    return Measure.count(wrong, "answers that are read otherwise")


def _plain(turn: Turn) -> list[str]:
    calls = [one.get("function", one) for one in turn.get("tool_calls") or []]
    return [json.dumps([one["name"], one["arguments"]], sort_keys=True) for one in calls]
