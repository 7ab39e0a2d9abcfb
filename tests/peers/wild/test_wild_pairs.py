"""Real silent bugs in real releases: the buggy one is flagged by the law about it, the one that mended it is clean."""

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
from tests.peers.making import PEERS
from tests.peers.wild.runner import NIGHTLY, ORDINARY, Judged, judge

Verdicts = dict[tuple[str, str], Judged]


def _judged(peer_python: Callable[[str], Path], pairs: Sequence[Mapping[str, Any]]) -> Verdicts:
    return judge(peer_python("wild"), PEERS / "layers", pairs)


@pytest.fixture(scope="module")
def ordinary(peer_python: Callable[[str], Path]) -> Verdicts:
    """What was said of the releases that need nothing but the environment: one process, forked for each."""
    return _judged(peer_python, ORDINARY)


@pytest.fixture(scope="module")
def nightly(peer_python: Callable[[str], Path]) -> Verdicts:
    """What was said of the releases over other versions of Transformers."""
    return _judged(peer_python, NIGHTLY)


def names(pairs: Sequence[Mapping[str, Any]]) -> list[str]:
    """Return the ids of tests."""
    return [pair["name"] for pair in pairs]


def check(pair: Mapping[str, Any], judged: Verdicts) -> None:
    """Hold one adapter, unchanged between the two releases and without knowledge of the bug, to the pair."""
    assert pair["law"] in judged[pair["name"], "buggy"].broken
    fixed = judged[pair["name"], "fixed"]
    assert fixed.judges
    assert not fixed.broken
    assert not fixed.mended


@pytest.mark.peer
@pytest.mark.slow
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("pair", ORDINARY, ids=names(ORDINARY))
def test_the_bug_is_flagged_and_its_end_is_seen(ordinary: Verdicts, pair: Mapping[str, Any]) -> None:
    """With every run of the tests."""
    check(pair, ordinary)


@pytest.mark.peer
@pytest.mark.slow
@pytest.mark.nightly
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("pair", NIGHTLY, ids=names(NIGHTLY))
def test_the_bug_is_flagged_and_its_end_is_seen_over_older_packages(
    nightly: Verdicts, pair: Mapping[str, Any]
) -> None:
    """Each over the packages of its time."""
    check(pair, nightly)
