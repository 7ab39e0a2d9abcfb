"""Real silent bugs in real releases: the buggy one is flagged by the law about it, the one that mended it is clean."""

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest
from tests.conftest import PEERS
from tests.peers.wild.runner import PAIRS, judge


@pytest.mark.peer
@pytest.mark.slow
@pytest.mark.nightly
@pytest.mark.parametrize("pair", PAIRS, ids=[pair["name"] for pair in PAIRS])
def test_the_bug_is_flagged_and_its_end_is_seen(
    peer_python: Callable[[str], Path], pair: Mapping[str, Any]
) -> None:
    """By one adapter, unchanged between the two releases and without knowledge of the bug."""
    python = peer_python("wild")
    assert pair["law"] in judge(python, PEERS / "layers", pair, "buggy").broken
    fixed = judge(python, PEERS / "layers", pair, "fixed")
    assert fixed.clean(pair.get("other")), fixed.broken
