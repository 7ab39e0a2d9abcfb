"""A command runs as a group of its own, says how it ended, and leaves nothing behind."""

import os
import resource
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from types import SimpleNamespace

import psutil
import pytest

from seatrial.errors import BlockedError
from seatrial.launch import Launched, local, run_command
from seatrial.launch.interrupts import termination_interrupts


def python(tmp_path: Path, script: str, **options: object) -> Launched:
    """Run a Python script given as text."""
    settings: dict[str, object] = {
        "log_path": tmp_path / "run.log",
        "environment": dict(os.environ),
        "timeout_seconds": 60.0,
        "grace_seconds": 2.0,
        **options,
    }
    return run_command([sys.executable, "-c", script], **settings)  # type: ignore[arg-type]


def test_output_of_both_streams_is_kept_and_the_status_returned(tmp_path: Path) -> None:
    """Standard output and error end up in one file, in the order of writing."""
    ran = python(
        tmp_path, "import sys; print('one'); print('two', file=sys.stderr); print('three'); sys.exit(7)"
    )
    assert (tmp_path / "run.log").read_text() == "one\ntwo\nthree\n"
    assert (ran.returncode, ran.ok, ran.describe()) == (7, False, "exit status 7")


@pytest.mark.parametrize(
    ("number", "words", "outside"),
    [
        (signal.SIGKILL, "killed by signal 9 (SIGKILL)", True),
        (signal.SIGTERM, "killed by signal 15 (SIGTERM)", True),
        (signal.SIGSEGV, "killed by signal 11 (SIGSEGV)", False),
        (signal.SIGABRT, "killed by signal 6 (SIGABRT)", False),
    ],
)
def test_a_death_by_signal_is_named(tmp_path: Path, number: int, words: str, outside: bool) -> None:
    """A kill from outside is told from a crash of the command's own."""
    ran = python(tmp_path, f"import os; print('alive'); os.kill(os.getpid(), {int(number)})")
    assert (ran.describe(), ran.killed_from_outside, ran.ok) == (words, outside, False)
    assert (tmp_path / "run.log").read_text() == "alive\n"


DAEMON = """
import subprocess, sys
child = subprocess.Popen(
    [sys.executable, "-c", "import signal; print('daemon', flush=True); signal.pause()"],
    start_new_session=True, stdout={stdout},
)
open({pids!r}, "w").write(str(child.pid))
{then}
"""


@pytest.mark.parametrize("stdout", ["None", "subprocess.DEVNULL"])
def test_a_daemon_that_left_the_group_is_ended_too(tmp_path: Path, stdout: str) -> None:
    """It made itself a session of its own, with our pipe or without it: it carries our mark."""
    ran = python(tmp_path, DAEMON.format(stdout=stdout, pids=str(tmp_path / "pid"), then="sys.exit(0)"))
    assert (ran.returncode, ran.num_stragglers) == (0, 1)
    assert gone(tmp_path)


def test_two_commands_at_once_do_not_end_one_another(tmp_path: Path) -> None:
    """Each has a mark of its own."""
    (tmp_path / "a").mkdir()
    (tmp_path / "b").mkdir()
    os.mkfifo(tmp_path / "go")
    wait = "open({!r}).read(); print('done')"
    other: list[Launched] = []
    thread = threading.Thread(
        target=lambda: other.append(python(tmp_path / "a", wait.format(str(tmp_path / "go"))))
    )
    thread.start()
    assert python(tmp_path / "b", "print('quick')").ok
    # Opening the pipe waits until the other command reads from it.
    (tmp_path / "go").write_text("")
    thread.join()
    assert other[0].ok
    assert (tmp_path / "a" / "run.log").read_text() == "done\n"


FAMILY = """
import os, signal, subprocess, sys, threading
script = "import signal, sys; {child}; sys.stdin.read(); print('child', flush=True); signal.pause()"
child = subprocess.Popen([sys.executable, "-c", script], stdin=subprocess.PIPE)
open({pids!r}, "w").write(str(child.pid))
print("parent", flush=True)
child.stdin.close()
{then}
"""


def family(tmp_path: Path, *, child: str = "pass", then: str = "signal.pause()") -> str:
    """Return a script that starts a child, writes its id down, and continues with `then`; the child prints last."""
    return FAMILY.format(child=child, pids=str(tmp_path / "pid"), then=then)


def gone(tmp_path: Path) -> bool:
    """Whether the child that `family` started has ended."""
    try:
        child = psutil.Process(int((tmp_path / "pid").read_text()))
        # A process that was killed loses its environment, by which we know it, a moment before it is gone.
        child.wait(timeout=10)
    except psutil.NoSuchProcess:
        return True
    except psutil.TimeoutExpired:
        return child.status() == psutil.STATUS_ZOMBIE
    return True


@pytest.mark.parametrize("child", ["pass", "signal.signal(signal.SIGTERM, signal.SIG_IGN)"])
def test_the_time_limit_ends_the_whole_group(
    tmp_path: Path, child: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Children go with their parent, those that ignore SIGTERM too."""
    ahead = 0.0

    def pass_an_hour(seconds: float, last_line: str) -> None:
        nonlocal ahead
        ahead = 3600.0 * (last_line == "child")

    clock = SimpleNamespace(monotonic=lambda: time.monotonic() + ahead, sleep=time.sleep)
    monkeypatch.setattr(local, "time", clock)
    ran = python(tmp_path, family(tmp_path, child=child), progress=pass_an_hour, grace_seconds=0.5)
    assert ran.timed_out
    assert not ran.ok
    assert not ran.killed_from_outside
    assert "time limit" in ran.describe()
    assert gone(tmp_path)


def test_a_child_that_outlives_the_command_is_ended_and_counted(tmp_path: Path) -> None:
    """A command that exits 0 and leaves a process behind is found out."""
    ran = python(tmp_path, family(tmp_path, then="sys.exit(0)"))
    assert ran.returncode == 0
    assert ran.num_stragglers == 1
    assert gone(tmp_path)


def interrupt_when(says: str, number: int) -> Callable[[float, str], None]:
    """Return a progress callback that signals this process once the command has said something."""

    def progress(seconds: float, last_line: str) -> None:
        if last_line == says:
            os.kill(os.getpid(), number)

    return progress


@pytest.fixture
def hang_up() -> Iterator[Callable[[signal.Handlers], None]]:
    """Return a function that sets what a hang-up does; the tests themselves may run under nohup."""
    before = signal.getsignal(signal.SIGHUP)

    def does(handler: signal.Handlers) -> None:
        signal.signal(signal.SIGHUP, handler)

    yield does
    signal.signal(signal.SIGHUP, before)


def test_a_hang_up_that_is_ignored_stays_ignored(hang_up: Callable[[signal.Handlers], None]) -> None:
    """As under nohup."""
    hang_up(signal.SIG_IGN)
    with termination_interrupts():
        os.kill(os.getpid(), signal.SIGHUP)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_a_signal_to_us_ends_the_group_and_interrupts(
    tmp_path: Path, number: int, hang_up: Callable[[signal.Handlers], None]
) -> None:
    """Ctrl-C, termination and hang-up unwind alike and leave no orphan."""
    hang_up(signal.SIG_DFL)
    with termination_interrupts(), pytest.raises(KeyboardInterrupt):
        python(tmp_path, family(tmp_path), progress=interrupt_when("child", number))
    assert gone(tmp_path)
    assert signal.getsignal(signal.SIGTERM) is signal.SIG_DFL


def test_our_own_group_is_not_the_commands(tmp_path: Path) -> None:
    """A Ctrl-C of the terminal reaches the command through us alone."""
    python(tmp_path, "import os; print(os.getpgrp(), os.getpid())")
    group, pid = (tmp_path / "run.log").read_text().split()
    assert group == pid != str(os.getpgrp())


def test_progress_tells_the_last_line(tmp_path: Path) -> None:
    """While waiting, the caller hears how long and what was said last."""
    heard: list[tuple[float, str]] = []
    done = threading.Event()

    def progress(seconds: float, last_line: str) -> None:
        heard.append((seconds, last_line))
        if last_line == "step 2":
            done.set()
            with suppress(OSError):
                os.close(os.open(tmp_path / "go", os.O_WRONLY | os.O_NONBLOCK))

    os.mkfifo(tmp_path / "go")
    script = f"print('step 1'); print('step 2'); open({str(tmp_path / 'go')!r}).read()"
    assert python(tmp_path, script, progress=progress).ok
    assert done.is_set()
    assert [seconds for seconds, _ in heard] == sorted(seconds for seconds, _ in heard)


def test_a_long_log_keeps_its_head_and_its_tail(tmp_path: Path) -> None:
    """The file is bounded, and what was left out is counted."""
    python(tmp_path, "for i in range(10_000): print(f'line {i}')", max_log_bytes=1000)
    lines = (tmp_path / "run.log").read_text().splitlines()
    assert lines[0] == "line 0"
    assert lines[-1] == "line 9999"
    (marker,) = [line for line in lines if "left out" in line]
    kept = sum(len(line) + 1 for line in lines if line != marker)
    everything = sum(len(f"line {i}") + 1 for i in range(10_000))
    assert f"{everything - kept} bytes" in marker


def test_output_without_line_ends_is_cut(tmp_path: Path) -> None:
    """A progress bar that never ends its line is written as it comes, and is not lost."""
    python(tmp_path, "print('x' * 200_000, end='')")
    assert (tmp_path / "run.log").read_text().replace("\n", "") == "x" * 200_000


def test_a_secret_never_reaches_the_file(tmp_path: Path) -> None:
    """Redaction comes before writing."""
    python(tmp_path, "print('key=hunter2')", redact=lambda line: line.replace("hunter2", "?"))
    assert (tmp_path / "run.log").read_text() == "key=?\n"


def test_the_environment_is_what_was_given(tmp_path: Path) -> None:
    """Nothing leaks in from ours."""
    os.environ["SEATRIAL_TEST_LEAK"] = "1"
    try:
        python(tmp_path, "import os; print(sorted(os.environ))", environment={"GIVEN": "1"})
    finally:
        del os.environ["SEATRIAL_TEST_LEAK"]
    names = (tmp_path / "run.log").read_text()
    assert "GIVEN" in names
    assert "PYTHONUNBUFFERED" in names
    assert "SEATRIAL_TEST_LEAK" not in names


@pytest.mark.parametrize("kind", ["missing", "not executable"])
def test_a_program_that_cannot_be_started_is_blocked(tmp_path: Path, kind: str) -> None:
    """The message names the program."""
    program = tmp_path / "program"
    if kind == "not executable":
        program.write_text("hello")
    with pytest.raises(BlockedError, match=r"cannot start .*program"):
        run_command(
            [str(program)],
            log_path=tmp_path / "run.log",
            environment={},
            timeout_seconds=5,
            directory=tmp_path,
        )


def test_a_log_that_cannot_be_opened_is_blocked(tmp_path: Path) -> None:
    """A missing folder stands for every failure to open."""
    with pytest.raises(BlockedError, match=r"cannot write the run's log .*run\.log"):
        python(tmp_path, "pass", log_path=tmp_path / "nowhere" / "run.log")


def test_a_full_disk_is_blocked_and_the_command_is_not_stuck(tmp_path: Path) -> None:
    """A file size limit stands in for the disk: writing fails in mid-run, output is drained all the same."""
    script = f"""
import resource, signal, sys
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
resource.setrlimit(resource.RLIMIT_FSIZE, (4096, {resource.RLIM_INFINITY}))
from pathlib import Path
from seatrial.errors import BlockedError
from seatrial.launch import run_command
try:
    run_command([sys.executable, "-c", "print('x' * 3_000_000)"], log_path=Path({str(tmp_path / "run.log")!r}),
                environment={{}}, timeout_seconds=60)
except BlockedError as error:
    print("Blocked:", error)
"""
    ran = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, timeout=120, check=True
    )
    assert "Blocked: cannot write the run's log" in ran.stdout
    assert "File too large" in ran.stdout
