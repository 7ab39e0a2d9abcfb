"""docs/use/ledger.md names every law, column and option, and shows what the command prints."""

import argparse
import dataclasses
import re
from pathlib import Path

import pytest
from tests.unit.ledger.made_ledgers import change, right_ledger, write_refrl

from seatrial.cli import main
from seatrial.cli.ledger import add_arguments
from seatrial.evidence.ledger.laws import LAWS
from seatrial.evidence.ledger.schema import LedgerRow

PAGE = (Path(__file__).resolve().parents[3] / "docs" / "use" / "ledger.md").read_text()


def test_the_page_names_every_law_and_column() -> None:
    rows = re.findall(r"^\| (.+?) \|", PAGE, re.MULTILINE)
    assert set(LAWS) <= set(rows)
    columns = {field.name for field in dataclasses.fields(LedgerRow)} - {"misplaced"}
    assert columns <= set(re.findall(r"`(\w+)`", PAGE))


def test_options_on_the_page_exist() -> None:
    parser = argparse.ArgumentParser()
    add_arguments(parser)
    assert set(re.findall(r"(--[a-z][a-z-]+)", PAGE)) <= set(parser._option_string_actions)


def test_the_page_shows_what_is_printed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Lines of the block stand in the output in this order; `...` stands for what is left out."""
    write_refrl(tmp_path / "logs", change(2, 5, advantage=0.123)(right_ledger()))
    monkeypatch.chdir(tmp_path)
    command, *shown = re.search(r"```console\n\$ seatrial (.*?)```", PAGE, re.DOTALL)[1].splitlines()  # type: ignore[index]
    main(command.split())
    printed = capsys.readouterr().out.splitlines()
    cut = shown.index("...")
    assert printed[:cut] == shown[:cut]
    assert printed[cut - len(shown) + 1 :] == shown[cut + 1 :]
