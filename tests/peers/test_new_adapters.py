"""What `seatrial new adapter` writes for a stack runs at once where that stack is installed."""

from collections.abc import Callable
from pathlib import Path

import pytest
from tests.peers.making import PEERS
from tests.peers.patched import run_seatrial
from tests.peers.wild.runner import layer

from seatrial.cli import main


@pytest.mark.peer
@pytest.mark.slow
@pytest.mark.timeout(1800)
@pytest.mark.parametrize(
    ("stack", "name", "release"),
    [
        ("trl", "trl", None),
        pytest.param("trl", "wild", "trl==1.9.0", marks=pytest.mark.nightly),
        pytest.param("verl", "wild", "verl==0.5.0", marks=pytest.mark.nightly),
    ],
)
def test_an_adapter_is_held_to_the_relations_as_it_is_written(
    peer_python: Callable[[str], Path], tmp_path: Path, stack: str, name: str, release: str | None
) -> None:
    """With no unexpected failure, and something that passes; without a release on the environment's own."""
    python = peer_python(name)
    assert main(["new", "adapter", stack, "--output", str(tmp_path)]) == 0
    layers = [] if release is None else [layer(python, PEERS / "layers", [release])]
    words = ("relations", f"my_{stack}:My{stack.capitalize()}", "--seed", "0")
    ran = run_seatrial(python, tmp_path, *words, paths=layers)
    assert ran.returncode == 0, ran.stdout[-3000:] + ran.stderr[-3000:]
    assert f"Pass          R12.{'window' if stack == 'trl' else 'loss'}" in ran.stdout
