"""Changes to a checkout before it runs: carried files, and edits of the test script.

The user's files are copied once, at the start. A checkout is reset before its next run, so no edit stays behind.
"""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Sequence
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING

from seatrial.bisect.gitcommand import GitError, git
from seatrial.bisect.trees import UntestableError
from seatrial.errors import BlockedError, UsageError

if TYPE_CHECKING:
    from seatrial.bisect.task import Task


def words_in_tree(task: Task, repository: Path, carried: Path) -> list[str]:
    """Return the words of the command that name files in BAD's tree; a commit without one of them is skipped.

    The file part of a pytest node id counts too.
    """
    words = [*task.command, *([task.test] if task.test else []), *([task.script] if task.script else [])]
    names = [word.split("::")[0] for word in words]
    plain = [name for name in dict.fromkeys(names) if _is_relative(name) and not (carried / name).exists()]
    return [name for name in plain if _in_commit(repository, task.bad, name)]


def _is_relative(name: str) -> bool:
    return (
        bool(name)
        and not name.startswith(("-", "/"))
        and "{" not in name
        and ".." not in PurePosixPath(name).parts
    )


def _in_commit(repository: Path, sha: str, name: str) -> bool:
    try:
        git(repository, "cat-file", "-e", f"{sha}:{PurePosixPath(name)}")
    except GitError:
        return False
    return True


def untracked_words(
    checkout: Path, repository: Path, bad: str, command: Sequence[str], carried: Sequence[str]
) -> list[str]:
    """Return the words of a command that are files of the user's checkout but neither in BAD nor carried."""
    return [
        word
        for word in dict.fromkeys(command)
        if _is_relative(word)
        and "/" in word
        and (checkout / word).exists()
        and not _in_commit(repository, bad, word)
        and not any(PurePosixPath(word).is_relative_to(PurePosixPath(name)) for name in carried)
    ]


def script_of(repository: Path, bad: str, command: Sequence[str]) -> str | None:
    """Return the last word of a command that is a shell script in BAD's tree."""
    scripts = [w for w in command if w.endswith(".sh") and _is_relative(w) and _in_commit(repository, bad, w)]
    return scripts[-1] if scripts else None


def save_carried(repository: Path, names: Sequence[str], destination: Path) -> None:
    """Copy the carried files once, so that later edits do not change a running bisect.

    Raises:
        UsageError: a file is outside the checkout or does not exist.
    """
    for name in names:
        if not _is_relative(name) or not (repository / name).exists():
            raise UsageError(
                f"--carry {name}: not a file or folder of {repository}; give a path inside the checkout"
            )
        target = destination / name
        target.parent.mkdir(parents=True, exist_ok=True)
        if (repository / name).is_dir():
            shutil.copytree(repository / name, target, symlinks=True, dirs_exist_ok=True)
        else:
            shutil.copy2(repository / name, target)


def copy_carried(carried: Path, tree: Path) -> None:
    """Copy the carried files into a checkout."""
    if carried.is_dir():
        shutil.copytree(carried, tree, symlinks=True, dirs_exist_ok=True)


def check_sed(clauses: str) -> None:
    """Reject SED_CLAUSES that sed cannot read, before a commit is blamed for them.

    Raises:
        UsageError: with sed's own message.
    """
    if clauses:
        done = _sed(clauses, Path(os.devnull))
        if done.returncode != 0:
            raise UsageError(f"SED_CLAUSES: {done.stderr.decode(errors='replace').strip()}")


def apply_sed(clauses: str, script: Path, run_dir: Path) -> None:
    """Edit the script in the checkout; the clauses and the edited script are kept in the run's directory.

    Raises:
        UntestableError: sed cannot edit it.
    """
    (run_dir / "sed_clauses").write_text(clauses, encoding="utf-8")
    done = _sed(clauses, script)
    if done.returncode != 0:
        raise UntestableError(
            f"sed cannot edit {script.name}: {done.stderr.decode(errors='replace').strip()}"
        )
    mode = script.stat().st_mode
    temporary = script.with_name(script.name + ".seatrial-new")
    temporary.write_bytes(done.stdout)
    temporary.chmod(mode)
    temporary.replace(script)
    (run_dir / "edited_script").write_bytes(done.stdout)


def _sed(clauses: str, path: Path) -> subprocess.CompletedProcess[bytes]:
    try:
        return subprocess.run(
            ["sed", "-e", clauses, "--", str(path)],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            check=False,
        )
    except OSError as error:
        raise BlockedError(f"cannot run sed: {error.strerror}") from error
