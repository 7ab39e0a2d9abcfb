"""A process that is forked with the stack imported behaves as a command does."""

import multiprocessing
import os
import shutil
import signal
import subprocess
from pathlib import Path

import pytest
from tests.forked import client, server
from tests.forked.activation import TESTS_PYTHON
from tests.forked.told import report_and_exit

import refrl
from refrl.generation import process
from refrl.runtime import launcher
from seatrial.faults.planting import PRELOAD
from seatrial.targets.reference.guards import worked
from seatrial.targets.reference.target import ReferenceTarget


@pytest.fixture(name="asking")
def asking_fixture(repository: Path) -> dict[str, str]:
    """Return the environment of a command."""
    places = [str(repository), *filter(None, [os.environ.get("PYTHONPATH")])]
    return {**os.environ, "PYTHONPATH": os.pathsep.join(places), "SAID": "aloud"}


@pytest.mark.parametrize(
    ("options", "word", "status"), [([], "0", 0), (["-P"], "7", 7), (["-u"], "killed", -signal.SIGKILL)]
)
def test_words_files_folder_environment_and_status_are_the_command_s(
    forked_python: str, asking: dict[str, str], tmp_path: Path, options: list[str], word: str, status: int
) -> None:
    """And the stack is there before its first line."""
    reading, writing = os.pipe()
    ended = subprocess.run(
        [forked_python, *options, "-m", "tests.forked.told", word, str(writing)],
        input="asked",
        capture_output=True,
        text=True,
        check=False,
        cwd=tmp_path,
        env=asking,
        pass_fds=[writing],
    )
    os.close(writing)
    assert ended.returncode == status
    assert ended.stdout.split("\n")[0] == f"{[word, str(writing)]} aloud {tmp_path} True asked"
    assert ended.stderr == "beside\n"
    with os.fdopen(reading, "rb") as file:
        assert file.read() == b"through"


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL])
def test_it_ends_by_the_signal_that_the_command_gets(
    forked_python: str, asking: dict[str, str], tmp_path: Path, number: signal.Signals
) -> None:
    """And its files are closed, as whoever reads them waits for."""
    process = subprocess.Popen(
        [forked_python, "-m", "tests.forked.told", "waits", "1"],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        text=True,
        cwd=tmp_path,
        env=asking,
    )
    with process:
        assert process.stdout is not None
        assert process.stdout.readline().startswith("through")
        process.send_signal(number)
        assert process.stdout.read() == ""
    assert process.returncode == -number


def test_another_copy_of_refrl_is_imported_by_python_itself(forked_python: str, tmp_path: Path) -> None:
    """What is imported already would hide it."""
    copy = tmp_path / "refrl"
    copy.mkdir()
    for name in ("__init__.py", "errors.py"):
        shutil.copy(Path(refrl.__file__).with_name(name), copy)
    (copy / "__main__.py").write_text("import refrl, sys\nprint(refrl.__file__, 'torch' in sys.modules)\n")
    ended = subprocess.run(
        [forked_python, "-m", "refrl"], capture_output=True, text=True, check=True, cwd=tmp_path
    )
    assert ended.stdout == f"{copy / '__init__.py'} False\n"


@pytest.mark.usefixtures("forked_processes")
def test_the_commands_by_which_refrl_starts_are_understood() -> None:
    """With a word that is not, each of their processes would take five seconds more, and no test would fail."""
    target = ReferenceTarget()._argv(("grpo",))
    for command in (launcher.COMMAND, process.COMMAND, target):
        assert client.split(tuple(command[1:])) == (("-P",), tuple(command[3:]))


def test_worked_examples_that_were_right_are_not_asked_again(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Those that were not are, by each process."""
    asked = []

    def ask(subject: str) -> worked.Found:
        asked.append(subject)
        return worked.Found(number=2, wrong=["1"] if subject == "calls" else [], packages={"ray"})

    found = {}
    for _ in range(2):
        monkeypatch.setattr(worked, "ask", ask)
        server._remember_examples(tmp_path / "examples")
        found = {subject: worked.ask(subject) for subject in ("calls", "texts")}
    assert asked == ["calls", "texts", "calls"]
    assert found["texts"] == worked.Found(number=2, packages={"ray"})
    assert found["calls"].wrong == ["1"]


def test_a_fork_server_of_multiprocessing_has_the_stack_imported() -> None:
    """And its processes answer, and fail, as those of any other."""
    receiving, sending = multiprocessing.Pipe(duplex=False)
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(list(PRELOAD))
    process = context.Process(target=report_and_exit, args=(sending, 7))
    process.start()
    sending.close()
    process.join()
    assert receiving.recv() is True
    assert process.exitcode == 7


def test_a_process_that_runs_tests_has_the_stack_imported_and_none_of_the_tests() -> None:
    """It starts others by Python itself."""
    asked = (
        "import sys; from multiprocessing import spawn; from refrl.runtime import launcher;"
        "print(sys.executable, spawn.get_executable().decode(), launcher.COMMAND[0], sys.argv, __name__,"
        "'refrl.training.grpo' in sys.modules,"
        "[name for name in sys.modules if name.partition('.')[0] in ('tests', 'pytest', '_pytest')])\n"
    )
    ended = subprocess.run(
        [str(Path(os.environ["TMPDIR"]) / TESTS_PYTHON), "-u", "-c", client.WORKER],
        input=repr(asked) + "\n",
        capture_output=True,
        text=True,
        check=True,
    )
    assert ended.stdout == f"{server.PYTHON} {server.PYTHON} {server.PYTHON} ['-c'] __main__ True []\n"


@pytest.mark.parametrize(("variables", "forked"), [({}, True), ({"PYTHONHASHSEED": "3"}, False)])
def test_a_session_of_pytest_has_pytest_imported_and_nothing_of_ours(
    forked_pytest: str, tmp_path: Path, variables: dict[str, str], forked: bool
) -> None:
    """Python itself starts one for which it has to read other variables than the server did."""
    (tmp_path / "tests").mkdir()
    (tmp_path / "tests/__init__.py").touch()
    (tmp_path / "tests/own.py").write_text(
        "import sys\n"
        "OURS = [name for name in sys.modules if name.startswith(('refrl', 'seatrial', 'tests.forked', 'torch'))]\n"
        "FORKED = 'multiprocessing.forkserver' in sys.modules\n"
    )
    (tmp_path / "tests/test_own.py").write_text(
        "import sys\n"
        "from tests.own import FORKED, OURS\n"
        f"def test_it(): assert (OURS, FORKED, sys.argv[1:]) == ([], {forked}, ['-q', '-s'])\n"
    )
    told = {name: value for name, value in os.environ.items() if not name.startswith("PYTEST_")}
    ended = subprocess.run(
        [forked_pytest, "-mpytest", "-q", "-s"],
        capture_output=True,
        text=True,
        check=False,
        cwd=tmp_path,
        env={**told, **variables, "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"},
    )
    assert ended.returncode == 0, ended.stdout
