"""A process that is forked with the stack imported behaves as a command does."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest


@pytest.fixture(name="program")
def program_fixture(tmp_path: Path) -> Path:
    """Return a folder with a module that says what it sees and ends as it is told."""
    (tmp_path / "told.py").write_text(
        "import os, signal, sys\n"
        "imported = 'transformers.modeling_utils' in sys.modules\n"
        "print(sys.argv[1:], os.environ['SAID'], os.getcwd(), imported, sys.stdin.read(), flush=True)\n"
        "print('beside', file=sys.stderr)\n"
        "os.kill(os.getpid(), signal.SIGKILL) if sys.argv[1] == 'killed' else sys.exit(int(sys.argv[1]))\n",
        encoding="utf-8",
    )
    return tmp_path


@pytest.mark.parametrize(("word", "status"), [("0", 0), ("7", 7), ("killed", -signal.SIGKILL)])
def test_words_streams_folder_environment_and_status_are_the_command_s(
    fork_server: str, repository: Path, program: Path, word: str, status: int
) -> None:
    """And the stack is there before its first line."""
    ended = subprocess.run(
        [sys.executable, "-m", "tests.forked", fork_server, "told", word, "second"],
        input="asked",
        capture_output=True,
        text=True,
        check=False,
        cwd=program,
        env={**os.environ, "PYTHONPATH": str(repository), "SAID": "aloud"},
    )
    assert ended.returncode == status
    assert ended.stdout.split("\n")[0] == f"{[word, 'second']} aloud {program} True asked"
    assert ended.stderr == "beside\n"
