"""Records the outputs of models of the installed Transformers, with the oldest release that has them.

    python -m tests.peers.wild.recorded_logits [NAME ...]

Run in the environment of each release in turn: each adds to the same files, which are beside the
adapters. Names are beginnings of those of adapters; without any, all are recorded.
"""

import json
import math
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from packaging.version import Version

from seatrial.relations.laws.models.recorded import BOUND
from seatrial.relations.not_served import NotServed
from seatrial.targets.common.target import Gone, release
from seatrial.targets.transformers import any_records, family_records, head_records


def rounded(values: Sequence[float]) -> list[float]:
    """Return numbers with as many places as the last one, their scale, is compared with."""
    places = 4 - math.floor(math.log10(max(values[-1], 1e-9)))
    return [round(value, places) for value in values]


def given_by(stack: Any) -> dict[str, list[float]]:
    """Return what the installed release gives for each option that it serves."""
    found = {}
    for option in stack.option_names():
        try:
            found[option] = rounded(stack.projections(option))
        except NotServed:
            continue
    return found


def same(first: Sequence[float], second: Sequence[float]) -> bool:
    """Return whether numbers are as near to recorded ones, the second, as those of two releases may be."""
    bound = BOUND / 4 * max(second[-1], 1e-9)
    return len(first) == len(second) and max(abs(a - b) for a, b in zip(first, second, strict=True)) <= bound


def read(path: Path) -> dict[str, Any]:
    """Return a record by kind, empty where there is none."""
    found: dict[str, Any] = json.loads(path.read_text(encoding="utf-8")) if path.exists() else {}
    return found


def write(path: Path, found: Mapping[str, Any]) -> None:
    """Write a record, a line a kind that has numbers."""
    lines = [f"{json.dumps(kind)}: {json.dumps(values)}" for kind, values in sorted(found.items()) if values]
    path.write_text("{\n" + ",\n".join(lines) + "\n}\n", encoding="utf-8")


def add(path: Path, kind: str, given: Mapping[str, list[float]], installed: str) -> None:
    """Add what a release gives to the record of a kind.

    What a release before 5 gives otherwise than the release on record, or gives alone, is kept beside the record.
    """
    found, is_old = read(path), Version(installed) < Version("5")
    own = found.setdefault(kind, {})
    others = read(family_records.before_5(path))
    older = others.setdefault(kind, {})
    for option, values in given.items():
        if option in own and same(values, own[option][1:]):
            own[option][0] = min(own[option][0], installed, key=Version)
            older.pop(option, None)
        elif is_old and option in older and same(values, older[option][1:]):
            older[option][0] = min(older[option][0], installed, key=Version)
        elif option in (older if is_old else own):
            before = (older if is_old else own)[option]
            print(kind, repr(option), "differs from", *before, values, flush=True)
        else:
            (older if is_old else own)[option] = [installed, *values]
    write(path, found)
    write(family_records.before_5(path), others)


def main(names: Sequence[str]) -> None:
    """Add the installed release to the record."""
    for name, adapter in {**family_records.EVERY, **any_records.EVERY, **head_records.EVERY}.items():
        if names and not name.startswith(tuple(names)):
            continue
        try:
            stack = adapter()
            given = given_by(stack)
        except Gone:
            continue
        except Exception as error:  # noqa: BLE001  the configuration refuses these sizes
            print(name, type(error).__name__, str(error)[:150], flush=True)
            continue
        add(stack.path, stack.kind, given, release("transformers"))


if __name__ == "__main__":
    main(sys.argv[1:])
