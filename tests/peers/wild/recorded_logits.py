"""Records the logits of families of the installed Transformers, with the oldest release that has them.

    python -m tests.peers.wild.recorded_logits src/seatrial/targets/transformers/recorded.json

Run in the environment of each release in turn, the newest first, on the same file.
"""

import json
import sys
from pathlib import Path

from seatrial.relations.laws.models.recorded import BOUND
from seatrial.relations.not_served import NotServed
from seatrial.targets.common.target import Gone, release
from seatrial.targets.transformers.family_records import ADAPTERS


def main(path: Path) -> None:
    """Add the installed release to the record."""
    installed = release("transformers")
    found = json.loads(path.read_text(encoding="utf-8")) if path.exists() else {}
    for adapter in ADAPTERS.values():
        try:
            stack = adapter()
            names = stack.option_names()
        except Gone:
            continue
        own = found.setdefault(stack.family, {})
        for name in names:
            try:
                given = [float(f"{one:.6g}") for one in stack.projections(name)]
            except NotServed:
                continue
            _, *right = own.setdefault(name, [installed, *given])
            if max(abs(a - b) for a, b in zip(given, right, strict=True)) <= BOUND / 4 * right[-1]:
                own[name][0] = installed
        lines = [f"{json.dumps(family)}: {json.dumps(values)}" for family, values in sorted(found.items())]
        path.write_text("{\n" + ",\n".join(lines) + "\n}\n", encoding="utf-8")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
