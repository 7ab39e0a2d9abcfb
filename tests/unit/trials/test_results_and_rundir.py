"""results.json is valid at every moment; a run directory belongs to one run."""

import errno
import json
import multiprocessing
import os
from datetime import UTC, datetime
from pathlib import Path

import pytest

from seatrial import files
from seatrial.errors import BlockedError, UsageError
from seatrial.files import write_text
from seatrial.trials.results import Results, TrialResult, TrialState
from seatrial.trials.rundir import RunDirectory, make_directory, read_results
from seatrial.verdict import Outcome, Verdict


def trial(
    name: str = "grpo-smoke", state: TrialState = TrialState.PENDING, *outcomes: Outcome
) -> TrialResult:
    """Return a trial whose verdicts have these outcomes."""
    verdicts = [
        Verdict(name=f"check {i}", outcome=o, reason="because", num_samples=1) for i, o in enumerate(outcomes)
    ]
    return TrialResult(
        name=name, level=0, summary="s", proves="p", does_not_prove="d", state=state, verdicts=verdicts
    )


def results(*trials: TrialResult) -> Results:
    """Return the results of a run with these trials."""
    return Results(
        run="run", target="reference", requested="level 0", seed=0, timeout_seconds=1.0, started_at="2026-01-01",
        seatrial_version="0", trials=list(trials),
    )  # fmt: skip


PASS, FAIL, BLOCKED, SKIPPED = Outcome.PASS, Outcome.FAIL, Outcome.BLOCKED, Outcome.SKIPPED


@pytest.mark.parametrize(
    ("given", "outcome"),
    [
        (trial("a", TrialState.CONCLUDED, PASS, SKIPPED), PASS),
        (trial("a", TrialState.CONCLUDED, PASS, BLOCKED), BLOCKED),
        (trial("a", TrialState.CONCLUDED, PASS, BLOCKED, FAIL), FAIL),
        (trial("a", TrialState.CONCLUDED), SKIPPED),
        (trial("a", TrialState.PENDING), BLOCKED),
        (trial("a", TrialState.RUNNING, PASS), BLOCKED),
        (trial("a", TrialState.RUNNING, PASS, FAIL), FAIL),
        (trial("a", TrialState.INTERRUPTED, PASS), BLOCKED),
        (trial("a", TrialState.NOT_REQUESTED), Outcome.NOT_REQUESTED),
    ],
)
def test_a_trial_that_did_not_conclude_is_never_pass(given: TrialResult, outcome: Outcome) -> None:
    """Passing verdicts of half a trial prove nothing."""
    assert given.outcome is outcome


def test_the_whole_counts_what_was_requested_and_nothing_else() -> None:
    """A trial that nobody asked for neither helps nor harms."""
    passed, asleep = trial("a", TrialState.CONCLUDED, PASS), trial("b", TrialState.NOT_REQUESTED)
    assert results(passed, asleep).outcome is PASS
    assert results(asleep).outcome is SKIPPED
    assert results(passed, trial("c")).outcome is BLOCKED


def test_results_survive_the_file(tmp_path: Path) -> None:
    """What is written is what is read, not-finite values by their name."""
    verdict = Verdict(
        name="x < 1", outcome=FAIL, reason="NaN at step 2", value=float("nan"), bound="< 1", num_samples=3,
        steps=(1, 3), source="hand-set", details={"steps": [1, 2]},
    )  # fmt: skip
    written = results(trial("a", TrialState.CONCLUDED))
    written.trials[0].verdicts = [verdict]
    with RunDirectory.create(tmp_path, "reference") as directory:
        directory.write_results(written)
        read = read_results(directory.path)
    assert json.loads(read.to_text()) == json.loads(written.to_text())
    assert read.trials[0].verdicts[0].value == "nan"
    assert read.trials[0].verdicts[0].steps == (1, 3)


@pytest.mark.parametrize(
    "spoil",
    [
        lambda text: text[: len(text) // 2],
        lambda text: text.replace('"schema_version": 1', '"schema_version": 2'),
        lambda text: text.replace('"Fail"', '"Splendid"'),
        lambda text: text.replace('"seed": 0', '"seed": "many"'),
        lambda text: text.replace('"target"', '"traget"'),
        lambda text: "",
        # A Pass that rests on nothing contradicts the algebra, whoever wrote it.
        lambda text: text.replace('"Fail"', '"Pass"').replace('"num_samples": 1', '"num_samples": 0'),
    ],
)
def test_a_damaged_results_file_is_blocked(tmp_path: Path, spoil: object) -> None:
    """It is never half believed."""
    assert callable(spoil)
    text = results(trial("a", TrialState.CONCLUDED, FAIL)).to_text()
    assert spoil(text) != text
    (tmp_path / "results.json").write_text(spoil(text))
    with pytest.raises(BlockedError, match=r"cannot read .*results\.json"):
        read_results(tmp_path)


def test_two_runs_of_one_second_get_two_directories(tmp_path: Path) -> None:
    """The name is taken by making the folder."""

    def now() -> datetime:
        return datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC)

    with (
        RunDirectory.create(tmp_path, "reference", now) as one,
        RunDirectory.create(tmp_path, "reference", now) as two,
    ):
        assert one.path.name == "20260102T030405Z-reference"
        assert two.path.name == "20260102T030405Z-reference-2"


def _create_many(base: str, queue: "multiprocessing.Queue[list[str]]") -> None:
    queue.put([str(RunDirectory.create(Path(base), "reference").path) for _ in range(20)])


def test_runs_of_several_processes_never_share(tmp_path: Path) -> None:
    """Four processes that create at once."""
    context = multiprocessing.get_context("forkserver")
    queue: multiprocessing.Queue[list[str]] = context.Queue()
    processes = [context.Process(target=_create_many, args=(str(tmp_path), queue)) for _ in range(4)]
    for process in processes:
        process.start()
    paths = [path for _ in processes for path in queue.get(timeout=120)]
    for process in processes:
        process.join()
    assert len(set(paths)) == 80


def test_a_directory_in_use_cannot_be_resumed(tmp_path: Path) -> None:
    """Its owner is at work in it."""
    with RunDirectory.create(tmp_path, "reference") as directory:
        directory.write_results(results())
        with pytest.raises(UsageError, match="in use by another seatrial run"):
            RunDirectory.reopen(directory.path)
    again, _ = RunDirectory.reopen(directory.path)
    again.close()


def test_what_is_no_run_directory_is_not_resumed(tmp_path: Path) -> None:
    """Neither an empty folder nor a missing one."""
    for path in (tmp_path, tmp_path / "missing"):
        with pytest.raises(UsageError, match=r"holds no results\.json"):
            RunDirectory.reopen(path)


def test_an_abandoned_attempt_is_set_aside(tmp_path: Path) -> None:
    """A trial begins in an empty folder: nothing that an earlier attempt left is read."""
    with RunDirectory.create(tmp_path, "reference") as directory:
        for number in range(3):
            folder = directory.begin_trial(0, "grpo-smoke")
            assert list(folder.iterdir()) == []
            (folder / "metrics.json").write_text(f"attempt {number}")
        kept = sorted(path.name for path in folder.parent.iterdir())
    assert kept == ["0-grpo-smoke", "0-grpo-smoke.abandoned-1", "0-grpo-smoke.abandoned-2"]


@pytest.mark.parametrize(
    ("number", "remedy"),
    [(errno.ENOSPC, "free space"), (errno.EDQUOT, "free space"), (errno.EACCES, "another --output")],
)
def test_a_write_that_fails_keeps_the_old_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int, remedy: str
) -> None:
    """Disk full or no permission: one message with the remedy, and the file of before."""
    path = tmp_path / "results.json"
    write_text(path, "old")

    def fail(descriptor: int) -> None:
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(files.os, "fsync", fail)
    with pytest.raises(BlockedError, match=remedy):
        write_text(path, "new")
    assert path.read_text() == "old"
    assert [item.name for item in tmp_path.iterdir()] == ["results.json"]


def test_a_folder_that_cannot_be_made_is_blocked(tmp_path: Path) -> None:
    """A file is in the way."""
    (tmp_path / "file").write_text("")
    for path in (tmp_path / "file", tmp_path / "file" / "below"):
        with pytest.raises(BlockedError, match="cannot make"):
            make_directory(path, exist_ok=True)
