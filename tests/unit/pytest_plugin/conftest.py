"""Black-box tests: each writes a project and runs pytest on it in a process of its own."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest


def pytest_configure(config: pytest.Config) -> None:
    """Load pytest's own tool for tests of plugins, for the tests below this folder only."""
    config.pluginmanager.import_plugin("pytester")


RunPytest = Callable[..., pytest.RunResult]


@pytest.fixture
def run_pytest(pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch, forked_pytest: str) -> RunPytest:
    """Run pytest in the project of `pytester`, with this plugin and xdist and no other.

    Its process is forked with pytest imported, which takes half of what most of these sessions take.
    """
    monkeypatch.setenv("PYTEST_DISABLE_PLUGIN_AUTOLOAD", "1")
    for name in ("PYTEST_ADDOPTS", "PYTEST_PLUGINS", "PYTEST_XDIST_WORKER", "HF_TOKEN"):
        monkeypatch.delenv(name, raising=False)

    def run(*arguments: str, plugins: tuple[str, ...] = ("xdist",), seconds: float = 120) -> pytest.RunResult:
        loaded = [word for name in ("seatrial.pytest_plugin", *plugins) for word in ("-p", name)]
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(sys, "executable", forked_pytest)
            return pytester.runpytest_subprocess(*loaded, *arguments, timeout=seconds)

    return run


@pytest.fixture
def results(pytester: pytest.Pytester) -> Callable[[], dict[str, Any]]:
    """Read the result file of the project, as a strict JSON reader does."""

    def refuse(word: str) -> None:
        raise AssertionError(f"bare {word} in the result file")

    def read(path: str = "tests/unit/unit_results.json") -> dict[str, Any]:
        content: dict[str, Any] = json.loads((pytester.path / path).read_text(), parse_constant=refuse)
        return content

    return read


@pytest.fixture
def write(pytester: pytest.Pytester) -> Callable[..., None]:
    """Write files of the project: `write(**{"pkg/a.py": "X = 1"})`."""

    def write_files(files: dict[str, str]) -> None:
        for name, text in files.items():
            path: Path = pytester.path / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text)

    return write_files
