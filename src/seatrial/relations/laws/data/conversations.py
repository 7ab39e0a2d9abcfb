"""R16 of conversations with system turns, tools and thinking: served as trained, and only answers train."""

from __future__ import annotations

from functools import partial
from typing import Any

from seatrial.relations.cases.conversations import NEEDS, Conversation, Kind, make_conversation
from seatrial.relations.facts import facts_of
from seatrial.relations.law import Measure, Relation
from seatrial.relations.laws.data.tokenization import trained_spans

DESCRIBED: dict[Kind, str] = {
    "plain": "several answers",
    "system": "a system turn",
    "thinking": "thinking before the answer",
    "thinking before": "thinking in an earlier answer too",
    "tool": "a tool that is called",
    "two tools": "two results of tools in a row",
}


def _conversation(stack: Any, seed: int, tidy: bool, kind: Kind = "plain") -> Conversation:
    return make_conversation(seed, "plain" if tidy else kind)


def _excluded(stack: Any, kind: Kind) -> str | None:
    missing = [part for part in NEEDS[kind] if part not in stack.conversation_parts]
    return f"conversation_parts has no {missing[0]}" if missing else None


CONVERSATIONS = Relation(
    id="R16.conversations",
    name="conversations",
    component="conversations",
    statement="System turns, tools and thinking are served as they are trained; only answers train.",
    catalogue="SB001 SB005 SB006 SB010 SB021 SB024 SB030 SB032 SB037",
    cost="CPU, milliseconds",
    cases=_conversation,
)


def _expected(stack: Any, case: Conversation) -> list[tuple[str, ...]]:
    """Return the words that are shown of each turn; hidden thinking is left out if the stack declares so."""
    users = [place for place, turn in enumerate(case.turns) if turn.role == "user"]
    shown = []
    for place, turn in enumerate(case.turns):
        hidden = stack.thinking_kept == "last" and place < users[-1]
        shown.append(tuple(piece for piece in turn.pieces if not (hidden and piece == turn.thinking)))
    return shown


def everything_is_shown(stack: Any, case: Conversation) -> Measure:
    """Check that the served conversation has every word once, the turns in order; a tool's name appears twice."""
    text = stack.decode(stack.serve_conversation(case, add_generation_prompt=False))
    errors = [f"{name} of the tools" for name in case.tools if name not in text]
    cursor = max((text.find(name) for name in case.tools), default=0)
    for turn, pieces in zip(case.turns, _expected(stack, case), strict=True):
        if turn.role == "system":
            errors += [f"{piece!r} of the system" for piece in pieces if text.count(piece) != 1]
            continue
        for piece in pieces:
            place = text.find(piece, cursor)
            if place < 0 or (piece not in case.tools and text.count(piece) != 1):
                errors.append(f"{piece!r} of the {turn.role}")
            cursor = max(cursor, place)
    return Measure.count(errors, "words that are left out, repeated or out of order")


def only_answers_train(stack: Any, case: Conversation) -> Measure:
    """Check that each trained span is one whole answer with its end token, and has no word of another turn."""
    ids, counted = stack.train_conversation(case, max_length=None)
    spans, end = list(trained_spans(stack, ids, counted)), stack.decode([stack.eos_id])
    pieces = _expected(stack, case)
    answers = [place for place, turn in enumerate(case.turns) if turn.role == "assistant"]
    if facts_of(stack).trains == "last":
        answers = answers[-1:]
    errors = [] if len(spans) == len(answers) else [f"{len(spans)} trained spans, {len(answers)} answers"]
    for span, place in zip(spans, answers, strict=False):
        errors += [f"{piece!r} does not train" for piece in (*pieces[place], end) if piece not in span]
        foreign = {word for other, turn in enumerate(case.turns) if other != place for word in turn.pieces}
        errors += [f"{word!r} of another turn trains" for word in sorted(foreign) if word in span]
    return Measure.count(errors, "trained spans that are not the answers")


def prompts_are_prefixes(stack: Any, case: Conversation) -> Measure:
    """Check that the prompt before each answer is a prefix of the conversation that ends with this answer.

    A conversation up to an answer's end token is also a prefix of the whole one, unless earlier thinking is hidden.
    """
    served = stack.serve_conversation(case, add_generation_prompt=False)
    errors = []
    for place, turn in enumerate(case.turns):
        if turn.role != "assistant":
            continue
        prompt = stack.serve_conversation(case.upto(place), add_generation_prompt=True)
        ended = list(stack.serve_conversation(case.upto(place + 1), add_generation_prompt=False))
        if ended[: len(prompt)] != prompt:
            errors.append(f"turn {place}: {stack.decode(prompt)!r}")
        while ended and ended[-1] != stack.eos_id:
            ended.pop()
        if stack.thinking_kept == "all" and served[: len(ended)] != ended:
            errors.append(f"turn {place}, in the whole conversation: {stack.decode(ended)!r}")
    return Measure.count(errors, "prompts that do not begin their conversation")


def training_equals_serving(stack: Any, case: Conversation) -> Measure:
    """Check that the ids of a training row are those of the served conversation."""
    ids, counted = stack.train_conversation(case, max_length=None)
    served = stack.serve_conversation(case, add_generation_prompt=False)
    errors = [] if list(ids) == list(served) else [stack.decode(ids)]
    errors += [] if len(ids) == len(counted) else [f"{len(counted)} marks of {len(ids)} ids"]
    return Measure.count(errors, "training rows that differ from what is served")


for kind, described in DESCRIBED.items():
    for name, suspects, measure in (
        (
            "all is shown",
            "a template that drops what it does not know, results of tools merged or left out",
            everything_is_shown,
        ),
        (
            "answers alone train",
            "a mask that spans the header, results of tools that train, thinking or calls that do not",
            only_answers_train,
        ),
        (
            "prompts are prefixes",
            "thinking removed from earlier turns, a system turn that only the finished conversation has",
            prompts_are_prefixes,
        ),
        (
            "serving is training",
            "tools or thinking that training renders differently, messages rendered one by one",
            training_equals_serving,
        ),
    ):
        CONVERSATIONS.law(
            f"{name}, {described}",
            suspects,
            cases=partial(_conversation, kind=kind),
            excluded=partial(_excluded, kind=kind),
        )(measure)


@CONVERSATIONS.law(
    "end tokens train where padding is the end token",
    "a mask made by comparing ids with the pad id",
    excluded=lambda stack: None if stack.pad_id == stack.eos_id else "pad_id is not eos_id",
)
def end_tokens_train(stack: Any, case: Conversation) -> Measure:
    """Check that the end token of each answer trains."""
    ids, counted = stack.train_conversation(case, max_length=None)
    answers = 1 if facts_of(stack).trains == "last" else sum(turn.role == "assistant" for turn in case.turns)
    trained = sum(bool(on) and token == stack.eos_id for token, on in zip(ids, counted, strict=True))
    return Measure(
        error=abs(trained - answers), bound=0, what=f"{trained} end tokens train, {answers} answers"
    )


@CONVERSATIONS.law(
    "a longer row is cut",
    "ids cut without their mask, from the other side, or after padding",
    excluded=lambda stack: None if stack.conversation_keeps else "conversation_keeps=None",
)
def cut_rows_are_parts(stack: Any, case: Conversation) -> Measure:
    """Check that a truncated row is the start, or the end, of the whole row, ids and marks alike."""
    ids, counted = stack.train_conversation(case, max_length=None)
    errors = []
    for length in (len(ids) // 2, len(ids) - 1, len(ids)):
        kept = slice(None, length) if stack.conversation_keeps == "start" else slice(len(ids) - length, None)
        given = stack.train_conversation(case, max_length=length)
        for what, one, whole in (("ids", given.ids, ids), ("marks", given.counted, counted)):
            if list(one) != list(whole)[kept]:
                errors.append(f"{what} at {length} of {len(ids)} tokens: {list(one)}")
    return Measure.count(errors, f"rows that are not the {stack.conversation_keeps} of the whole row")
