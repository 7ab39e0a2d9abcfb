"""What a newcomer gets wrong: one message that names it and the remedy, and no wasted runs."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

import pytest

pytestmark = pytest.mark.e2e

Line = Callable[..., tuple[Any, list[str]]]
Bisect = Callable[..., Any]
METRIC = 'mean(data["train/reward"], -6, -1)'
TRAIN = (sys.executable, "-S", "train.py")


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (("--good", "nope", "--bad", "HEAD", "--", "true"), "GOOD 'nope' is not a commit"),
        (("--good", "HEAD~1", "--bad", "HEAD"), "no command"),
        (("--good", "HEAD", "--bad", "HEAD", "--", "true"), "no commit between them"),
        (("--good", "HEAD", "--bad", "HEAD~1", "--", "true"), "swap the two"),
        (("--good", "HEAD~1", "--bad", "HEAD", "--budget", "-3", "--", "true"), "--budget -3"),
        (("--good", "HEAD~1", "--bad", "HEAD", "--jobs", "0", "--", "true"), "--jobs 0"),
        (("--good", "HEAD~1", "--bad", "HEAD", "--metric", "mean(", "--", "true"), "--metric 'mean('"),
        (("--good", "HEAD~1", "--bad", "HEAD", "--worse", "lower", "--", "true"), "--worse lower goes with"),
        (("--good", "HEAD~1", "--bad", "HEAD", "--baseline", ".", "--", "true"), "--baseline needs --metric"),
    ],
)
def test_what_cannot_work_is_refused_and_leaves_nothing(
    words: tuple[str, ...], told: str, line: Line, bisect: Bisect
) -> None:
    repository, _ = line(3, 1)
    called = bisect(repository, *words)
    assert called.returncode == 2
    assert told in called.err and "Traceback" not in called.err
    assert called.journals == []


def test_a_metric_that_good_does_not_log_ends_at_once_and_names_what_is_there(
    stack: Line, bisect: Bisect
) -> None:
    repository, hashes = stack(9, 5)
    metric = METRIC.replace("reward", "rewrd")
    words = ("--metric", metric, "--good", hashes[0], "--bad", "HEAD", "--", *TRAIN, "{logs}")
    called = bisect(repository, *words)
    assert called.returncode == 3
    assert "train/reward" in called.out and len(called.runs()) == 3


def test_a_command_that_logs_elsewhere_is_told_of_the_placeholder(stack: Line, bisect: Bisect) -> None:
    repository, hashes = stack(9, 5)
    words = ("--metric", METRIC, "--good", hashes[0], "--bad", "HEAD")
    lost = bisect(repository, *words, "--", *TRAIN, "out")
    assert lost.returncode == 3
    assert "write {logs} into the command" in lost.out and len(lost.runs()) == 1
    found = bisect(repository, *words, "--logs", "out", "--", *TRAIN, "out")
    assert found.suspects() == [hashes[5]]


def test_a_budget_below_one_run_says_so_and_is_resumed_with_more(line: Line, bisect: Bisect) -> None:
    repository, hashes = line(9, 5)
    words = ("--noise", "none", "--budget", "0.00001", "--good", hashes[0], "--bad", "HEAD")
    cut = bisect(repository, *words, "--", "sh", "t.sh")
    assert cut.returncode == 3
    assert "before both ends had been run" in cut.out and "raise --budget" in cut.out
    called = bisect(repository, "--resume", str(cut.journals[-1]), "--budget", "10")
    assert called.suspects() == [hashes[5]]


def test_a_command_that_does_not_exist_is_found_out_at_good(line: Line, bisect: Bisect) -> None:
    repository, hashes = line(9, 5)
    words = ("--noise", "none", "--good", hashes[0], "--bad", "HEAD", "--", "no-such-command")
    called = bisect(repository, *words)
    assert called.returncode == 1
    assert "GOOD does not pass: exit status 127" in called.out and "runs at all" in called.out
