"""Measure which planted faults a trial sees that executes them.

    python benchmarks/plants_by_trials.py CHOICES.toml --output SEEN.json [--minutes M] [ID ...]

CHOICES.toml, such as `plants_by_trials.toml`, names for each plant the trial that executes its fault, chosen before
anything runs:

    [cosine-of-a-quarter-turn]
    trial = "grpo-smoke"
    options = "own"

`options` are overrides: `own` takes the plant's own, a table names others, and without it the trial runs its recipe as
it is. A fault is seen where a verdict fails that does not fail on the sound stack under the same overrides. Where the
sound stack refuses the overrides, both run without them. A plant without a trial is left out, and listed as `none`.
"""

from __future__ import annotations

import argparse
import json
import tempfile
import time
import tomllib
from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

from seatrial.evidence.identity.redaction import Redactor
from seatrial.faults.launch import entry
from seatrial.faults.plant import Plant, all_plants
from seatrial.faults.verify import Bench
from seatrial.targets.reference.target import ReferenceTarget
from seatrial.trials.plan import select_trials
from seatrial.trials.rundir import RunDirectory
from seatrial.trials.runner import Request, new_results, run_trials
from seatrial.verdict import Outcome

SECONDS = 300.0
"""Time limit of each command of a trial."""
LEFT_OUT = ("policy.model_name",)
"""Options that a trial sets itself."""


def words_of(options: Mapping[str, Any], places: Mapping[str, str]) -> tuple[str, ...]:
    """Return options as `a.b=value` words, with the places that they name in braces."""
    words = []
    for key, value in options.items():
        text = value if isinstance(value, str) else json.dumps(value)
        for name, place in places.items():
            text = text.replace("{" + name + "}", place)
        if key not in LEFT_OUT:
            words.append(f"{key}={text}")
    return tuple(words)


class Said(NamedTuple):
    """What a trial says."""

    outcome: str
    """`fail`, `pass` or `blocked`."""
    first: str
    """The first verdict that is not a pass, with its reason."""
    failed: tuple[str, ...]
    """Names of the verdicts that fail."""


@cache
def run(trial: str, overrides: tuple[str, ...], fault_id: str | None) -> Said:
    """Return what a trial says of the stack with a fault, or without one."""
    request = Request(
        trials=select_trials(None, [trial]),
        words=trial,
        seed=0,
        overrides=overrides,
        timeout_seconds=SECONDS,
    )
    target = ReferenceTarget() if fault_id is None else ReferenceTarget(entry=entry(fault_id))
    with tempfile.TemporaryDirectory() as folder, RunDirectory.create(Path(folder), target.name) as directory:
        results = new_results(directory, target, request, Redactor())
        run_trials(directory, results, target, request, lambda text: None)
    (result,) = results.requested_trials()
    failed = [verdict for verdict in result.verdicts if verdict.outcome is Outcome.FAIL]
    blocked = [verdict for verdict in result.verdicts if verdict.outcome is Outcome.BLOCKED]
    word = "fail" if failed else "blocked" if blocked else "pass"
    first = next((f"{verdict.name}: {verdict.reason}" for verdict in failed or blocked), "")
    return Said(word, first, tuple(verdict.name for verdict in failed))


def measure(plant: Plant, choice: Mapping[str, Any], places: Mapping[str, str]) -> dict[str, Any]:
    """Return what the chosen trial says of a plant, and of the sound stack under the same overrides."""
    trial, options = choice["trial"], choice.get("options", {})
    overrides = words_of(plant.options if options == "own" else options, places)
    sound, refused = run(trial, overrides, None), ""
    if sound.outcome == "blocked" and overrides:
        refused, overrides = sound.first, ()
        sound = run(trial, overrides, None)
    faulty = Said("not run", "", ()) if sound.outcome == "blocked" else run(trial, overrides, plant.id)
    return {
        "trial": trial,
        "overrides": [word[:200] for word in overrides],
        "refused": refused,
        "sound": sound,
        "faulty": faulty,
        "seen": not {*faulty.failed} <= {*sound.failed},
    }


def main(argv: Sequence[str] | None = None) -> int:
    """Measure the named plants, or all that have a choice; what is measured already is left alone."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("choices", type=Path)
    parser.add_argument("--output", type=Path, required=True)
    parser.add_argument("--minutes", type=float, default=60.0, help="begin no plant after so long")
    parser.add_argument("ids", nargs="*", metavar="ID")
    arguments = parser.parse_intermixed_args(argv)
    choices = tomllib.loads(arguments.choices.read_text(encoding="utf-8"))
    unknown = [name for name in arguments.ids if name not in choices]
    if unknown:
        parser.error(f"{arguments.choices} has no choice for {', '.join(unknown)}: name plants that it lists")
    plants = {plant.id: plant for plant in all_plants()}
    found = json.loads(arguments.output.read_text()) if arguments.output.exists() else {}
    started = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="trials-") as folder:
        places = Bench(Path(folder)).places
        for name in arguments.ids or choices:
            if time.monotonic() - started > 60 * arguments.minutes:
                break
            if name in found or choices[name]["trial"] == "none":
                continue
            found[name] = measure(plants[name], choices[name], places)
            arguments.output.write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")
            print(
                name,
                "seen" if found[name]["seen"] else "NOT SEEN",
                found[name]["faulty"].first[:120],
                flush=True,
            )
    print(f"{sum(one['seen'] for one in found.values())} of {len(found)} seen by their trial")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
