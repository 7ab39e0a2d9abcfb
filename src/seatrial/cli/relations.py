"""`seatrial relations`: check a stack's components against the relations."""

from __future__ import annotations

import argparse
import gc
import json
import os
import sys
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from seatrial.cli.capture import Captured, captured_output
from seatrial.cli.relation_stacks import Stacks, components_of, expect_more, find_stacks
from seatrial.cli.trainer_options import print_options
from seatrial.collector import paused_collector
from seatrial.errors import UsageError
from seatrial.files import write_text
from seatrial.targets import target_names
from seatrial.trials.sharding import Shard
from seatrial.verdict import EXIT_PASS, Outcome, Verdict, combine, exit_code
from seatrial.words import counted

if TYPE_CHECKING:
    from seatrial.relations.law import Relation

JSON_SCHEMA = 2
"""Version 1 was a plain list of verdicts."""
MAX_ABOUT = 100
"""How many characters of an adapter's description `--list` prints."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments."""
    parser.add_argument("stack", nargs="?", metavar="MODULE:OBJECT", help="the adapter, or its class")
    parser.add_argument(
        "--target",
        metavar="NAME",
        help=f"a stack that Seatrial has adapters for, instead of MODULE:OBJECT: {', '.join(target_names())}",
    )
    parser.add_argument(
        "--relation",
        action="append",
        default=[],
        metavar="ID",
        help="run only this relation, such as R12; may be repeated",
    )
    parser.add_argument(
        "--component",
        action="append",
        default=[],
        metavar="NAME",
        help="run only relations about this component, such as data_plane; may be repeated",
    )
    parser.add_argument(
        "--seed",
        action="append",
        type=int,
        metavar="N",
        help="seed of the cases; may be repeated (default: 0 1 2)",
    )
    parser.add_argument(
        "--adapter",
        action="append",
        default=[],
        metavar="NAME",
        help="run only this adapter of the target, such as dpo; may be repeated",
    )
    parser.add_argument(
        "--expect",
        type=Path,
        metavar="FILE",
        help="TOML file of laws that the installed release is known to break, by adapter, each with a reason",
    )
    parser.add_argument(
        "--shrink-seconds",
        type=float,
        default=20.0,
        metavar="N",
        help="time limit for finding a smaller failing input (default: 20); 0 reports the original input",
    )
    parser.add_argument(
        "--jobs",
        type=int,
        metavar="N",
        help="processes that judge relations at once; those of one component share a process (default: 1; for the "
        "reference target 2 where there are two cores)",
    )
    parser.add_argument("--shard", metavar="I/N", help="judge every N-th of the relations, from the I-th")
    parser.add_argument(
        "--thorough",
        action="store_true",
        help="also run the laws and adapters that take long, such as those on pairs of options",
    )
    parser.add_argument(
        "--list",
        action="store_true",
        help="list and stop: the relations; with --target, its adapters; with --adapter or MODULE:OBJECT, the laws",
    )
    parser.add_argument("-v", "--verbose", action="store_true", help="with --list: the laws of every adapter")
    parser.add_argument(
        "--options",
        action="store_true",
        help="with --target: list the options of the stack's trainers, which law sees each ignored, and stop",
    )
    parser.add_argument(
        "--json", type=Path, metavar="FILE", help="also write the verdicts and the releases as JSON"
    )
    parser.add_argument(
        "--log",
        type=Path,
        metavar="FILE",
        help="where the output of the stack and its libraries goes (default: a temporary file)",
    )


def run(arguments: argparse.Namespace) -> int:
    """Run the relations and print a verdict for each."""
    from seatrial.relations.registry import of_components, select

    if not arguments.shrink_seconds >= 0:
        raise UsageError(f"--shrink-seconds {arguments.shrink_seconds:g}: give 0 or more")
    if arguments.json is not None and not arguments.json.absolute().parent.is_dir():
        raise UsageError(
            f"--json {arguments.json}: there is no folder {arguments.json.parent}; make it first"
        )
    if arguments.options:
        return print_options(arguments.target)
    relations = of_components(select(arguments.relation), arguments.component)
    if arguments.shard is not None:
        relations = tuple(Shard.parse(arguments.shard).take(relations))
    if arguments.list and arguments.stack is None and arguments.target is None:
        for relation in relations:
            print(f"{relation.id:<20} {relation.component:<16} {relation.statement}")
        return EXIT_PASS
    if arguments.target:
        # Read when torch is imported: on tiny models more threads only wait for one another.
        os.environ.setdefault("OMP_NUM_THREADS", "1")
    with captured_output(arguments.log) as output:
        with paused_collector():  # collections would take a fifth of the time of an import
            stacks = find_stacks(arguments.stack, arguments.target, arguments.adapter)
        if arguments.list:
            _list(arguments, stacks, relations, output)
            code = EXIT_PASS
        else:
            code = _judge(arguments, stacks, relations, output)
        num_lines = output.num_lines()
    if num_lines and not arguments.list:
        print(f"output of the stack: {output.path} ({counted(num_lines, 'line')})")
    return code


def _judge(
    arguments: argparse.Namespace, stacks: Stacks, relations: Sequence[Relation], output: Captured
) -> int:
    from seatrial.relations import failure_message
    from seatrial.relations.conclusion import report_once
    from seatrial.relations.engine import DEFAULT_SEEDS, run_relation
    from seatrial.relations.expected import check_expected_failures
    from seatrial.relations.jobs import judge_all
    from seatrial.relations.registry import all_relations
    from seatrial.relations.runs import sharing_runs

    if arguments.jobs is not None and arguments.jobs < 1:
        raise UsageError(f"--jobs {arguments.jobs}: give at least 1")
    if arguments.expect is not None:
        expect_more(stacks.adapters, arguments.expect)
    for stack in stacks.adapters.values():
        check_expected_failures(stack, all_relations())
    output.print(f"judged: {', '.join(f'{name} {version}' for name, version in stacks.releases.items())}")
    verdicts = list(stacks.missing(thorough=arguments.thorough or bool(arguments.adapter)))
    for verdict in verdicts:
        output.print(f"{verdict.outcome.value:<13} {verdict.name}: {verdict.reason}")

    def judge(relation: Relation, name: str) -> Verdict:
        found = run_relation(
            relation,
            stacks.adapters[name],
            seeds=arguments.seed or stacks.seeds or DEFAULT_SEEDS,
            thorough=arguments.thorough,
            adapter_package=stacks.adapter_package,
            shrink_seconds=arguments.shrink_seconds,
        )
        return replace(found, name=f"{name}: {found.name}") if name else found

    pairs = [
        (relation, name)
        for relation, name in stacks.pairs(relations)
        if relation.chosen_laws(thorough=arguments.thorough)
        and (arguments.thorough or arguments.adapter or not _is_thorough(stacks.adapters[name]))
    ]
    reported: dict[str, dict[str, str]] = {}
    num_jobs = min(arguments.jobs or min(stacks.jobs, os.cpu_count() or 1), len(pairs) or 1)
    num_other = 0
    with sharing_runs(), imports_frozen():
        for (relation, name), found in zip(pairs, judge_all(judge, pairs, num_jobs), strict=True):
            verdict = report_once(found, reported.setdefault(name, {}))
            verdicts.append(verdict)
            if verdict.outcome is Outcome.NOT_REQUESTED and not name:
                num_other += 1
                continue
            if verdict.outcome is Outcome.FAIL:
                text = failure_message(relation.statement, verdict)
            else:
                text = f"{verdict.name}: {_figures(verdict)}"
            output.print(f"{verdict.outcome.value:<13} {text}")
    if num_other:
        output.print(
            f"{counted(num_other, 'relation')} of components that the adapter does not have: not requested"
        )
    if num_other and num_other == len(verdicts):
        output.print(
            "an adapter offers components by its methods: `seatrial new adapter bare NAME` writes one to start from"
        )
    whole = _whole(verdicts)
    counts = Counter(verdict.outcome for verdict in verdicts)
    summary = ", ".join(f"{counts[outcome]} {outcome.value}" for outcome in Outcome if counts[outcome])
    output.print(f"\n{whole.value} - {summary}")
    if arguments.json:
        document = {
            "schema_version": JSON_SCHEMA,
            "argv": sys.argv[1:],
            "releases": stacks.releases,
            "outcome": whole.value,
            "verdicts": [verdict.to_json() for verdict in verdicts],
        }
        write_text(arguments.json, json.dumps(document, indent=2, default=str) + "\n", option="--json")
    return exit_code(whole)


def _whole(verdicts: Sequence[Verdict]) -> Outcome:
    """Combine verdicts; adapters whose package is missing leave the decision to the others, if any can decide."""
    others = [verdict for verdict in verdicts if not verdict.details.get("missing_packages")]
    whole = combine(others)
    return combine(verdicts) if whole is Outcome.SKIPPED else whole


def _is_thorough(adapter: Any) -> bool:
    """Return whether an adapter is judged only if a thorough run is requested, or if it is named."""
    return bool(getattr(adapter, "thorough", False))


def _list(
    arguments: argparse.Namespace, stacks: Stacks, relations: Sequence[Relation], output: Captured
) -> None:
    """Print a line for each of several adapters, or each adapter with its relations and their laws."""
    brief = len(stacks.adapters) > 1 and not arguments.adapter and not arguments.verbose
    width = max((len(name) for name in stacks.adapters), default=0)
    pairs = list(stacks.pairs(relations))
    for name, adapter in stacks.adapters.items():
        held = [
            relation
            for relation, owner in pairs
            if owner == name and (name or relation.component in components_of(adapter))
        ]
        num_laws = sum(len(relation.laws) for relation in held)
        counts = f"{counted(len(held), 'relation')}, {counted(num_laws, 'law')}"
        thorough = " (thorough)" if _is_thorough(adapter) else ""
        if brief:
            output.print(f"{name:<{width}}  {counts:<23} {_what_it_is(adapter)}{thorough}".rstrip())
            continue
        output.print(f"{name or type(adapter).__name__}{thorough}: {counts}")
        for relation in held:
            output.print(f"  {relation.id:<20} {relation.component:<16} {relation.statement}")
            for law in relation.laws:
                output.print(f"      {law.name}{' (thorough)' if law.thorough else ''}")
    for name, unavailable in stacks.unavailable.items():
        gone = not unavailable.blocked and not unavailable.uncovered
        prefix = "not in this release: " if gone else "not covered: " if unavailable.uncovered else ""
        output.print(f"{name}: {prefix}{unavailable.reason}")
    if brief:
        output.print(
            f"{counted(len(stacks.adapters), 'adapter')}; their laws: seatrial relations --target {arguments.target} "
            "--adapter NAME --list, or -v for all"
        )


def _what_it_is(adapter: Any) -> str:
    """Return the first line of an adapter's docstring, cut to fit a line."""
    first = (type(adapter).__doc__ or "").strip().partition("\n")[0]
    return first if len(first) <= MAX_ABOUT else f"{first[: MAX_ABOUT - 3]}..."


@contextmanager
def imports_frozen() -> Iterator[None]:
    """Keep objects that are alive at this point out of every garbage collection in this block.

    Hugging Face's `Trainer` collects garbage at every start of training. The import of a stack leaves hundreds of
    thousands of objects alive; collecting them took as long as the rest of a tiny step.
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
