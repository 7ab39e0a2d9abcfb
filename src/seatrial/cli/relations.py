"""`seatrial relations`: the conformance battery on a stack's components."""

from __future__ import annotations

import argparse
import gc
import json
import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

from seatrial.cli.asked_stacks import asked_stacks, expect_more
from seatrial.files import write_text
from seatrial.verdict import Outcome, Verdict, combine, exit_code


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments."""
    parser.add_argument(
        "stack", nargs="?", metavar="MODULE:OBJECT", help="the adapter, or a class that makes one"
    )
    parser.add_argument(
        "--target", metavar="NAME", help="a stack that Seatrial knows, instead of MODULE:OBJECT"
    )
    parser.add_argument(
        "--relation", action="append", default=[], metavar="ID", help="only this one, such as R12"
    )
    parser.add_argument(
        "--component",
        action="append",
        default=[],
        metavar="NAME",
        help="only those about this, such as data_plane",
    )
    parser.add_argument(
        "--seed", action="append", type=int, metavar="N", help="seeds of the cases (default 0 1 2)"
    )
    parser.add_argument(
        "--adapter",
        action="append",
        default=[],
        metavar="NAME",
        help="only this one of the target's, such as dpo",
    )
    parser.add_argument(
        "--expect",
        type=Path,
        metavar="FILE",
        help="TOML of laws that the installed release is known to break, each with the reason, by adapter",
    )
    parser.add_argument(
        "--shrink-seconds",
        type=float,
        default=20.0,
        metavar="N",
        help="how long to look for a smaller input of a violation (default 20); 0 reports it as made",
    )
    parser.add_argument("--list", action="store_true", help="list the relations and stop")
    parser.add_argument("--json", type=Path, metavar="FILE", help="also write the verdicts as JSON")


def run(arguments: argparse.Namespace) -> int:
    """Exercise the relations and print a verdict for each."""
    from seatrial.relations import failure_message
    from seatrial.relations.engine import DEFAULT_SEEDS, run_relation
    from seatrial.relations.expected import check_expected_failures
    from seatrial.relations.registry import all_relations, of_components, select
    from seatrial.relations.runs import sharing_runs

    relations = of_components(select(arguments.relation), arguments.component)
    if arguments.list:
        for relation in relations:
            print(f"{relation.id:<20} {relation.component:<16} {relation.statement}")
        return 0
    if arguments.target:
        # Read when torch is imported: on tiny models more threads only wait for one another.
        os.environ.setdefault("OMP_NUM_THREADS", "1")
    asked = asked_stacks(arguments.stack, arguments.target, arguments.adapter)
    if arguments.expect is not None:
        expect_more(asked.adapters, arguments.expect)
    verdicts: list[Verdict] = []
    for verdict in asked.gone():
        verdicts.append(verdict)
        print(f"{verdict.outcome.value:<13} {verdict.name}: {verdict.reason}", flush=True)
    for stack in asked.adapters.values():
        check_expected_failures(stack, all_relations())
    with sharing_runs(), imports_frozen():
        for relation, name in asked.pairs(relations):
            found = run_relation(
                relation,
                asked.adapters[name],
                seeds=arguments.seed or asked.seeds or DEFAULT_SEEDS,
                shrink_seconds=arguments.shrink_seconds,
            )
            verdict = replace(found, name=f"{name}: {found.name}") if name else found
            verdicts.append(verdict)
            if verdict.outcome is Outcome.FAIL:
                print(f"Fail          {failure_message(relation.statement, verdict)}", flush=True)
            else:
                print(f"{verdict.outcome.value:<13} {verdict.name}: {_figures(verdict)}", flush=True)
    whole = combine(verdicts)
    counts = {outcome: sum(verdict.outcome is outcome for verdict in verdicts) for outcome in Outcome}
    print(
        f"\n{whole.value} - "
        + ", ".join(f"{count} {outcome.value}" for outcome, count in counts.items() if count)
    )
    if arguments.json:
        records = [verdict.to_json() for verdict in verdicts]
        write_text(arguments.json, json.dumps(records, indent=2, default=str) + "\n", option="--json")
    return exit_code(whole)


@contextmanager
def imports_frozen() -> Iterator[None]:
    """Keep what is alive at this point out of every garbage collection in this block.

    Hugging Face's `Trainer` collects garbage at every start of training; of what the import of a stack leaves alive,
    hundreds of thousands of objects, that took as long as all else of a tiny step.
    """
    gc.freeze()
    try:
        yield
    finally:
        gc.unfreeze()


def _figures(verdict: Verdict) -> str:
    if verdict.value is None:
        return verdict.reason
    return f"{verdict.reason}; largest error {verdict.value:.3g} {verdict.bound}"
