"""What the public bisect driver gets wrong, each with the right behaviour here. The numbers are in the tests' names.

 1. BAD is never run: one that passes is reported as the first bad commit, with exit status 0
 2. starting while a bisect is in progress fails, and resets the user's bisect on the way out
 3. a failing run leaves two logs, and the printed command to resume holds message text: it cannot be pasted
 4. SIGTERM is not honoured: the bisect goes on to its end; while GOOD is checked it does nothing
 5. one run a commit: a flaky one decides
 6. no time limit
 7. no record of each run beyond git's log, no value of the metric for each commit
 8. a commit that lacks the test script is bad (exit status 2)
 9. a syntax error of sed is bad (exit status 1)
10. the same commit with new SED_CLAUSES runs the old snapshot
17. a snapshot holds uncommitted edits, an existing or half-copied one is used as it is, and none is verified
18. the check of GOOD takes 125 for bad, and 126 and 127 end git's own bisect

11 to 16 are the launcher's: test_public_launcher_defects.py. Submodules are in test_bisect_submodules.py.
"""

from __future__ import annotations

import json
import os
import shlex
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

pytestmark = pytest.mark.e2e

Line = Callable[..., tuple[Any, list[str]]]
Bisect = Callable[..., Any]


def test_01_a_bad_that_passes_is_not_blamed(line: Line, bisect: Bisect) -> None:
    """The public driver never tests BAD and reports it as the first bad commit."""
    repository, hashes = line(10, 99)
    called = bisect(repository, "--noise", "none", "--good", hashes[0], "--bad", "HEAD", "--", "sh", "t.sh")
    assert called.returncode == 1
    assert "BAD does not fail" in called.out
    assert called.suspects() == []
    assert len(called.runs()) == 2


def test_01_a_good_that_fails_is_told(line: Line, bisect: Bisect) -> None:
    repository, hashes = line(10, 0)
    called = bisect(repository, "--noise", "none", "--good", hashes[0], "--bad", "HEAD", "--", "sh", "t.sh")
    assert called.returncode == 1
    assert "GOOD does not pass" in called.out


def test_02_a_bisect_of_the_users_own_is_left_alone(line: Line, bisect: Bisect) -> None:
    """The public driver refuses to start, and resets the user's bisect on its way out."""
    repository, hashes = line(12, 7)
    repository.git("bisect", "start", "HEAD", hashes[0])
    (repository.path / "n").write_text("my unsaved work")
    (repository.path / "untracked").write_text("mine")
    before = repository.state()
    called = bisect(repository, "--good", hashes[0], "--bad", "main", "--", "sh", "t.sh")
    assert called.suspects() == [hashes[7]]
    assert repository.state() == before


def test_05_a_flaky_command_gets_more_than_one_run_a_commit(
    line: Line, bisect: Bisect, tmp_path: Path
) -> None:
    """One run in five says the wrong thing, in a fixed order; the public driver takes one sample a commit."""
    repository, hashes = line(16, 9)
    counter = tmp_path / "count"
    counter.write_text("0")
    count = f"n=$(cat {counter}); echo $((n+1)) > {counter}"
    flaky = f"{count}; sh t.sh; s=$?; if [ $((n % 5)) -eq 3 ]; then exit $((1-s)); fi; exit $s"
    called = bisect(repository, "--good", hashes[0], "--bad", "HEAD", "--", "sh", "-c", flaky)
    assert called.returncode == 0, called.out
    assert called.suspects() == [hashes[9]]


def test_08_a_commit_without_the_test_script_is_skipped_not_blamed(
    make_repository: Callable[..., Any], bisect: Bisect
) -> None:
    """The public launcher exits 2 there, which git takes for bad."""
    repository = make_repository()
    hashes = [repository.commit({"t.sh": "exit 0\n"}, "0")]
    for number in range(1, 9):
        files: dict[str, str | None] = {"n": str(number)}
        if number == 4:
            files["t.sh"] = None
        if number == 5:
            files["t.sh"] = "exit 0\n"
        if number == 7:
            files["t.sh"] = "exit 1\n"
        hashes.append(repository.commit(files, str(number)))
    called = bisect(repository, "--noise", "none", "--good", hashes[0], "--bad", "HEAD", "--", "sh", "t.sh")
    assert called.suspects() == [hashes[7]]
    skipped = [line for line in called.runs() if hashes[4][:12] in line]
    assert skipped and all("Skip" in line and "t.sh does not exist" in line for line in skipped)


def test_09_unreadable_sed_clauses_are_refused_before_any_run(line: Line, bisect: Bisect) -> None:
    """A syntax error of sed counts as bad in the public launcher."""
    repository, hashes = line(6, 3)
    called = bisect(repository, "--good", hashes[0], "--bad", "HEAD", "--", "sh", "t.sh", SED_CLAUSES="s#a#b")
    assert called.returncode == 2
    assert "SED_CLAUSES" in called.err
    assert called.runs() == []


def test_10_sed_clauses_reach_every_run_and_stay_nowhere(line: Line, bisect: Bisect) -> None:
    """The clauses take out the failure, so nothing is bad any more; the public launcher reuses its old snapshot."""
    repository, hashes = line(8, 5)
    before = repository.state()
    words = ("--noise", "none", "--good", hashes[0], "--bad", "HEAD", "--", "sh", "t.sh")
    first = bisect(repository, *words, SED_CLAUSES="s/exit 1/exit 0/")
    assert "BAD does not fail" in first.out
    second = bisect(repository, *words, SED_CLAUSES="s/exit 1/test $(cat n) -lt 7/")
    assert second.suspects() == [hashes[7]]
    third = bisect(repository, *words)
    assert third.suspects() == [hashes[5]]
    assert repository.state() == before


def test_06_a_time_limit_skips_and_says_so(line: Line, bisect: Bisect) -> None:
    repository, hashes = line(5, 3)
    slow = "test $(cat n) -ne 2 || exec sleep 60; sh t.sh"
    words = ("--noise", "none", "--timeout", "0.03", "--good", hashes[0], "--bad", "HEAD")
    called = bisect(repository, *words, "--", "sh", "-c", slow)
    assert sorted(called.suspects()) == sorted([hashes[2], hashes[3]])
    assert any("time limit" in line and "Skip" in line for line in called.runs())


def _ends_itself(at: int) -> tuple[str, ...]:
    """Return a command that sends SIGTERM to the bisect while it runs commit `at`."""
    return ("sh", "-c", f"test $(cat n) -ne {at} || kill -TERM $(ps -o ppid= -p $PPID); sh t.sh")


@pytest.mark.parametrize("at", [0, 6], ids=["while GOOD is checked", "while searching"])
def test_03_and_04_sigterm_ends_it_with_one_journal_and_a_command_that_can_be_pasted(
    at: int, line: Line, bisect: Bisect, tmp_path: Path
) -> None:
    repository, hashes = line(12, 8)
    words = ("--noise", "none", "--good", hashes[0], "--bad", "HEAD")
    first = bisect(repository, *words, "--", *_ends_itself(at))
    assert first.returncode == 130, first.out + first.err
    assert not any(hashes[at][:12] in text for text in first.runs()), "an interrupted run is no result"
    assert len(first.journals) == 1
    pasted = shlex.split(next(text for text in first.err.splitlines() if text.startswith("resume: "))[8:])
    assert pasted[:3] == ["seatrial", "bisect", "--resume"]
    again = subprocess.run(
        [sys.executable, "-m", *pasted], env={**os.environ}, capture_output=True, text=True, check=False
    )
    # The command interrupts again at the same commit; nothing that was known is run again before that.
    assert f"{len(first.runs())} results known" in again.stdout
    assert again.returncode == 130


def test_07_every_run_is_on_record_with_its_commit_value_reason_and_evidence(
    stack: Line, bisect: Bisect
) -> None:
    repository, hashes = stack(6, 3)
    metric = 'mean(data["train/reward"], -6, -1)'
    words = ("--metric", metric, "--good", hashes[0], "--bad", "HEAD")
    called = bisect(repository, *words, "--", sys.executable, "-S", "train.py", "{logs}")
    runs = called.result()["runs"]
    assert len(runs) == len(called.runs())
    page = (called.journals[-1].parent / "report.html").read_text()
    for run in runs:
        logged = json.loads((Path(run["evidence"]) / "logs" / "metrics.json").read_text())["train/reward"]
        last = [logged[step] for step in sorted(logged, key=int)][-6:-1]
        assert run["value"] == pytest.approx(sum(last) / 5, rel=1e-9)
        assert run["commit"] in hashes and run["reason"] and run["seconds"] > 0
        assert f"{run['value']:.6g}" in page


def test_17_uncommitted_edits_never_reach_a_run(line: Line, bisect: Bisect) -> None:
    repository, hashes = line(8, 5)
    (repository.path / "t.sh").write_text("exit 0\n")
    called = bisect(repository, "--noise", "none", "--good", hashes[0], "--bad", "HEAD", "--", "sh", "t.sh")
    assert called.suspects() == [hashes[5]]
    assert (repository.path / "t.sh").read_text() == "exit 0\n"


def test_17_a_tree_that_was_left_half_made_is_never_used(line: Line, bisect: Bisect) -> None:
    """Trees are held to their commit when they are made, and those of an earlier process are not used again."""
    repository, hashes = line(16, 11)
    words = ("--keep-state", "--max-runs", "4", "--noise", "none", "--good", hashes[0], "--bad", "HEAD")
    cut = bisect(repository, *words, "--", "sh", "-c", "test -e n && sh t.sh")
    assert cut.returncode == 3
    trees = list(cut.state.glob("*/work-*/*/tree"))
    assert trees
    for tree in trees:
        (tree / "n").unlink()
        (tree / "t.sh").write_text("exit 0\n")
    called = bisect(repository, "--resume", str(cut.journals[-1]), "--max-runs", "50")
    assert called.suspects() == [hashes[11]]


def test_18_a_good_that_cannot_be_judged_is_neither_good_nor_bad(line: Line, bisect: Bisect) -> None:
    repository, hashes = line(6, 3)
    command = ("sh", "-c", "test $(cat n) -ne 0 || exit 125; sh t.sh")
    called = bisect(repository, "--good", hashes[0], "--bad", "HEAD", "--", *command)
    assert called.returncode == 3
    assert "an end of the range could not be judged" in called.out and hashes[0][:12] in called.out
    assert called.suspects() == []


@pytest.mark.parametrize("status", [126, 127])
def test_18_126_and_127_are_bad_and_end_nothing(status: int, line: Line, bisect: Bisect) -> None:
    repository, hashes = line(8, 5)
    words = ("--noise", "none", "--good", hashes[0], "--bad", "HEAD")
    called = bisect(repository, *words, "--", "sh", "-c", f"sh t.sh || exit {status}")
    assert called.suspects() == [hashes[5]]
