"""Real git repositories, and the command as a person calls it."""

from __future__ import annotations

import hashlib
import importlib.util
import json
import os
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

HERE = Path(__file__).parent
IDENTITY = {
    "GIT_AUTHOR_NAME": "t", "GIT_AUTHOR_EMAIL": "t@example.org",
    "GIT_COMMITTER_NAME": "t", "GIT_COMMITTER_EMAIL": "t@example.org",
    "GIT_CONFIG_GLOBAL": "/dev/null", "GIT_CONFIG_SYSTEM": "/dev/null",
    # Submodules of these tests are folders.
    "GIT_CONFIG_COUNT": "2", "GIT_CONFIG_KEY_0": "protocol.file.allow", "GIT_CONFIG_VALUE_0": "always",
    # A commit would start a process that looks for housekeeping.
    "GIT_CONFIG_KEY_1": "maintenance.auto", "GIT_CONFIG_VALUE_1": "false",
}  # fmt: skip
_NOT_OURS = (
    "GOOD",
    "BAD",
    "SED_CLAUSES",
    "EXTRA_SCRIPT_ARGS",
    "BISECT_REPLAY_LOG",
    "BISECT_NO_RESET",
    "BISECT_SAVE_DIR",
)


@dataclass
class Repository:
    """A repository of the user's."""

    path: Path

    def git(self, *words: str, **environment: str) -> str:
        """Run git in it."""
        done = subprocess.run(
            ["git", *words], cwd=self.path, env={**os.environ, **IDENTITY, **environment},
            capture_output=True, text=True, check=False,
        )  # fmt: skip
        assert done.returncode == 0, f"git {words}: {done.stdout}{done.stderr}"
        return done.stdout

    def commit(self, files: Mapping[str, str | None], subject: str) -> str:
        """Write (None: delete) files, commit them, and return the hash."""
        for name, text in files.items():
            path = self.path / name
            if text is None:
                path.unlink()
            else:
                path.parent.mkdir(parents=True, exist_ok=True)
                path.write_text(text)
        self.git("add", "-A")
        self.git("commit", "-q", "--allow-empty", "-m", subject)
        return self.git("rev-parse", "HEAD").strip()

    def commit_line(self, commits: Sequence[tuple[Mapping[str, str], str]]) -> list[str]:
        """Commit files and a subject each, one after the other, in one process; return the hashes."""
        who = f"{IDENTITY['GIT_COMMITTER_NAME']} <{IDENTITY['GIT_COMMITTER_EMAIL']}> now"
        stream = ["reset refs/heads/main\n"]
        for mark, (files, subject) in enumerate(commits, 1):
            parent = f"from :{mark - 1}\n" if mark > 1 else ""
            stream.append(f"commit refs/heads/main\nmark :{mark}\ncommitter {who}\n{_data(subject)}{parent}")
            stream += [f"M 100644 inline {name}\n{_data(text)}" for name, text in files.items()]
        subprocess.run(
            ["git", "fast-import", "--quiet", "--date-format=now"], cwd=self.path, env={**os.environ, **IDENTITY},
            input="".join(stream), text=True, check=True,
        )  # fmt: skip
        self.git("reset", "-q", "--hard", "main")
        return self.git("rev-list", "--reverse", "main").split()

    def state(self) -> dict[str, str]:
        """Return a digest of every file of the checkout and of `.git`, with modes and links."""
        found = {}
        for folder, names, files in os.walk(self.path):
            for name in [*names, *files]:
                path = Path(folder, name)
                key = str(path.relative_to(self.path))
                if path.is_symlink():
                    found[key] = f"link {path.readlink()}"
                elif path.is_dir():
                    found[key] = "folder"
                else:
                    digest = hashlib.sha256(path.read_bytes()).hexdigest()
                    found[key] = f"{path.stat().st_mode:o} {digest} {path.stat().st_mtime_ns}"
        return found


def _data(text: str) -> str:
    """Return a text as `git fast-import` reads it."""
    return f"data {len(text.encode())}\n{text}\n"


@pytest.fixture
def make_repository(tmp_path: Path) -> Callable[[str], Repository]:
    """Return a maker of empty repositories."""

    def make(name: str = "user") -> Repository:
        repository = Repository(tmp_path / name)
        repository.path.mkdir(parents=True)
        repository.git("init", "-q", "-b", "main")
        return repository

    return make


@dataclass
class Called:
    """How a call of the command ended."""

    returncode: int
    out: str
    err: str
    state: Path
    """Where its bisects are kept."""

    @property
    def journals(self) -> list[Path]:
        """Journals in the state directory, oldest first."""
        return sorted(self.state.glob("*/journal.jsonl"))

    def runs(self) -> list[str]:
        """The lines that tell of runs."""
        return [line for line in self.out.splitlines() if line.startswith("run ")]

    def result(self) -> Any:
        """The latest bisect's result."""
        return json.loads((self.journals[-1].parent / "result.json").read_text())

    def suspects(self) -> list[str]:
        """Hashes of the credible set."""
        return [item["commit"] for item in self.result()["answer"]["suspects"]]


Bisect = Callable[..., Called]


@pytest.fixture
def bisect(tmp_path: Path, forked_python: str) -> Bisect:
    """Return a caller of `seatrial bisect` in a repository, with its state beside it."""

    def call(repository: Repository, *words: str, state: Path | None = None, **environment: str) -> Called:
        kept = state or tmp_path / "state"
        clean = {name: value for name, value in os.environ.items() if name not in _NOT_OURS}
        done = subprocess.run(
            [forked_python, *bisect_argv(words)[1:]],
            cwd=repository.path, env={**clean, **IDENTITY, "BISECT_SAVE_DIR": str(kept), **environment},
            capture_output=True, text=True, timeout=300, check=False,
        )  # fmt: skip
        return Called(done.returncode, done.stdout, done.stderr, kept)

    return call


@pytest.fixture
def start_bisect() -> Callable[..., subprocess.Popen[bytes]]:
    """Return a starter of `seatrial bisect` that does not wait for it; its output is dropped."""

    def start(repository: Repository, state: Path, *words: str) -> subprocess.Popen[bytes]:
        return subprocess.Popen(
            bisect_argv(words), cwd=repository.path, env={**os.environ, **IDENTITY, "BISECT_SAVE_DIR": str(state)},
            stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, start_new_session=True,
        )  # fmt: skip

    return start


def bisect_argv(words: Sequence[str]) -> list[str]:
    """Return the command line of a bisect; retries do not wait."""
    waits = [] if "--resume" in words or "--retry-wait" in words else ["--retry-wait", "0"]
    return [sys.executable, "-m", "seatrial", "bisect", *waits, *words]


@pytest.fixture
def line(make_repository: Callable[..., Repository]) -> Callable[..., tuple[Repository, list[str]]]:
    """Return a maker of a straight line of commits whose `t.sh` fails from one commit on."""

    def make(count: int, culprit: int, name: str = "user") -> tuple[Repository, list[str]]:
        repository = make_repository(name)
        commits = []
        for number in range(count):
            verdict = "exit 1" if number >= culprit else "exit 0"
            files = {"n": f"{number}\n", "t.sh": f"echo run {number}\n{verdict}\n"}
            commits.append((files, f"change {number}"))
        hashes = repository.commit_line(commits)
        return repository, hashes

    return make


def _training() -> ModuleType:
    spec = importlib.util.spec_from_file_location("bisect_training", HERE / "training.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture
def stack(make_repository: Callable[..., Repository]) -> Callable[..., tuple[Repository, list[str]]]:
    """Return a maker of repositories of training scripts (training.py); noisy ones have a seed for each run."""
    training = _training()

    def make(count: int, culprit: int, noisy: bool = False) -> tuple[Repository, list[str]]:
        repository = make_repository()
        seed = training.RUN_SEED if noisy else training.FIXED_SEED
        hashes = repository.commit_line(
            [(training.files_of(number, culprit, seed), f"change {number}") for number in range(count)]
        )
        return repository, hashes

    return make


@pytest.fixture
def stand_ins(tmp_path: Path) -> dict[str, str]:
    """Install the stand-ins in front of PATH and return the environment that finds them."""
    folder = tmp_path / "bin"
    folder.mkdir()
    for name in ("sbatch", "srun", "squeue", "sacct", "scancel", "docker", "ray"):
        path = folder / name
        path.write_text(f"#!{sys.executable} -S\n" + (HERE / "stand_ins.py").read_text())
        path.chmod(0o755)
    return {"PATH": f"{folder}:/usr/local/bin:/usr/bin:/bin", "STAND_IN_DIR": str(tmp_path / "jobs")}
