"""Options stand before, between and after arguments; JSON goes to the standard output; shells complete."""

from __future__ import annotations

import itertools
import json
import shutil
import subprocess
from pathlib import Path

import pytest
from tests.unit.evidence.event_writers import write_series

from seatrial.cli import COMMANDS, main


@pytest.fixture
def log(tmp_path: Path) -> str:
    path = tmp_path / "metrics.json"
    path.write_text(json.dumps({"x": {"1": 1.0, "2": 3.0}}))
    return str(path)


def test_the_order_of_words_does_not_matter(
    log: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    written = tmp_path / "o.json"
    parts = [[log], ['max(data["x"]) < 9', 'min(data["x"]) > 0'], ["--json", str(written)], ["--strict"]]
    shown = set()
    for order in itertools.permutations(parts):
        if order.index(parts[0]) < order.index(parts[1]):
            assert main(["check", *(word for part in order for word in part)]) == 0, order
            shown.add(capsys.readouterr().out)
            assert json.loads(written.read_text())["outcome"] == "Pass"
    assert len(shown) == 1


def test_an_unknown_option_is_still_wrong_usage(log: str) -> None:
    with pytest.raises(SystemExit) as ended:
        main(["check", log, "--jsn", "o.json", 'max(data["x"]) < 9'])
    assert ended.value.code == 2


def test_json_on_the_standard_output_is_all_that_is_there(
    log: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["check", log, 'max(data["x"]) < 2', "--json", "-"]) == 1
    out, err = capsys.readouterr()
    assert json.loads(out)["verdicts"][0]["value"] == 3.0
    assert "Fail: 1 check" in err


def test_check_prints_what_the_reader_met(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write_series(tmp_path / "events.out.tfevents.1", {"x": [1.0] * 9}, 1000.0)
    write_series(tmp_path / "events.out.tfevents.2", {"x": dict.fromkeys(range(5, 8), 1.5)}, 2000.0)
    assert main(["check", str(tmp_path), 'max(data["x"]) < 2', 'min(data["x"]) > 0']) == 0
    lines = [line for line in capsys.readouterr().out.splitlines() if line.startswith("note: ")]
    assert len(lines) == 3
    assert "took over at step 5" in lines[0] and "abandoned" in lines[1] and "another value" in lines[2]


def test_a_series_compared_with_a_number_exits_2(log: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["check", log, 'data["x"] < 2']) == 2
    assert "choose a step" in capsys.readouterr().err


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_completion_names_every_command_and_its_options(
    shell: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["completion", shell]) == 0
    text = capsys.readouterr().out
    assert all(name in text for name in COMMANDS)
    assert "several-runs" in text


@pytest.mark.skipif(shutil.which("bash") is None, reason="needs bash")
@pytest.mark.parametrize(("line", "found"), [("seatrial ch", "check"), ("seatrial check --sui", "--suite")])
def test_bash_completes(line: str, found: str, capsys: pytest.CaptureFixture[str]) -> None:
    main(["completion", "bash"])
    script = capsys.readouterr().out
    words = line.split()
    script += (
        f'COMP_WORDS=({" ".join(words)}); COMP_CWORD={len(words) - 1}; _seatrial; echo "${{COMPREPLY[@]}}"\n'
    )
    ran = subprocess.run(["bash", "-c", script], capture_output=True, text=True, check=True, timeout=60)
    assert found in ran.stdout.split()
