"""Which options of a trainer's configuration a law would see ignored, for the installed release.

An option is covered if a setup sets it to another value than the release's default, and a law of that setup broke when
the trainer did not get it: `measured.json` says which law, `dropping` measures it. Options in `scope.yaml` are out of
scope with a reason. Every other one is uncovered, so that an option of a new release appears as such.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, Literal

from seatrial.strict_yaml import read_yaml
from seatrial.targets.common.target import release
from seatrial.targets.trl.setup import Setup

HERE = Path(__file__).parent
MEASURED = HERE / "measured.json"
State = Literal["covered", "uncovered", "out of scope"]


@dataclass(frozen=True, kw_only=True)
class Option:
    """An option of a configuration."""

    trainer: str
    name: str
    state: State
    reason: str
    """The setup with the law that sees the option ignored; or why no law is meant to, or does."""


def option_table(trainers: Iterable[str] = ()) -> list[Option]:
    """Return every option of the installed release's configurations.

    Args:
        trainers: names of classes without `Trainer`; all that have setups for none.
    """
    from seatrial.targets.common.target import Gone
    from seatrial.targets.trl.preferences import find_trainer
    from seatrial.targets.trl.setups.listed import SETUPS

    names = list(trainers) or list(dict.fromkeys(setup.trainer for setup in SETUPS.values()))
    found: list[Option] = []
    for name in names:
        try:
            _, config = find_trainer(name)
        except Gone:
            continue
        found += options_of(name, config, SETUPS, measured()["trainers"].get(name, {}))
    return found


def options_of(
    trainer: str, config: type, setups: Mapping[str, Setup], seen: Mapping[str, Mapping[str, Any]]
) -> Iterator[Option]:
    """Yield the options of a configuration class.

    Args:
        trainer: name of the trainer's class without `Trainer`.
        config: a dataclass.
        setups: by name.
        seen: by option what was measured: a setup, and the law that broke there when the option was dropped, or None.
    """
    out_of_scope = reasons()
    for name, default in defaults(config).items():
        entry = seen.get(name, {})
        setup = setups.get(entry.get("setup", ""))
        state: State = "uncovered"
        reason = _unmeasured(trainer, name, default, setups)
        if name in out_of_scope:
            state, reason = "out of scope", out_of_scope[name]
        elif setup is not None and name in values_of(setup):
            if values_of(setup)[name] == default:
                reason = f"{entry['setup']} sets it to this release's default"
            elif entry["law"]:
                state, reason = "covered", f"{entry['setup']}: {entry['law']}"
            else:
                reason = f"{entry['setup']} sets it, and no law sees it dropped"
        yield Option(trainer=trainer, name=name, state=state, reason=reason)


def _unmeasured(trainer: str, name: str, default: Any, setups: Mapping[str, Setup]) -> str:
    """Return why an option that was not measured is uncovered."""
    for setup_name, setup in setups.items():
        if setup.trainer == trainer and values_of(setup).get(name, default) != default:
            return f"{setup_name} sets it; not yet measured"
    return "no setup sets it"


def defaults(config: type) -> dict[str, Any]:
    """Return the default of each option of a configuration class; what a factory makes is None."""
    return {
        item.name: None if item.default is dataclasses.MISSING else item.default
        for item in dataclasses.fields(config)
        if item.init
    }


def values_of(setup: Setup) -> dict[str, Any]:
    """Return what a setup's runs set, plans included."""
    from seatrial.relations.contracts.trainers import TrainerPlan
    from seatrial.targets.trl.planned import intended_options

    plan = TrainerPlan(num_rows=8 if setup.samples else 4, eval_steps=1)
    return intended_options(setup, plan)


@cache
def reasons() -> dict[str, str]:
    """Return the reason of each option that is out of scope."""
    groups: Any = read_yaml(HERE / "scope.yaml", "reasons")
    return {name: group["reason"] for group in groups for name in group["options"]}


@cache
def measured() -> dict[str, Any]:
    """Return what was measured by dropping options, and with which releases."""
    found: dict[str, Any] = json.loads(MEASURED.read_text(encoding="utf-8"))
    return found


def share(options: Iterable[Option]) -> tuple[int, int]:
    """Return how many options are covered, and how many are relevant for training."""
    relevant = [one for one in options if one.state != "out of scope"]
    return sum(one.state == "covered" for one in relevant), len(relevant)


def lines(options: list[Option]) -> Iterator[str]:
    """Yield the table for a console."""
    yield f"trl {release('trl')}; dropped options were measured with trl {measured()['releases']['trl']}"
    for trainer in dict.fromkeys(one.trainer for one in options):
        own = [one for one in options if one.trainer == trainer]
        covered, relevant = share(own)
        yield ""
        yield f"{trainer}: {covered} of {relevant} relevant options are covered; {len(own) - relevant} are out of scope"
        for one in sorted(own, key=lambda one: ORDER.index(one.state)):
            yield f"  {one.state:<13} {one.name:<38} {one.reason}"


def page(options: list[Option]) -> str:
    """Return the page docs/evidence/options.md."""
    rows = []
    for trainer in dict.fromkeys(one.trainer for one in options):
        own = [one for one in options if one.trainer == trainer]
        covered, relevant = share(own)
        rows.append(
            f"| `{trainer}Config` | {covered} | {relevant} | {100 * covered / relevant:.0f} % | {len(own) - relevant} |"
        )
    parts = [HEAD.format(trl=release("trl"), transformers=release("transformers")), "\n".join(rows)]
    for trainer in dict.fromkeys(one.trainer for one in options):
        parts.append(f"\n\n## {trainer}Config\n\n| option | state | seen by, or reason |\n|---|---|---|\n")
        own = [one for one in options if one.trainer == trainer and one.state != "out of scope"]
        parts.append(
            "\n".join(f"| `{one.name}` | {one.state} | {one.reason} |" for one in sorted(own, key=_key))
        )
    groups: Any = read_yaml(HERE / "scope.yaml", "reasons")
    known = {one.name for one in options}
    parts.append("\n\n## Out of scope\n\n| reason | options |\n|---|---|\n")
    parts.append(
        "\n".join(
            f"| {group['reason']} | {', '.join(f'`{name}`' for name in group['options'] if name in known)} |"
            for group in groups
        )
    )
    return "".join(parts) + "\n"


def _key(option: Option) -> tuple[int, str]:
    return ORDER.index(option.state), option.name


ORDER: tuple[State, ...] = ("uncovered", "covered", "out of scope")
HEAD = """# Options of TRL's trainers

`seatrial relations --target trl --options` prints this table for the installed release. It was drawn for TRL {trl} with
Transformers {transformers} by `python -m seatrial.targets.trl.options.table`.

An option is **covered** if a setup of [whole trainers](releases.md) sets it to another value than its default and a law
of that setup breaks when the trainer does not get the option: the table names the setup and the first law that breaks.
An option is **uncovered** if no setup sets it, or if no law sees it dropped. An option that a new release adds is
uncovered until a setup sets it. Options that cannot change what is trained or reported are out of scope, each with a
reason; an inherited option of `TrainingArguments` counts for each trainer apart.

| configuration | covered | relevant | share | out of scope |
|---|---|---|---|---|
"""


if __name__ == "__main__":
    print(page(option_table()), end="")
