"""Modules of the current folder do not replace those of the processes that a run starts."""

from __future__ import annotations

import subprocess
from collections.abc import Sequence
from pathlib import Path

import pytest

from refrl.generation import process
from refrl.rewards import math
from refrl.runtime import launcher


@pytest.mark.parametrize(
    "command", [launcher.COMMAND, process.COMMAND, math.COMMAND], ids=lambda one: one[-1]
)
def test_a_file_named_like_a_module_is_not_imported(command: Sequence[str], tmp_path: Path) -> None:
    """The process begins with the words of a rank, a generator or the worker of a verifier."""
    (tmp_path / "random.py").write_text("raise SystemExit('the file of the current folder')\n")
    words = [*command[: command.index("-m")], "-c", "import random; print(random.__file__)"]
    ended = subprocess.run(words, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert ended.returncode == 0, ended.stderr
    assert str(tmp_path) not in ended.stdout
