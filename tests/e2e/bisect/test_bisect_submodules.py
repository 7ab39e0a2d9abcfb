"""Submodules follow each commit, whole and clean; one that is gone skips its commit with that reason."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

pytestmark = pytest.mark.e2e


@pytest.fixture
def nested(make_repository: Callable[..., Any]) -> tuple[Any, Any, list[str], list[str]]:
    """Return user and part repositories: the user's commit n pins the part's commit n, which nests another part."""
    inner = make_repository("inner")
    inner.commit({"inner.txt": "deep\n"}, "inner")
    part = make_repository("part")
    part.git("submodule", "--quiet", "add", str(inner.path), "deep")
    user = make_repository("user")
    user.commit({"t.sh": "test -s part/deep/inner.txt || exit 99\nexit $(cat part/verdict)\n"}, "script")
    parts, hashes = [], []
    for number in range(9):
        parts.append(part.commit({"verdict": f"{int(number >= 6)}\n", "n": str(number)}, f"part {number}"))
        if number == 0:
            user.git("submodule", "--quiet", "add", str(part.path), "part")
        user.git("-C", "part", "fetch", "-q", "origin")
        user.git("-C", "part", "checkout", "-q", parts[-1])
        user.git("-C", "part", "submodule", "--quiet", "update", "--init")
        hashes.append(user.commit({"n": str(number)}, f"pin {number}"))
    return user, part, parts, hashes


WORDS = ("--noise", "none", "--", "sh", "t.sh")


def _answer(called: Any) -> Any:
    return json.loads((called.journals[-1].parent / "result.json").read_text())["answer"]


@pytest.mark.nightly
def test_nested_submodules_follow_each_commit(nested: Any, bisect: Callable[..., Any]) -> None:
    user, _, _, hashes = nested
    before = user.state()
    called = bisect(user, "--good", hashes[0], "--bad", hashes[8], *WORDS)
    assert called.returncode == 0, called.out + called.err
    assert [item["commit"] for item in _answer(called)["suspects"]] == [hashes[6]]
    assert "exit status 99" not in called.out
    assert user.state() == before


def test_submodules_are_fetched_once_and_not_for_every_probe(
    nested: Any, bisect: Callable[..., Any], tmp_path: Path
) -> None:
    """git's own trace: each submodule (one nests in the other) is cloned once, and has all that later probes need."""
    user, _, _, hashes = nested
    traces = tmp_path / "traces"
    traces.mkdir()
    called = bisect(user, "--good", hashes[0], "--bad", hashes[8], *WORDS, GIT_TRACE2_EVENT=str(traces))
    assert called.returncode == 0, called.out + called.err
    events = [json.loads(line) for path in traces.iterdir() for line in path.read_text().splitlines()]
    started = [event["argv"] for event in events if event["event"] == "start"]
    assert len(called.runs()) > 4
    assert sum("clone" in words and "submodule--helper" in words for words in started) == 2
    assert not [words for words in started if words[1:2] == ["fetch"]]


@pytest.mark.nightly
def test_untracked_work_in_a_submodule_is_kept(nested: Any, bisect: Callable[..., Any]) -> None:
    """The public driver cleans all submodules of the checkout it stands in."""
    user, _, _, hashes = nested
    (user.path / "part" / "notes.txt").write_text("mine")
    (user.path / "part" / "verdict").write_text("edited")
    before = user.state()
    bisect(user, "--good", hashes[0], "--bad", hashes[8], *WORDS)
    assert user.state() == before


def _lose(user: Any, gone: str) -> str:
    """Make a commit on top of the user's commit 4 that pins a commit of the part which exists nowhere."""
    user.git("checkout", "-q", "HEAD~4")
    user.git("update-index", "--cacheinfo", f"160000,{gone},part")
    user.git("commit", "-q", "-m", "pin a commit that is gone")
    return str(user.git("rev-parse", "HEAD").strip())


def test_a_commit_whose_submodule_is_gone_is_skipped_with_that_reason(
    nested: Any, bisect: Callable[..., Any]
) -> None:
    user, _, parts, hashes = nested
    good = hashes[0]
    broken = _lose(user, "1234567890" * 4)
    after = []
    for number in (6, 7, 8):
        user.git("update-index", "--cacheinfo", f"160000,{parts[number]},part")
        user.git("commit", "-q", "-m", f"pin {number} again")
        after.append(user.git("rev-parse", "HEAD").strip())
    called = bisect(user, "--good", good, "--bad", after[-1], *WORDS)
    assert called.returncode == 0, called.out + called.err
    assert {item["commit"] for item in _answer(called)["suspects"]} == {broken, after[0]}
    line = next(text for text in called.runs() if broken[:12] in text)
    assert "Skip" in line and "submodule" in line and "1234567890" in line


def test_a_submodule_that_git_refuses_ends_the_search_with_gits_words(
    nested: Any, bisect: Callable[..., Any]
) -> None:
    """git forbids folders as addresses of submodules by default: no fault of the network, and retries cannot help."""
    user, _, _, hashes = nested
    never = {"GIT_CONFIG_VALUE_0": "user"}
    called = bisect(user, "--good", hashes[0], "--bad", hashes[8], *WORDS, **never)
    assert called.returncode == 3, called.out + called.err
    [run] = called.result()["runs"]
    assert run["attempts"] == 1
    assert run["cause"] == "setup"
    assert "transport 'file' not allowed" in called.out


@pytest.mark.nightly
def test_a_commit_that_was_fetched_by_hand_into_the_users_submodule_is_found(
    nested: Any, bisect: Callable[..., Any]
) -> None:
    """The guide's rescue of an orphaned commit: it exists in the user's submodule only."""
    user, _, _, hashes = nested
    user.git("-C", "part", "checkout", "-q", "--detach")
    user.git("-C", "part", "commit", "-q", "--allow-empty", "-m", "never pushed")
    bad = user.commit({"n": "orphan"}, "pin an orphan")
    called = bisect(user, "--good", hashes[5], "--bad", bad, *WORDS)
    assert called.returncode == 0, called.out + called.err
    assert [item["commit"] for item in _answer(called)["suspects"]] == [hashes[6]]
    assert any(bad[:12] in text and "Fail" in text for text in called.runs())


@pytest.mark.nightly
def test_a_shallow_clone_is_unshallowed_in_our_copy_only(
    nested: Any, bisect: Callable[..., Any], make_repository: Callable[..., Any], tmp_path: Path
) -> None:
    user, _, _, hashes = nested
    shallow = make_repository("shallow")
    shallow.git("remote", "add", "origin", f"file://{user.path}")
    shallow.git("fetch", "-q", "--depth=2", "origin", "main")
    shallow.git("checkout", "-q", "FETCH_HEAD")
    shallow.git("fetch", "-q", "--depth=1", "origin", hashes[0])
    before = shallow.state()
    called = bisect(shallow, "--good", hashes[0], "--bad", "HEAD", *WORDS)
    assert called.returncode == 0, called.out + called.err
    assert [item["commit"] for item in _answer(called)["suspects"]] == [hashes[6]]
    assert shallow.state() == before
