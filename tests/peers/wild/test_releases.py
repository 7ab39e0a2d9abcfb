"""Every adapter, unchanged, on each of the releases that the page lists: what is broken is declared or a known bug."""

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest
from tests.peers.making import PEERS
from tests.peers.wild.releases import RECORD, RELEASES, judged_again, name_of, unknown

pytestmark = [pytest.mark.peer, pytest.mark.slow, pytest.mark.nightly, pytest.mark.timeout(3600)]


@pytest.mark.parametrize("entry", RELEASES, ids=[name_of(entry) for entry in RELEASES])
def test_a_release_says_what_is_recorded(
    peer_python: Callable[[str], Path], entry: Mapping[str, Any]
) -> None:
    """What was found last is found again, and adapters newer than the record have nothing unexplained."""
    name = name_of(entry)
    recorded = json.loads(RECORD.read_text(encoding="utf-8"))[name]
    python, layers = peer_python("wild"), PEERS / "layers"
    found = judged_again(python, layers, entry, recorded)
    assert unknown(entry, found) == []
    assert {adapter: found[adapter] for adapter in recorded} == recorded
