"""`seatrial relations`: check a stack's components against the relations."""

from __future__ import annotations

import argparse
import gc
import importlib
import json
import os
import sys
import tomllib
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from seatrial.cli.capture import Captured, captured_output
from seatrial.errors import UsageError
from seatrial.evidence.identity.collect import package_versions
from seatrial.files import write_text
from seatrial.nearest import hint
from seatrial.targets import get_target, target_names
from seatrial.targets.common.target import Unavailable
from seatrial.trials.sharding import Shard
from seatrial.verdict import EXIT_PASS, Outcome, Verdict, combine, exit_code

if TYPE_CHECKING:
    from seatrial.relations.law import Relation

JSON_SCHEMA = 2
"""Version 1 was a plain list of verdicts."""
PACKAGES = (
    "accelerate", "deepspeed", "megatron-core", "nemo-rl", "openrlhf", "peft", "ray", "sglang", "torch", "transformers",
    "trl", "verl", "vllm",
)  # fmt: skip
"""Distributions whose versions are reported if an adapter imports them."""


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
        help="list the relations and stop; with --target or MODULE:OBJECT, those of each adapter with their laws",
    )
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

    if arguments.options:
        return _print_options(arguments.target)
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
        stacks = find_stacks(arguments.stack, arguments.target, arguments.adapter)
        if arguments.list:
            _list(stacks, relations, output)
            code = EXIT_PASS
        else:
            code = _judge(arguments, stacks, relations, output)
        num_lines = output.num_lines()
    if num_lines and not arguments.list:
        print(f"output of the stack: {output.path} ({_count(num_lines, 'line')})")
    return code


def _print_options(target: str | None) -> int:
    """Print the table of options of a target's trainers."""
    chosen = None if target is None else get_target(target)
    if not hasattr(chosen, "option_lines"):
        raise UsageError(
            f"--options needs a target that lists its options: --target trl, not {target or 'none'}"
        )
    for line in chosen.option_lines():
        print(line)
    return EXIT_PASS


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
    verdicts = list(stacks.missing())
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
    with sharing_runs(), imports_frozen():
        for (relation, name), found in zip(pairs, judge_all(judge, pairs, num_jobs), strict=True):
            verdict = report_once(found, reported.setdefault(name, {}))
            verdicts.append(verdict)
            if verdict.outcome is Outcome.FAIL:
                text = failure_message(relation.statement, verdict)
            else:
                text = f"{verdict.name}: {_figures(verdict)}"
            output.print(f"{verdict.outcome.value:<13} {text}")
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


def _list(stacks: Stacks, relations: Sequence[Relation], output: Captured) -> None:
    """Print each adapter with its relations and their laws."""
    pairs = list(stacks.pairs(relations))
    for name, adapter in stacks.adapters.items():
        held = [
            relation
            for relation, owner in pairs
            if owner == name and (name or relation.component in _components(adapter))
        ]
        num_laws = sum(len(relation.laws) for relation in held)
        title = f"{name or type(adapter).__name__}{' (thorough)' if _is_thorough(adapter) else ''}"
        output.print(f"{title}: {_count(len(held), 'relation')}, {_count(num_laws, 'law')}")
        for relation in held:
            output.print(f"  {relation.id:<20} {relation.component:<16} {relation.statement}")
            for law in relation.laws:
                output.print(f"      {law.name}{' (thorough)' if law.thorough else ''}")
    for name, unavailable in stacks.unavailable.items():
        gone = not unavailable.blocked and not unavailable.uncovered
        prefix = "not in this release: " if gone else "not covered: " if unavailable.uncovered else ""
        output.print(f"{name}: {prefix}{unavailable.reason}")


@dataclass(frozen=True, kw_only=True)
class Stacks:
    """The adapters to judge, by name; the name is empty for a single adapter."""

    adapters: Mapping[str, Any]
    unavailable: Mapping[str, Unavailable] = field(default_factory=dict)
    seeds: Sequence[int] = ()
    """Default seeds of the cases; empty if the target does not set them."""
    releases: Mapping[str, str] = field(default_factory=dict)
    """Version by package."""
    jobs: int = 1
    """Processes that judge relations at once, by default."""
    adapter_package: str | None = None
    """See `seatrial.relations.engine.run_relation`."""

    def missing(self) -> Iterator[Verdict]:
        """Yield a verdict for every adapter that cannot be made in this environment, or of this release."""
        for name, unavailable in self.unavailable.items():
            yield Verdict(
                name=name,
                outcome=Outcome.BLOCKED if unavailable.blocked else Outcome.NOT_REQUESTED,
                reason=unavailable.reason,
                details={"missing_packages": [unavailable.package]} if unavailable.package else {},
            )

    def pairs(self, relations: Iterable[Relation]) -> Iterator[tuple[Relation, str]]:
        """Yield each relation with the adapter to run it on; several adapters get only relations they support."""
        chosen = list(relations)
        for name, adapter in self.adapters.items():
            components = _components(adapter) if name else ()
            for relation in chosen:
                if not name or relation.component in components:
                    yield relation, name


def _components(adapter: Any) -> set[str]:
    from seatrial.relations.contracts import COMPONENTS

    return {name for name, protocol in COMPONENTS.items() if isinstance(adapter, protocol)}


def find_stacks(stack: str | None, target: str | None, names: Sequence[str]) -> Stacks:
    """Return the adapters of `MODULE:OBJECT` or of a target.

    Args:
        stack: MODULE:OBJECT.
        target: name of a target, instead.
        names: of the target's adapters; all of them for none.

    Raises:
        UsageError: neither or both are given, or something that is named cannot be found.
        seatrial.errors.BlockedError: the target's stack is not installed here.
    """
    if (stack is None) == (target is None):
        raise UsageError("name one stack: MODULE:OBJECT of your adapter, or --target reference")
    if stack is not None:
        if names:
            raise UsageError("--adapter chooses among the adapters of a --target; MODULE:OBJECT is one")
        adapter = _imported(stack)
        imported = [name for name in PACKAGES if name.replace("-", "_") in sys.modules]
        own = stack.partition(":")[0].partition(".")[0]
        return Stacks(adapters={"": adapter}, releases=_releases([own, *imported]))
    assert target is not None
    chosen = get_target(target)
    found = chosen.components()
    releases = _releases(getattr(chosen, "packages", ()))
    if found is None:
        raise UsageError(f"target {target} offers no components; name your adapter: MODULE:OBJECT")
    if not isinstance(found, Mapping):
        if names:
            raise UsageError(f"target {target} has one adapter; leave --adapter out")
        return Stacks(adapters={"": found}, releases=releases, jobs=getattr(chosen, "relation_jobs", 1))
    for name in names:
        if name not in found:
            raise UsageError(f"target {target} has no adapter {name!r}; {hint(name, sorted(found))}")
    wanted = {name: adapter for name, adapter in found.items() if not names or name in names}
    return Stacks(
        adapters={name: one for name, one in wanted.items() if not isinstance(one, Unavailable)},
        unavailable={name: one for name, one in wanted.items() if isinstance(one, Unavailable)},
        seeds=getattr(chosen, "relation_seeds", ()),
        releases=releases,
        jobs=getattr(chosen, "relation_jobs", 1),
        adapter_package=getattr(chosen, "adapter_package", None),
    )


def _releases(packages: Iterable[str]) -> dict[str, str]:
    """Return the versions of packages that are installed, and ours."""
    versions = package_versions(list(dict.fromkeys([*packages, "seatrial"])))
    return {name: version for name, version in versions.items() if version}


def expect_more(adapters: Mapping[str, Any], file: Path) -> None:
    """Add the failures that a file declares for the installed release to those that adapters expect; see `--expect`.

    Raises:
        UsageError: the file cannot be read, has another form, or names an adapter that is not judged.
    """
    try:
        document = tomllib.loads(file.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise UsageError(f"--expect {file} cannot be read: {error}") from error
    by_adapter: Mapping[str, Any] = {"": document} if list(adapters) == [""] else document
    for name, declared in by_adapter.items():
        if name not in adapters:
            raise UsageError(f"--expect {file}: {name!r} is not judged here; {hint(name, sorted(adapters))}")
        if not isinstance(declared, dict) or not all(isinstance(reason, str) for reason in declared.values()):
            raise UsageError(
                f'--expect {file}: write a line `"RELATION/law" = "reason"` for each law, under [ADAPTER] where '
                "a target has several"
            )
        known = getattr(adapters[name], "expected_failures", {})
        adapters[name].expected_failures = {**known, **declared}


def _imported(stack: str) -> Any:
    module, _, name = stack.partition(":")
    if not name:
        raise UsageError(f"{stack!r} names no object; write MODULE:OBJECT, such as my_stack:Adapter")
    # As `python -m` does: modules of the working directory can be imported.
    sys.path.insert(0, str(Path.cwd()))
    try:
        found = getattr(importlib.import_module(module), name)
    except ImportError as error:
        raise UsageError(f"cannot import {module}: {error}") from error
    except AttributeError as error:
        raise UsageError(f"module {module} has no {name}") from error
    return found() if isinstance(found, type) else found


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


def _count(number: int, thing: str) -> str:
    return f"{number} {thing}{'' if number == 1 else 's'}"
