"""verl's KL controllers and its sharing out of rows hold, and break the laws where verl is patched."""

import json
import os
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest
from tests.peers.making import PEERS
from tests.peers.wild.runner import ROOT, layer

PROGRAM = """
import json, sys
import numpy as np
from verl.trainer.ppo import core_algos
from verl.utils import seqlen_balancing

{fault}
from seatrial.relations.engine import run_relation
from seatrial.relations.registry import select
from seatrial.targets.verl.controllers import ADAPTERS

(relation,) = select([sys.argv[2]])
verdict = run_relation(relation, ADAPTERS[sys.argv[1]](), seeds=[0], shrink_seconds=0)
print("\\n" + json.dumps([verdict.outcome.value, verdict.details.get("laws_broken", [])]))
"""
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
@pytest.mark.timeout(900)
@pytest.mark.parametrize(
    ("adapter", "relation", "fault", "law"),
    [
        ("kl-controller", "R24.kl_controller", "", ""),
        ("length-balance", "R4.balance", "", ""),
        ("kl-controller", "R24.kl_controller", NOT_CLIPPED, "adaptive, far from the target"),
        ("length-balance", "R4.balance", RUNS, "parts differ by one row at most"),
    ],
)
def test_a_patched_release_breaks_the_law(
    peer_python: Callable[[str], Path], adapter: str, relation: str, fault: str, law: str
) -> None:
    """And the release as it is holds."""
    python = peer_python("wild")
    places = [str(layer(python, PEERS / "layers", ["verl==0.5.0"])), str(ROOT / "src")]
    ran = subprocess.run(
        [str(python), "-W", "ignore", "-c", PROGRAM.format(fault=fault), adapter, relation],
        env={**os.environ, "PYTHONPATH": os.pathsep.join(places), "HF_HUB_OFFLINE": "1"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert ran.returncode == 0, ran.stderr[-3000:]
    outcome, broken = json.loads(ran.stdout.splitlines()[-1])
    assert outcome == ("Fail" if fault else "Pass")
    assert law in [*broken, ""]
