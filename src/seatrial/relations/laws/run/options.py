"""R18.run: every option reaches what it is named for, and nothing else in the first step."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

from seatrial.relations.cases.case import Case
from seatrial.relations.law import Measure, Relation
from seatrial.relations.records.evidence import evidence, same
from seatrial.relations.records.run import RunOption, RunRecord
from seatrial.relations.runs import run_as_given


@dataclass(frozen=True, kw_only=True)
class OptionsCase(Case):
    """The options to change."""

    options: tuple[str, ...]
    seed: int

    def smaller(self) -> Iterator[OptionsCase]:
        """Yield one option at a time."""
        if len(self.options) > 1:
            for name in self.options:
                yield replace(self, options=(name,))


OPTIONS = Relation(
    id="R18.run",
    name="options-reach-what-they-name",
    component="run",
    statement="Two values of an option make two runs that differ where the option says, and nowhere before.",
    catalogue="SB020 SB035 SB061 SB077 SB088 SB120 SB122 SB147 SB163 SB166 SB188 SB194 SB225 SB226 SB278 SB316 SB374 "
    "SB397",
    cost="CPU, about a minute",
    cases=lambda stack, seed, tidy: OptionsCase(options=tuple(sorted(stack.run_options())), seed=seed),
    seeded=False,
)


def _pairs(stack: Any, case: OptionsCase) -> Iterator[tuple[str, RunOption, list[RunRecord]]]:
    """Yield each option with the runs of its two values; a run with the stack's own value is shared."""
    for name in case.options:
        option: RunOption = stack.run_options()[name]
        runs = []
        for value in option.values:
            chosen = {**option.needs, name: value}
            plain = run_as_given(stack, {}, case.seed)
            own = all(key in plain.options and same(plain.options[key], chosen[key]) for key in chosen)
            runs.append(plain if own else run_as_given(stack, chosen, case.seed))
        yield name, option, runs


def _count(wrong: list[str], what: str) -> Measure:
    """Count wrong options; the message lists several, since options break independently."""
    return Measure(error=len(wrong), bound=0, what=f"{what} ({'; '.join(wrong[:8]) or 'none'})")


@OPTIONS.law(
    "the configured value is effective",
    "a default that overrides it, a key of another section, a value coerced to another",
)
def configured_value_is_effective(stack: Any, case: OptionsCase) -> Measure:
    """Check that the effective value of every option is the configured one."""
    wrong = [
        f"{name}={value!r} became {record.options.get(name)!r}"
        for name, option, runs in _pairs(stack, case)
        for value, record in zip(option.values, runs, strict=True)
        if not same(as_tuple(record.options.get(name)), as_tuple(value))
    ]
    return _count(wrong, "effective options that are not the configured ones")


def as_tuple(value: Any) -> Any:
    """Return a list as a tuple, and anything else unchanged."""
    return tuple(value) if isinstance(value, list) else value


@OPTIONS.law("a misspelt option is refused", "a schema that takes any key")
def misspelt_option_is_refused(stack: Any, case: OptionsCase) -> Measure:
    """Check that an option that does not exist stops the run."""
    accepted = []
    for name in case.options:
        try:
            stack.short_run({f"{name}x": 1}, seed=case.seed)
        except Exception:  # noqa: BLE001  any exception is a refusal
            continue
        accepted.append(f"{name}x")
    return _count(accepted, "options that do not exist and are accepted")


@OPTIONS.law(
    "an option has its effect",
    "a key that nothing reads, a constant at the place where the part is built",
)
def option_has_its_effect(stack: Any, case: OptionsCase) -> Measure:
    """Check that two values of an option change the evidence that the option must reach."""
    wrong = [
        f"{name} does not reach {what}"
        for name, option, (one, other) in _pairs(stack, case)
        for what in option.reaches
        if same(evidence(one, what, first=False), evidence(other, what, first=False))
    ]
    return _count(wrong, "options without their effect")


@OPTIONS.law(
    "an option has no other effect",
    "two options swapped, a random stream that depends on the configuration",
)
def option_has_no_other_effect(stack: Any, case: OptionsCase) -> Measure:
    """Check that two values of an option leave the evidence of the first step that it must not reach."""
    wrong = [
        f"{name} reaches {what}"
        for name, option, (one, other) in _pairs(stack, case)
        for what in option.spares
        if not same(evidence(one, what, first=True), evidence(other, what, first=True))
    ]
    return _count(wrong, "options that change in the first step what they must not")
