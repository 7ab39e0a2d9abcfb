"""Wrong usage of any command is one line that names the mistake, the nearest right word and the help."""

from __future__ import annotations

from pathlib import Path

import pytest

from refrl.cli import COMMANDS as REFRL_COMMANDS
from refrl.cli import main as refrl
from seatrial.cli import COMMANDS, main

LOG = "step,train/loss,reward\n1,1.0,0.1\n2,0.9,0.2\n3,0.8,0.3\n"


def message(command: list[str], capsys: pytest.CaptureFixture[str], code: int = 2) -> str:
    """Return the one line that a command prints to standard error, checking its exit code."""
    program, *words = command
    try:
        given = (refrl if program == "refrl" else main)(words)
    except SystemExit as ended:
        given = ended.code
    out, err = capsys.readouterr()
    assert given == code, out + err
    assert "Traceback" not in out + err
    assert len(err.splitlines()) == 1, err
    return err


@pytest.mark.parametrize("name", sorted(COMMANDS))
def test_an_option_that_does_not_exist_is_one_line(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    """Also of commands whose required arguments are missing as well, or that have further commands."""
    said = message(["seatrial", name, "--nonsense"], capsys)
    assert said.startswith(f"seatrial {name}: ")
    assert "--nonsense" in said or "required" in said or "name" in said


@pytest.mark.parametrize("name", sorted(REFRL_COMMANDS))
def test_an_option_of_refrl_that_does_not_exist_is_one_line(
    name: str, capsys: pytest.CaptureFixture[str]
) -> None:
    said = message(["refrl", name, "--nonsense"], capsys)
    assert said.startswith(f"refrl {name}: ")
    assert said.endswith(f"see refrl {name} --help\n")
    assert "--nonsense" in said


@pytest.mark.parametrize(
    ("command", "parts"),
    [
        ("seatrial wach", ["'wach' is unknown", "did you mean 'watch'?", "see seatrial --help"]),
        ("seatrial watch LOG --folow", ["no option --folow", "'--follow'", "see seatrial watch --help"]),
        ("seatrial dump LOG --outptu x", ["no option --outptu", "'--output'"]),
        ("seatrial dump LOG", ["required: --output", "see seatrial dump --help"]),
        ("seatrial tags LOG other", ["'other' is one argument too many"]),
        ("seatrial faults lst", ["'lst' is unknown", "'list'"]),
        ("seatrial faults score x", ["'x' is one argument too many", "see seatrial faults score --help"]),
        ("seatrial relations os:path --seed x", ["--seed: invalid int value: 'x'"]),
        ("seatrial relations os:path --relation R12.los", ["no relation 'R12.los'", "did you mean 'R12.loss'"]),
        ("seatrial relations os:path --component polcy_loss", ["did you mean 'policy_loss'"]),
        ("seatrial relations os:path --shrink-seconds nan", ["--shrink-seconds: 'nan' is not a finite number"]),
        ("seatrial relations os:path --json no/dir/x.json", ["there is no folder no/dir; make it first"]),
        ("seatrial chaos --kill 1234 --after nan", ["--after: 'nan' is not a finite number"]),
        ("seatrial chaos --kill 1234 --after -1", ["--after -1: give 0 or more seconds"]),
        ("seatrial run --shard-size 1e999", ["there is no option --shard-size"]),
        ("seatrial baseline compare --baseline x --power nan y", ["--power: 'nan' is not a finite number"]),
        ("seatrial trend x --alpha inf", ["--alpha: 'inf' is not a finite number"]),
        ("seatrial relations os:path --seed 99999999999999999999", ["--seed: 99999999999999999999 is too large"]),
        ("seatrial new reader os", ["'os' is a module of Python", "take another name"]),
        ("seatrial run --seed 99999999999999999999", ["--seed: 99999999999999999999 is too large"]),
        ("seatrial run --output=", ["--output: expected a folder (an unset shell variable is empty)"]),
        ("seatrial run --seed 4294967296", ["--seed 4294967296: give 0 to"]),
        ("refrl grp", ["'grp' is unknown", "did you mean 'grpo'?"]),
        ("refrl grpo --confg x", ["no option --confg", "did you mean '--config'?"]),
        ("refrl new loss json", ["'json' is a module of Python"]),
        ("refrl grpo --config grpo-smoke grpo.seed=99999999999999999999", ["grpo.seed: input should be less than"]),
    ],
)  # fmt: skip
def test_the_line_names_the_remedy(
    command: str,
    parts: list[str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("LOG").write_text(LOG)
    said = message(command.split(), capsys)
    assert [part for part in parts if part not in said] == [], said


def test_binary_garbage_is_no_console_log(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "run.log"
    path.write_bytes(bytes(range(256)) * 8)
    assert "not text; name the console log" in message(["seatrial", "triage", str(path)], capsys, code=3)


def test_a_file_that_trend_cannot_read_names_what_it_takes(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "log.csv"
    path.write_text(LOG)
    said = message(["seatrial", "trend", str(path)], capsys, code=3)
    assert "log.csv cannot be read" in said and "give run directories" in said


def test_an_object_that_is_no_adapter_says_how_to_get_one(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["relations", "os:path", "--relation", "R12"]) == 5
    assert "`seatrial new adapter bare NAME`" in capsys.readouterr().out
