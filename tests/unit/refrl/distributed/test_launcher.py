"""Ranks end together: well, or with the words of the one that failed first; none outlives the launcher."""

import contextlib
import os
import signal
import subprocess
import sys
from pathlib import Path

import psutil
import pytest

from refrl.config import ClusterConfig, ConfigError
from refrl.runtime import launcher
from refrl.runtime.launcher import RankError, launch
from refrl.runtime.rank_process import Ended

TWO = ClusterConfig(num_processes=2)
RANK = """
import os, signal, sys
from pathlib import Path
from refrl.lifeline import watch_lifeline
folder, how = Path(sys.argv[1]), sys.argv[2]
rank = os.environ["RANK"]
(folder / f"{rank}.tmp").write_text(str(os.getpid()))
(folder / f"{rank}.tmp").rename(folder / rank)
watch_lifeline()
if how == "well":
    print("rank", rank, os.environ["LOCAL_RANK"], "of", os.environ["WORLD_SIZE"])
    print("a warning", file=sys.stderr)
elif rank == "1":
    print("refrl grpo: the words of rank 1", file=sys.stderr, flush=True)
    if how == "killed":
        os.kill(os.getpid(), signal.SIGKILL)
    sys.exit(int(how)) if how != "hangs" else signal.pause()
else:
    signal.pause()
"""


@pytest.fixture
def rank(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Replace what a rank runs; return the folder in which each leaves its process id."""
    script = tmp_path / "rank.py"
    script.write_text(RANK)
    monkeypatch.setattr(launcher, "COMMAND", (sys.executable, str(script)))
    return tmp_path


def pids(folder: Path) -> list[int]:
    """Return the processes that the ranks wrote down."""
    return [int((folder / name).read_text()) for name in ("0", "1") if (folder / name).exists()]


def test_ranks_know_who_they_are_and_only_rank_0_is_heard(
    rank: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    """One line on each stream."""
    launch([str(rank), "well"], TWO)
    assert capfd.readouterr() == ("rank 0 0 of 2\n", "a warning\n")


@pytest.mark.parametrize(
    ("how", "error", "words"),
    [
        ("2", ConfigError, "^the words of rank 1$"),
        (
            "3",
            RankError,
            "rank 1 ended with exit status 3, and the others were stopped: .*the words of rank 1",
        ),
        ("killed", RankError, "rank 1 ended by signal 9"),
    ],
)
def test_a_rank_that_ends_badly_ends_the_others(
    rank: Path, how: str, error: type[Exception], words: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Rank 0 waits for ever, as in a collective; it is told to end."""
    monkeypatch.setattr(launcher, "COMMAND", (*launcher.COMMAND, str(rank), how))
    with pytest.raises(error, match=words):
        launch(["grpo"], TWO)
    assert not any(psutil.pid_exists(pid) for pid in pids(rank))


def test_no_rank_outlives_a_launcher_that_is_killed(rank: Path) -> None:
    """Not even when it can end nothing any more."""
    script = (
        "from refrl.config import ClusterConfig\n"
        "from refrl.runtime import launcher\n"
        f"launcher.COMMAND = {launcher.COMMAND!r}\n"
        f"launcher.launch([{str(rank)!r}, 'hangs'], ClusterConfig(num_processes=2))"
    )
    process = subprocess.Popen([sys.executable, "-c", script], start_new_session=True)
    parent = psutil.Process(process.pid)
    try:
        while len(pids(rank)) < 2:
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(timeout=0.05)
                raise AssertionError("the launcher ended first")
        children = [psutil.Process(pid) for pid in pids(rank)]
        assert all(child.ppid() == parent.pid for child in children)
        process.kill()
        process.wait()
        assert psutil.wait_procs(children, timeout=30)[1] == []
    finally:
        # The group is this test's own; nothing is left of it where the test passes.
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)


def test_torchrun_and_ray_are_not_both_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    """What is started already is not placed anew, and nothing is ignored in silence."""
    monkeypatch.setenv("TORCHELASTIC_RUN_ID", "1")
    assert not launcher.is_launcher(TWO)
    with pytest.raises(ConfigError, match="torchrun has started this process"):
        launcher.is_launcher(ClusterConfig(num_processes=2, placement="ray"))


@pytest.mark.parametrize(
    ("cluster", "launches"),
    [
        (ClusterConfig(), False),
        (TWO, True),
        (ClusterConfig(placement="ray"), True),
    ],
)
def test_the_command_trains_by_itself_where_nothing_else_is_asked_for(
    cluster: ClusterConfig, launches: bool
) -> None:
    """One rank in an actor is placed too."""
    assert launcher.is_launcher(cluster) is launches


@pytest.mark.parametrize(
    ("status", "error", "words"),
    [
        (2, ConfigError, "^no such folder .rank 1 on 10.0.0.2.$"),
        (
            -9,
            RankError,
            "^rank 1 on 10.0.0.2 ended by signal 9, and the others were stopped: no such folder$",
        ),
        (None, RankError, "^rank 1 on 10.0.0.2 was lost with its actor, and"),
    ],
)
def test_a_rank_that_failed_on_another_host_says_where(
    status: int | None, error: type[Exception], words: str
) -> None:
    """What is missing there is not missing here."""
    with pytest.raises(error, match=words):
        launcher._report(1, Ended(status, "refrl grpo: no such folder\n", "10.0.0.2"), "grpo")


def test_the_last_words_are_no_warning_of_native_code() -> None:
    """torch warns of groups that a failed rank did not leave, after the traceback."""
    warned = (
        "[rank0]:[W1126 02:09:25.896250867 ProcessGroupNCCL.cpp:1575] Warning: WARNING: groups were left\n"
    )
    with pytest.raises(RankError, match=r"stopped: RuntimeError: two devices$"):
        launcher._report(0, Ended(1, f"RuntimeError: two devices\n{warned}", ""), "grpo")
