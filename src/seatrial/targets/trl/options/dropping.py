"""Drops an option from a trainer's configuration and finds the law that sees it: `law_that_sees`.

    python -m seatrial.targets.trl.options.dropping [--trainer SFT] [--option packing] [--write]

The trainer then runs at the release's default while the laws expect the setup's value, as in a release that ignores
the option.
"""

from __future__ import annotations

import argparse
import json
import os
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from seatrial.files import write_text
from seatrial.relations.law import Law, Measure, Relation
from seatrial.relations.not_served import NotServed
from seatrial.targets.common.target import Gone, release
from seatrial.targets.trl.options.table import MEASURED, defaults, measured, reasons, values_of

RELATIONS = ("R12.whole", "R24.whole", "R10.whole", "R22.whole", "R23.whole", "R13.whole")
"""In the order in which they are tried."""
PACKAGES = ("trl", "transformers", "accelerate", "torch")


def law_that_sees(adapter: Any, option: str, first: str | None = None) -> str | None:
    """Return a law that breaks if the trainer does not get an option; None if every law holds.

    A law that the release is known to break anyway does not count. An exception ends the search as `raises ...`: such
    an option is not ignored silently, and neither is it seen by a law.

    Args:
        adapter: a whole trainer; its attribute `dropped` is set during the call.
        option: name of the option.
        first: the law to try before the others, as `RELATION/law name`.
    """
    from seatrial.relations.runs import RunCache, sharing_runs

    laws = sorted(_laws(adapter), key=lambda one: one[0].key(one[1]) != first)
    adapter.dropped = frozenset((option,))
    try:
        with sharing_runs(RunCache()):
            for relation, law in laws:
                try:
                    found = law.measure(adapter, law.make(adapter, 0, False))
                except NotServed:
                    continue
                except Exception as error:  # noqa: BLE001  reported as the result
                    return f"raises {type(error).__name__} in {relation.key(law)}"
                if isinstance(found, Measure) and not found.holds:
                    return relation.key(law)
    finally:
        adapter.dropped = frozenset()
    return None


def _laws(adapter: Any) -> Iterator[tuple[Relation, Law]]:
    """Yield the laws that an adapter should hold; they run in one process."""
    from seatrial.relations.registry import select

    for relation in select(list(RELATIONS)):
        for law in relation.laws:
            known = relation.key(law) in adapter.expected_failures
            if not known and not law.excluded(adapter) and law.make(adapter, 0, False).num_ranks == 1:
                yield relation, law


def options_of_setups() -> dict[str, dict[str, list[str]]]:
    """Return by trainer and relevant option the setups that set it to another value than the default.

    Those that set it themselves come first, before those whose plans do. Setups that the installed release does not
    have are left out.
    """
    from seatrial.targets.trl.setups.listed import SETUPS
    from seatrial.targets.trl.whole import ADAPTERS

    found: dict[str, dict[str, list[str]]] = {}
    for name, setup in SETUPS.items():
        if setup.trait and not setup.options.keys() & {"router_aux_loss_coef", "disable_dropout"}:
            continue
        try:
            adapter = ADAPTERS[name]()
        except Gone:
            continue
        default = defaults(adapter.config_class)
        for option, value in values_of(setup).items():
            if option in default and value != default[option] and option not in reasons():
                found.setdefault(setup.trainer, {}).setdefault(option, []).append(name)
    for options in found.values():
        for option, names in options.items():
            names.sort(key=lambda name: option not in SETUPS[name].options)
    return found


def measure(trainers: Sequence[str], options: Sequence[str], *, most: int = 3) -> dict[str, dict[str, Any]]:
    """Return by trainer and option the setup and the law that sees it dropped, or None after `most` setups.

    The setup and the law of the last measurement are tried first.
    """
    from seatrial.targets.trl.whole import ADAPTERS

    found: dict[str, dict[str, Any]] = {}
    for trainer, by_option in options_of_setups().items():
        chosen = {option: names for option, names in by_option.items() if not options or option in options}
        for option, setups in chosen.items() if not trainers or trainer in trainers else ():
            entry: dict[str, Any] = {}
            known = measured()["trainers"].get(trainer, {}).get(option, {})
            setups.sort(key=lambda name: name != known.get("setup"))
            for name in setups[:most]:
                law = law_that_sees(ADAPTERS[name](), option, known.get("law"))
                seen = law is not None and not law.startswith("raises")
                if seen or not entry:
                    entry = {"setup": name, "law": law}
                if seen:
                    break
            found.setdefault(trainer, {})[option] = entry
            print(f"{trainer:<8} {option:<36} {entry['setup']}: {entry['law']}", flush=True)
    return found


def main() -> None:
    """Measure options and print, or write, what was found."""
    parser = argparse.ArgumentParser(
        description="Drop options of TRL's trainers and find the law that sees it."
    )
    parser.add_argument("--trainer", action="append", default=[], help="such as SFT; may be repeated")
    parser.add_argument("--option", action="append", default=[], help="such as packing; may be repeated")
    parser.add_argument("--write", action="store_true", help="add what is measured to measured.json")
    given = parser.parse_args()
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    found = measure(given.trainer, given.option)
    if given.write:
        write(MEASURED, found)


def write(path: Path, found: dict[str, dict[str, Any]]) -> None:
    """Add what was measured to a file of measurements."""
    trainers = dict(measured()["trainers"]) if path.exists() else {}
    for trainer, options in found.items():
        trainers[trainer] = dict(sorted({**trainers.get(trainer, {}), **options}.items()))
    document = {
        "releases": {name: release(name) for name in PACKAGES},
        "trainers": dict(sorted(trainers.items())),
    }
    write_text(path, json.dumps(document, indent=1) + "\n")


if __name__ == "__main__":
    main()
