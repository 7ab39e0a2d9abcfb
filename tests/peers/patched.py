"""Runs our code in an environment of a peer: a command, or a relation where one place of the stack is patched."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from tests.peers.warm import Ended, run_warm
from tests.peers.wild.runner import ROOT

JUDGING = """
import json, sys
from seatrial.relations.engine import run_relation
from seatrial.relations.registry import select

(relation,) = select([sys.argv[2]])
seeds = [int(seed) for seed in sys.argv[3:]]
verdict = run_relation(relation, adapters[sys.argv[1]](), seeds=seeds, shrink_seconds=0)
print("\\n" + json.dumps([verdict.outcome.value, verdict.details], default=str))
"""

VARIABLES = {"HF_HUB_OFFLINE": "1", "OMP_NUM_THREADS": "1"}
IN_FOLDER = """
import os, sys
if __name__ == "__main__":  # not in ranks that a server forks, which import this
    os.chdir(sys.argv.pop(1))
    sys.path.insert(0, os.getcwd())
"""
COMMAND = """
from seatrial.cli import main
if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
"""


def run_in(
    python: Path, folder: Path, program: str, *words: str, paths: Sequence[Path] = (), **variables: str
) -> Ended:
    """Run a program of an environment in a folder, whose modules it finds first; return how it ended.

    Args:
        python: of the environment.
        folder: where it runs.
        program: its text.
        words: its arguments.
        paths: searched for modules before the repository's own sources.
        variables: of the environment, in addition to the test's own.
    """
    given = {**VARIABLES, **variables}
    return run_warm(python, [*paths, ROOT / "src"], given, IN_FOLDER + program, [str(folder), *words])


def run_seatrial(python: Path, folder: Path, *words: str, paths: Sequence[Path] = ()) -> Ended:
    """Run our command in a folder, in an environment; see `run_in`."""
    return run_in(python, folder, COMMAND, *words, paths=paths)


def judged(
    python: Path,
    program: Sequence[str],
    adapter: str,
    relation: str,
    *,
    seeds: Sequence[int] = (0,),
    paths: Sequence[Path] = (),
    **variables: str,
) -> tuple[str, list[str]]:
    """Judge a relation in an environment; return its outcome and the laws broken; see `judged_in_full`."""
    outcome, details = judged_in_full(
        python, program, adapter, relation, seeds=seeds, paths=paths, **variables
    )
    return outcome, details.get("laws_broken", [])


def judged_in_full(
    python: Path,
    program: Sequence[str],
    adapter: str,
    relation: str,
    *,
    seeds: Sequence[int] = (0,),
    paths: Sequence[Path] = (),
    **variables: str,
) -> tuple[str, dict[str, Any]]:
    """Judge a relation in an environment; return the outcome and the details of its verdict.

    Args:
        python: of the environment.
        program: what runs first, in order; it patches the stack and leaves the classes by name in `adapters`.
        adapter: its name.
        relation: its id.
        seeds: of the cases.
        paths: searched for modules before the repository's own sources.
        variables: of the environment, in addition to the test's own.
    """
    ran = run_warm(
        python,
        [*paths, ROOT / "src"],
        {**VARIABLES, **variables},
        "\n".join([*program, JUDGING]),
        [adapter, relation, *map(str, seeds)],
    )
    assert ran.returncode == 0, ran.stderr[-3000:]
    outcome, details = json.loads(ran.stdout.splitlines()[-1])
    return outcome, details


def by_day(cases: Sequence[tuple[str, ...]], place: int, but: Sequence[str] = ()) -> list[Any]:
    """Return cases of a test, of which the first with each value at a place is not left to the night.

    Args:
        cases: of the test.
        place: of the values in a case.
        but: values whose cases are all left to the night.
    """
    first = {case[place]: case for case in reversed(cases) if case[place] not in but}
    return [
        pytest.param(*case, marks=[pytest.mark.nightly] * (first.get(case[place]) != case)) for case in cases
    ]
