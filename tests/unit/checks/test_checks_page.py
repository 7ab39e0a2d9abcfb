"""docs/use/check.md and docs/use/migrate.md tell the truth: commands are run, functions and suites exist."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import pytest

from seatrial.checks.language.functions import FUNCTIONS
from seatrial.checks.suites import load_suite
from seatrial.cli import main
from seatrial.packaged import packaged_names

ROOT = Path(__file__).resolve().parents[3]
PAGE = (ROOT / "docs/use/check.md").read_text() + (ROOT / "docs/use/migrate.md").read_text()
CONSOLES = re.findall(r"```console\n\$ seatrial (.*?)\n(.*?)```", PAGE, re.DOTALL)


def block(language: str) -> str:
    return re.findall(rf"```{language}\n(.*?)```", PAGE, re.DOTALL)[0]


@pytest.mark.parametrize(("command", "shown"), CONSOLES, ids=[command[:40] for command, _ in CONSOLES])
def test_the_commands_print_what_the_page_shows(
    command: str,
    shown: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("metrics.json").write_text(block("json"))
    Path("nightly.sh").write_text(block("bash"))
    main(shlex.split(command))
    told = capsys.readouterr()
    assert told.out + told.err == shown


def test_every_function_stands_in_the_table() -> None:
    for spec in FUNCTIONS.values():
        assert re.search(rf"^\| `{spec.name}\(x.*\| {re.escape(spec.meaning)}", PAGE, re.M)


def test_the_example_suite_is_valid(tmp_path: Path) -> None:
    (tmp_path / "suite.yaml").write_text(block("yaml"))
    assert load_suite(tmp_path / "suite.yaml").name == "golden"


def test_the_suites_named_exist() -> None:
    table = PAGE.partition("| suite | question |")[2].partition("\n\n")[0]
    assert re.findall(r"^\| `([a-z-]+)` \|", table, re.M) == sorted(packaged_names("suite"), key=table.index)
