"""`seatrial faults list|score`."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from seatrial.cli import main


def test_list_names_each_fault_with_what_sees_it(capsys: pytest.CaptureFixture[str]) -> None:
    """One relation's faults, and how many known bugs they are."""
    assert main(["faults", "list", "--relation", "R24.staleness"]) == 0
    said = capsys.readouterr().out
    assert "staleness-inverted" in said
    assert "temperature-ignored" not in said
    assert "known bugs" in said.splitlines()[-1]


def test_list_ends_with_the_faults_of_whole_runs(capsys: pytest.CaptureFixture[str]) -> None:
    """Those are planted by `seatrial.faults.launch`."""
    assert main(["faults", "list"]) == 0
    assert "lr-zero" in capsys.readouterr().out


def test_score_says_what_saw_it_on_which_seeds(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """With the tidy inputs beside."""
    file = tmp_path / "found.json"
    words = ["--mutant", "temperature-ignored", "--relation", "R12.logprobs", "--seeds", "3", "4"]
    assert main(["faults", "score", *words, "--json", str(file)]) == 0
    said = capsys.readouterr().out
    assert "2 of 2 seeds   hidden from tidy inputs" in said
    assert "1 of 1 faults are seen on every seed (3, 4)" in said
    (found,) = json.loads(file.read_text())
    assert (found["relation"], found["caught"], found["tidy"]) == ("R12.logprobs", [3, 4], False)


def test_a_fault_that_the_chosen_relation_does_not_see_is_exit_1(capsys: pytest.CaptureFixture[str]) -> None:
    """No evidence of detection is never a pass."""
    words = ["--mutant", "temperature-ignored", "--relation", "R17.filter", "--seeds", "0", "--all-relations"]
    assert main(["faults", "score", *words]) == 1
    assert "0 of 1 faults" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("words", "status", "remedy"),
    [
        (["list", "--mutant", "temprature-ignored"], 2, "did you mean 'temperature-ignored'?"),
        (["list", "--relation", "R999"], 2, "no relation 'R999'"),
        (
            ["list", "--mutant", "temperature-ignored", "--json", "/no/such/folder/x"],
            3,
            "give another --json",
        ),
    ],
)
def test_a_wrong_word_is_one_message_with_the_remedy(
    words: list[str], status: int, remedy: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """Wrong usage exits 2, a file that cannot be written 3."""
    assert main(["faults", *words]) == status
    assert remedy in capsys.readouterr().err


def test_help_needs_no_torch() -> None:
    """The command line answers at once."""
    code = (
        "import sys\nfrom seatrial.cli import main\ntry:\n    main(['faults', 'score', '--help'])\nfinally:\n"
    )
    code += "    print('torch' in sys.modules)"
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert ran.stdout.splitlines()[-1] == "False"
