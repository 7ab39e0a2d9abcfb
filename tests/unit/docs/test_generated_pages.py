"""The generated pages that are committed are those that the tables give now."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from pydantic import BaseModel

from refrl.cli import COMMANDS as REFRL_COMMANDS
from refrl.config import GRPORunConfig, SFTRunConfig
from seatrial.cli import COMMANDS, main
from seatrial.cli.docs import pages
from seatrial.relations.registry import all_relations
from seatrial.vocabulary import stacks

DOCS = Path(__file__).resolve().parents[3] / "docs"


@pytest.fixture(scope="module", name="generated")
def generated_fixture() -> dict[str, str]:
    return pages(DOCS)


def test_the_committed_pages_are_the_generated_ones(generated: dict[str, str]) -> None:
    differ = [name for name, text in generated.items() if (DOCS / name).read_text() != text]
    assert differ == [], "run: make docs"


def test_nothing_is_left_out(generated: dict[str, str]) -> None:
    for stack in stacks().values():
        for tag, name in stack.tags.items():
            assert f"| `{tag}` | `{name}` |" in generated["evidence/vocabulary.md"]
    for relation in all_relations():
        for law in relation.laws:
            assert f"| {law.name.replace('|', chr(92) + '|')} |" in generated["evidence/relations.md"]


def options(schema: type[BaseModel], path: str = "") -> set[str]:
    """Return the dotted names of all options of a configuration."""
    found: set[str] = set()
    for name, field in schema.model_fields.items():
        nested = isinstance(field.annotation, type) and issubclass(field.annotation, BaseModel)
        found |= options(field.annotation, f"{path}{name}.") if nested else {f"{path}{name}"}  # type: ignore[arg-type]
    return found


def test_every_option_is_on_the_page_once_and_has_a_doc(generated: dict[str, str]) -> None:
    """With what it is, in words."""
    rows = re.findall(
        r"^\| `([\w.]+)` \| (.+) \| (.+) \| (.*) \|$", generated["evidence/configuration.md"], re.MULTILINE
    )
    assert len(rows) == len({name for name, *_ in rows})
    assert {name for name, *_ in rows} == options(GRPORunConfig) | options(SFTRunConfig)
    assert [name for name, *_, meaning in rows if not meaning] == []


def test_defaults_and_bounds_are_those_of_the_schema(generated: dict[str, str]) -> None:
    """Three that were looked up by hand."""
    page = generated["evidence/configuration.md"]
    assert "| `policy.generation.temperature` | number, > 0 | `1.0` |" in page
    assert "| `policy.scheduler.min_lr_ratio` | number, >= 0, <= 1 | `0.0` |" in page
    assert "| `grpo.num_prompts_per_step` | whole number, > 0 | required |" in page


def test_every_command_is_on_the_page(generated: dict[str, str]) -> None:
    """Of both programs."""
    headings = set(re.findall(r"^### (.+)$", generated["evidence/commands.md"], re.MULTILINE))
    assert {f"seatrial {name}" for name in COMMANDS} | {
        f"refrl {name}" for name in REFRL_COMMANDS
    } <= headings


@pytest.mark.parametrize("command", ["check", "run", "ledger", "bisect"])
def test_the_page_has_the_options_that_help_prints(
    command: str, generated: dict[str, str], capsys: pytest.CaptureFixture[str]
) -> None:
    """Read off the printed help, not off the parser."""
    with pytest.raises(SystemExit):
        main([command, "--help"])
    printed = set(re.findall(r"^  (--[\w-]+)", capsys.readouterr().out, re.MULTILINE))
    section = generated["evidence/commands.md"].split(f"### seatrial {command}\n")[1].split("\n### ")[0]
    assert printed == set(re.findall(r"^\| `(--[\w-]+)", section, re.MULTILINE)) != set()
