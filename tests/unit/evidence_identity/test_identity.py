"""Who ran, on what: commits, dirty files, packages, host; and no secret among it."""

import json
import os
import subprocess
from pathlib import Path

import pytest

from seatrial.evidence.identity import collect as identity
from seatrial.evidence.identity.collect import (
    collect_identity,
    imports_as_json,
    package_versions,
    repository_of,
    source_digest,
)
from seatrial.evidence.identity.origins import Import
from seatrial.evidence.identity.redaction import Redactor

SECRET = "hf_" + "Ab3" * 12


def git(folder: Path, *words: str) -> str:
    """Run git in a folder, apart from the settings of whoever runs the test."""
    environment = {
        **os.environ, "GIT_CONFIG_GLOBAL": os.devnull, "GIT_CONFIG_SYSTEM": os.devnull,
        "GIT_AUTHOR_NAME": "a", "GIT_AUTHOR_EMAIL": "a@example.org",
        "GIT_COMMITTER_NAME": "a", "GIT_COMMITTER_EMAIL": "a@example.org",
    }  # fmt: skip
    ran = subprocess.run(
        ["git", "-C", str(folder), *words], env=environment, capture_output=True, text=True, check=True
    )
    return ran.stdout.strip()


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    """A package in a repository with one commit."""
    package = tmp_path / "checkout" / "src" / "stack"
    package.mkdir(parents=True)
    (package / "__init__.py").write_text("x = 1\n")
    git(tmp_path / "checkout", "init", "-q", "-b", "main")
    git(tmp_path / "checkout", "add", "-A")
    git(tmp_path / "checkout", "commit", "-q", "-m", "one")
    return package


def test_a_clean_checkout(checkout: Path) -> None:
    """The commit is git's own answer."""
    found = repository_of(checkout)
    assert found.commit == git(checkout, "rev-parse", "HEAD")
    assert (found.branch, found.dirty_files) == ("main", ())
    assert found.describe() == f"commit {found.commit[:12]}, clean"


def test_changed_and_new_files_are_listed_wherever_they_lie(checkout: Path) -> None:
    """Also those outside the package, staged or not."""
    (checkout / "__init__.py").write_text("x = 2\n")
    (checkout.parents[1] / "notes.txt").write_text("new")
    found = repository_of(checkout)
    assert sorted(found.dirty_files) == [" M src/stack/__init__.py", "?? notes.txt"]
    assert found.describe().endswith("2 files changed")


def test_looking_changes_nothing(checkout: Path) -> None:
    """No lock is taken and no index is written: somebody else may be at work in the checkout."""
    (checkout.parents[1] / ".git" / "index.lock").write_text("")
    before = (checkout.parents[1] / ".git" / "index").stat().st_mtime_ns
    os.utime(checkout / "__init__.py")
    assert repository_of(checkout).dirty_files == ()
    assert (checkout.parents[1] / ".git" / "index").stat().st_mtime_ns == before


def test_without_git_the_sources_say_what_ran(
    tmp_path: Path, checkout: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An installed package has a digest of its files, and the reason why there is no commit."""
    monkeypatch.setenv("GIT_CEILING_DIRECTORIES", str(tmp_path))
    (tmp_path / "site").mkdir()
    (tmp_path / "site" / "__init__.py").write_text("x = 1\n")
    found = repository_of(tmp_path / "site")
    assert found.commit is None
    assert found.reason is not None
    assert "not a git repository" in found.reason
    assert found.source_digest == source_digest(checkout)
    monkeypatch.setenv("PATH", str(tmp_path))
    assert repository_of(checkout).reason == "git is not installed"


def test_the_digest_knows_names_and_contents(tmp_path: Path) -> None:
    """A changed byte, a moved file and a file more are all seen; a cache file is not."""
    digests = set()
    for name, text in (("a.py", "x"), ("a.py", "y"), ("b.py", "y"), ("sub/b.py", "y")):
        folder = tmp_path / str(len(digests))
        (folder / name).parent.mkdir(parents=True)
        (folder / name).write_text(text)
        digests.add(source_digest(folder))
    assert len(digests) == 4
    (folder / "cache.pyc").write_text("z")
    assert source_digest(folder) in digests


def test_packages_present_and_missing() -> None:
    """None says that it is not installed."""
    found = package_versions(["numpy", "no-such-distribution-anywhere"])
    assert found["numpy"] is not None
    assert found["no-such-distribution-anywhere"] is None


def test_a_driver_that_answers_is_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """nvidia-smi's rows, one per device; without it there are none."""
    monkeypatch.setenv("PATH", str(tmp_path))
    assert identity.gpus() == []
    tool = tmp_path / "nvidia-smi"
    tool.write_text(
        "#!/bin/sh\necho '0, NVIDIA H200, 143771 MiB, 570.1'\necho '1, NVIDIA H200, 143771 MiB, 570.1'\n"
    )
    tool.chmod(0o755)
    assert [gpu["name"] for gpu in identity.gpus()] == ["NVIDIA H200"] * 2
    tool.write_text("#!/bin/sh\nexit 9\n")
    assert identity.gpus() == []


def test_no_secret_is_written_down(checkout: Path) -> None:
    """Neither from the environment nor from a command line."""
    environment = {"HF_TOKEN": SECRET, "HF_HOME": f"/x/{SECRET}", "OMP_NUM_THREADS": "2", "EDITOR": "vi"}
    redactor = Redactor(environment)
    found = collect_identity(
        repositories={"stack": repository_of(checkout)},
        modules=["json"],
        packages=["numpy"],
        environment=environment,
        redactor=redactor,
    )
    found["runs"]["trial"] = imports_as_json(
        [Import(pid=1, ppid=0, module="m", file=Path("/m.py"), program=("python", "--token", SECRET))],
        redactor,
    )
    text = json.dumps(found)
    assert SECRET not in text
    assert found["environment"]["OMP_NUM_THREADS"] == "2"
    assert "EDITOR" not in found["environment"]
    assert found["driver"]["origins"]["json"] == str(Path(json.__file__).resolve())
    assert found["host"]["cores"] >= 1
