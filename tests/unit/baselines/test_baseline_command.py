"""`seatrial baseline record|compare` on the command line."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from seatrial.cli import main

from .conftest import WriteRuns, make_log, noisy_runs

TRAIN = """
import json, os, pathlib, random, sys
folder = pathlib.Path(sys.argv[1]); folder.mkdir(exist_ok=True)
source = random.Random(int(os.environ["SEATRIAL_REPEAT"]) + int(sys.argv[2]))
offset = source.gauss(0, 1)
values = {str(step): 5 / step + offset + source.gauss(0, 0.1) for step in range(1, 21)}
(folder / "metrics.json").write_text(json.dumps({"train/loss": values}))
"""


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    folder = tmp_path / "checkout"
    folder.mkdir()
    git = ["git", "-C", str(folder), "-c", "user.name=a", "-c", "user.email=a@b"]
    subprocess.run([*git, "init", "-q"], check=True)
    (folder / "train.py").write_text(TRAIN)
    subprocess.run([*git, "add", "."], check=True)
    subprocess.run([*git, "commit", "-q", "-m", "one"], check=True)
    return folder


def record(places: list[Path], checkout: Path, output: Path, *more: str) -> int:
    words = [
        "baseline",
        "record",
        "--output",
        str(output),
        "--metric",
        "train/*",
        "--repository",
        str(checkout),
    ]
    return main([*words, *more, *map(str, places)])


def test_record_and_compare_existing_logs(
    write_runs: WriteRuns, checkout: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    output = tmp_path / "baseline.json"
    assert record(write_runs(noisy_runs(12, 0), "old"), checkout, output) == 0
    assert "learned from 12 repeats" in capsys.readouterr().out
    content = json.loads(output.read_text())
    head = subprocess.run(
        ["git", "-C", str(checkout), "rev-parse", "HEAD"], capture_output=True, text=True, check=True
    ).stdout.strip()
    assert content["provenance"]["commit"] == head
    assert content["provenance"]["dirty"] is False
    assert content["provenance"]["packages"]["numpy"]
    assert content["provenance"]["host"]["cores"] > 0
    same = [str(place) for place in write_runs(noisy_runs(6, 1), "same")]
    judge = ["baseline", "compare", "--baseline", str(output)]
    assert main([*judge, "--json", str(tmp_path / "v.json"), *same]) == 0
    assert json.loads((tmp_path / "v.json").read_text())["outcome"] == "Pass"
    worse = [str(place) for place in write_runs(noisy_runs(6, 2, shift=5.0), "worse")]
    assert main(["baseline", "compare", "--baseline", str(output), *worse]) == 1
    assert main([*judge, same[0]]) == 0
    assert main([*judge, "--shift", "3", same[0]]) == 3


def test_a_command_is_repeated_in_folders_of_its_own(checkout: Path, tmp_path: Path) -> None:
    output = tmp_path / "baseline.json"
    command = ["--repeats", "12", "--", sys.executable, str(checkout / "train.py"), "{folder}"]
    places = ["--repository", str(checkout), "--work", str(tmp_path / "old"), "--metric", "train/loss"]
    assert main(["baseline", "record", "--output", str(output), *places, *command, "0"]) == 0
    content = json.loads(output.read_text())
    assert len(content["sources"]) == 12
    assert len(set(content["metrics"]["train/loss"]["means"])) == 12
    assert content["provenance"]["command"][-1] == "0"
    command[1] = "6"
    new = ["baseline", "compare", "--baseline", str(output), "--work", str(tmp_path / "new"), *command]
    assert main([*new, "1000"]) == 0


def test_a_dirty_tree_is_refused_and_allowed_only_by_name(
    write_runs: WriteRuns, checkout: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    places = write_runs(noisy_runs(3, 0))
    (checkout / "train.py").write_text("changed")
    output = tmp_path / "baseline.json"
    assert record(places, checkout, output) == 2
    assert "1 file changed (M train.py)" in capsys.readouterr().err
    assert not output.exists()
    assert record(places, checkout, output, "--allow-dirty") == 0
    provenance = json.loads(output.read_text())["provenance"]
    assert (provenance["dirty"], provenance["dirty_files"]) == (True, [" M train.py"])
    assert record(places, tmp_path, output) == 2


def test_repeats_with_nan_are_not_learned(
    write_runs: WriteRuns, checkout: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    runs = [*noisy_runs(2, 0, num_steps=3), make_log([1.0, float("nan"), 1.0])]
    assert record(write_runs(runs), checkout, tmp_path / "b.json") == 1
    assert "train/loss: not finite at step 2" in capsys.readouterr().out
    assert not (tmp_path / "b.json").exists()


def test_an_expired_baseline_is_blocked(write_runs: WriteRuns, checkout: Path, tmp_path: Path) -> None:
    output = tmp_path / "baseline.json"
    places = write_runs(noisy_runs(3, 0))
    assert record(places, checkout, output, "--expires-days", "0.000001") == 0
    assert main(["baseline", "compare", "--baseline", str(output), str(places[0])]) == 3


@pytest.mark.parametrize(
    ("words", "code", "told"),
    [
        (["record", "--output", "o.json", "one"], 2, "at least 2"),
        (["record", "--output", "o.json", "one", "one"], 2, "given twice"),
        (["record", "--output", "o.json", "--repeats", "1", "--", "true"], 2, "at least 2"),
        (["record", "--output", "o.json", "--repeats", "2"], 2, "a command after --"),
        (["record", "--output", "o.json", "--repeats", "2", "--logs", "x", "--", "true"], 2, "{folder}"),
        (["record", "--output", "o.json", "--repeats", "2", "--", "false"], 3, "exit status 1"),
        (["record", "--output", "o.json", "--window", "0", "a", "b"], 2, "--window 0"),
        (["record", "--output", "o.json", "--expires-days", "-1", "a", "b"], 2, "--expires-days -1"),
        (["record", "--output", "o.json", "a", "b"], 3, "no such file"),
        (["compare", "--baseline", "none.json", "a"], 2, "no baseline none.json"),
        (["compare", "--baseline", "bad.json", "a"], 3, "is damaged"),
        (["compare", "--baseline", "bad.json", "--alpha", "1.5", "a"], 2, "--alpha 1.5"),
        (["compare", "--baseline", "bad.json", "--power", "2", "a"], 2, "--power 2"),
    ],
)
def test_wrong_usage_is_one_message(
    words: list[str],
    code: int,
    told: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("bad.json").write_text('{"schema_version": 1, "metrics": {"a": {"means": [NaN]}}}')
    allow = ["--allow-dirty"] if words[0] == "record" else []
    assert main(["baseline", words[0], *allow, *words[1:]]) == code
    error = capsys.readouterr().err
    assert told in error
    assert "Traceback" not in error


def test_one_nightly_run_passes_and_says_once_what_it_can_see(
    write_runs: WriteRuns, checkout: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    output = tmp_path / "baseline.json"
    assert record(write_runs(noisy_runs(8, 0), "old"), checkout, output) == 0
    tonight = str(write_runs(noisy_runs(1, 1), "new")[0])
    capsys.readouterr()
    assert main(["baseline", "compare", "--baseline", str(output), tonight]) == 0
    out = capsys.readouterr().out
    assert out.count("1 new against 8 repeats detect shifts of a mean of") == 1
    assert main(["baseline", "compare", "--baseline", str(output), "--shift", "3", tonight]) == 3
    assert capsys.readouterr().out.count("enough are") == 1


def test_recording_again_beside_its_own_output_works(
    write_runs: WriteRuns, checkout: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(checkout)
    command = ["--repeats", "2", "--", sys.executable, "train.py", "{folder}", "0"]
    words = ["baseline", "record", "--output", "noise/baseline.json", "--metric", "train/loss"]
    Path("noise").mkdir()
    assert main([*words, "--work", "runs/one", *command]) == 0
    assert main([*words, "--work", "runs/two", *command]) == 0
    assert main([*words, "runs/one/repeat-0", "runs/one/repeat-1"]) == 0
    assert json.loads(Path("noise/baseline.json").read_text())["provenance"]["dirty"] is False
    Path("runs/helper.py").write_text("what the runs imported, perhaps")
    assert main([*words, "--work", "runs/three", *command]) == 2
    assert "?? runs/" in capsys.readouterr().err
