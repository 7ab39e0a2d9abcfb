"""Parts by name: built in, of an installed package, by import path; what is wrong is one message with the remedy."""

import subprocess
import sys
from pathlib import Path

import pytest

from refrl.config import ConfigError
from refrl.config.registry import Registry

SOUNDS = Registry("sound", "refrl_test.sounds", {"text": "string:ascii_letters", "given": len})


@pytest.fixture
def on_path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return a folder that modules are imported from."""
    monkeypatch.syspath_prepend(tmp_path)
    return tmp_path


def install(folder: Path, package: str, points: str) -> None:
    """Write the metadata that installing a package leaves, with its entry points."""
    information = folder / f"{package}-1.0.dist-info"
    information.mkdir()
    (information / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {package}\nVersion: 1.0\n")
    (information / "entry_points.txt").write_text(f"[refrl_test.sounds]\n{points}\n")


def test_built_in_names_are_imported_when_asked_for() -> None:
    """From `module:attribute`, or the object itself."""
    assert SOUNDS.find("text", "k") == "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ"
    assert SOUNDS.find("given", "k") is len


def test_an_installed_package_offers_a_name(on_path: Path) -> None:
    """By its entry point; it is listed beside those that are built in."""
    install(on_path, "choir", "alto = string:digits")
    assert SOUNDS.names() == ["alto", "given", "text"]
    assert SOUNDS.find("alto", "k") == "0123456789"


def test_two_packages_with_one_name_are_both_named(on_path: Path) -> None:
    """Nobody can know which is meant."""
    install(on_path, "choir", "alto = string:digits")
    install(on_path, "opera", "alto = string:hexdigits")
    with pytest.raises(ConfigError, match=r"k=alto: several packages offer it \(choir, opera\)"):
        SOUNDS.find("alto", "k")


def test_an_entry_point_that_cannot_be_imported_names_its_package(on_path: Path) -> None:
    """The user did not write the import path."""
    install(on_path, "choir", "alto = choir_module:alto")
    with pytest.raises(
        ConfigError, match=r"k=alto \(of choir\)=choir_module:alto: there is no module 'choir_module'"
    ):
        SOUNDS.find("alto", "k")


def test_a_built_in_name_is_not_replaced(on_path: Path) -> None:
    """A package that is merely installed changes nothing."""
    install(on_path, "choir", "given = string:digits")
    assert SOUNDS.find("given", "k") is len


def test_an_import_path_names_anything(on_path: Path) -> None:
    """Attributes of attributes too."""
    (on_path / "voices_a.py").write_text("class Alto:\n    pitch = 3\n")
    assert SOUNDS.find("voices_a:Alto.pitch", "k") == 3


def test_the_current_folder_is_searched(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also by the console script, whose own folder Python searches."""
    (tmp_path / "voices_b.py").write_text("alto = 4\n")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [word for word in sys.path if word])
    assert SOUNDS.find("voices_b:alto", "k") == 4


@pytest.mark.parametrize(
    ("name", "text", "words"),
    [
        (
            "txet",
            None,
            "k='txet' is unknown; did you mean 'text'? known: given, text; name a custom sound by its import path",
        ),
        ("voices_c:alto", None, "k=voices_c:alto: there is no module 'voices_c'"),
        ("voices_d.inner:alto", "", "there is no module 'voices_d.inner'"),
        ("voices_d:alot", "alto = 1", "voices_d has no 'alot'; did you mean 'alto'?"),
        ("voices_d:alto", "1 / 0", "importing voices_d failed with ZeroDivisionError: division by zero"),
        ("voices_d:alto", "def (", "importing voices_d failed with SyntaxError"),
        ("voices_d:alto", "import nothing_there", "importing voices_d failed with ModuleNotFoundError"),
    ],
)
def test_what_cannot_be_found_is_one_message(
    on_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, text: str | None, words: str
) -> None:
    """Unknown name, missing module, missing attribute, a module that fails while it loads."""
    if text is not None:
        (on_path / "voices_d.py").write_text(text)
    monkeypatch.delitem(sys.modules, "voices_d", raising=False)
    with pytest.raises(ConfigError) as caught:
        SOUNDS.find(name, "k")
    assert words in str(caught.value)


def test_reading_a_configuration_loads_no_torch(repository: Path) -> None:
    """Every built-in loss and estimator is held against its options without it."""
    script = (
        "import sys; sys.modules.update(torch=None, transformers=None)\n"
        "from refrl.config import LossConfig, AdvantageConfig\n"
        "for kind in ('ppo_clip', 'gspo', 'cispo'): LossConfig(kind=kind, reduction='sequence')\n"
        "for name in ('grpo', 'dr_grpo', 'rloo', 'reinforce_plus_plus_baseline'): AdvantageConfig(estimator=name)\n"
    )
    subprocess.run([sys.executable, "-c", script], check=True, cwd=repository)


@pytest.mark.parametrize(
    "module", ["refrl.algorithms.losses.base", "refrl.algorithms.losses.gspo", "refrl.config"]
)
def test_a_loss_may_be_imported_before_the_configuration(module: str, repository: Path) -> None:
    """A module of the user's does so; the schema asks the built-in losses only when it is used."""
    script = f"import {module}; from refrl.config import LossConfig; LossConfig()"
    subprocess.run([sys.executable, "-c", script], check=True, cwd=repository)
