"""R31.continuous: tokens of a rollout that continues turn by turn are those of its template, masks those of answers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from seatrial.relations.cases.token_forms import FORMS, Message, TokenForm
from seatrial.relations.contracts.utilities import Continued
from seatrial.relations.law import Excluded, Measure
from seatrial.relations.laws.utilities.numbers import Numbers, without
from seatrial.relations.laws.utilities.plain import relation_of

CONTINUOUS = relation_of(
    "continuous",
    "turns-one-by-one-are-the-template-of-all",
    "After each turn the tokens are those of the template for all messages, and the mask has the model's own.",
)


Step = tuple[str, list[Message]]
"""An answer of the model, without its last token, and the messages that follow it."""


def _message(role: str, content: str) -> Message:
    return {"role": role, "content": content}


USER, SYSTEM = _message("user", "What is it?"), _message("system", "Be brief.")
SUNNY, RAIN = _message("tool", "sunny in Bern"), _message("tool", "rain <b>\nin Chur")
EPISODES: Mapping[str, tuple[list[Message], list[Step]]] = {
    "a tool": ([USER], [("I look.", [SUNNY])]),
    "two tools at once, then one": ([SYSTEM, USER], [("I look.", [SUNNY, RAIN]), ("Again.", [RAIN])]),
    "the user again": (
        [SYSTEM, USER],
        [("Sunny.", [_message("user", "Sure?")]), ("Yes.", [_message("user", "Why?")])],
    ),
    "a tool, then the user": ([USER], [("I look.", [SUNNY]), ("Sunny.", [_message("user", "Sure?")])]),
    "a tool and the user at once": ([USER], [("I look.", [SUNNY, _message("user", "Continue.")])]),
}


def _wrong(
    form: TokenForm, first: list[Message], steps: Sequence[Step], found: Sequence[Continued]
) -> list[str]:
    messages = list(first)
    answered, wrong = "", []
    if found[0].text != form.write(messages, True):
        wrong.append(f"the first prompt is {found[0].text!r}")
    for number, ((answer, following), given) in enumerate(zip(steps, found[1:], strict=True), 1):
        messages += [_message("assistant", answer), *following]
        stop = form.stops[following[0]["role"]]
        answered += answer + ("" if form.stop_is_next else stop)
        due = form.write(messages, True)
        if given.text != due:
            wrong.append(f"after turn {number} {given.text!r}, {due!r} is right")
        if given.answered != answered:
            wrong.append(f"after turn {number} the mask has {given.answered!r}, {answered!r} is right")
        if len(given.logprobs) != len(given.mask):
            wrong.append(
                f"after turn {number} {len(given.mask)} of a mask, {len(given.logprobs)} log-probabilities"
            )
        elif any((value != 0.0) != bool(on) for value, on in zip(given.logprobs, given.mask, strict=True)):
            wrong.append(f"after turn {number} log-probabilities are not at the tokens that were answered")
        elif (own := [value for value in given.logprobs if value]) != sorted(own, reverse=True):
            wrong.append(f"after turn {number} log-probabilities are in another order")
    return wrong


def _without(name: str) -> Excluded:
    def excluded(stack: Any) -> str | None:
        missing: str | None = without("continued tokens")(stack)
        if missing or name in stack.utilities["continued forms"]():
            return missing
        return f"no builder of the form {name!r}"

    return excluded


def turns_are_those_of_the_template(stack: Any, case: Numbers, family: str) -> Measure:
    """Compare text, mask and order of log-probabilities after each turn."""
    form, wrong = FORMS[family], []
    for what, (first, steps) in EPISODES.items():
        answers = [
            (answer + form.stops[following[0]["role"]], answer, following) for answer, following in steps
        ]
        found = stack.utilities["continued tokens"](family, form.special, form.template, first, answers)
        wrong += [f"{what}: {one}" for one in _wrong(form, first, steps, found)]
    return Measure.count(wrong, f"turns of {family!r} that are continued otherwise")


for _name in FORMS:
    CONTINUOUS.law(
        f"turns one by one, {_name}",
        "the break after a turn lost or twice, a stop token that begins the next turn twice, a mask moved by one",
        excluded=_without(_name),
        family=_name,
    )(turns_are_those_of_the_template)
