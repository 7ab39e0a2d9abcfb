"""Pages of docs/use show what the commands print."""

from __future__ import annotations

import json
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest
from safetensors.torch import save_file

from seatrial.cli import main

DOCS = Path(__file__).resolve().parents[3] / "docs"
CONSOLE = re.compile(r"```console\n\$ seatrial (.*?)\n(.*?)```", re.DOTALL)


def block(page: str, language: str) -> str:
    return re.findall(rf"```{language}\n(.*?)```", (DOCS / page).read_text(), re.DOTALL)[0]


@pytest.mark.parametrize("number", [0, 1])
def test_the_page_of_logs_shows_what_tags_and_dump_print(
    number: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("metrics.json").write_text(block("use/logs.md", "json"))
    command, shown = CONSOLE.findall((DOCS / "use/logs.md").read_text())[number]
    assert main(shlex.split(command)) == 0
    printed = "".join(f"{line.rstrip()}\n" for line in capsys.readouterr().out.splitlines())
    assert printed == shown


def test_the_dump_on_the_page_of_logs_is_the_one_that_is_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("metrics.json").write_text(block("use/logs.md", "json"))
    main(["dump", "metrics.json", "--output", "out.json"])
    shown = re.findall(r"```\n(\{\n.*?)```", (DOCS / "use/logs.md").read_text(), re.DOTALL)[0]
    without_date = [re.sub(r'"written": "[^"]*"', "", text) for text in (shown, Path("out.json").read_text())]
    assert without_date[0] == without_date[1]


def test_the_page_of_guards_shows_the_failure(tmp_path: Path) -> None:
    (tmp_path / "guarded.py").write_text(block("use/guards.md", "python"))
    ran = subprocess.run(
        [sys.executable, "guarded.py"], cwd=tmp_path, capture_output=True, text=True, check=False
    )
    assert ran.stderr.splitlines()[-1] in (DOCS / "use/guards.md").read_text()


def test_the_page_of_triage_shows_what_the_command_prints(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    log = DOCS.parent / "tests/unit/triage/logs/torchrun-raises.log"
    (tmp_path / "run.log").write_text(log.read_text())
    monkeypatch.chdir(tmp_path)
    command, shown = CONSOLE.findall((DOCS / "use/triage.md").read_text())[0]
    assert main(shlex.split(command)) == 3
    assert capsys.readouterr().out == shown


def test_the_page_of_syncproof_shows_what_the_command_prints(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Of weights that the sampler did not get; the page shortens the line that names tensors."""
    torch = pytest.importorskip("torch")
    monkeypatch.chdir(tmp_path)
    names = (
        "lm_head.weight",
        "model.embed_tokens.weight",
        *(f"model.layers.0.part_{n:02}" for n in range(23)),
    )
    for folder, value in (("before", 0.0), ("trained", 1.0), ("served", 0.0)):
        Path(folder).mkdir()
        save_file(
            {name: torch.full((2, 2), value + number) for number, name in enumerate(names)},
            f"{folder}/model.safetensors",
        )
    command, shown = CONSOLE.findall((DOCS / "use/syncproof.md").read_text())[0]
    assert main(shlex.split(command)) == 1
    for printed, line in zip(capsys.readouterr().out.splitlines(), shown.splitlines(), strict=True):
        assert printed.startswith(line.removesuffix(" ..."))


def test_the_trend_page_shows_what_the_command_prints(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "140")
    Path("unit_results").mkdir()
    for number, value in enumerate(json.loads(block("use/trend.md", "json"))):
        content = {
            "git_commit": ("5e0c91aa2" if number < 7 else "a46938557") + "0" * 31,
            "start_time": f"2026-03-{number + 1:02} 12:00:00",
            "metrics": {"test_policy::test_generation": {"avg_prob_mult_error": value}},
        }
        Path(f"unit_results/{number:02}.json").write_text(json.dumps(content))
    command, shown = CONSOLE.findall((DOCS / "use/trend.md").read_text())[0]
    assert main(shlex.split(command)) == 0
    printed = "".join(f"{line.rstrip()}\n" for line in capsys.readouterr().out.splitlines())
    assert printed == shown


def test_the_baseline_page_shows_what_the_commands_print(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("train.py").write_text(block("use/baseline.md", "python"))
    for number, (command, shown) in enumerate(CONSOLE.findall((DOCS / "use/baseline.md").read_text())):
        words = shlex.split(command)
        if words[1] == "record":
            words.insert(2, "--allow-dirty")
        assert main(words) == (0, 0, 1)[number]
        printed = capsys.readouterr().out
        lines = [line for line in shown.splitlines() if not line.startswith("commit ")]
        assert [line for line in printed.splitlines() if not line.startswith("commit ")] == lines
