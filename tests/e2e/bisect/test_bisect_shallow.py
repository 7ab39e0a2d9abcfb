"""Shallow clones, names that have moved, logs that are not this run's, processes that left, trees that are moved."""

from __future__ import annotations

import contextlib
import itertools
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psutil
import pytest

pytestmark = pytest.mark.e2e


def _clone(repository: Any, path: Path, *words: str) -> Any:
    """Return a clone of a repository, as the user's checkout."""
    done = subprocess.run(
        ["git", "-c", "protocol.file.allow=always", "clone", "-q", *words, f"file://{repository.path}", str(path)],
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return type(repository)(path)


@pytest.mark.parametrize("name", ["v1", "HEAD~11", "hash", "short"])
def test_a_shallow_clone_is_deepened_before_good_is_resolved(
    name: str, line: Callable[..., Any], bisect: Callable[..., Any], tmp_path: Path
) -> None:
    """Nothing of it is in the clone: neither the commit, nor the tag, nor the way from HEAD."""
    origin, hashes = line(12, 8, "origin")
    origin.git("tag", "v1", hashes[0])
    clone = _clone(origin, tmp_path / "clone", "--depth", "2")
    before = clone.state()
    good = {"hash": hashes[0], "short": hashes[0][:9]}.get(name, name)
    called = bisect(clone, "--noise", "none", "--good", good, "--bad", "HEAD", "--", "sh", "t.sh")
    assert called.returncode == 0, called.out + called.err
    assert called.suspects() == [hashes[8]]
    assert clone.state() == before
    assert [path.name for path in called.state.iterdir()] == [called.journals[0].parent.name]


def test_the_edge_of_a_shallow_clone_is_told_of(
    line: Callable[..., Any], bisect: Callable[..., Any], tmp_path: Path
) -> None:
    """`git log --diff-filter=A` answers with the commit where the clone was cut."""
    origin, hashes = line(12, 9, "origin")
    clone = _clone(origin, tmp_path / "clone", "--depth", "4")
    good = clone.git("log", "--format=%h", "--diff-filter=A", "--", "t.sh").strip()
    called = bisect(clone, "--noise", "none", "--good", good, "--bad", "HEAD", "--", "sh", "t.sh")
    assert called.suspects() == [hashes[9]]
    assert "shallow clone was cut off" in called.out


def test_a_name_that_is_nowhere_leaves_nothing_behind(
    line: Callable[..., Any], bisect: Callable[..., Any], tmp_path: Path
) -> None:
    origin, _ = line(5, 3, "origin")
    clone = _clone(origin, tmp_path / "clone", "--depth", "1")
    called = bisect(clone, "--good", "v9", "--bad", "HEAD", "--", "sh", "t.sh")
    assert called.returncode == 2
    assert "'v9'" in called.err
    assert list(called.state.iterdir()) == []


def test_a_replayed_head_is_the_commit_that_head_was(
    line: Callable[..., Any], bisect: Callable[..., Any], tmp_path: Path
) -> None:
    """HEAD has moved on since, past the mending of the fault."""
    repository, hashes = line(10, 6)
    repository.git("bisect", "start", "HEAD", "HEAD~9")
    log = tmp_path / "bisect.log"
    log.write_text(repository.git("bisect", "log"))
    repository.git("bisect", "reset")
    repository.commit({"t.sh": "exit 0\n"}, "mended")
    called = bisect(repository, "--noise", "none", "--", "sh", "t.sh", BISECT_REPLAY_LOG=str(log))
    assert called.returncode == 0, called.out + called.err
    assert called.suspects() == [hashes[6]]


def test_a_stale_log_behind_a_link_is_no_evidence(
    make_repository: Callable[..., Any], bisect: Callable[..., Any], tmp_path: Path
) -> None:
    """It would say that all is well at both ends."""
    stale = tmp_path / "last_week" / "metrics.json"
    stale.parent.mkdir()
    stale.write_text(json.dumps({"train/reward": {str(step): 0.9 for step in range(1, 9)}}))
    os.utime(stale, (time.time() - 7 * 86400, time.time() - 7 * 86400))
    repository = make_repository()
    hashes = [repository.commit({"n": str(n)}, str(n)) for n in range(4)]
    words = ("--check", 'mean(data["train/reward"]) > 0.5', "--good", hashes[0], "--bad", "HEAD")
    called = bisect(repository, *words, "--", "ln", "-s", str(stale), "{logs}/metrics.json")
    assert called.returncode == 3, called.out
    assert "before this run began" in called.out
    assert "no culprit (" not in called.out


_STRAY = """\
import os, sys, time
if os.fork() == 0:
    os.setsid()
    open(sys.argv[1], "w").write(str(os.getpid()))
    time.sleep(300)
time.sleep(300)
"""


def test_a_process_that_left_its_group_is_ended_when_a_killed_bisect_goes_on(
    make_repository: Callable[..., Any],
    bisect: Callable[..., Any],
    start_bisect: Callable[..., Any],
    tmp_path: Path,
) -> None:
    """It has a session of its own, as the daemons of Ray; nobody is left who started it."""
    repository = make_repository()
    script = f"{sys.executable} stray.py {tmp_path}/stray"
    once = f"if [ ! -e {tmp_path}/stray ]; then {script}; fi"
    hashes = [repository.commit({"stray.py": _STRAY, "t.sh": f"{once}; exit {n}"}, str(n)) for n in range(2)]
    words = ("--noise", "none", "--good", hashes[0], "--bad", "HEAD", "--", "sh", "t.sh")
    state = tmp_path / "state"
    process = start_bisect(repository, state, *words)
    stray = _when(lambda: psutil.Process(int((tmp_path / "stray").read_text())), process)
    process.send_signal(signal.SIGKILL)
    process.wait(timeout=60)
    assert stray.is_running() and stray.status() != psutil.STATUS_ZOMBIE
    (journal,) = state.glob("*/journal.jsonl")
    called = bisect(repository, "--resume", str(journal))
    assert called.returncode == 0, called.out + called.err
    assert not stray.is_running() or stray.status() == psutil.STATUS_ZOMBIE


def _when(found: Callable[[], psutil.Process], process: subprocess.Popen[bytes]) -> psutil.Process:
    """Return what is looked for as soon as it is there, while the command runs."""
    while True:
        with contextlib.suppress(OSError, ValueError, psutil.NoSuchProcess):
            return found()
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(timeout=0.05)
            raise AssertionError("the command ended first")


def test_probes_move_one_tree_and_rewrite_only_what_differs(
    make_repository: Callable[..., Any], bisect: Callable[..., Any], tmp_path: Path
) -> None:
    """Inodes tell which files were written anew: those that differ, and those that a run touched.

    What a run left behind is gone before the next one.
    """
    repository = make_repository()
    many = {f"d{n % 7}/f{n}": f"{n}\n" for n in range(300)}
    hashes = []
    for number in range(9):
        own = {"n": f"{number}\n", "t.sh": _LISTING.format(tmp_path, int(number > 4))}
        hashes.append(repository.commit({**(many if number == 0 else {}), **own}, str(number)))
    called = bisect(repository, "--noise", "none", "--good", hashes[0], "--bad", "HEAD", "--", "sh", "t.sh")
    assert called.suspects() == [hashes[5]], called.out + called.err
    listings = [Path(path).read_text().splitlines() for path in sorted(tmp_path.glob("listing-*"))]
    assert len(listings) == len(called.runs()) > 3
    for first, second in itertools.pairwise(listings):
        assert len(second) == 302
        written = {line.partition(" ")[2] for line in set(second) - set(first)}
        assert written <= {"./n", "./t.sh", "./d1/f1", "./d2/f2"}


_LISTING = """\
find . -type f ! -name .git -printf '%i %p\\n' | sort > {0}/listing-$SEATRIAL_RUN_NUMBER
mkdir -p left/behind; echo x > left/behind/x; echo edited > d1/f1; rm d2/f2; chmod -w left/behind
true
exit {1}
"""
