"""Records what modules of the installed Transformers compute in types more precise than half.

    python -m tests.peers.wild.recorded_halves [NAME ...]

Run in the environment of each release in turn: each adds to the file in the folder of the adapters. Names are those of
packages in `transformers.models`, without any: all.
"""

import sys
from collections.abc import Mapping, Sequence

from tests.peers.wild.recorded_logits import read, write

from seatrial.relations.not_served import NotServed
from seatrial.targets.transformers import class_records
from seatrial.targets.transformers.worked.halves import RECORD, steps_of


def add(line: str, found: Mapping[str, str]) -> None:
    """Add to the record what classes compute in a line of releases."""
    by_line: dict[str, dict[str, set[str]]] = {name: {} for name in class_records.LINES}
    for steps, lines in read(RECORD).items():
        for name, classes in by_line.items():
            if given := {*lines.get(name, ()), *lines.get("", ())}:
                classes[steps] = given
    for kind, steps in found.items():
        by_line[line].setdefault(steps, set()).add(kind)
    rows: dict[str, dict[str, list[str]]] = {}
    for steps in {name for classes in by_line.values() for name in classes}:
        own = [classes.get(steps, set()) for classes in by_line.values()]
        both = set.intersection(*own)
        parts = {"": both, **{name: one - both for name, one in zip(by_line, own, strict=True)}}
        rows[steps] = {name: sorted(one) for name, one in parts.items() if one}
    write(RECORD, rows)


def main(names: Sequence[str]) -> None:
    """Add the installed release to the record."""
    line = class_records.line_of()
    if line is None:
        raise SystemExit("the record has no line of this release")
    for kind in names or sorted(class_records.record()):
        try:
            found = steps_of(kind)
        except NotServed as error:
            print(kind, error, flush=True)
            continue
        add(line, found)
        print(kind, len(found), flush=True)


if __name__ == "__main__":
    main(sys.argv[1:])
