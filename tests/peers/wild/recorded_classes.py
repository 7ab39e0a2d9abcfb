"""Records the outputs of every class of modules of models of the installed Transformers.

    python -m tests.peers.wild.recorded_classes [--rich] [--new] NAME ...

Run in the environment of each release in turn: each adds to the file in the folder of the adapters. Names are
those of packages in `transformers.models`. `--rich` records those of `class_rich`, `--new` what is not on record yet.
"""

import sys
from collections.abc import Sequence
from typing import Any

from tests.peers.wild.recorded_logits import read, rounded, same, write

from seatrial.relations.not_served import NotServed
from seatrial.targets.common.target import Gone
from seatrial.targets.transformers import class_records, class_rich


def add(
    kind: str, line: str, records: Any = class_records, *, again: bool = True
) -> dict[str, dict[str, list[float]]]:
    """Return what is on record of a module, with what the release gives; `again`: also of what is there."""
    stack = records._adapter(kind)()
    before = {name: dict(lines) for name, lines in read(stack.path).get(kind, {}).items()}
    other = next(name for name in class_records.LINES if name != line)
    found: dict[str, dict[str, list[float]]] = {}
    for name, lines in before.items():
        if kept := lines.get(other, lines.get("")):
            found[name] = {other: kept}
    for name in stack.option_names():
        if not again and {line, ""} & {*before.get(name, {})}:
            found[name] = before[name]
            continue
        try:
            given = rounded(stack.projections(name))
        except NotServed:
            continue
        earlier = found.get(name, {}).get(other)
        if earlier is not None and same(given, earlier):
            found[name] = {"": earlier}
        else:
            found.setdefault(name, {})[line] = given
    return found


def main(names: Sequence[str]) -> None:
    """Add the installed release to the record."""
    line = class_records.line_of()
    if line is None:
        raise SystemExit("the record has no line of this release")
    records = class_rich if "--rich" in names else class_records
    path = class_rich.RICH if "--rich" in names else class_records.CLASSES
    for kind in names:
        if kind.startswith("--"):
            continue
        try:
            found = add(kind, line, records, again="--new" not in names)
        except Gone as gone:
            print(kind, gone, flush=True)
            continue
        except Exception as error:  # noqa: BLE001  a module that cannot be imported, or of sizes that it refuses
            print(kind, type(error).__name__, str(error)[:150], flush=True)
            continue
        if not found:
            continue
        write(path, {**read(path), kind: found})
        print(kind, len(found), flush=True)


if __name__ == "__main__":
    main(sys.argv[1:])
