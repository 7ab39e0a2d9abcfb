"""R18 of configured parts: names are exact, sizes divide, options of custom parts arrive as given."""

from __future__ import annotations

import random
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from seatrial.relations.cases.case import Case
from seatrial.relations.contracts.parts import OWN_DEFAULTS
from seatrial.relations.law import Measure, Relation
from seatrial.relations.not_served import NotServed

EMPTY: Mapping[str, Any] = {"factor": 0.0, "count": 0, "on": False, "label": "", "places": []}
"""Values that a test for truth takes for missing."""
WRONG: tuple[Mapping[str, Any], ...] = (
    {"factr": 0.5},
    {"factor": "0.5"},
    {"count": 1.5},
    {"count": True},
    {"on": 1},
    {"label": 3},
    {"places": [0.5]},
    {"factor": None},
)
"""A misspelled name, and values of other types, some of which could be converted."""
TYPOS = 1


@dataclass(frozen=True, kw_only=True)
class PartsCase(Case):
    """A seed of typos, sizes and values."""

    seed: int


def _make(stack: Any, seed: int, tidy: bool) -> PartsCase:
    return PartsCase(seed=seed)


NAMES = Relation(
    id="R18.names",
    name="names-and-sizes-are-exact",
    component="named_parts",
    statement="A configuration accepts the documented names and no others, and sizes that make whole updates.",
    catalogue="SB020 SB112 SB188",
    cost="CPU, a second",
    cases=_make,
)

OWN = Relation(
    id="R18.own",
    name="custom-parts-get-their-options",
    component="own_parts",
    statement="A custom part gets its options as they were given, and no others.",
    catalogue="SB020 SB075 SB188",
    cost="CPU, milliseconds",
    cases=_make,
)


@NAMES.law("names are accepted", "a name that a rename missed", seeded=False)
def names_are_accepted(stack: Any, case: PartsCase) -> Measure:
    """Check that every name of the manual is accepted."""
    wrong = [
        f"{option}={name}"
        for option, names in stack.names_of_parts().items()
        for name in names
        if not stack.takes({option: name})
    ]
    return Measure.count(wrong, "documented names that are refused")


@NAMES.law("typos are refused", "the nearest name accepted, names compared without case")
def typos_are_refused(stack: Any, case: PartsCase) -> Measure:
    """Check that a misspelled name is refused."""
    stream = random.Random(case.seed)
    wrong = [
        f"{option}={slip!r}"
        for option, names in stack.names_of_parts().items()
        for name in names
        for slip in typos(name, stream)
        if slip not in names and stack.takes({option: slip})
    ]
    return Measure.count(wrong, "misspelled names that are accepted")


def typos(name: str, stream: random.Random) -> list[str]:
    """Return a name with one typo each: a letter lost, doubled or exchanged, a capital, a space at the end."""
    found = []
    for _ in range(TYPOS):
        at = stream.randrange(len(name))
        kind = stream.choice(("lost", "doubled", "exchanged", "capital", "space"))
        found.append(
            {
                "lost": name[:at] + name[at + 1 :],
                "doubled": name[: at + 1] + name[at:],
                "exchanged": name[:at] + name[at : at + 2][::-1] + name[at + 2 :],
                "capital": name[:at] + name[at:].capitalize(),
                "space": f"{name} ",
            }[kind]
        )
    return [slip for slip in found if slip != name]


@NAMES.law("sizes that do not divide", "a smaller last update, rows left over")
def sizes_must_divide(stack: Any, case: PartsCase) -> Measure:
    """Check that sizes are accepted exactly if the rows of a step make whole updates."""
    stream = random.Random(case.seed)
    wrong = []
    for _ in range(6):
        prompts, copies = stream.randint(1, 5), stream.randint(2, 5)
        rows = prompts * copies
        update = stream.choice([size for size in range(1, rows + 3) if rows % size or stream.random() < 0.5])
        options = {
            "grpo.num_prompts_per_step": prompts,
            "grpo.num_generations_per_prompt": copies,
            "policy.train_global_batch_size": update,
            "policy.train_micro_batch_size": 1,
        }
        taken = stack.takes(options)
        if taken != (rows % update == 0):
            wrong.append(
                f"{prompts} x {copies} rows in updates of {update} are {'accepted' if taken else 'refused'}"
            )
    return Measure.count(wrong, "sizes that do not divide and are accepted, or the reverse")


@OWN.law("options arrive", "a test for truth in place of None, options not passed on")
def options_arrive(stack: Any, case: PartsCase) -> Measure:
    """Check that options arrive unchanged, also zero, false and empty ones; missing ones have their defaults."""
    stream = random.Random(case.seed)
    drawn: dict[str, Any] = {
        "factor": stream.uniform(-2, 2),
        "count": stream.randint(-9, 9),
        "on": stream.random() < 0.5,
    }
    drawn |= {"label": stream.choice(("a b", "0", "ä")), "places": [stream.randint(0, 3) for _ in range(3)]}
    given = [{}, EMPTY, drawn, *({name: value} for name, value in EMPTY.items())]
    wrong = []
    for kind in stack.own_kinds():
        for options in given:
            got, due = dict(stack.options_of_own_part(kind, options)), {**OWN_DEFAULTS, **options}
            if got != due or any(type(got[name]) is not type(value) for name, value in due.items()):
                wrong.append(f"{kind} given {dict(options)}: {got}")
    return Measure.count(wrong, "custom parts whose options are not those given")


@OWN.law("wrong options are refused", "types converted silently", seeded=False)
def wrong_options_are_refused(stack: Any, case: PartsCase) -> Measure:
    """Check that unknown options, and values of another type, are refused."""
    taken = []
    for kind in stack.own_kinds():
        for options in WRONG:
            try:
                got = stack.options_of_own_part(kind, options)
            except NotServed:
                continue
            taken.append(f"{kind} given {dict(options)}: {dict(got)}")
    return Measure.count(taken, "unknown options, or options of another type, that are accepted")
