"""`python -m seatrial.faults.measure [--minutes M] [MUTANT ...]`: measure the one-line faults and record what was seen.

A mutant whose entry stands is left alone unless it is named, so that a long measurement can be done in parts.
"""

from __future__ import annotations

import argparse
import time
from pathlib import Path

from seatrial.faults.matrix import detect, reachable
from seatrial.faults.measured import NUM_SEEDS, Seen, data_file, load, save
from seatrial.faults.mutate import Mutant, all_mutants
from seatrial.relations.engine import DEFAULT_SEEDS
from seatrial.relations.registry import select


def measure(mutant: Mutant) -> dict[str, Seen]:
    """Return how every relation that sees a mutant sees it: on the default seeds, and the named ones on twenty.

    A relation that is not named is tried on the first default seed, and followed up where that sees something.
    """
    named = select(mutant.relations)
    more = {
        found.relation: found for found in detect(mutant, relations=named, seeds=range(NUM_SEEDS), tidy=False)
    }
    others = [relation for relation in reachable(mutant) if relation not in named]
    tried = detect(mutant, relations=others, seeds=DEFAULT_SEEDS[:1], tidy=False)
    seeing = {found.relation for found in tried if found.caught}
    others = [relation for relation in others if relation.id in seeing]
    seen = {}
    for found in detect(mutant, relations=[*named, *others]):
        long = more.get(found.relation)
        seen[found.relation] = Seen(
            default=len(found.caught),
            of_default=len(found.seeds),
            tidy=bool(found.tidy),
            twenty=len(long.caught) if long else None,
            of_twenty=len(long.seeds) if long else None,
        )
    return seen


def main() -> None:
    """Measure what is missing, or what is named."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("mutants", nargs="*", metavar="MUTANT", help="measure these again")
    parser.add_argument("--minutes", type=float, default=60.0, help="begin no mutant after so long")
    parser.add_argument("--output", type=Path, default=data_file(), help="default: the package's own record")
    arguments = parser.parse_args()
    started = time.monotonic()
    known = {mutant.id: mutant for mutant in all_mutants()}
    found = load(arguments.output) if arguments.output.exists() else {}
    found = {name: seen for name, seen in found.items() if name in known}
    for name in arguments.mutants or [name for name in known if name not in found]:
        if time.monotonic() - started > 60 * arguments.minutes:
            break
        found[name] = measure(known[name])
        save(arguments.output, found)
        named = known[name].relations
        missed = [relation for relation in named if not found[name][relation].always]
        print(
            f"{name}: seen by {', '.join(found[name])}"
            + (f"; MISSED by {', '.join(missed)}" if missed else "")
        )
    left = [name for name in known if name not in found]
    print(f"{len(found)} of {len(known)} mutants measured" + (f"; next: {left[0]}" if left else ""))


if __name__ == "__main__":
    main()
