"""Environments of peers are made by uv from where pip would take packages, or by pip; nothing needs a network."""

import importlib.util
import os
import subprocess
import venv
from collections.abc import Sequence
from pathlib import Path
from zipfile import ZipFile

import pytest
from tests.peers import making

TABLE = """
[toy]
requirements = ["toy==1.0"]
left_out = ["heavy"]
without_dependencies = ["lone"]
"""


def wheel(folder: Path, name: str, needs: Sequence[str] = ()) -> None:
    """Write a package that holds nothing but what it needs."""
    with ZipFile(folder / f"{name}-1.0-py3-none-any.whl", "w") as written:
        about = [
            f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0",
            *(f"Requires-Dist: {one}" for one in needs),
        ]
        written.writestr(f"{name}-1.0.dist-info/METADATA", "\n".join(about) + "\n")
        written.writestr(
            f"{name}-1.0.dist-info/WHEEL",
            "Wheel-Version: 1.0\nGenerator: test\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
        )
        written.writestr(f"{name}-1.0.dist-info/RECORD", "")


@pytest.fixture
def packages(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder of four packages, which pip's configuration names, and a table of environments."""
    folder = tmp_path / "packages"
    folder.mkdir()
    wheel(folder, "toy", ["heavy", "light"])
    wheel(folder, "heavy")
    wheel(folder, "light")
    wheel(folder, "lone", ["heavy"])
    (tmp_path / "tests/peers").mkdir(parents=True)
    (tmp_path / "tests/peers/environments.toml").write_text(TABLE)
    for name in ("UV_FIND_LINKS", "UV_INDEX", "UV_NO_INDEX", "UV_DEFAULT_INDEX"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("PIP_CONFIG_FILE", "/dev/null")
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(folder))
    monkeypatch.setenv("UV_CACHE_DIR", str(tmp_path / "cache"))
    monkeypatch.setattr(making, "ROOT", tmp_path)
    monkeypatch.setattr(making, "PEERS", tmp_path / "peers")
    return folder


def installed(python: Path) -> set[str]:
    """Return the names of what an environment has, as its own interpreter sees them."""
    script = "from importlib.metadata import distributions; print(*(one.name for one in distributions()))"
    ran = subprocess.run([str(python), "-c", script], capture_output=True, text=True, check=True)
    return set(ran.stdout.split())


@pytest.mark.filterwarnings("error")
def test_uv_takes_packages_from_where_pip_would(packages: Path) -> None:
    """Without those left out and the needs of those that stand alone; a second call makes nothing."""
    python = making.environment("toy")
    assert installed(python) == {"toy", "light", "lone"}
    for made in packages.iterdir():
        made.unlink()
    assert making.environment("toy") == python


def test_without_uv_pip_makes_the_same(packages: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """And it is said why."""
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.warns(UserWarning, match="'toy' is made by pip, which takes longer: .* has no uv"):
        python = making.environment("toy")
    assert installed(python) == {"toy", "light", "lone"}


def test_what_cannot_be_made_is_told_without_passwords_and_is_not_kept(
    packages: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Neither uv's words nor pip's have the password of an index; the next call tries again."""
    with monkeypatch.context() as unreachable:
        unreachable.delenv("PIP_NO_INDEX")
        unreachable.delenv("PIP_FIND_LINKS")
        unreachable.setenv("PIP_INDEX_URL", "http://someone:hushed@127.0.0.1:9/simple")
        unreachable.setenv("PIP_RETRIES", "0")
        unreachable.setenv("UV_HTTP_RETRIES", "0")
        with pytest.warns(UserWarning, match="by pip") as said, pytest.raises(making.MakingError) as raised:
            making.environment("toy")
    words = [str(raised.value), *(str(one.message) for one in said)]
    assert all("toy" in text and "hushed" not in text for text in words)
    assert "light" in installed(making.environment("toy"))


def test_what_is_beside_is_not_installed_again(packages: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A package of the tests' own environment is seen behind the new one's; one of another version is not enough."""
    beside = packages.parent / "beside"
    beside.mkdir()
    for name, version in (("light", "1.0"), ("toy", "0.9")):
        folder = beside / f"{name}-{version}.dist-info"
        folder.mkdir()
        (folder / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n")
    monkeypatch.setattr(making, "OWN", str(beside))
    (packages.parent / "tests/peers/environments.toml").write_text(TABLE + "beside = true\n")
    python = making.environment("toy")
    (own,) = python.parent.parent.glob("lib/python*/site-packages")
    assert {folder.name for folder in own.glob("*.dist-info")} == {"toy-1.0.dist-info", "lone-1.0.dist-info"}
    assert "light" in installed(python)


@pytest.mark.nightly
def test_make_installs_by_pip_where_there_is_no_uv_and_says_what_it_cannot_install(packages: Path) -> None:
    """Into the interpreter that is asked, as `make` asks the one of the environment that it has just made."""
    home = packages.parent / "own"
    venv.EnvBuilder(with_pip=True).create(home)

    def made(word: str) -> subprocess.CompletedProcess[str]:
        command = [str(home / "bin/python"), "-m", "tests.peers.making", word]
        root = Path(__file__).parents[2]
        return subprocess.run(command, capture_output=True, text=True, check=False, cwd=root, env=os.environ)

    by_pip, missing = made("toy"), made("nowhere")
    assert by_pip.returncode == 0
    assert "by pip, which takes longer" in by_pip.stderr
    assert {"toy", "light", "heavy"} <= installed(home / "bin/python")
    assert missing.returncode == 2
    assert "the environment could not be made" in missing.stderr
    assert "nowhere" in missing.stderr
    assert "Traceback" not in missing.stderr


def test_environments_are_made_by_name(packages: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """As before the first tests; one that cannot be made does not keep the next from being made."""
    (packages.parent / "tests/peers/environments.toml").write_text(
        '[none]\nrequirements = ["nowhere==1.0"]\n' + TABLE
    )
    with pytest.warns(UserWarning, match="'none' is made by pip"):
        assert making.main(["--environments", "none", "toy"]) == 2
    assert "environment 'none' could not be made" in capsys.readouterr().err
    assert len(list(making.PEERS.glob("toy-*/.ready"))) == 1
    assert making.main(["--environments", "toy"]) == 0


def test_a_later_section_of_pips_configuration_has_the_last_word() -> None:
    """And a variable of uv's own that is set, has it over all."""
    listed = (
        ":env:.timeout='7'\nglobal.extra-index-url='https://a/simple\\nhttps://b/simple'\n"
        "global.timeout='5'\nglobal.index-url='https://c/simple'\ninstall.index-url='https://d/simple'\n"
        "global.find-links='one two'\nfreeze.index-url='https://e/simple'\n"
    )
    assert making.variables_of(listed, {"UV_INDEX": "https://own/simple", "HOME": "there"}) == {
        "UV_INDEX_STRATEGY": "unsafe-best-match",
        "UV_INDEX": "https://own/simple",
        "UV_DEFAULT_INDEX": "https://d/simple",
        "UV_FIND_LINKS": "one,two",
        "UV_HTTP_TIMEOUT": "7",
        "HOME": "there",
    }
