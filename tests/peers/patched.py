"""Judges an adapter in an environment of its own, where one place of the stack is patched."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from tests.peers.warm import run_warm
from tests.peers.wild.runner import ROOT

JUDGING = """
import json, sys
from seatrial.relations.engine import run_relation
from seatrial.relations.registry import select

(relation,) = select([sys.argv[2]])
seeds = [int(seed) for seed in sys.argv[3:]]
verdict = run_relation(relation, adapters[sys.argv[1]](), seeds=seeds, shrink_seconds=0)
print("\\n" + json.dumps([verdict.outcome.value, verdict.details.get("laws_broken", [])]))
"""


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
    """Judge a relation in an environment; return its outcome and the laws broken.

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
        {"HF_HUB_OFFLINE": "1", "OMP_NUM_THREADS": "1", **variables},
        "\n".join([*program, JUDGING]),
        [adapter, relation, *map(str, seeds)],
    )
    assert ran.returncode == 0, ran.stderr[-3000:]
    outcome, broken = json.loads(ran.stdout.splitlines()[-1])
    return outcome, broken


def by_day(cases: Sequence[tuple[str, ...]], place: int) -> list[Any]:
    """Return cases of a test, of which the first with each value at a place is not left to the night."""
    first = {case[place]: case for case in reversed(cases)}
    return [pytest.param(*case, marks=[pytest.mark.nightly] * (first[case[place]] != case)) for case in cases]
