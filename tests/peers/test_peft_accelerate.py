"""`peft` and `accelerate`: their adapters run on the installed releases, and nothing fails that is not declared."""

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest
from tests.peers.patched import run_in, run_seatrial

QUICK = ("lora", "lora-plus")
"""Of hundreds: the plain one, and groups of an optimizer."""
pytestmark = [pytest.mark.peer, pytest.mark.timeout(600)]


def relations(python: Path, folder: Path, *words: str) -> Mapping[str, Any]:
    """Run `seatrial relations` in an environment and return what it wrote."""
    output = folder / "found.json"
    ran = run_seatrial(python, folder, "relations", "--seed", "0", "--json", str(output), *words)
    assert ran.returncode == 0, ran.stdout[-3000:] + ran.stderr[-3000:]
    found: Mapping[str, Any] = json.loads(output.read_text(encoding="utf-8"))
    return found


def passed(found: Mapping[str, Any]) -> set[str]:
    """Return the relations that pass, as `ADAPTER: RELATION`."""
    return {" ".join(one["name"].split()[:2]) for one in found["verdicts"] if one["outcome"] == "Pass"}


def test_adapters_of_peft(peer_python: Callable[[str], Path], tmp_path: Path) -> None:
    """A few kinds, each in every relation; types that no adapter is of are named."""
    chosen = [word for name in QUICK for word in ("--adapter", name)]
    found = relations(peer_python("trl"), tmp_path, "--target", "peft", *chosen)
    assert passed(found) >= {f"{name}: R29.merged" for name in QUICK if name != "lora-plus"}
    assert passed(found) >= {
        "lora: R29.combined",
        "lora: R29.saved",
        "lora: R29.several",
        "lora-plus: R29.groups",
    }


def uncovered(python: Path, folder: Path, module: str) -> dict[str, Any]:
    """Return what a target's module says is uncovered, in the stack's environment."""
    script = f"from seatrial.targets.{module} import uncovered; import json; print(json.dumps(uncovered()))"
    ran = run_in(python, folder, script)
    assert ran.returncode == 0, ran.stderr[-3000:]
    found: dict[str, Any] = json.loads(ran.stdout.splitlines()[-1])
    return found


def test_every_type_of_peft_is_covered_or_named(peer_python: Callable[[str], Path], tmp_path: Path) -> None:
    """A type that a new release brings has no reason yet."""
    named = uncovered(peer_python("trl"), tmp_path, "peft.target")
    assert named
    assert not [name for name, reason in named.items() if "yet" in reason]


ACCELERATE = {
    "metrics": "R30.gathered",
    "loaders": "R30.rows",
    "exchanges": "R30.collectives",
    "accumulation": "R30.accumulated",
    "exchanges-nested": "R30.nested",
    "splits": "R30.split",
    "models": "R30.placed",
    "seeds": "R30.seeds",
    "batch-sizes": "R30.batch_size",
    "saved-state": "R30.state",
}


@pytest.mark.parametrize("names", [["metrics"], pytest.param([*ACCELERATE], marks=pytest.mark.nightly)])
def test_accelerate_in_processes(
    peer_python: Callable[[str], Path], tmp_path: Path, names: list[str]
) -> None:
    """Gathers of two processes of a gloo group; at night all adapters."""
    chosen = [word for name in names for word in ("--adapter", name)]
    found = relations(peer_python("trl"), tmp_path, "--target", "accelerate", *chosen)
    assert passed(found) >= {f"{name}: {ACCELERATE[name]}" for name in names}


def test_names_of_accelerate_are_covered_or_named(peer_python: Callable[[str], Path], tmp_path: Path) -> None:
    """A name that is covered is not listed; one that needs several accelerators is, with the reason."""
    named = uncovered(peer_python("trl"), tmp_path, "accelerate.offered")
    assert "maybe_context_parallel" in named["several accelerators"]
    assert not [names for names in named.values() if "split_between_processes" in names]


@pytest.mark.nightly
def test_all_adapters_of_peft(peer_python: Callable[[str], Path], tmp_path: Path) -> None:
    """With those that are judged only in a thorough run."""
    relations(peer_python("trl"), tmp_path, "--target", "peft", "--thorough")
