"""verl's KL controllers and its sharing out of rows hold, and break the laws where verl is patched."""

from collections.abc import Callable
from pathlib import Path

import pytest
from tests.peers.making import PEERS
from tests.peers.patched import judged
from tests.peers.wild.runner import layer

NAMES = """
import numpy as np
from verl.trainer.ppo import core_algos
from verl.utils import seqlen_balancing
"""
ADAPTERS = "from seatrial.targets.verl.controllers import ADAPTERS as adapters"
NOT_CLIPPED = """
class Unclipped:
    clip = staticmethod(lambda value, low, high: value)
core_algos.np = Unclipped()
"""
RUNS = """
def runs(seqlen_list, k_partitions, equal_size):
    return [list(part) for part in np.array_split(np.arange(len(seqlen_list)), k_partitions)]
seqlen_balancing.karmarkar_karp = runs
"""


@pytest.mark.peer
@pytest.mark.slow
@pytest.mark.nightly
@pytest.mark.timeout(900)
@pytest.mark.parametrize(
    ("adapter", "relation", "fault", "law"),
    [
        ("kl-controller", "R24.kl_controller", "", ""),
        ("length-balance", "R4.balance", "", ""),
        ("kl-controller", "R24.kl_controller", NOT_CLIPPED, "adaptive, far from the target"),
        ("length-balance", "R4.balance", RUNS, "parts as even as by the longest row first"),
    ],
)
def test_a_patched_release_breaks_the_law(
    peer_python: Callable[[str], Path], adapter: str, relation: str, fault: str, law: str
) -> None:
    """And the release as it is holds."""
    python = peer_python("wild")
    places = [layer(python, PEERS / "layers", ["verl==0.5.0"])]
    outcome, broken = judged(python, [NAMES, fault, ADAPTERS], adapter, relation, paths=places)
    assert outcome == ("Fail" if fault else "Pass")
    assert law in [*broken, ""]
