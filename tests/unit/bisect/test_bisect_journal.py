"""The journal and git's own log: what survives a kill, a hand edit, and nonsense."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from seatrial.bisect.journal import NAME, Journal, read_git_log, read_journal, write_git_log
from seatrial.errors import BlockedError, UsageError


def _write(path: Path, count: int) -> bytes:
    with Journal(path) as journal:
        for number in range(count):
            journal.write("result", number=number, reason="näh \n line")
    return path.read_bytes()


def test_records_come_back_in_order(tmp_path: Path) -> None:
    _write(tmp_path / NAME, 3)
    assert [entry.record["number"] for entry in read_journal(tmp_path / NAME) if entry.record] == [0, 1, 2]


def test_a_journal_cut_anywhere_in_its_last_line_keeps_every_earlier_line(tmp_path: Path) -> None:
    whole = _write(tmp_path / NAME, 3)
    start = whole[:-1].rfind(b"\n") + 1
    for cut in range(start, len(whole)):
        path = tmp_path / f"cut{cut}.jsonl"
        path.write_bytes(whole[:cut])
        kept = [entry.record["number"] for entry in read_journal(path) if entry.record]
        assert kept in ([0, 1], [0, 1, 2])
        with Journal(path) as journal:
            journal.write("result", number=9)
        assert [e.record["number"] for e in read_journal(path) if e.record] == [*kept, 9]


def test_two_processes_cannot_hold_one_journal(tmp_path: Path) -> None:
    with Journal(tmp_path / NAME), pytest.raises(BlockedError, match="another process"):
        Journal(tmp_path / NAME)


def test_a_skip_added_by_hand_is_read(tmp_path: Path) -> None:
    _write(tmp_path / NAME, 1)
    with (tmp_path / NAME).open("a") as stream:
        stream.write("git bisect skip abc123\n# a note\n\ngit bisect skip v1..v2")
    marks = [entry.mark for entry in read_journal(tmp_path / NAME) if entry.mark]
    assert [(mark.word, mark.names) for mark in marks] == [("skip", ("abc123",)), ("skip", ("v1..v2",))]


@pytest.mark.parametrize("line", ["{broken", "git bisect frobnicate abc", "git bisect skip", "[1]", "hello"])
def test_a_damaged_line_is_refused_with_its_number(tmp_path: Path, line: str) -> None:
    _write(tmp_path / NAME, 1)
    with (tmp_path / NAME).open("a") as stream:
        stream.write(line + "\n")
    with pytest.raises(UsageError, match="line 2"):
        read_journal(tmp_path / NAME)


LOG = """\
git bisect start
# status: waiting for both good and bad commits
# bad: [bbbb] worse
git bisect bad bbbb
# good: [aaaa] better
git bisect good aaaa
# bad: [cccc] subject with 'quotes"
git bisect bad cccc
git bisect skip dddd eeee
"""


def test_a_log_of_git_is_read_with_its_hand_added_skips(tmp_path: Path) -> None:
    path = tmp_path / "bisect.log"
    path.write_text(LOG)
    log = read_git_log(path)
    assert (log.good, log.bad) == (("aaaa",), "bbbb")
    assert [(m.word, m.names) for m in log.marks] == [
        ("bad", ("bbbb",)), ("good", ("aaaa",)), ("bad", ("cccc",)), ("skip", ("dddd", "eeee")),
    ]  # fmt: skip


def test_own_terms_and_options_of_start_are_understood(tmp_path: Path) -> None:
    path = tmp_path / "bisect.log"
    path.write_text(
        "git bisect start '--first-parent' '--term-new=broken' '--term-old' 'fine' 'B' 'A' '--' 'src'\n"
        "git bisect broken C\ngit bisect fine D\n"
    )
    log = read_git_log(path)
    assert (log.good, log.bad, log.first_parent) == (("A", "D"), "B", True)
    assert [mark.word for mark in log.marks] == ["bad", "good"]


@pytest.mark.parametrize("line", ["git bisect", "git bisect bad", "rm -rf /", "git bisect good 'open"])
def test_a_line_that_is_not_of_git_bisect_is_refused(tmp_path: Path, line: str) -> None:
    path = tmp_path / "bisect.log"
    path.write_text(LOG + line + "\n")
    with pytest.raises(UsageError, match="line 10"):
        read_git_log(path)


@given(
    st.lists(
        st.tuples(
            st.sampled_from(["good", "bad", "skip"]), st.from_regex(r"[0-9a-f]{7}", fullmatch=True), st.text()
        )
    )
)
def test_what_we_write_we_read(
    tmp_path_factory: pytest.TempPathFactory, marks: list[tuple[str, str, str]]
) -> None:
    path = tmp_path_factory.mktemp("log") / "bisect.log"
    path.write_text(write_git_log("aaaaaaa", "bbbbbbb", marks), encoding="utf-8")
    log = read_git_log(path)
    assert [(m.word, *m.names) for m in log.marks] == [(word, sha) for word, sha, _ in marks]


def test_git_itself_replays_what_we_write(tmp_path: Path) -> None:
    def git(*words: str) -> str:
        done = subprocess.run(
            ["git", "-c", "user.name=t", "-c", "user.email=t@example.org", *words],
            cwd=tmp_path, capture_output=True, text=True, check=True,
        )  # fmt: skip
        return done.stdout

    git("init", "-q")
    for number in range(6):
        git("commit", "-q", "--allow-empty", "-m", str(number))
    hashes = git("rev-list", "--reverse", "HEAD").split()
    (tmp_path / "log").write_text(
        write_git_log(
            hashes[0], hashes[5], [("good", hashes[2], "two\nlines"), ("bad", hashes[3], "it fails")]
        )
    )
    assert f"{hashes[3]} is the first bad commit" in git("bisect", "replay", "log")
