"""docs/evidence/harness_counterparts.md: every test that it names exists, and every note names one or says why not."""

from __future__ import annotations

import ast
import re
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[3]
PAGE = (ROOT / "docs/evidence/harness_counterparts.md").read_text(encoding="utf-8")
ROWS = [
    [cell.strip() for cell in line.strip("|").split("|")]
    for line in PAGE.splitlines()
    if line.startswith("|") and not line.startswith(("| note", "|---"))
]
NAMES = sorted(set(re.findall(r"`(tests/[^`]+)`", PAGE)))


@cache
def functions_of(path: str) -> frozenset[str]:
    tree = ast.parse((ROOT / path).read_text(encoding="utf-8"))
    return frozenset(node.name for node in ast.walk(tree) if isinstance(node, ast.FunctionDef))


@pytest.mark.parametrize("name", NAMES)
def test_the_test_exists(name: str) -> None:
    path, _, function = name.partition("::")
    assert function.startswith("test_")
    assert function in functions_of(path)


def test_every_row_names_one_test_or_none() -> None:
    assert len(ROWS) > 50
    for note, test, asserts in ROWS:
        assert note
        assert asserts
        assert test == "none" or re.fullmatch(r"`tests/\S+\.py::test_\w+`", test), note


def test_the_four_parts_have_a_table_each() -> None:
    assert re.findall(r"^## (.*)$", PAGE, re.MULTILINE) == ["Buffer", "Data iterator", "Router", "Rollout"]
