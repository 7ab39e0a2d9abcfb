"""One named process is disturbed at the moment that was asked for, no other is, and the end of the run is judged."""

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from seatrial.chaos.acts import find_victim
from seatrial.chaos.experiment import last_step
from seatrial.cli import main
from seatrial.errors import UsageError

TOY = Path(__file__).with_name("toy_run.py")


@pytest.fixture
def sleeper() -> Iterator["subprocess.Popen[bytes]"]:
    """A process that does nothing for long."""
    process = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
    yield process
    process.kill()
    process.wait()


def chaos(tmp_path: Path, manner: str, *words: str, num_steps: int = 60) -> int:
    """Run the toy under `seatrial chaos`."""
    logs = tmp_path / "logs"
    return main(
        [
            "chaos", "--log", str(logs), "--console", str(tmp_path / "run.log"), *words,
            "--", sys.executable, str(TOY), str(logs), str(num_steps), manner,
        ]
    )  # fmt: skip


@pytest.mark.parametrize(
    ("manner", "exit_code", "said"),
    [
        ("names", 0, "it ended with a message"),
        ("ignores", 0, "it continued"),
        ("forgets", 1, "does not name worker/0"),
        pytest.param("waits", 1, "it hangs", marks=pytest.mark.nightly),  # it takes all of its time limit
    ],
)
def test_a_run_that_loses_a_part_goes_on_or_says_so(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], manner: str, exit_code: int, said: str
) -> None:
    """A hang, and an end that names nothing, are failures."""
    assert chaos(tmp_path, manner, "--kill", "worker/0", "--at-step", "5", "--timeout", "20") == exit_code
    assert said in capsys.readouterr().out


def test_the_act_comes_after_the_step_that_was_asked_for(tmp_path: Path) -> None:
    """Steps up to it are logged, and few after it."""
    assert chaos(tmp_path, "names", "--kill", "worker/0", "--at-step", "7", num_steps=3000) == 0
    assert 7 <= last_step(tmp_path / "logs") < 3000


def test_the_act_comes_at_a_line_of_the_output(tmp_path: Path) -> None:
    """Whatever the log says."""
    assert chaos(tmp_path, "names", "--kill", "worker/0", "--at-line", "step 9 done", num_steps=3000) == 0
    assert 9 <= last_step(tmp_path / "logs") < 3000


def test_a_killed_trainer_ends_by_the_signal_and_is_resumed(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """It can name nothing; what can be observed is the signal, and that the same command reaches the same end."""
    whole, logs = tmp_path / "whole", tmp_path / "logs"
    subprocess.run([sys.executable, str(TOY), str(whole), "40", "names"], check=True, capture_output=True)
    words = ["--kill", "trainer", "--at-step", "5", "--resume", "--unbroken", str(whole)]
    assert chaos(tmp_path, "names", *words, num_steps=40) == 0
    shown = capsys.readouterr().out
    assert "the command's own process was killed" in shown
    assert "40 values are equal" in shown
    assert last_step(logs) == 40


def test_a_resumed_run_that_differs_fails(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """It ends well, and is another run."""
    whole = tmp_path / "whole"
    subprocess.run([sys.executable, str(TOY), str(whole), "40", "names"], check=True, capture_output=True)
    words = ["--kill", "trainer", "--at-step", "5", "--resume", "--unbroken", str(whole)]
    assert chaos(tmp_path, "drifts", *words, num_steps=40) == 1
    assert "without a break" in capsys.readouterr().out


def test_the_act_waits_until_the_run_has_named_its_parts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """A run that still imports has named none, and a file of an earlier start names others."""
    (tmp_path / "logs").mkdir()
    (tmp_path / "logs" / "parts.json").write_text('{"other": 1}')
    os.utime(tmp_path / "logs" / "parts.json", (1, 1))
    monkeypatch.setenv("TOY_IMPORTS_SECONDS", "0.5")
    assert chaos(tmp_path, "names", "--kill", "worker/0", num_steps=3000) == 0
    assert "it ended with a message" in capsys.readouterr().out


def test_an_act_that_never_came_is_no_pass(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The run was good, and was never disturbed: nothing is known."""
    assert chaos(tmp_path, "names", "--kill", "worker/0", "--at-step", "99", num_steps=5) == 3
    assert "the run ended before step 99 is logged" in capsys.readouterr().out


@pytest.mark.parametrize("act", ["--pause", "--slow"])
def test_what_is_paused_or_slowed_goes_on_afterwards(
    tmp_path: Path, sleeper: "subprocess.Popen[bytes]", act: str
) -> None:
    """Nothing is left stopped."""
    assert main(["chaos", act, str(sleeper.pid), "--for", "0.3"]) == 0
    assert sleeper.poll() is None
    assert psutil.Process(sleeper.pid).status() != psutil.STATUS_STOPPED


def test_only_the_named_process_ends(tmp_path: Path, sleeper: "subprocess.Popen[bytes]") -> None:
    """Its neighbour in the same file of parts lives on."""
    other = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
    try:
        (tmp_path / "parts.json").write_text(json.dumps({"a": sleeper.pid, "b": other.pid}))
        assert main(["chaos", "--kill", "b", "--log", str(tmp_path)]) == 0
        assert other.wait() == -signal.SIGKILL
        assert sleeper.poll() is None
    finally:
        other.kill()
        other.wait()


def test_a_number_that_was_given_to_a_younger_process_is_left_alone(
    tmp_path: Path, sleeper: "subprocess.Popen[bytes]"
) -> None:
    """The part that had it has ended."""
    path = tmp_path / "parts.json"
    path.write_text(json.dumps({"worker": sleeper.pid}))
    old = psutil.Process(sleeper.pid).create_time() - 100
    os.utime(path, (old, old))
    with pytest.raises(UsageError, match="belongs to a newer process"):
        find_victim("worker", tmp_path)
    assert sleeper.poll() is None


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--kill", "worker"], "name the run's log folder"),
        (["--kill", "1"], "is not a part of a run"),
        (["--kill", str(os.getpid())], "is not a part of a run"),
        (["--kill", "5", "--at-step", "3"], "name its folder with --log"),
        (["--kill", "5", "--at-line", "x"], "name its file with --console"),
        (["--kill", "5", "--at-line", "(", "--console", "f"], "not a regular expression"),
        (["--kill", "5", "--for", "2"], "not to --kill"),
        (["--pause", "5"], "needs --for"),
        (["--kill", "5", "--resume"], "give the command after --"),
        (["--kill", "5", "--unbroken", "x"], "add --resume, and --log LOGS"),
    ],
)
def test_wrong_usage_is_one_message(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], words: list[str], message: str
) -> None:
    """Before anything is waited for, or as a disturbance that could not be done."""
    assert main(["chaos", *words]) in (2, 3)
    shown = capsys.readouterr()
    assert message in shown.out + shown.err


@pytest.mark.parametrize(
    ("text", "message"),
    [("[", "is not JSON"), ('{"a": "1"}', "process numbers"), ('{"a": 1}', "did you mean 'a'")],
)
def test_a_file_of_parts_that_is_none_is_refused(tmp_path: Path, text: str, message: str) -> None:
    """In words that name it."""
    (tmp_path / "parts.json").write_text(text)
    with pytest.raises(UsageError, match=message):
        find_victim("aa", tmp_path)
