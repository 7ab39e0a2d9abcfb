"""Logs are this run's or nothing; names in a log of git are the hashes beside them; git works in a container."""

from __future__ import annotations

import json
import os
import subprocess
import time
from pathlib import Path

import numpy as np
import pytest

from seatrial.bisect.journal import read_git_log
from seatrial.bisect.judge import Beginning, require_fresh
from seatrial.bisect.launchers import git_mounts
from seatrial.errors import BlockedError
from seatrial.evidence.runlog import RunLog, Series

NO_LOG = RunLog(sources=[], series={})
HOUR = 3600.0


def _run_dir(tmp_path: Path, name: str) -> Path:
    path = tmp_path / "runs" / name
    (path / "logs").mkdir(parents=True)
    return path


def _write(path: Path, text: str = "{}", age: float = 0.0) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    os.utime(path, (time.time() - age, time.time() - age))
    return path


@pytest.mark.parametrize("way", ["link", "linked folder", "hard link", "moved", "copied with its time"])
def test_a_log_from_before_the_run_is_not_its_evidence(way: str, tmp_path: Path) -> None:
    old = _write(tmp_path / "elsewhere" / "metrics.json", age=HOUR)
    run_dir = _run_dir(tmp_path, "0001")
    beginning = Beginning.now(run_dir)
    place = run_dir / "logs" / "metrics.json"
    if way == "link":
        place.symlink_to(old)
    elif way == "linked folder":
        (run_dir / "logs" / "tb").symlink_to(old.parent)
    elif way == "hard link":
        os.link(old, place)
    elif way == "moved":
        old.rename(place)
    else:
        _write(place, age=HOUR)
    with pytest.raises(BlockedError, match="before this run began"):
        require_fresh(run_dir / "logs", NO_LOG, beginning)


def test_a_log_that_the_run_wrote_is_its_evidence_also_behind_a_link(tmp_path: Path) -> None:
    run_dir = _run_dir(tmp_path, "0001")
    beginning = Beginning.now(run_dir)
    _write(tmp_path / "elsewhere" / "metrics.json")
    (run_dir / "logs" / "tb").symlink_to(tmp_path / "elsewhere")
    _write(run_dir / "logs" / "own.json")
    require_fresh(run_dir / "logs", NO_LOG, beginning)


def test_events_from_before_the_run_are_not_its_evidence_though_the_file_is_new(tmp_path: Path) -> None:
    run_dir = _run_dir(tmp_path, "0001")
    beginning = Beginning.now(run_dir)
    _write(run_dir / "logs" / "copy")
    times = np.array([time.time() - HOUR, time.time()])
    series = Series(tag="x", steps=np.array([1, 2]), values=np.array([0.1, 0.2]), wall_times=times)
    with pytest.raises(BlockedError, match="has events from"):
        require_fresh(run_dir / "logs", RunLog(sources=[], series={"x": series}), beginning)
    relative = Series(tag="x", steps=np.array([1]), values=np.array([0.1]), wall_times=np.array([12.5]))
    require_fresh(run_dir / "logs", RunLog(sources=[], series={"x": relative}), beginning)


@pytest.mark.parametrize("appended", [True, False])
def test_a_file_that_goes_on_where_an_earlier_run_stopped_is_nobodys(appended: bool, tmp_path: Path) -> None:
    shared = tmp_path / "shared" / "metrics.jsonl"
    for number in (1, 2):
        run_dir = _run_dir(tmp_path, f"000{number}")
        beginning = Beginning.now(run_dir)
        shared.parent.mkdir(exist_ok=True)
        with shared.open("a" if appended else "w") as stream:
            stream.write(json.dumps({"step": 1, "run": number, "loss": 0.5 / number}) + "\n")
        (run_dir / "logs" / "shared").symlink_to(shared.parent)
        if number == 2 and appended:
            with pytest.raises(BlockedError, match="begins with what run 0001"):
                require_fresh(run_dir / "logs", NO_LOG, beginning)
        else:
            require_fresh(run_dir / "logs", NO_LOG, beginning)


def _git(path: Path, *words: str) -> str:
    identity = ["-c", "user.name=t", "-c", "user.email=t@example.org"]
    done = subprocess.run(["git", *identity, *words], cwd=path, capture_output=True, text=True, check=True)
    return done.stdout


def _repository(path: Path, commits: int) -> list[str]:
    path.mkdir()
    _git(path, "init", "-q", "-b", "main")
    for number in range(commits):
        _git(path, "commit", "-q", "--allow-empty", "-m", str(number))
    return _git(path, "rev-list", "--reverse", "HEAD").split()


def test_a_replayed_name_is_the_commit_that_it_was(tmp_path: Path) -> None:
    """The log is git's own; HEAD has moved on since."""
    repository = tmp_path / "r"
    hashes = _repository(repository, 6)
    _git(repository, "bisect", "start", "HEAD", "HEAD~5")
    log = tmp_path / "log"
    log.write_text(_git(repository, "bisect", "log"))
    assert "'HEAD'" in log.read_text()
    read = read_git_log(log)
    assert (read.bad, read.good) == (hashes[5], (hashes[0],))


def test_a_hash_that_a_person_wrote_counts_more_than_the_comment_above_it(tmp_path: Path) -> None:
    log = tmp_path / "log"
    log.write_text(
        f"# bad: [{'a' * 40}] x\ngit bisect bad {'b' * 40}\n# good: [{'c' * 40}] y\ngit bisect good v1\n"
    )
    read = read_git_log(log)
    assert (read.bad, read.good) == ("b" * 40, ("c" * 40,))


def test_a_container_sees_what_the_trees_git_points_to(tmp_path: Path) -> None:
    """A worktree of a repository that borrows objects, which borrow from a third."""
    _repository(tmp_path / "first", 1)
    _git(tmp_path, "clone", "-q", "--shared", "first", "user")
    private = tmp_path / "state" / "repo.git"
    private.mkdir(parents=True)
    _git(private, "init", "-q", "--bare", ".")
    (private / "objects" / "info" / "alternates").write_text(f"{tmp_path}/user/.git/objects\n")
    sha = _git(tmp_path / "user", "rev-parse", "HEAD").strip()
    _git(private, "worktree", "add", "-q", "--detach", str(tmp_path / "tree"), sha)
    mounts = {mount.source: mount.read_only for mount in git_mounts(tmp_path / "tree")}
    assert mounts == {
        str(private): False,
        str(tmp_path / "user" / ".git" / "objects"): True,
        str(tmp_path / "first" / ".git" / "objects"): True,
    }
    assert git_mounts(tmp_path / "user") == []
