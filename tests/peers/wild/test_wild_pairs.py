"""Real silent bugs in real releases: the buggy one is flagged by the law about it, the one that mended it is clean.

One pair runs with every run of the tests, over the environment that other tests of TRL use; the others run at night.
"""

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
from tests.peers.making import PEERS
from tests.peers.wild.runner import NIGHTLY, OF_EVERY_RUN, ORDINARY, Judged, judge

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
def test_the_bug_is_flagged_and_its_end_is_seen_over_the_newest_packages(
    peer_python: Callable[[str], Path],
) -> None:
    """Of the same adapter and by the same law as over the packages of its time."""
    (pair,) = (pair for pair in ORDINARY if pair["name"] == OF_EVERY_RUN)
    check(pair, judge(peer_python("trl"), PEERS / "layers", [pair]))


@pytest.mark.peer
@pytest.mark.slow
@pytest.mark.nightly
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("pair", ORDINARY, ids=names(ORDINARY))
def test_the_bug_is_flagged_and_its_end_is_seen(ordinary: Verdicts, pair: Mapping[str, Any]) -> None:
    """Over the environment itself."""
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
