"""R18 of the whole run: every option reaches what it is named for, and nothing else in the first step."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

from seatrial.relations.law import Law, Measure, Relation
from seatrial.relations.records.evidence import evidence, same
from seatrial.relations.records.run import RunOption, RunRecord
from seatrial.relations.runs import run_as_given


@dataclass(frozen=True, kw_only=True)
class OptionsCase:
    """The options to change."""

    names: tuple[str, ...]
    seed: int

    def smaller(self) -> Iterator[OptionsCase]:
        """Yield one option at a time."""
        if len(self.names) > 1:
            for name in self.names:
                yield replace(self, names=(name,))

    def describe(self) -> Mapping[str, Any]:
        """Return the options."""
        return {"options": list(self.names), "seed": self.seed}


def _make(stack: Any, seed: int, tidy: bool) -> OptionsCase:
    return OptionsCase(names=tuple(sorted(stack.run_options())), seed=seed)


def _pair(stack: Any, case: OptionsCase, name: str) -> tuple[RunOption, list[RunRecord]]:
    """Return an option with the runs of its two values; where a value is the stack's own the run is shared."""
    option: RunOption = stack.run_options()[name]
    runs = []
    for value in option.values:
        chosen = {**option.needs, name: value}
        plain = run_as_given(stack, {}, case.seed)
        own = all(key in plain.options and same(plain.options[key], chosen[key]) for key in chosen)
        runs.append(plain if own else run_as_given(stack, chosen, case.seed))
    return option, runs


def _reaches(stack: Any, case: OptionsCase) -> Measure:
    dead = []
    for name in case.names:
        option, (one, other) = _pair(stack, case, name)
        dead += [
            f"{name} does not reach {what}"
            for what in option.reaches
            if same(evidence(one, what, first=False), evidence(other, what, first=False))
        ]
    return _count(dead, "options without their effect")


def _spares(stack: Any, case: OptionsCase) -> Measure:
    reached = []
    for name in case.names:
        option, (one, other) = _pair(stack, case, name)
        reached += [
            f"{name} reaches {what}"
            for what in option.spares
            if not same(evidence(one, what, first=True), evidence(other, what, first=True))
        ]
    return _count(reached, "options that change in the first step what they must not")


def _is_effective(stack: Any, case: OptionsCase) -> Measure:
    """The value in force is the value that was asked for, whatever other options are set."""
    wrong = []
    for name in case.names:
        option, runs = _pair(stack, case, name)
        wrong += [
            f"{name}={value!r} became {record.options.get(name)!r}"
            for value, record in zip(option.values, runs, strict=True)
            if not same(_plain(record.options.get(name)), _plain(value))
        ]
    return _count(wrong, "options in force that are not those asked for")


def _misspelt_is_refused(stack: Any, case: OptionsCase) -> Measure:
    accepted = []
    for name in case.names:
        try:
            stack.short_run({f"{name}x": 1}, seed=case.seed)
        except Exception:  # noqa: BLE001  how a stack refuses an option is its own affair
            continue
        accepted.append(f"{name}x")
    return _count(accepted, "options that do not exist and are accepted")


def _plain(value: Any) -> Any:
    return tuple(value) if isinstance(value, list | tuple) else value


def _count(wrong: list[str], what: str) -> Measure:
    return Measure(error=float(len(wrong)), bound=0, what=f"{what} ({'; '.join(wrong[:8]) or 'none'})")


RELATIONS = (
    Relation(
        id="R18.run",
        name="options-reach-what-they-name",
        component="run",
        statement="Two values of an option make two runs that differ where the option says, and nowhere before.",
        catalogue=(
            "SB020", "SB035", "SB061", "SB077", "SB088", "SB120", "SB122", "SB147", "SB163", "SB166", "SB188", "SB194",
            "SB225", "SB226", "SB278", "SB316", "SB374", "SB397",
        ),
        cost="CPU, about a minute",
        laws=(
            Law(
                name="the value asked for is in force",
                make=_make,
                measure=_is_effective,
                seeded=False,
                suspects="a default that overrides it, a key of another section, a value coerced to another",
            ),
            Law(
                name="a misspelt option is refused",
                make=_make,
                measure=_misspelt_is_refused,
                seeded=False,
                suspects="a schema that takes any key",
            ),
            Law(
                name="an option has its effect",
                make=_make,
                measure=_reaches,
                seeded=False,
                suspects="a key that nothing reads, a constant at the place where the part is built",
            ),
            Law(
                name="an option has no other effect",
                make=_make,
                measure=_spares,
                seeded=False,
                suspects="two options swapped, a random stream that depends on the configuration",
            ),
        ),
    ),
)  # fmt: skip
