"""The sandbox ends what does not end, and lets nothing out."""

import socket
from pathlib import Path

import pytest

from refrl.rewards.sandbox import SandboxLimits, SandboxResult, run_python

ROOMY = SandboxLimits(wall_seconds=60, cpu_seconds=30)


def held(result: SandboxResult, lock: str) -> None:
    """Skip where the machine does not permit a lock, saying so."""
    if lock in result.isolation.missing():
        pytest.skip(f"this machine permits no lock on {lock}")


def test_a_program_reads_its_input_and_prints() -> None:
    """The ordinary case."""
    result = run_python("print(sum(map(int, input().split())))", "2 3\n", ROOMY)
    assert (result.succeeded, result.stdout) == (True, "5\n")


def test_an_exception_is_an_exit_code_with_its_message() -> None:
    """The program's own failure."""
    result = run_python("raise SystemExit(3)", limits=ROOMY)
    assert (result.outcome, result.return_code, result.succeeded) == ("exited", 3, False)


def test_an_endless_wait_ends_by_the_wall_clock() -> None:
    """It uses no CPU time."""
    result = run_python("import threading\nthreading.Event().wait()", limits=SandboxLimits(wall_seconds=3))
    assert (result.outcome, result.succeeded) == ("timeout", False)


def test_an_endless_loop_ends_by_its_cpu_time() -> None:
    """Long before the wall clock."""
    result = run_python("while True: pass", limits=SandboxLimits(wall_seconds=60, cpu_seconds=1))
    assert (result.outcome, result.succeeded) == ("killed", False)


def test_memory_ends_at_its_limit() -> None:
    """As an error inside the program."""
    result = run_python("x = bytearray(2**31)", limits=ROOMY)
    assert not result.succeeded
    assert "MemoryError" in result.stderr


@pytest.mark.parametrize(
    "program",
    [
        "import os\nwhile True: os.fork()",
        "import subprocess\nsubprocess.run(['true'])",
        "import os\nos.posix_spawn('/bin/true', ['true'], {})",
        "import os, signal\nos.kill(os.getppid(), signal.SIGKILL)",
        "import os\nos.killpg(0, 0)",
    ],
    ids=["fork bomb", "subprocess", "spawn", "kill the caller", "signal the group"],
)
def test_no_process_is_started_or_signalled(program: str) -> None:
    """The call is refused, also to root."""
    result = run_python(program, limits=ROOMY)
    held(result, "processes")
    assert not result.succeeded
    assert "PermissionError" in result.stderr


def test_threads_are_allowed() -> None:
    """Only processes are refused."""
    program = "import threading\nt = threading.Thread(target=print, args=('in',))\nt.start()\nt.join()"
    assert run_python(program, limits=ROOMY).stdout == "in\n"


def test_nothing_is_written_outside_the_folder(tmp_path: Path) -> None:
    """Inside it is."""
    victim = tmp_path / "victim"
    victim.write_text("whole")
    result = run_python(f"open('mine', 'w').write('x')\nopen({str(victim)!r}, 'w')", limits=ROOMY)
    held(result, "files")
    assert victim.read_text() == "whole"
    # In a root of its own the program does not even see the folder.
    assert "PermissionError" in result.stderr or "FileNotFoundError" in result.stderr
    assert "line 2" in result.stderr


def test_nothing_is_deleted_outside_the_folder(tmp_path: Path) -> None:
    """Nor renamed into it."""
    victim = tmp_path / "victim"
    victim.write_text("whole")
    program = f"import os\ntry: os.rename({str(victim)!r}, 'got')\nexcept OSError: os.remove({str(victim)!r})"
    held(run_python(program, limits=ROOMY), "files")
    assert victim.read_text() == "whole"


def test_output_ends_at_the_largest_file() -> None:
    """A program that prints for ever fills no memory of the caller and no disk."""
    limits = SandboxLimits(wall_seconds=60, cpu_seconds=30, file_bytes=10_000)
    result = run_python("import sys\nwhile True: sys.stdout.write('x' * 4096)", limits=limits)
    assert len(result.stdout) == 10_000
    assert not result.succeeded


def test_limits_cannot_be_raised() -> None:
    """Not even by root."""
    result = run_python("import resource as r\nr.setrlimit(r.RLIMIT_FSIZE, (1 << 40, 1 << 40))", limits=ROOMY)
    held(result, "processes")
    assert not result.succeeded


def test_there_is_no_network() -> None:
    """A server that does listen on this machine is not reached."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        result = run_python(f"import socket\nsocket.create_connection(('127.0.0.1', {port}))", limits=ROOMY)
    held(result, "network")
    assert not result.succeeded


def test_the_environment_is_empty(monkeypatch: pytest.MonkeyPatch) -> None:
    """Secrets stay outside; site packages too."""
    monkeypatch.setenv("SOME_TOKEN", "hush")
    program = (
        "import os, sys\nprint(os.environ.get('SOME_TOKEN'), any('site-packages' in p for p in sys.path))"
    )
    assert run_python(program, limits=ROOMY).stdout == "None False\n"


def test_bytes_that_are_no_text_come_back_replaced() -> None:
    """Hostile output is no error of the verifier."""
    result = run_python("import sys\nsys.stdout.buffer.write(b'\\xff\\x00ok')", limits=ROOMY)
    assert result.stdout == "\ufffd\x00ok"


def test_impossible_limits_are_refused() -> None:
    """By name."""
    with pytest.raises(ValueError, match="memory_bytes=0 must be positive"):
        SandboxLimits(memory_bytes=0)
