"""Every package has its place in the order of imports, and its sentence in docs/architecture.md."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parents[2]
PACKAGES = ("seatrial", "refrl")
CONTRACTS: list[dict[str, Any]] = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"][
    "importlinter"
]["contracts"]
PAGE = (ROOT / "docs" / "architecture.md").read_text()


def members(package: str) -> set[str]:
    """Return the modules and packages right inside a package."""
    inside = (ROOT / "src" / package).iterdir()
    return {path.stem for path in inside if path.suffix == ".py" or (path / "__init__.py").exists()} - {
        "__init__"
    }


def folders(package: str) -> list[str]:
    """Return every package below a package, as a path that starts with the package's own name."""
    source = ROOT / "src"
    below = (path.parent for path in (source / package).rglob("__init__.py"))
    return sorted(path.relative_to(source).as_posix() for path in below if path != source / package)


@pytest.mark.parametrize("package", PACKAGES)
def test_every_member_stands_in_one_layer(package: str) -> None:
    """And no layer names a member that is not there."""
    (contract,) = [held for held in CONTRACTS if held.get("containers") == [package]]
    placed = [member.strip(" ()") for layer in contract["layers"] for member in layer.split("|")]
    assert len(placed) == len(set(placed))
    assert set(placed) == members(package)
    assert contract["exhaustive"]


@pytest.mark.parametrize("folder", [folder for package in PACKAGES for folder in folders(package)])
def test_every_folder_has_a_sentence(folder: str) -> None:
    """In the table of its package: the folder's name, then what it holds."""
    package, _, inside = folder.partition("/")
    assert re.search(rf"^\| `{re.escape(inside)}/` \| .{{15,}} \|$", _section(package), re.MULTILINE), folder


@pytest.mark.parametrize("package", PACKAGES)
def test_no_sentence_is_about_a_folder_that_is_gone(package: str) -> None:
    """Of the tables, the other way round; a folder of data alone may have its sentence too."""
    for inside in re.findall(r"^\| `([\w/]+)/` \|", _section(package), re.MULTILINE):
        assert (ROOT / "src" / package / inside).is_dir(), inside


def _section(package: str) -> str:
    """Return what stands on the page under the heading of a package."""
    return PAGE.split(f"\n### `{package}`\n", 1)[1].split("\n#", 1)[0]


def test_where_twenty_things_are() -> None:
    """Each answer of CONTRIBUTING's review section is a path that is there."""
    answers = re.findall(r"^\| .+ \| `(src/[^`]+)` \|$", (ROOT / "CONTRIBUTING.md").read_text(), re.MULTILINE)
    assert len(set(answers)) == len(answers) == 20
    assert [path for path in answers if not (ROOT / path).exists()] == []
