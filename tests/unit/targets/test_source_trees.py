"""A package that is imported from a source tree has the version that its files state, also in other processes."""

import sys
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

import pytest

from seatrial.targets.common.source_trees import add_metadata, stated_version


@pytest.mark.parametrize(
    ("file", "text", "stated"),
    [
        ("VERSION", "1.9.0.dev0\n", "1.9.0.dev0"),
        ("../VERSION", "0.25.0.dev0", "0.25.0.dev0"),
        ("__init__.py", 'import os\n__version__ = "0.14.0.dev0"\n', "0.14.0.dev0"),
        ("version.py", "__version__ = '2.0'", "2.0"),
        ("__init__.py", "__version__ = version('tree')", None),
    ],
)
def test_a_version_is_read_from_a_tree(
    file: str, text: str, stated: str | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without importing it; a package that states none has none, and an installed one is left alone."""
    package = tmp_path / "seatrial_tree"
    package.mkdir()
    (package / file).write_text(text)
    monkeypatch.setattr(sys, "path", [str(tmp_path), *sys.path])
    assert stated_version("seatrial_tree") == stated
    add_metadata(["seatrial_tree", "pytest"])
    assert version("pytest") == pytest.__version__
    assert "seatrial_tree" not in sys.modules
    if stated is None:
        with pytest.raises(PackageNotFoundError):
            version("seatrial_tree")
        return
    assert version("seatrial_tree") == stated
    added = Path(sys.path[1], f"seatrial_tree-{stated}.dist-info")
    (added / "METADATA").unlink()
    added.rmdir()


def test_a_tree_before_an_installed_release_has_its_own_version(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Which it states; the release keeps its version where it is what is imported."""
    tree, site = tmp_path / "tree", tmp_path / "site"
    for folder, text in ((tree, '__version__ = "1.2"'), (site, '__version__ = "1.9"')):
        (folder / "seatrial_tree").mkdir(parents=True)
        (folder / "seatrial_tree" / "__init__.py").write_text(text)
    (site / "seatrial_tree-1.9.dist-info").mkdir()
    (site / "seatrial_tree-1.9.dist-info" / "METADATA").write_text(
        "Metadata-Version: 2.1\nName: seatrial_tree\nVersion: 1.9\n"
    )
    monkeypatch.setattr(sys, "path", [sys.path[0], str(site), *sys.path[1:]])
    add_metadata(["seatrial_tree"])
    assert version("seatrial_tree") == "1.9"
    sys.path.insert(0, str(tree))
    add_metadata(["seatrial_tree"])
    assert version("seatrial_tree") == "1.2"
