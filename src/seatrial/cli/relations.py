"""`seatrial relations`: the conformance battery on a stack's components."""

from __future__ import annotations

import argparse
import importlib
import json
import os
import sys
from pathlib import Path
from typing import Any

from seatrial.errors import UsageError
from seatrial.targets import get_target
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
        "--component", action="append", default=[], metavar="NAME", help="only those about this, such as data_plane"
    )
    parser.add_argument(
        "--seed", action="append", type=int, metavar="N", help="seeds of the cases (default 0 1 2)"
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
    stack = _stack(arguments)
    check_expected_failures(stack, all_relations())
    verdicts: list[Verdict] = []
    with sharing_runs():
        for relation in relations:
            verdict = run_relation(relation, stack, seeds=arguments.seed or DEFAULT_SEEDS)
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
        _write(arguments.json, [verdict.to_json() for verdict in verdicts])
    return exit_code(whole)


def _figures(verdict: Verdict) -> str:
    if verdict.value is None:
        return verdict.reason
    return f"{verdict.reason}; largest error {verdict.value:.3g} {verdict.bound}"


def _stack(arguments: argparse.Namespace) -> Any:
    if (arguments.stack is None) == (arguments.target is None):
        raise UsageError("name one stack: MODULE:OBJECT of your adapter, or --target reference")
    if arguments.target is not None:
        adapter = get_target(arguments.target).components()
        if adapter is None:
            raise UsageError(
                f"target {arguments.target} offers no components; name your adapter: MODULE:OBJECT"
            )
        return adapter
    module, _, name = arguments.stack.partition(":")
    if not name:
        raise UsageError(
            f"{arguments.stack!r} names no object; write MODULE:OBJECT, such as my_stack:Adapter"
        )
    # As `python -m` does: the folder that one stands in holds one's own modules.
    sys.path.insert(0, str(Path.cwd()))
    try:
        found = getattr(importlib.import_module(module), name)
    except ImportError as error:
        raise UsageError(f"cannot import {module}: {error}") from error
    except AttributeError as error:
        raise UsageError(f"module {module} has no {name}") from error
    return found() if isinstance(found, type) else found


def _write(path: Path, verdicts: list[dict[str, Any]]) -> None:
    temporary = path.with_name(path.name + ".tmp")
    try:
        temporary.write_text(json.dumps(verdicts, indent=2, default=str), encoding="utf-8")
        temporary.replace(path)
    except OSError as error:
        raise UsageError(
            f"cannot write {path}: {error.strerror}; name a file in a folder you may write"
        ) from error
