"""The site of docs/: every page is in its contents, every link leads somewhere, nothing is loaded from elsewhere."""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

ROOT = Path(__file__).resolve().parents[3]
DOCS = ROOT / "docs"
PAGES = sorted(DOCS.rglob("*.md"))
LINK = re.compile(r"\]\(([^)\s]+)\)")
CODE = re.compile(r"```.*?```|`[^`\n]*`", re.DOTALL)
LOADED = re.compile(
    r"""<(?:script|img|iframe|source)\b[^>]*\bsrc=["']?(?:https?:)?//|<link\b(?![^>]*canonical)[^>]*\bhref=["']?(?:https?:)?//"""
    r"""|@import[^;]*//|url\(["']?(?:https?:)?//"""
)


def entries(nav: Any) -> Iterator[str]:
    """Yield the pages of a table of contents."""
    if isinstance(nav, str):
        yield nav
    for held in nav if isinstance(nav, list) else nav.values() if isinstance(nav, dict) else ():
        yield from entries(held)


def test_every_page_is_in_the_contents_once() -> None:
    """And no entry names a page that is not there."""
    listed = list(entries(yaml.safe_load((ROOT / "mkdocs.yml").read_text())["nav"]))
    assert sorted(listed) == sorted(page.relative_to(DOCS).as_posix() for page in PAGES)


@pytest.mark.parametrize(
    "page",
    [*PAGES, ROOT / "README.md", ROOT / "CONTRIBUTING.md"],
    ids=lambda page: page.relative_to(ROOT).as_posix(),
)
def test_a_link_within_the_repository_leads_to_a_file(page: Path) -> None:
    """Those that leave docs/ included, which the site only names."""
    for target in LINK.findall(CODE.sub("", page.read_text())):
        if not re.match(r"[a-z]+:|#", target):
            assert (page.parent / target.partition("#")[0]).exists(), target


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Build the site; a link to a page or a heading that is not there ends the build."""
    folder = tmp_path_factory.mktemp("site")
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--quiet", "--site-dir", str(folder)]
    built = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert built.returncode == 0, built.stderr
    return folder


def test_the_site_has_every_page(site: Path) -> None:
    """As HTML, beside the page that searches them."""
    expected = {page.relative_to(DOCS).with_suffix(".html").as_posix() for page in PAGES}
    assert expected < {page.relative_to(site).as_posix() for page in site.rglob("*.html")}


def test_the_site_loads_nothing_from_elsewhere(site: Path) -> None:
    """No script, style, font or picture of a server; a link that a reader follows is no load."""
    assert LOADED.search('<script src="https://a.example/b.js">') is not None
    assert LOADED.search('<link rel="stylesheet" href="//a.example/b.css">') is not None
    for path in [*site.rglob("*.html"), *site.rglob("*.css")]:
        assert (found := LOADED.search(path.read_text())) is None, f"{path.name}: {found}"


def test_no_link_of_the_site_leaves_it(site: Path) -> None:
    """What a page links to in the repository outside docs/ is named there, not linked."""
    for path in site.rglob("*.html"):
        for target in re.findall(r'href="([^"#:]+)[#"]', path.read_text()):
            if path.name != "404.html":
                assert (path.parent / target).resolve().is_relative_to(site.resolve()), (
                    f"{path.name}: {target}"
                )
                assert (path.parent / target).exists(), f"{path.name}: {target}"
