"""The README's text alone trains on problems of one's own and on code: its files are written, its commands run."""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest

pytestmark = [pytest.mark.e2e, pytest.mark.slow]

SHORT = {
    "sft": ("sft.max_num_steps=2", "sft.val_period=2", "sft.max_val_samples=4", "cluster.num_threads=1"),
    "grpo": (
        "grpo.max_num_steps=2",
        "grpo.max_val_samples=4",
        "grpo.val_at_end=true",
        "grpo.num_prompts_per_step=2",
        "policy.train_global_batch_size=16",
        "policy.train_micro_batch_size=16",
        "cluster.num_threads=1",
    ),
}
"""Added to the commands where only their working is tested."""


@pytest.fixture
def section(repository: Path, tmp_path: Path) -> list[list[str]]:
    """Write the files of the section into an empty folder, and return its commands."""
    text = (repository / "README.md").read_text().partition("## Train on problems of your own")[2]
    text = text.partition("\n## ")[0]
    for name, content in re.findall(r"```python\n# (\w+\.py)\n(.*?)```", text, re.DOTALL):
        (tmp_path / name).write_text(content)
    blocks = re.findall(r"```sh\n(.*?)```", text, re.DOTALL)
    return [shlex.split(line) for block in blocks for line in block.splitlines()]


def run_all(commands: Sequence[Sequence[str]], folder: Path, more: dict[str, tuple[str, ...]]) -> list[str]:
    """Run commands as a shell would, and return what each printed."""
    places = os.pathsep.join([str(folder / "bin"), str(Path(sys.executable).parent), os.environ["PATH"]])
    shown = []
    for words in commands:
        ran = subprocess.run(
            [*words, *more.get(words[1], ())],
            cwd=folder,
            env={**os.environ, "PATH": places},
            capture_output=True,
            text=True,
            check=False,
            timeout=550,
        )
        assert ran.returncode == 0, f"{words}: {ran.stdout[-2000:]}{ran.stderr[-2000:]}"
        shown.append(ran.stdout)
    return shown


def accuracies(shown: str) -> list[float]:
    """Return the accuracy of each validation that a command printed."""
    return [float(value) for value in re.findall(r"validation accuracy ([\d.]+)", shown)]


@pytest.fixture
def quick_refrl(tmp_path: Path, forked_python: str) -> None:
    """Put a `refrl` in front that starts with the stack imported, and finds what the installed one finds."""
    command = tmp_path / "bin" / "refrl"
    command.parent.mkdir()
    command.write_text(f'#!/bin/sh\nPYTHONSAFEPATH=1 exec {forked_python} -m refrl "$@"\n')
    command.chmod(0o755)


@pytest.mark.usefixtures("quick_refrl")
def test_the_commands_run(section: list[list[str]], tmp_path: Path) -> None:
    """Two steps of each."""
    assert [words[1] for words in section] == ["make_problems.py", "make-model", "sft", "grpo", "sft", "grpo"]
    shown = run_all(section, tmp_path, SHORT)
    assert all("step 2/2" in shown[index] for index in (2, 3, 4, 5))
    assert not any("verifier errors" in text for text in shown)


@pytest.mark.nightly
@pytest.mark.parametrize("part", ["own data", "code"])
def test_a_tiny_model_gets_better(section: list[list[str]], tmp_path: Path, part: str) -> None:
    """The warm-up answers some, and GRPO more of the held-out problems; one seed, so no more than a direction."""
    commands = section[:4] if part == "own data" else [section[1], *section[4:]]
    shown = run_all(
        commands, tmp_path, {"sft": ("cluster.num_threads=1",), "grpo": ("cluster.num_threads=1",)}
    )
    before, *_, after = accuracies(shown[-1])
    assert before > 0.1
    assert after > before
