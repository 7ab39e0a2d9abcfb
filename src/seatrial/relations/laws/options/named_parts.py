"""R18 of what a configuration names: names are exact, sizes fit, options of own parts arrive as they were given."""

from __future__ import annotations

import random
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from seatrial.relations.contracts.parts import OWN_DEFAULTS
from seatrial.relations.law import Law, Measure, Relation
from seatrial.relations.not_served import NotServed

EMPTY: Mapping[str, Any] = {"factor": 0.0, "count": 0, "on": False, "label": "", "places": []}
"""Values that a careless test takes for none."""
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
"""A name with a slip, and values of other types, of which some could be converted."""
SLIPS = 1


@dataclass(frozen=True, kw_only=True)
class PartsCase:
    """A seed of slips, sizes and values."""

    seed: int

    def smaller(self) -> Iterator[PartsCase]:
        """Nothing is smaller."""
        return iter(())

    def describe(self) -> Mapping[str, Any]:
        """Return the seed."""
        return {"seed": self.seed}


def _make(stack: Any, seed: int, tidy: bool) -> PartsCase:
    return PartsCase(seed=seed)


def _count(wrong: Sequence[str], what: str) -> Measure:
    return Measure(error=float(len(wrong)), bound=0, what=f"{what} ({'; '.join(wrong[:3]) or 'none'})")


def slips(name: str, stream: random.Random) -> list[str]:
    """Return a name with one slip each: a letter lost, doubled or exchanged, a capital, a space at the end."""
    found = []
    for _ in range(SLIPS):
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


def _names_are_taken(stack: Any, case: PartsCase) -> Measure:
    wrong = [
        f"{option}={name}"
        for option, names in stack.names_of_parts().items()
        for name in names
        if not stack.takes({option: name})
    ]
    return _count(wrong, "names of the manual that are refused")


def _slips_are_refused(stack: Any, case: PartsCase) -> Measure:
    stream = random.Random(case.seed)
    wrong = [
        f"{option}={slip!r}"
        for option, names in stack.names_of_parts().items()
        for name in names
        for slip in slips(name, stream)
        if slip not in names and stack.takes({option: slip})
    ]
    return _count(wrong, "names with a slip that are taken")


def _sizes(stack: Any, case: PartsCase) -> Measure:
    """The rows of a step make whole updates, or the sizes are refused."""
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
                f"{prompts} x {copies} rows in updates of {update} are {'taken' if taken else 'refused'}"
            )
    return _count(wrong, "sizes that do not fit and are taken, or the other way round")


def _options_arrive(stack: Any, case: PartsCase) -> Measure:
    """What is given arrives as it is, zero, false and empty values too; what is not given has its default."""
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
    return _count(wrong, "own parts whose options are not those given")


def _wrong_options_are_refused(stack: Any, case: PartsCase) -> Measure:
    taken = []
    for kind in stack.own_kinds():
        for options in WRONG:
            try:
                got = stack.options_of_own_part(kind, options)
            except NotServed:
                continue
            taken.append(f"{kind} given {dict(options)}: {dict(got)}")
    return _count(taken, "options that no own part has, or of another type, that are taken")


def _law(name: str, measure: Any, suspects: str, *, seeded: bool = True) -> Law:
    return Law(name=name, make=_make, measure=measure, suspects=suspects, seeded=seeded)


RELATIONS = (
    Relation(
        id="R18.names",
        name="names-and-sizes-are-exact",
        component="named_parts",
        statement="A configuration takes the names of the manual and no other, and sizes that make whole updates.",
        catalogue=("SB020", "SB112", "SB188"),
        cost="CPU, a second",
        laws=(
            _law("names are taken", _names_are_taken, "a name that a rename forgot", seeded=False),
            _law("slips are refused", _slips_are_refused, "the nearest name taken, names that are folded"),
            _law("sizes that do not divide", _sizes, "a last update that is smaller, rows left over"),
        ),
    ),
    Relation(
        id="R18.own",
        name="own-parts-get-their-options",
        component="own_parts",
        statement="A part of the user's own gets its options as they were given, and no others.",
        catalogue=("SB020", "SB075", "SB188"),
        cost="CPU, milliseconds",
        laws=(
            _law(
                "options arrive", _options_arrive, "a test for truth in place of None, options not handed on"
            ),
            _law(
                "wrong options are refused",
                _wrong_options_are_refused,
                "types converted in silence",
                seeded=False,
            ),
        ),
    ),
)
