"""Records the outputs of models of the installed Transformers, with the oldest release that has them.

    python -m tests.peers.wild.recorded_logits [NAME ...]

Run in the environment of each release in turn: each adds to the same files, which are beside the
adapters. Names are beginnings of those of adapters; without any, all are recorded.
"""

import json
import math
import sys
from collections.abc import Sequence

from packaging.version import Version

from seatrial.relations.laws.models.recorded import BOUND
from seatrial.relations.not_served import NotServed
from seatrial.targets.common.target import Gone, release
from seatrial.targets.transformers import any_records, family_records, head_records


def rounded(values: Sequence[float]) -> list[float]:
    """Return numbers with as many places as the last one, their scale, is compared with."""
    places = 4 - math.floor(math.log10(max(values[-1], 1e-9)))
    return [round(value, places) for value in values]


def main(names: Sequence[str]) -> None:
    """Add the installed release to the record."""
    installed = release("transformers")
    for name, adapter in {**family_records.EVERY, **any_records.EVERY, **head_records.EVERY}.items():
        if names and not name.startswith(tuple(names)):
            continue
        path = adapter.path
        found = json.loads(path.read_text(encoding="utf-8")) if path.exists() else {}
        try:
            stack = adapter()
            options = stack.option_names()
        except Gone:
            continue
        except Exception as error:  # noqa: BLE001  the configuration refuses these sizes
            print(name, type(error).__name__, str(error)[:150], flush=True)
            continue
        own = found.setdefault(stack.kind, {})
        for option in options:
            try:
                given = rounded(stack.projections(option))
            except NotServed:
                continue
            _, *right = own.setdefault(option, [installed, *given])
            if len(right) == len(given) and max(
                abs(a - b) for a, b in zip(given, right, strict=True)
            ) <= BOUND / 4 * max(right[-1], 1e-9):
                own[option][0] = min(own[option][0], installed, key=Version)
            else:
                print(name, repr(option), "differs from", own[option][0], right, given, flush=True)
        if not own:
            del found[stack.kind]
        lines = [f"{json.dumps(kind)}: {json.dumps(values)}" for kind, values in sorted(found.items())]
        path.write_text("{\n" + ",\n".join(lines) + "\n}\n", encoding="utf-8")


if __name__ == "__main__":
    main(sys.argv[1:])
