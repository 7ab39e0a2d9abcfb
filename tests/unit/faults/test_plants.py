"""The plants fit refrl's source, and a run shows what they change."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from seatrial.errors import UsageError
from seatrial.faults.mutate import all_mutants
from seatrial.faults.plant import all_plants, modules_without_plants, source_path
from seatrial.faults.traces import differences
from seatrial.faults.verify import PACKAGE, misfits


def test_every_mutant_and_plant_stands_exactly_once_in_its_module() -> None:
    assert misfits() == []


def test_a_plant_is_another_text_that_python_takes() -> None:
    for plant in all_plants():
        path = source_path(plant.module, PACKAGE)
        text = path.read_text(encoding="utf-8")
        planted = text.replace(plant.old, plant.new)
        assert planted != text, plant.id
        compile(planted, f"{path} with {plant.id}", "exec")


def test_a_plant_says_what_it_is_and_which_bugs_are_like_it() -> None:
    for plant in all_plants():
        assert plant.what, plant.id
        assert plant.differs, plant.id
        assert plant.catalogue, plant.id
        assert all(known.startswith("SB") and known[2:].isdigit() for known in plant.catalogue), plant.id


def test_plants_and_mutants_share_no_id() -> None:
    assert not {plant.id for plant in all_plants()} & {mutant.id for mutant in all_mutants()}


def test_a_module_without_plants_has_none_and_exists() -> None:
    with_plants = {plant.module for plant in all_plants()}
    for module, reason in modules_without_plants().items():
        assert source_path(module, PACKAGE).is_file()
        assert module not in with_plants
        assert reason


def test_a_module_that_is_not_there_is_named() -> None:
    with pytest.raises(UsageError, match=r"refrl\.nowhere"):
        source_path("refrl.nowhere", PACKAGE)


def test_a_trace_of_one_run_only_is_a_difference() -> None:
    sound, faulty = {"weights": "a", "console": "c"}, {"console": "c", "files": "f"}
    assert differences(sound, faulty) == ["weights", "files"]


THREE_RUNS = """
import sys
from dataclasses import replace
from pathlib import Path

from seatrial.faults.plant import all_plants
from seatrial.faults.verify import Bench, check_run

bench = Bench(Path(sys.argv[1]))
silent = next(plant for plant in all_plants() if plant.id == "reference-exported")
print(check_run(bench, silent))
print(check_run(bench, replace(silent, id="harmless", new=f"{silent.old}  # as it was")))
print(check_run(bench, replace(silent, id="loud", new='raise OSError("no room")')))
"""


@pytest.mark.e2e
@pytest.mark.nightly
def test_a_run_tells_a_silent_fault_from_none_and_from_a_loud_one(tmp_path: Path) -> None:
    # In a process of its own: runs are forked from it, and this one may have threads.
    done = subprocess.run(
        [sys.executable, "-c", THREE_RUNS, str(tmp_path)], capture_output=True, text=True, check=False
    )

    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines() == [
        "(True, 'reference-exported: weights')",
        "(False, 'harmless: nothing differs')",
        "(False, 'loud: not silent, the run ends with 1: refrl grpo: no room')",
    ]
