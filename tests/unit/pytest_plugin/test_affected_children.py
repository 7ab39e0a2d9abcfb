"""The observer in child processes sees what they use, and never disturbs them."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from seatrial.evidence.identity.origins import OBSERVER
from seatrial.pytest_plugin.affected import child

STARTUP = Path(child.__file__).parent / "startup"
TOKEN = "t1"

Start = Callable[..., subprocess.CompletedProcess[str]]


@pytest.fixture
def logs(tmp_path: Path) -> Path:
    folder = tmp_path / "logs"
    folder.mkdir()
    (folder / child.ROOT).write_text(str(tmp_path / "project"))
    (folder / child.CURRENT).write_text(TOKEN.ljust(child.TOKEN_BYTES))
    (tmp_path / "project").mkdir()
    return folder


@pytest.fixture
def start(tmp_path: Path, logs: Path) -> Start:
    def run(
        program: str, *, path: tuple[Path, ...] = (STARTUP,), **variables: str
    ) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [sys.executable, "-c", program],
            cwd=tmp_path / "project",
            env={
                "PATH": os.environ["PATH"],
                "PYTHONPATH": os.pathsep.join(map(str, path)),
                "SEATRIAL_WATCH": str(logs),
                **variables,
            },
            capture_output=True,
            text=True,
            check=False,
        )

    return run


def _uses(logs: Path) -> set[tuple[str, str]]:
    rows = [json.loads(line) for log in logs.glob("*.log") for line in log.read_text().splitlines()]
    assert all(token == TOKEN for token, _, _ in rows)
    return {(kind, name) for _, kind, name in rows}


def test_imports_files_folders_and_variables_are_seen(tmp_path: Path, logs: Path, start: Start) -> None:
    project = tmp_path / "project"
    (project / "mod.py").write_text("import os\nMODE = os.environ.get('MODE')\n")
    (project / "data.txt").write_text("x")
    done = start("import mod, os; open('data.txt').read(); os.listdir('.'); open('out.txt', 'w').close()")
    assert done.returncode == 0, done.stderr
    assert _uses(logs) == {
        ("py", "mod.py"),
        ("env", "MODE"),
        ("file", "data.txt"),
        ("dir", "."),
        ("out", "out.txt"),
    }


def test_a_child_that_is_killed_has_told_what_it_used(tmp_path: Path, logs: Path, start: Start) -> None:
    (tmp_path / "project/data.txt").write_text("x")
    done = start("import os, signal; open('data.txt').read(); os.kill(os.getpid(), signal.SIGKILL)")
    assert done.returncode == -9
    assert _uses(logs) == {("file", "data.txt")}


def test_a_grandchild_is_seen(tmp_path: Path, logs: Path, start: Start) -> None:
    (tmp_path / "project/data.txt").write_text("x")
    start("import subprocess, sys; subprocess.run([sys.executable, '-c', \"open('data.txt').read()\"])")
    assert ("file", "data.txt") in _uses(logs)


def test_multiprocessing_is_seen(tmp_path: Path, logs: Path, start: Start) -> None:
    (tmp_path / "project/data.txt").write_text("x")
    (tmp_path / "project/work.py").write_text("def work(): return open('data.txt').read()\n")
    for method in ("fork", "spawn"):
        program = (
            "import multiprocessing as m, work\n"
            "if __name__ == '__main__':\n"
            f"    with m.get_context('{method}').Pool(1) as pool: print(pool.apply(work.work))\n"
        )
        done = start(program)
        assert done.stdout == "x\n", done.stderr
        assert ("file", "data.txt") in _uses(logs)
        for log in logs.glob("*.log"):
            log.unlink()


@pytest.mark.parametrize(
    "program",
    [
        "import os; os.rmdir(os.getcwd()); os.environ.get('X'); print('same')",
        "import os; os.closerange(3, 64); os.environ.get('X'); open('f', 'w').close(); print('same')",
        "import sys; sys.setrecursionlimit(60); import json; print('same')",
        "import os\nfor name in os.environ: pass\nos.listdir(os.open('.', os.O_RDONLY)); print('same')",
        "import builtins; builtins.open = None; import tempfile; print('same')",
        "import os; os.environ['A'] = 'b'; del os.environ['A']; print(os.environ.get('A', 'same'))",
        "import threading\nt = threading.Thread(target=lambda: print('same')); t.start(); t.join()",
    ],
)
def test_the_program_runs_as_without_the_observer(start: Start, program: str) -> None:
    done = start(program)
    assert (done.returncode, done.stdout) == (0, "same\n"), done.stderr


@pytest.mark.parametrize("problem", ["gone", "no root", "not writable"])
def test_a_session_that_is_over_is_nothing_to_the_child(logs: Path, start: Start, problem: str) -> None:
    if problem == "gone":
        for path in logs.iterdir():
            path.unlink()
        logs.rmdir()
    elif problem == "no root":
        (logs / child.ROOT).unlink()
    else:
        (logs / child.CURRENT).unlink()
    done = start("open(__import__('sys').executable, 'rb').close(); print('same')")
    assert (done.returncode, done.stdout, done.stderr) == (0, "same\n", "")


def test_a_sitecustomize_of_the_environment_still_runs(tmp_path: Path, start: Start) -> None:
    theirs = tmp_path / "theirs"
    theirs.mkdir()
    (theirs / "sitecustomize.py").write_text("import sys\nsys.theirs = True\n")
    done = start(
        "import sys, sitecustomize; print(sys.theirs, sitecustomize.__file__)", path=(STARTUP, theirs)
    )
    assert done.stdout.split() == ["True", str(theirs / "sitecustomize.py")]


@pytest.mark.parametrize(
    "path", [(STARTUP, OBSERVER), (OBSERVER, STARTUP)], ids=["ours first", "ours second"]
)
def test_two_observers_of_ours_do_not_go_round_in_circles(
    tmp_path: Path, logs: Path, start: Start, path: tuple[Path, ...]
) -> None:
    (tmp_path / "project/mod.py").write_text("")
    imports = tmp_path / "imports.jsonl"
    done = start(
        "import mod; print('same')",
        path=path,
        SEATRIAL_IMPORTS_FILE=str(imports),
        SEATRIAL_IMPORTS_MODULES="mod",
    )
    assert (done.returncode, done.stdout) == (0, "same\n"), done.stderr
    assert json.loads(imports.read_text())["module"] == "mod"
    assert _uses(logs) == {("py", "mod.py")}


def test_the_folder_of_the_observer_is_not_left_on_the_path(start: Start) -> None:
    done = start("import sys; print([p for p in sys.path if 'startup' in p])")
    assert done.stdout == "[]\n"
