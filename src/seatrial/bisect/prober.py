"""Runs one commit: checkout and environment, command, judgement; retries when the environment prevented a verdict."""

from __future__ import annotations

import shlex
import shutil
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

from seatrial.bisect import edits
from seatrial.bisect.causes import RETRIES, Cause, Obstacle, obstacle_in, obstacle_of
from seatrial.bisect.fresh import Beginning
from seatrial.bisect.gitcommand import without_git_location
from seatrial.bisect.judge import Criteria, Evidence, judge
from seatrial.bisect.launchers import Launcher, Local
from seatrial.bisect.outcomes import Judgement, RunOutcome
from seatrial.bisect.task import Task, fill
from seatrial.bisect.trees import CheckoutBlockedError, Place, Trees, UntestableError
from seatrial.errors import BlockedError
from seatrial.launch.jobs import Heartbeat, Job

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
        self._needed = edits.words_in_tree(task, repository, state / "carry")

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
        with self._trees.held(sha, stay=self._task.prepare is not None) as place:
            edits.copy_carried(self._state / "carry", place.tree)
            if (
                place.made is None
                and (judgement := self._prepare(sha, place, run_dir, heartbeat)) is not None
            ):
                return judgement
            missing = [word for word in self._needed if not (place.tree / word).exists()]
            if missing:
                return Judgement.skip(f"{missing[0]} does not exist at this commit")
            return self._run(number, sha, place, run_dir, heartbeat)

    def _run(self, number: int, sha: str, place: Place, run_dir: Path, heartbeat: Heartbeat) -> Judgement:
        """Run the command in a prepared checkout, and judge what it left."""
        tree = place.tree
        script = tree / self._task.script if self._task.script else None
        if script is not None and self._task.sed_clauses:
            edits.apply_sed(self._task.sed_clauses, script, run_dir)
        places = self._places(sha, tree, run_dir)
        logs = tree / fill(self._task.logs, places)
        if logs.is_file() or (logs.is_dir() and any(logs.iterdir())):
            return Judgement.skip(
                f"{self._task.logs} is part of this commit's tree, so a run's own logs cannot be distinguished from it"
            )
        environment, own = self._run_environment(number, sha, place, run_dir)
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
        self, number: int, sha: str, place: Place, run_dir: Path
    ) -> tuple[dict[str, str], tuple[str, ...]]:
        """Return the environment of a run, and the names of the variables that it needs on any machine."""
        home = place.home
        own = {
            "SEATRIAL_RUN_DIR": str(run_dir),
            "SEATRIAL_RUN_TREE": str(place.tree),
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

    def _prepare(self, sha: str, place: Place, run_dir: Path, heartbeat: Heartbeat) -> Judgement | None:
        """Build the environment of a new checkout; return a judgement if that fails, None if it is ready."""
        if self._task.prepare is None:
            return None
        directory = run_dir / "prepare"
        directory.mkdir(exist_ok=True)
        environment, own = self._run_environment(0, sha, place, run_dir)
        places = self._places(sha, place.tree, run_dir)
        job = Job(
            name=f"seatrial-prepare-{sha[:12]}",
            argv=tuple(fill(word, places) for word in shlex.split(self._task.prepare)),
            tree=place.tree,
            run_dir=directory,
            environment={**environment, "SEATRIAL_RUN_DIR": str(directory)},
            own_variables=own,
            timeout_seconds=self._task.timeout_minutes * 60,
        )
        ended = Local().run(job, heartbeat)
        if ended.exit_status == 0:
            self._trees.keep_prepared(place)
            return None
        self._trees.discard(place)
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
