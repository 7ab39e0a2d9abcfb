"""Each page for contributors shows one file of the package outside, and the entry point that finds it, as they are."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[3]
EXAMPLE = ROOT / "examples" / "outside_package"
PARTS = sorted(path for path in (EXAMPLE / "my_stack").glob("*.py") if path.stem != "__init__")
PAGES = [ROOT / "docs" / "extend" / f"{part.stem}.md" for part in PARTS]


def test_every_part_has_a_page() -> None:
    """Under its own name."""
    assert [page for page in PAGES if not page.is_file()] == []


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_the_page_shows_the_file_whole(page: Path) -> None:
    """Character by character."""
    (shown,) = re.findall(r"```python\n(.*?)```\n", page.read_text(), re.DOTALL)
    assert shown == (EXAMPLE / "my_stack" / f"{page.stem}.py").read_text()


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_the_page_shows_the_entry_point(page: Path) -> None:
    """As the package declares it."""
    (shown,) = re.findall(r"```toml\n(.*?)```\n", page.read_text(), re.DOTALL)
    declared = tomllib.loads((EXAMPLE / "pyproject.toml").read_text())["project"]["entry-points"]
    ((group, points),) = tomllib.loads(shown)["project"]["entry-points"].items()
    assert declared[group] == points
