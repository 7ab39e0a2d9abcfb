"""Runs one commit: checkout and environment, command, judgement; retries when the environment prevented a verdict.

A checkout may be changed before its run: by carried files, which are copied once, at the start of the bisect, and by
edits of the test script. It is reset before its next run, so no edit stays behind.
"""

from __future__ import annotations

import os
import shlex
import shutil
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING

from seatrial.bisect.git import GitError, git, without_git_location
from seatrial.bisect.judge import Beginning, Criteria, Evidence, judge
from seatrial.bisect.launchers import Launcher, Local
from seatrial.bisect.outcomes import RETRIES, Cause, Judgement, Obstacle, RunOutcome, obstacle_in, obstacle_of
from seatrial.bisect.task import Task, fill
from seatrial.bisect.trees import CheckoutBlockedError, Trees, UntestableError, Worktree
from seatrial.errors import BlockedError, UsageError
from seatrial.launch.jobs import Heartbeat, Job

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


_BUILD_CACHES = ("TRITON_CACHE_DIR", "TORCHINDUCTOR_CACHE_DIR", "TORCH_EXTENSIONS_DIR")
"""Folders of compiled code whose keys do not contain the commit."""


@dataclass(frozen=True, kw_only=True)
class Probed:
    """The result of one commit's run, retries included."""

    judgement: Judgement
    seconds: float
    """Time of all attempts with preparation, without the waits between attempts."""
    attempts: int
    run_dir: Path
    """Of the last attempt."""


class Prober:
    """Runs the task's command at commits; thread-safe, one commit at a time per thread."""

    def __init__(
        self,
        task: Task,
        trees: Trees,
        repository: Path,
        state: Path,
        launcher: Launcher,
        environment: Mapping[str, str],
    ) -> None:
        """Keep what every run needs.

        Args:
            task: the question.
            trees: the checkouts.
            repository: the private repository.
            state: directory of the bisect.
            launcher: starts the commands.
            environment: of this process.
        """
        self._task = task
        self._trees = trees
        self._state = state
        self._launcher = launcher
        self._environment = without_git_location(environment)
        self._criteria: Criteria = task.criteria()
        self._needed = words_in_tree(task, repository, state / "carry")

    def probe(self, number: int, sha: str, wait: Callable[[float], None], heartbeat: Heartbeat) -> Probed:
        """Judge one commit once, with retries.

        Args:
            number: of the run, for its directory.
            sha: the commit.
            wait: sleeps between attempts; raises when the bisect is interrupted.
            heartbeat: raises when the bisect is interrupted.
        """
        spent, attempt = 0.0, 0
        while True:
            attempt += 1
            run_dir = self._state / "runs" / f"{number:04d}-{sha[:12]}-try{attempt}"
            started = time.monotonic()
            try:
                judgement = self._attempt(number, sha, run_dir, heartbeat)
            except CheckoutBlockedError as blocked:
                judgement = Judgement.blocked(blocked.obstacle)
            except UntestableError as reason:
                judgement = Judgement.skip(str(reason))
            except BlockedError as error:
                judgement = Judgement.blocked(
                    obstacle_of(str(error)) or Obstacle(Cause.SCHEDULER, str(error))
                )
            except OSError as error:
                judgement = Judgement.blocked(Obstacle(Cause.MACHINE, f"{error.filename}: {error.strerror}"))
            spent += time.monotonic() - started
            again = judgement.cause is not None and attempt <= RETRIES[judgement.cause]
            if judgement.outcome is not RunOutcome.BLOCKED or not again:
                return Probed(judgement=judgement, seconds=spent, attempts=attempt, run_dir=run_dir)
            wait(self._task.retry_wait_seconds * 2 ** (attempt - 1))

    def _attempt(self, number: int, sha: str, run_dir: Path, heartbeat: Heartbeat) -> Judgement:
        run_dir.mkdir(parents=True, exist_ok=True)
        with self._trees.checked_out(sha, stay=self._task.prepare is not None) as worktree:
            copy_carried(self._state / "carry", worktree.tree)
            if (
                worktree.made is None
                and (judgement := self._prepare(sha, worktree, run_dir, heartbeat)) is not None
            ):
                return judgement
            missing = [word for word in self._needed if not (worktree.tree / word).exists()]
            if missing:
                return Judgement.skip(f"{missing[0]} does not exist at this commit")
            return self._run(number, sha, worktree, run_dir, heartbeat)

    def _run(
        self, number: int, sha: str, worktree: Worktree, run_dir: Path, heartbeat: Heartbeat
    ) -> Judgement:
        """Run the command in a prepared checkout, and judge what it left."""
        tree = worktree.tree
        script = tree / self._task.script if self._task.script else None
        if script is not None and self._task.sed_clauses:
            apply_sed(self._task.sed_clauses, script, run_dir)
        places = self._places(sha, tree, run_dir)
        logs = tree / fill(self._task.logs, places)
        if logs.is_file() or (logs.is_dir() and any(logs.iterdir())):
            return Judgement.skip(
                f"{self._task.logs} is part of this commit's tree, so a run's own logs cannot be distinguished from it"
            )
        environment, own = self._run_environment(number, sha, worktree, run_dir)
        job = Job(
            name=f"seatrial-{self._state.name[-40:]}-{run_dir.name}",
            argv=tuple(fill(word, places) for word in self._task.words()),
            tree=tree,
            run_dir=run_dir,
            environment=environment,
            own_variables=own,
            timeout_seconds=self._task.timeout_minutes * 60,
            script=script,
        )
        beginning = Beginning.now(run_dir)
        ended = self._launcher.run(job, heartbeat)
        if ended.exit_status is None and not ended.timed_out:
            cause = Cause.SIGNAL if isinstance(self._launcher, Local) else Cause.SCHEDULER
            obstacle = obstacle_in(job.console) or Obstacle(
                cause, f"the run left no exit status ({ended.last_report})"
            )
            return Judgement.blocked(obstacle)
        evidence = Evidence(
            exit_status=ended.exit_status if ended.exit_status is not None else -1,
            timed_out=ended.timed_out and ended.exit_status is None,
            console=job.console,
            logs=logs,
            junit=run_dir / "junit.xml",
            beginning=beginning,
        )
        return judge(evidence, self._criteria)

    def _places(self, sha: str, tree: Path, run_dir: Path) -> dict[str, str]:
        for name in ("logs", "checkpoints"):
            (run_dir / name).mkdir(exist_ok=True)
        return {
            "logs": str(run_dir / "logs"),
            "checkpoints": str(run_dir / "checkpoints"),
            "run": str(run_dir),
            "tree": str(tree),
            "commit": sha,
        }

    def _run_environment(
        self, number: int, sha: str, worktree: Worktree, run_dir: Path
    ) -> tuple[dict[str, str], tuple[str, ...]]:
        """Return the environment of a run, and the names of the variables that it needs on any machine."""
        home = worktree.home
        own = {
            "SEATRIAL_RUN_DIR": str(run_dir),
            "SEATRIAL_RUN_TREE": str(worktree.tree),
            "SEATRIAL_RUN_LOGS": str(run_dir / "logs"),
            "SEATRIAL_RUN_CHECKPOINTS": str(run_dir / "checkpoints"),
            "SEATRIAL_RUN_COMMIT": sha,
            "SEATRIAL_RUN_NUMBER": str(number),
            "NRL_MEGATRON_CHECKPOINT_DIR": str(run_dir / "checkpoints"),
            "CODE_SNAPSHOT_DIRNAME": str(run_dir / "snapshots"),
            "UV_PROJECT_ENVIRONMENT": str(home / "env"),
            "PYTHONPYCACHEPREFIX": str(home / "pycache"),
            **{name: str(home / "cache" / name.lower()) for name in _BUILD_CACHES},
            # Dependencies follow the commit, unless the user says otherwise.
            "NRL_FORCE_REBUILD_VENVS": self._environment.get("NRL_FORCE_REBUILD_VENVS", "true"),
            **self._task.variables,
        }
        return {**self._environment, **own}, tuple(own)

    def _prepare(self, sha: str, worktree: Worktree, run_dir: Path, heartbeat: Heartbeat) -> Judgement | None:
        """Build the environment of a new checkout; return a judgement if that fails, None if it is ready."""
        if self._task.prepare is None:
            return None
        directory = run_dir / "prepare"
        directory.mkdir(exist_ok=True)
        environment, own = self._run_environment(0, sha, worktree, run_dir)
        places = self._places(sha, worktree.tree, run_dir)
        job = Job(
            name=f"seatrial-prepare-{sha[:12]}",
            argv=tuple(fill(word, places) for word in shlex.split(self._task.prepare)),
            tree=worktree.tree,
            run_dir=directory,
            environment={**environment, "SEATRIAL_RUN_DIR": str(directory)},
            own_variables=own,
            timeout_seconds=self._task.timeout_minutes * 60,
        )
        ended = Local().run(job, heartbeat)
        if ended.exit_status == 0:
            self._trees.keep_prepared(worktree)
            return None
        self._trees.discard(worktree)
        if (obstacle := obstacle_in(job.console)) is not None:
            return Judgement.blocked(obstacle)
        return Judgement.skip(f"--prepare failed at this commit ({ended.last_report}); see {job.console}")


def keep_only_evidence(run_dir: Path) -> None:
    """Remove the large files of a finished run; its console output and logs stay."""
    for name in ("checkpoints", "snapshots"):
        shutil.rmtree(run_dir / name, ignore_errors=True)


def shown_command(task: Task) -> str:
    """Return the task's command as a user would type it."""
    settings = [f"{name}={shlex.quote(value)}" for name, value in task.variables.items()]
    return " ".join([*settings, shlex.join(task.words())])
