"""`seatrial faults list|score`: list the faults planted in the reference stack, and report what detects them."""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

from seatrial.errors import UsageError
from seatrial.faults.mutate import Mutant, all_mutants
from seatrial.files import write_text
from seatrial.nearest import hint
from seatrial.verdict import EXIT_FAIL, EXIT_PASS

if TYPE_CHECKING:
    from seatrial.faults.matrix import Detection


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments."""
    actions = parser.add_subparsers(dest="action", metavar="list|score", required=True)
    shown = actions.add_parser("list", help="list the faults", allow_abbrev=False)
    scored = actions.add_parser(
        "score",
        help="plant faults one by one and report which relations fail",
        description="Plants each fault in refrl, in this process, and runs relations on the default seeds, each seed "
        "alone, and on tidy inputs. Exits 0 if every relation that a fault names detects it on every seed, else 1.",
        allow_abbrev=False,
    )
    for action in (shown, scored):
        action.add_argument(
            "--mutant", action="append", default=[], metavar="ID", help="only this fault; may be repeated"
        )
        action.add_argument(
            "--relation",
            action="append",
            default=[],
            metavar="ID",
            help="only this relation, such as R12 or R12.loss; may be repeated",
        )
        action.add_argument(
            "--json", type=Path, metavar="FILE", help="also write the results to this file as JSON"
        )
    scored.add_argument(
        "--seeds",
        type=int,
        nargs="+",
        metavar="N",
        help="seeds of the cases, each run alone (default: 0 1 2)",
    )
    scored.add_argument(
        "--all-relations", action="store_true", help="run every relation, not only those that a fault names"
    )
    scored.add_argument("--no-tidy", action="store_true", help="do not run on tidy inputs")


def run(arguments: argparse.Namespace) -> int:
    """List the faults, or plant them and report what detects them."""
    return _list(arguments) if arguments.action == "list" else _score(arguments)


def _list(arguments: argparse.Namespace) -> int:
    from seatrial.faults.catalogue import FAULTS
    from seatrial.faults.plant import all_plants
    from seatrial.faults.record import recorded

    mutants = _chosen(arguments.mutant, arguments.relation)
    known = recorded()
    for mutant in mutants:
        print(f"{mutant.id:<40} {mutant.what}")
        print(f"{'':<40} in {mutant.module}; known bugs: {', '.join(mutant.catalogue) or 'none'}")
        print(f"{'':<40} must be seen by {', '.join(mutant.relations)}")
    bugs = {name for mutant in mutants for name in mutant.catalogue}
    print(f"\n{len(mutants)} faults of components, {len(bugs)} known bugs")
    if not arguments.mutant and not arguments.relation:
        plants = all_plants()
        missed = [plant.id for plant in plants if plant.id in known and known[plant.id].by is None]
        print(f"\n{len(plants)} plants in the wiring; seen by nothing: {', '.join(missed) or 'none'}")
        print("\nfaults of whole runs (python -m seatrial.faults.launch FAULT -- grpo ...):")
        for fault in FAULTS.values():
            print(f"{fault.id:<40} {fault.what}")
    _write(arguments.json, [asdict(mutant) for mutant in mutants])
    return EXIT_PASS


def _score(arguments: argparse.Namespace) -> int:
    from seatrial.faults.matrix import detect, reachable
    from seatrial.relations.engine import DEFAULT_SEEDS
    from seatrial.relations.registry import all_relations, select

    seeds = arguments.seeds or list(DEFAULT_SEEDS)
    mutants = _chosen(arguments.mutant, arguments.relation)
    asked = {relation.id for relation in select(arguments.relation)}
    found: list[Detection] = []
    missed = 0
    started = time.monotonic()
    for number, mutant in enumerate(mutants, start=1):
        if sys.stderr.isatty():
            print(f"\r{number} of {len(mutants)}: {mutant.id:<50}", end="", file=sys.stderr, flush=True)
        named = set(mutant.relations)
        chosen = [
            relation
            for relation in (reachable(mutant) if arguments.all_relations else all_relations())
            if relation.id in asked and (arguments.all_relations or relation.id in named)
        ]
        detections = detect(mutant, relations=chosen, seeds=seeds, tidy=not arguments.no_tidy)
        if sys.stderr.isatty():
            print(f"\r{'':<70}\r", end="", file=sys.stderr, flush=True)
        for seen in detections:
            if seen.caught or seen.relation in named:
                found.append(seen)
                missed += seen.relation in named and not seen.always
                print(_line(seen, named=seen.relation in named))
    caught = {seen.mutant for seen in found if seen.always}
    seconds = time.monotonic() - started
    print(
        f"\n{len(caught)} of {len(mutants)} faults are seen on every seed ({', '.join(map(str, seeds))}); "
        f"{missed} named relations missed one; {seconds:.0f} s"
    )
    _write(arguments.json, [asdict(seen) for seen in found])
    return EXIT_FAIL if missed or len(caught) < len(mutants) else EXIT_PASS


def _line(seen: Detection, *, named: bool) -> str:
    tidy = {True: "tidy inputs see it too", False: "hidden from tidy inputs", None: "-"}[seen.tidy]
    lost = "" if seen.always or not named else "   MISSED"
    return (
        f"{seen.mutant:<40} {seen.relation:<18} {len(seen.caught)} of {len(seen.seeds)} seeds   {tidy}{lost}"
    )


def _chosen(names: Sequence[str], relations: Sequence[str]) -> list[Mutant]:
    """Return the mutants with these ids that name one of these relations; all for none.

    Raises:
        UsageError: an id or a relation is unknown, or nothing is left.
    """
    from seatrial.relations.registry import select

    known = {mutant.id: mutant for mutant in all_mutants()}
    for name in names:
        if name not in known:
            raise UsageError(f"no fault {name!r}; {hint(name, known)}")
    chosen = [known[name] for name in names] or list(known.values())
    if relations:
        asked = {relation.id for relation in select(relations)}
        chosen = [mutant for mutant in chosen if names or asked & {r.id for r in select(mutant.relations)}]
    if not chosen:
        raise UsageError(f"no fault names {', '.join(relations)}; leave --relation out to see them all")
    return chosen


def _write(path: Path | None, values: Sequence[dict[str, Any]]) -> None:
    if path is not None:
        write_text(path, json.dumps(values, indent=2, default=str) + "\n", option="--json")
