"""Kills at random moments: the user's repository stays byte for byte, and resuming reaches the same answer.

Three for every commit, fifty-nine each night (`-m nightly`). Moments are drawn over the whole life of the command:
while it starts, opens its repository, checks out, runs, and writes down.
"""

from __future__ import annotations

import random
import signal
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psutil
import pytest

pytestmark = [pytest.mark.e2e, pytest.mark.slow]

SEED = 20261121
SIGNALS = (signal.SIGKILL, signal.SIGTERM, signal.SIGINT)
CULPRIT = 9


def _messy(line: Callable[..., tuple[Any, list[str]]], seed: int) -> tuple[Any, list[str]]:
    """Return a repository with a bisect in progress, a dirty tree, staged and stashed work."""
    repository, hashes = line(18, CULPRIT + seed)
    (repository.path / "n").write_text("stashed work\n")
    repository.git("stash")
    repository.git("bisect", "start", "main", hashes[0])
    repository.git("bisect", "good", hashes[3])
    (repository.path / "n").write_text("my unsaved work\n")
    (repository.path / "staged").write_text("staged\n")
    repository.git("add", "staged")
    (repository.path / "untracked").write_text("untracked\n")
    return repository, hashes


def _was_killed(process: subprocess.Popen[bytes], number: int, seconds: float) -> bool:
    """Send a signal after a while, and return whether the command was still running."""
    try:
        process.wait(timeout=seconds)
    except subprocess.TimeoutExpired:
        process.send_signal(number)
        process.wait(timeout=60)
        return True
    return False


@pytest.mark.timeout(1500)
@pytest.mark.parametrize(
    ("part", "most_kills", "longest"),
    [
        (0, 3, 2.5),
        pytest.param(1, 9, 2.5, marks=pytest.mark.nightly),
        *(pytest.param(p, 10, 6.0, marks=pytest.mark.nightly) for p in range(2, 7)),
    ],
)
def test_killed_at_random_moments(
    part: int,
    most_kills: int,
    longest: float,
    line: Callable[..., tuple[Any, list[str]]],
    bisect: Callable[..., Any],
    start_bisect: Callable[..., subprocess.Popen[bytes]],
    tmp_path: Path,
) -> None:
    generator = random.Random(SEED + part)
    repository, hashes = _messy(line, part)
    before = repository.state()
    state = tmp_path / "state"
    # The tree is edited, and the child ignores SIGTERM, as stubborn trainers do.
    command = ["sh", "-c", "trap '' TERM; echo dirt >> n; sleep 0.2; sh t.sh"]
    start = ["--good", hashes[0], "--bad", "main", "--", *command]
    kills = 0
    for _ in range(4 * most_kills):
        words = ["--resume", str(_unfinished(state))] if _unfinished(state) else start
        number = SIGNALS[kills % 3]
        moment = generator.uniform(0.3, longest)
        kills += _was_killed(start_bisect(repository, state, *words), number, moment)
        assert repository.state() == before, f"seed {SEED + part}, after kill {kills} by {number.name}"
        if kills == most_kills:
            break
    assert kills == most_kills
    last = _unfinished(state)
    called = bisect(repository, *(["--resume", str(last)] if last else start))
    assert called.returncode == 0, called.out + called.err
    assert called.suspects() == [hashes[CULPRIT + part]]
    assert repository.state() == before
    assert not _still_running(state)
    assert "good" in repository.git("bisect", "log")


def _unfinished(state: Path) -> Path | None:
    """Return the newest journal, if it holds a question without an answer."""
    journals = sorted(state.glob("*/journal.jsonl"))
    text = journals[-1].read_text() if journals else ""
    return journals[-1] if "\n" in text and '"stopped"' not in text else None


def _still_running(state: Path) -> list[int]:
    """Return processes that were started for runs of this state directory."""
    found = []
    for process in psutil.process_iter():
        try:
            if process.environ().get("SEATRIAL_RUN_DIR", "").startswith(str(state)):
                found.append(process.pid)
        except (psutil.Error, OSError):
            continue
    return found


def test_a_resumed_search_repeats_no_finished_run(
    line: Callable[..., tuple[Any, list[str]]], bisect: Callable[..., Any], tmp_path: Path
) -> None:
    repository, hashes = line(32, 21)
    words = ("--noise", "none", "--good", hashes[0], "--bad", "main")
    whole = bisect(repository, *words, "--", "sh", "t.sh", state=tmp_path / "whole")
    cut = bisect(repository, *words, "--", "sh", "t.sh", state=tmp_path / "cut")
    journal = cut.journals[-1]
    lines = journal.read_text().splitlines(keepends=True)
    results = [number for number, text in enumerate(lines) if '"kind": "result"' in text]
    journal.write_text("".join(lines[: results[3]]) + lines[results[3]][:40])
    resumed = bisect(repository, "--resume", str(journal))

    def commits(called: Any) -> list[str]:
        return [text.split()[2] for text in called.runs()]

    assert commits(cut)[:3] + commits(resumed) == commits(whole)
