"""R31.chats: functions of conversations write each turn once, where it belongs, in records of every form."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from seatrial.relations.law import Measure, Relation
from seatrial.relations.laws.utilities.numbers import Numbers, numbers, without
from seatrial.relations.laws.utilities.records import random_words

CHATS = Relation(
    id="R31.chats",
    name="functions-of-conversations-keep-turns",
    component="utilities",
    statement="Conversations become the template's texts, forms of records are recognised, and no turn is lost.",
    cost="CPU, milliseconds",
    cases=numbers,
)
TEMPLATE = (
    "{% for tool in tools or [] %}{{ '@' + tool['function']['name'] }}{% endfor %}"
    "{% for message in messages %}{{ '(' + message['role'] + ':' + message['content'] + (mark or '') + ')' }}"
    "{% endfor %}"
    "{% if add_generation_prompt %}{{ '(assistant:' }}{% endif %}"
)
"""With a variable `mark` of a record's own, and the names of tools."""
Turn = Mapping[str, str]


def _turn(role: str, content: str) -> Turn:
    return {"role": role, "content": content}


def _written(turns: Sequence[Turn], mark: str) -> str:
    return "".join(f"({one['role']}:{one['content']}{mark})" for one in turns)


def _records(case: Numbers, marks: Sequence[str]) -> list[tuple[dict[str, Any], dict[str, Any]]]:
    """Return records of every form, with the texts that are due."""
    found: list[tuple[dict[str, Any], dict[str, Any]]] = []
    a, b, c, d, e, f = (f"{word}{place}" for place, word in enumerate(random_words(case, 6)))
    short = [_turn("user", a)]
    long = [_turn("system", b), _turn("user", a), _turn("assistant", c), _turn("user", d)]
    answer, other = [_turn("assistant", e)], [_turn("assistant", f)]
    turns = [_turn("assistant", e), _turn("user", f), _turn("assistant", b)]
    for prompt in (short, long):
        for mark in marks:
            own = {"chat_template_kwargs": {"mark": mark}} if mark else {}
            asked = _written(prompt, mark) + "(assistant:"
            answers = {"e": f"{e}{mark})", "f": f"{f}{mark})"}
            several = _written(turns, mark).removeprefix("(assistant:")
            found += [
                ({"messages": [*prompt, *answer], **own}, {"text": _written([*prompt, *answer], mark)}),
                ({"prompt": prompt, **own}, {"prompt": asked}),
                ({"prompt": [*prompt, *answer], **own}, {"prompt": f"{asked}{e}"}),
                (
                    {"prompt": prompt, "completion": answer, **own},
                    {"prompt": asked, "completion": answers["e"]},
                ),
                ({"prompt": prompt, "completion": turns, **own}, {"prompt": asked, "completion": several}),
                (
                    {"prompt": prompt, "completion": answer, "label": False, **own},
                    {"prompt": asked, "completion": answers["e"], "label": False},
                ),
                (
                    {"prompt": prompt, "chosen": answer, "rejected": other, **own},
                    {"prompt": asked, "chosen": answers["e"], "rejected": answers["f"]},
                ),
                (
                    {"chosen": [*prompt, *answer], "rejected": [*prompt, *other], **own},
                    {
                        "chosen": _written([*prompt, *answer], mark),
                        "rejected": _written([*prompt, *other], mark),
                    },
                ),
            ]
    return found


@CHATS.law(
    "texts of a template",
    "a prompt without its opening, an answer with the prompt's end",
    marks=("",),
    excluded=without("apply template"),
)
@CHATS.law(
    "texts of a template with variables of a record's own",
    "a record's own variables lost, in one of its texts or in all",
    marks=("+",),
    excluded=without("apply template"),
)
def records_are_written_by_the_template(stack: Any, case: Numbers, marks: Sequence[str]) -> Measure:
    """Compare the texts of records of every form with those that the template writes for the whole conversation."""
    wrong = []
    for record, due in _records(case, marks):
        given = stack.utilities["apply template"](record, TEMPLATE, ())
        kept = {name: given.get(name) for name in due}
        if kept != due:
            wrong.append(f"{sorted(record)}: {kept}, and not {due}")
    return Measure.count(wrong, "records with other texts")


@CHATS.law(
    "tools of a template",
    "tools in one of the record's texts alone, no tools",
    excluded=without("apply template"),
)
def tools_are_written_once(stack: Any, case: Numbers) -> Measure:
    """Check that the names of tools precede the conversation of each form, and no tools write nothing."""
    (word,) = random_words(case, 1)
    turns, answer = [_turn("user", word)], [_turn("assistant", "yes")]
    wrong = []
    for names in (("look", "find"), ()):
        head = "".join(f"@{name}" for name in names)
        whole = stack.utilities["apply template"]({"messages": turns + answer}, TEMPLATE, names)
        pair = stack.utilities["apply template"]({"prompt": turns, "completion": answer}, TEMPLATE, names)
        wrong += [] if whole["text"] == head + _written(turns + answer, "") else [f"messages: {whole}"]
        due = (f"{head}(user:{word})(assistant:", "yes)")
        wrong += [] if (pair["prompt"], pair["completion"]) == due else [f"prompt and completion: {pair}"]
    return Measure.count(wrong, "texts with other tools")


@CHATS.law("turns by other names", "a turn left as it was, a column lost", excluded=without("to messages"))
def turns_get_their_names(stack: Any, case: Numbers) -> Measure:
    """Convert turns with `from` and `value` in every column; others stay."""
    a, b = random_words(case, 2)
    former = [{"from": "user", "value": a}, {"from": "assistant", "value": b}]
    present = [_turn("user", a), _turn("assistant", b)]
    table: list[tuple[dict[str, Any], dict[str, Any]]] = [
        ({"conversations": former, "source": "x"}, {"messages": present, "source": "x"}),
        ({"messages": former}, {"messages": present}),
        (
            {"prompt": former[:1], "completion": former[1:]},
            {"prompt": present[:1], "completion": present[1:]},
        ),
        ({"chosen": former, "rejected": former}, {"chosen": present, "rejected": present}),
        ({"messages": present}, {"messages": present}),
        ({"text": a}, {"text": a}),
    ]
    wrong = []
    for record, due in table:
        own = {
            name: [dict(one) for one in value] if isinstance(value, list) else value
            for name, value in record.items()
        }
        given = stack.utilities["to messages"](own)
        wrong += [] if given == due else [f"{record}: {given}"]
    return Measure.count(wrong, "records that are converted otherwise")


@CHATS.law(
    "form of a record", "a text taken for turns, turns by other names", excluded=without("is conversational")
)
def form_is_recognised(stack: Any, case: Numbers) -> Measure:
    """Compare with a table of records."""
    (word,) = random_words(case, 1)
    turns = [_turn("user", word)]
    table: list[tuple[dict[str, Any], bool]] = [
        *(({name: turns}, True) for name in ("prompt", "chosen", "rejected", "completion", "messages")),
        *(({name: word}, False) for name in ("prompt", "chosen", "rejected", "completion", "messages")),
        ({"prompt": turns, "completion": turns, "label": True}, True),
        ({"text": word}, False),
        ({"prompt": [{"from": "user", "value": word}]}, False),
    ]
    wrong = [
        f"{record}: {not due}" for record, due in table if stack.utilities["is conversational"](record) != due
    ]
    return Measure.count(wrong, "records taken for another form")


@CHATS.law(
    "prompt of a pair, where it has none of its own",
    "a prompt taken out twice, one of another form kept",
    excluded=without("own prompt"),
)
def own_prompt_is_kept(stack: Any, case: Numbers) -> Measure:
    """Compare pairs with a prompt of their own, with one of another form, and with none."""
    a, b, c = random_words(case, 3)
    asked = [_turn("user", a)]
    yes, no = [_turn("assistant", b + "0")], [_turn("assistant", c + "1")]
    taken = {"prompt": asked, "chosen": yes, "rejected": no}
    table: list[tuple[dict[str, Any], dict[str, Any]]] = [
        ({"chosen": asked + yes, "rejected": asked + no}, taken),
        ({"prompt": a, "chosen": asked + yes, "rejected": asked + no}, taken),
        (taken, taken),
        ({"prompt": a, "chosen": b, "rejected": c}, {"prompt": a, "chosen": b, "rejected": c}),
        ({"prompt": a, "completion": b}, {"prompt": a, "completion": b}),
    ]
    wrong = []
    for record, due in table:
        given = stack.utilities["own prompt"](record)
        wrong += [] if {name: given.get(name) for name in due} == due else [f"{record}: {given}"]
    return Measure.count(wrong, "pairs with another prompt")
