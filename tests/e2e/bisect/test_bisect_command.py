"""`seatrial bisect` on real repositories: the guide's promises, and the faults of the public driver set right."""

from __future__ import annotations

import os
import stat
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

pytestmark = pytest.mark.e2e


Line = Callable[..., tuple[Any, list[str]]]
Maker = Callable[..., Any]
Bisect = Callable[..., Any]


def _suspects(called: Any) -> list[str]:
    found: list[str] = called.suspects()
    return found


def test_the_culprit_is_named_and_the_checkout_untouched(line: Line, bisect: Bisect) -> None:
    repository, hashes = line(20, 13)
    before = repository.state()
    called = bisect(repository, "--good", hashes[0], "--bad", "HEAD", "--", "sh", "t.sh")
    assert called.returncode == 0, called.err
    assert _suspects(called) == [hashes[13]]
    assert "change 13" in called.out
    assert repository.state() == before


def test_good_and_bad_come_from_the_environment(line: Line, bisect: Bisect) -> None:
    repository, hashes = line(8, 3)
    called = bisect(repository, "--noise", "none", "--", "sh", "t.sh", GOOD=hashes[0], BAD="HEAD")
    assert _suspects(called) == [hashes[3]]
    assert len(called.runs()) == 5


@pytest.mark.parametrize(("missing", "given"), [("--good", {"BAD": "HEAD"}), ("--bad", {"GOOD": "HEAD~1"})])
def test_a_missing_end_is_wrong_usage(
    line: Line, bisect: Bisect, missing: str, given: dict[str, str]
) -> None:
    repository, _ = line(3, 1)
    called = bisect(repository, "--", "true", **given)
    assert called.returncode == 2
    assert missing in called.err


def test_extra_script_args_are_appended(line: Line, bisect: Bisect) -> None:
    repository, hashes = line(4, 2)
    called = bisect(
        repository, "--keep-state", "--noise", "none", "--good", hashes[0], "--bad", "HEAD", "--",
        "sh", "-c", 'echo "got $*"; sh t.sh', "name", EXTRA_SCRIPT_ARGS="++data.num_workers=1 'a b'",
    )  # fmt: skip
    assert _suspects(called) == [hashes[2]]
    logs = list(called.journals[-1].parent.glob("runs/*/run.log"))
    assert logs and all("got ++data.num_workers=1 a b" in log.read_text() for log in logs)


def test_every_run_has_its_own_place_and_every_commit_its_own_environment(line: Line, bisect: Bisect) -> None:
    repository, hashes = line(6, 3)
    told = (
        'echo "$NRL_FORCE_REBUILD_VENVS|$NRL_MEGATRON_CHECKPOINT_DIR|'
        '$UV_PROJECT_ENVIRONMENT|$CODE_SNAPSHOT_DIRNAME|$SEATRIAL_RUN_COMMIT"; sh t.sh'
    )
    called = bisect(repository, "--good", hashes[0], "--bad", "HEAD", "--", "sh", "-c", told)
    lines = [
        log.read_text().splitlines()[0].split("|")
        for log in called.journals[-1].parent.glob("runs/*/run.log")
    ]
    assert {line[0] for line in lines} == {"true"}
    assert len({line[1] for line in lines}) == len({line[3] for line in lines}) == len(lines)
    by_commit = {line[4]: line[2] for line in lines}
    assert len(set(by_commit.values())) == len(by_commit) > 1


def test_prepare_runs_once_in_each_tree_and_what_it_builds_stays(
    line: Line, bisect: Bisect, tmp_path: Path
) -> None:
    repository, hashes = line(8, 4)
    called = bisect(
        repository, "--prepare", f"sh -c 'cp n built; pwd >> {tmp_path}/prepared'",
        "--good", hashes[0], "--bad", "HEAD", "--", "sh", "-c",
        "cmp n built || exit 99; test ! -e left || exit 98; touch left; echo x >> n; sh t.sh",
    )  # fmt: skip
    assert _suspects(called) == [hashes[4]]
    assert "exit status 9" not in called.out
    prepared = (tmp_path / "prepared").read_text().split()
    assert len(prepared) == len(set(prepared)) < len(called.runs())


def test_a_commit_whose_environment_cannot_be_built_is_skipped(line: Line, bisect: Bisect) -> None:
    repository, hashes = line(9, 6)
    prepare = "sh -c 'test $(cat n) -ne 4'"
    called = bisect(
        repository,
        "--noise",
        "none",
        "--prepare",
        prepare,
        "--good",
        hashes[0],
        "--bad",
        "HEAD",
        "--",
        "sh",
        "t.sh",
    )
    assert _suspects(called) == [hashes[6]]
    assert any("--prepare failed" in line for line in called.runs())


def test_a_blocked_run_is_tried_again_and_never_counted(line: Line, bisect: Bisect, tmp_path: Path) -> None:
    """Every commit's first attempt meets a full disk."""
    repository, hashes = line(10, 6)
    seen = f"{tmp_path}/seen-$(cat n)"
    script = f"test -e {seen} || {{ touch {seen}; echo No space left on device; exit 1; }}; sh t.sh"
    called = bisect(
        repository, "--noise", "none", "--good", hashes[0], "--bad", "HEAD", "--", "sh", "-c", script
    )
    assert _suspects(called) == [hashes[6]]
    assert all("after 2 attempts" in line for line in called.runs())


def test_an_environment_that_stays_broken_ends_blocked(line: Line, bisect: Bisect) -> None:
    repository, hashes = line(10, 6)
    called = bisect(
        repository,
        "--good",
        hashes[0],
        "--bad",
        "HEAD",
        "--",
        "sh",
        "-c",
        "echo Could not resolve host: x; exit 1",
    )
    assert called.returncode == 3
    assert "Could not resolve host" in called.out + called.err


def test_a_run_cut_by_the_budget_is_not_decided(line: Line, bisect: Bisect) -> None:
    repository, hashes = line(30, 20)
    called = bisect(repository, "--max-runs", "3", "--good", hashes[0], "--bad", "HEAD", "--", "sh", "t.sh")
    assert called.returncode == 3
    assert "Next:" in called.out
    assert len(called.runs()) == 3


def test_ends_that_cannot_be_told_apart_say_how_many_runs_would(
    line: Line, bisect: Bisect, tmp_path: Path
) -> None:
    repository, hashes = line(30, 99)
    counter = tmp_path / "count"
    counter.write_text("0")
    flaky = f"n=$(cat {counter}); echo $((n+1)) > {counter}; exit $(( (n / 2) % 2 ))"
    called = bisect(
        repository, "--max-runs", "6", "--good", hashes[0], "--bad", "HEAD", "--", "sh", "-c", flaky
    )
    assert called.returncode == 3
    assert "could be distinguished" in called.out
    assert "runs of each end" in called.out


def test_the_test_option_judges_one_pytest_test(make_repository: Maker, bisect: Bisect) -> None:
    repository = make_repository()
    hashes = []
    for number in range(8):
        value = 1 if number < 5 else 2
        test = f"def test_value():\n    assert {value} == 1\n\ndef test_other():\n    assert {number} < 2\n"
        hashes.append(repository.commit({"test_it.py": test, "n": str(number)}, str(number)))
    called = bisect(
        repository, "--noise", "none", "--good", hashes[0], "--bad", "HEAD", "--test", "test_it.py::test_value",
        "--", "python", "-m", "pytest", "-q", PYTEST_DISABLE_PLUGIN_AUTOLOAD="1",
        PATH=f"{Path(sys.executable).parent}:{os.environ['PATH']}",
    )  # fmt: skip
    assert _suspects(called) == [hashes[5]], called.out + called.err


def test_a_replayed_git_log_with_a_hand_added_skip_goes_on(
    line: Line, bisect: Bisect, tmp_path: Path
) -> None:
    repository, hashes = line(16, 9)
    log = tmp_path / "bisect-20250101-abc.log"
    log.write_text(
        f"git bisect start '{hashes[15]}' '{hashes[0]}'\n# good: [x] y\ngit bisect good {hashes[7]}\n"
        f"git bisect bad {hashes[11]}\ngit bisect skip {hashes[9]}\n"
    )
    called = bisect(repository, "--noise", "none", "--", "sh", "t.sh", BISECT_REPLAY_LOG=str(log))
    assert called.returncode == 0, called.err
    assert sorted(_suspects(called)) == sorted([hashes[9], hashes[10]])
    assert not any(hashes[9][:12] in line for line in called.runs())
    assert len(called.runs()) == 4


def test_a_skip_written_into_the_journal_drops_a_wrong_result(
    line: Line, bisect: Bisect, tmp_path: Path
) -> None:
    """The guide's rescue: a commit was marked bad for an unrelated reason."""
    repository, hashes = line(16, 12)
    wrong = f"test $(cat n) -ne 7 || test -e {tmp_path}/mended || exit 1; sh t.sh"
    first = bisect(
        repository,
        "--noise",
        "none",
        "--max-runs",
        "5",
        "--good",
        hashes[0],
        "--bad",
        "HEAD",
        "--",
        "sh",
        "-c",
        wrong,
    )
    assert first.returncode == 3
    journal = first.journals[-1]
    with journal.open("a") as stream:
        stream.write(f"git bisect skip {hashes[7]}\n")
    second = bisect(repository, "--resume", str(journal), "--max-runs", "50")
    assert _suspects(second) == [hashes[12]], second.out


def test_keep_state_keeps_trees_and_without_it_only_the_record_stays(
    line: Line, bisect: Bisect, tmp_path: Path
) -> None:
    repository, hashes = line(4, 2)
    words = ("--noise", "none", "--good", hashes[0], "--bad", "HEAD", "--", "sh", "t.sh")
    gone = bisect(repository, *words, state=tmp_path / "a")
    kept = bisect(repository, *words, state=tmp_path / "b", BISECT_NO_RESET="1")
    assert not list(gone.state.glob("*/work-*")) and not list(gone.state.glob("*/repo.git"))
    assert list(kept.state.glob("*/work-*/*/tree/t.sh"))


def test_files_outside_the_commits_are_named_and_can_be_carried(line: Line, bisect: Bisect) -> None:
    """The guide copies tools/ to an untracked tools.bisect/ by hand."""
    repository, hashes = line(8, 5)
    (repository.path / "tools.bisect").mkdir()
    (repository.path / "tools.bisect" / "go.sh").write_text("sh t.sh\n")
    words = ("--noise", "none", "--good", hashes[0], "--bad", "HEAD")
    refused = bisect(repository, *words, "--", "sh", "tools.bisect/go.sh")
    assert refused.returncode == 2
    assert "--carry tools.bisect/go.sh" in refused.err
    called = bisect(repository, *words, "--carry", "tools.bisect", "--", "sh", "tools.bisect/go.sh")
    assert _suspects(called) == [hashes[5]]


def test_equal_trees_share_a_result(make_repository: Maker, bisect: Bisect) -> None:
    """Only src counts; documentation commits are neither run twice nor suspected."""
    repository = make_repository()
    hashes = []
    for number in range(24):
        files = {"src/t.sh": f"# {number // 8}\nexit {int(number >= 16)}\n", "docs/n": str(number)}
        hashes.append(repository.commit(files, str(number)))
    called = bisect(
        repository,
        "--noise",
        "none",
        "--paths",
        "src",
        "--good",
        hashes[0],
        "--bad",
        "HEAD",
        "--",
        "sh",
        "src/t.sh",
    )
    assert _suspects(called) == [hashes[16]]
    assert len(called.runs()) == 3


def test_first_parent_blames_the_merge_and_the_graph_search_the_commit(
    make_repository: Maker, bisect: Bisect
) -> None:
    repository = make_repository()
    good = repository.commit({"t.sh": "test ! -e fault\n"}, "start")
    for number in range(3):
        repository.commit({f"m{number}": ""}, f"main {number}")
    repository.git("switch", "-q", "-c", "side", "HEAD~1")
    repository.commit({"s0": ""}, "side 0")
    culprit = repository.commit({"fault": ""}, "side fault")
    repository.commit({"s1": ""}, "side 1")
    repository.git("switch", "-q", "main")
    repository.git("merge", "-q", "--no-ff", "-m", "merge side", "side")
    merge = repository.git("rev-parse", "HEAD").strip()
    repository.commit({"after": ""}, "after")
    words = ("--noise", "none", "--good", good, "--bad", "HEAD", "--", "sh", "t.sh")
    assert _suspects(bisect(repository, *words)) == [culprit]
    first = bisect(repository, "--first-parent", *words)
    assert _suspects(first) == [merge]
    assert "look inside it" in first.out


def test_a_good_on_another_branch_is_replaced_by_the_merge_base(
    make_repository: Maker, bisect: Bisect
) -> None:
    repository = make_repository()
    base = repository.commit({"t.sh": "exit 0\n"}, "base")
    repository.git("switch", "-q", "-c", "release")
    good = repository.commit({"r": ""}, "release")
    repository.git("switch", "-q", "main")
    repository.commit({"a": ""}, "a")
    culprit = repository.commit({"t.sh": "exit 1\n"}, "b")
    repository.commit({"c": ""}, "c")
    called = bisect(repository, "--noise", "none", "--good", good, "--bad", "main", "--", "sh", "t.sh")
    assert _suspects(called) == [culprit]
    assert base[:12] in called.out


def test_a_bad_that_is_older_than_good_is_wrong_usage(line: Line, bisect: Bisect) -> None:
    repository, hashes = line(4, 2)
    called = bisect(repository, "--good", "HEAD", "--bad", hashes[0], "--", "sh", "t.sh")
    assert called.returncode == 2
    assert "swap" in called.err


def test_parallel_probes_reach_the_same_answer(line: Line, bisect: Bisect) -> None:
    repository, hashes = line(40, 27)
    called = bisect(
        repository, "--jobs", "3", "--noise", "none", "--good", hashes[0], "--bad", "HEAD", "--", "sh", "t.sh"
    )
    assert _suspects(called) == [hashes[27]]


def test_hooks_of_the_user_do_not_run(line: Line, bisect: Bisect, tmp_path: Path) -> None:
    repository, hashes = line(4, 2)
    hook = tmp_path / "hooks" / "post-checkout"
    hook.parent.mkdir()
    hook.write_text(f"#!/bin/sh\ntouch {tmp_path}/ran\n")
    hook.chmod(hook.stat().st_mode | stat.S_IXUSR)
    repository.git("config", "core.hooksPath", str(hook.parent))
    assert _suspects(bisect(repository, "--good", hashes[0], "--bad", "HEAD", "--", "sh", "t.sh")) == [
        hashes[2]
    ]
    assert not (tmp_path / "ran").exists()


def test_a_state_directory_in_the_checkout_is_refused(line: Line, bisect: Bisect) -> None:
    repository, hashes = line(4, 2)
    before = repository.state()
    called = bisect(
        repository,
        "--good",
        hashes[0],
        "--bad",
        "HEAD",
        "--",
        "sh",
        "t.sh",
        state=repository.path / "bisect-logs",
    )
    assert called.returncode == 2
    assert repository.state() == before


def test_the_report_escapes_what_it_shows(make_repository: Maker, bisect: Bisect) -> None:
    repository = make_repository()
    evil = '<script>alert(1)</script> & "q"'
    hashes = [
        repository.commit({"t.sh": f"exit {int(n >= 2)}\n", "n": str(n)}, f"{evil} {n}") for n in range(4)
    ]
    called = bisect(repository, "--good", hashes[0], "--bad", "HEAD", "--", "sh", "t.sh")
    page = (called.journals[-1].parent / "report.html").read_text()
    assert "<script" not in page
    assert "&lt;script&gt;" in page
    assert "<svg" in page and "http://" not in page and "https://" not in page


def test_priors_from_touched_paths_are_probed_first(line: Line, bisect: Bisect) -> None:
    """Only commit 28 of 31 touches the suspected folder: it and its parent are run, and nothing in the middle."""
    repository, _ = line(28, 99)
    repository.commit({"src/loss/kl.py": "", "t.sh": "exit 1\n"}, "the loss")
    hashes = repository.git("rev-list", "--reverse", "HEAD").split()
    for number in range(3):
        hashes.append(repository.commit({"n": f"later {number}"}, f"later {number}"))
    words = ("--noise", "none", "--good", hashes[0], "--bad", "HEAD", "--", "sh", "t.sh")
    plain, told = bisect(repository, *words), bisect(repository, "--prior-path", "src/loss/*=500", *words)
    assert plain.suspects() == told.suspects() == [hashes[28]]
    assert len(told.runs()) == 4 < len(plain.runs())
    wrong = bisect(repository, "--prior-path", "src/loss/*", *words)
    assert wrong.returncode == 2 and "GLOB=FACTOR" in wrong.err
