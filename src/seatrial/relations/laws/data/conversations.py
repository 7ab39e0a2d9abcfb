"""R16 of conversations with system turns, tools, thinking: all is shown, answers alone train, prompts are prefixes."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

from seatrial.relations.cases.conversations import NEEDS, Conversation, Kind, make_conversation
from seatrial.relations.facts import facts_of
from seatrial.relations.law import Law, Measure, Relation

DESCRIBED: dict[Kind, str] = {
    "system": "a system turn",
    "thinking": "thinking before the answer",
    "thinking before": "thinking in an earlier answer too",
    "tool": "a tool that is called",
    "two tools": "two results of tools in a row",
}


def _make(kind: Kind) -> Callable[[Any, int, bool], Conversation]:
    def make(stack: Any, seed: int, tidy: bool) -> Conversation:
        return make_conversation(seed, "plain" if tidy else kind)

    return make


def _lacks(kind: Kind) -> Callable[[Any], str | None]:
    def excluded(stack: Any) -> str | None:
        lacking = [part for part in NEEDS[kind] if part not in stack.conversation_parts]
        return f"conversation_parts has no {lacking[0]}" if lacking else None

    return excluded


def _expected(stack: Any, case: Conversation) -> list[tuple[str, ...]]:
    """Return what is read of each turn; thinking is left out where the stack declares so."""
    users = [place for place, turn in enumerate(case.turns) if turn.role == "user"]
    shown = []
    for place, turn in enumerate(case.turns):
        hidden = stack.thinking_kept == "last" and place < users[-1]
        shown.append(tuple(piece for piece in turn.pieces if not (hidden and piece == turn.thinking)))
    return shown


def _is_shown(stack: Any, case: Conversation) -> Measure:
    """Every word stands in the served conversation once, those of the turns in their order; a tool's name twice."""
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


def _spans(stack: Any, ids: Sequence[int], counted: Sequence[int]) -> Iterator[str]:
    span: list[int] = []
    for token, on in zip([*ids, stack.pad_id], [*counted, 0], strict=True):
        if on:
            span.append(token)
        elif span:
            yield stack.decode(span)
            span = []


def _answers_alone_train(stack: Any, case: Conversation) -> Measure:
    """A trained span holds all that one answer says, with its end token, and no word of another turn."""
    ids, counted = stack.train_conversation(case, max_length=None)
    spans, end = list(_spans(stack, ids, counted)), stack.decode([stack.eos_id])
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


def _prompts_are_prefixes(stack: Any, case: Conversation) -> Measure:
    """What the model is given before an answer begins the conversation that ends with the answer.

    What ends with an answer's end token begins the whole conversation too, unless thinking is hidden later.
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


def _serving_is_training(stack: Any, case: Conversation) -> Measure:
    ids, counted = stack.train_conversation(case, max_length=None)
    served = stack.serve_conversation(case, add_generation_prompt=False)
    errors = [] if list(ids) == list(served) else [stack.decode(ids)]
    errors += [] if len(ids) == len(counted) else [f"{len(counted)} marks of {len(ids)} ids"]
    return Measure.count(errors, "training rows that differ from what is served")


def _end_trains(stack: Any, case: Conversation) -> Measure:
    ids, counted = stack.train_conversation(case, max_length=None)
    answers = 1 if facts_of(stack).trains == "last" else sum(turn.role == "assistant" for turn in case.turns)
    trained = sum(bool(on) and token == stack.eos_id for token, on in zip(ids, counted, strict=True))
    return Measure(
        error=abs(trained - answers), bound=0, what=f"{trained} end tokens train, {answers} answers"
    )


def _cut_is_a_part(stack: Any, case: Conversation) -> Measure:
    """A row that is cut is the start, or the end, of the whole row, in ids and in marks alike."""
    ids, counted = stack.train_conversation(case, max_length=None)
    errors = []
    for length in (len(ids) // 2, len(ids) - 1, len(ids)):
        kept = slice(None, length) if stack.conversation_keeps == "start" else slice(len(ids) - length, None)
        given = stack.train_conversation(case, max_length=length)
        for what, one, whole in (("ids", given.ids, ids), ("marks", given.counted, counted)):
            if list(one) != list(whole)[kept]:
                errors.append(f"{what} at {length} of {len(ids)} tokens: {list(one)}")
    return Measure.count(errors, f"rows that are not the {stack.conversation_keeps} of the whole row")


MEASURES: tuple[tuple[str, Callable[[Any, Conversation], Measure], str], ...] = (
    (
        "all is shown",
        _is_shown,
        "a template that drops what it does not know, results of tools merged or left out",
    ),
    (
        "answers alone train",
        _answers_alone_train,
        "a mask that spans the header, results of tools that train, thinking or calls that do not",
    ),
    (
        "prompts are prefixes",
        _prompts_are_prefixes,
        "thinking taken out of earlier turns, a system turn that only the finished conversation has",
    ),
    (
        "serving is training",
        _serving_is_training,
        "tools or thinking that training renders otherwise, messages rendered one by one",
    ),
)

RELATIONS = (
    Relation(
        id="R16.conversations",
        name="conversations",
        component="conversations",
        statement="System turns, tools and thinking are served as they are trained; answers train, and nothing else.",
        catalogue=("SB001", "SB005", "SB006", "SB010", "SB021", "SB024", "SB030", "SB032", "SB037"),
        cost="CPU, milliseconds",
        laws=(
            *(
                Law(
                    name=f"{name}, {described}",
                    make=_make(kind),
                    measure=measure,
                    excluded=_lacks(kind),
                    suspects=suspects,
                )
                for kind, described in DESCRIBED.items()
                for name, measure, suspects in MEASURES
            ),
            Law(
                name="end tokens train where padding is the end token",
                make=_make("plain"),
                measure=_end_trains,
                excluded=lambda stack: None if stack.pad_id == stack.eos_id else "pad_id is not eos_id",
                suspects="a mask made by comparing ids with the pad id",
            ),
            Law(
                name="a longer row is cut",
                make=_make("plain"),
                measure=_cut_is_a_part,
                excluded=lambda stack: None if stack.conversation_keeps else "conversation_keeps=None",
                suspects="ids cut without their mask, from the other side, or after padding",
            ),
        ),
    ),
)
