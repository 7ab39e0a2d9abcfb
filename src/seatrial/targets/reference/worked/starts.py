"""Worked examples of starts: how a run begins, continues or begins again, its steps and log, its observers."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Mapping
from contextlib import redirect_stdout
from io import StringIO
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from refrl.checkpointing.attempts import begin_attempt, cut_log
from refrl.checkpointing.checkpointer import Checkpointer, RunFacts
from refrl.config import GRPORunConfig, LoggerConfig
from refrl.distributed import ALONE
from refrl.logging import EventWriter, RunLogger
from refrl.rollout.sync import Rollouts
from refrl.training import grpo
from refrl.training.session import Observer, Observers, Session
from refrl.training.steps import Steps
from seatrial.evidence.read import read_logs
from seatrial.relations.contracts.worked import WorkedExample
from seatrial.targets.reference.configuration import configuration
from seatrial.targets.reference.worked.checkpoints import EXAMPLES, MadePolicy, checkpointer, in_folder
from seatrial.targets.reference.worked.made import example, refused, rollouts
from seatrial.targets.reference.worked.steps import made_session, quietly


def examples() -> Iterator[WorkedExample]:
    """Yield the examples."""
    yield from _of_steps()
    yield from _of_starts()
    yield from _of_logs()
    yield from _of_observers()
    yield from _of_saves()


def _due(folder: Path, **options: Any) -> Any:
    saver = checkpointer(folder, **options)
    found = [step for step in range(1, 6) if saver.is_due(step, ends=step == 5, is_out_of_time=False)]
    return found, saver.is_due(3, ends=False, is_out_of_time=True), saver.is_out_of_time()


def _stepped(
    folder: Path, *, finishes: int | None = None, first: int = 0, late: int | None = None, **options: Any
) -> Any:
    """Return (steps taken, what is saved and whether it ends the run early) of a loop of five steps."""
    saver = checkpointer(folder, **options)
    saved: list[tuple[int, bool]] = []
    taken: list[int] = []
    saver.is_out_of_time = lambda: late is not None and taken[-1] >= late  # type: ignore[method-assign]
    attempt = SimpleNamespace(step=first, is_finished=False)
    logger = SimpleNamespace(names=lambda prefix: [])
    session: Any = SimpleNamespace(attempt=attempt, checkpointer=saver, logger=logger)
    session.save = lambda step, *, finished: saved.append((step, finished))
    steps = Steps(session, 5)
    for step in steps:
        taken.append(step)
        if step == finishes:
            steps.finish()
    return taken, saved


def _of_steps() -> Iterator[WorkedExample]:
    due = in_folder(_due)
    yield example("every second step, and the last", ([2, 4, 5], True, False), due, save_period=2)
    yield example("no step", ([], True, False), due, save_period=0)
    yield example("disabled", ([], False, False), due, save_period=1, enabled=False)
    yield example("out of time", ([5], True, True), due, save_period=9, checkpoint_must_save_by="0:00:00:00")
    stepped = in_folder(_stepped)
    yield example(
        "a loop that saves", ([1, 2, 3, 4, 5], [(2, False), (4, False), (5, False)]), stepped, save_period=2
    )
    yield example(
        "a loop that continues", ([4, 5], [(4, False), (5, False)]), stepped, save_period=2, first=3
    )
    yield example("a loop that is over", ([], []), stepped, save_period=2, first=5)
    yield example(
        "a loop that reaches its goal",
        ([1, 2, 3], [(2, False), (3, True)]),
        stepped,
        save_period=2,
        finishes=3,
    )
    yield example(
        "a goal at the last step", ([1, 2, 3, 4, 5], [(5, False)]), stepped, save_period=9, finishes=5
    )
    yield example("a loop out of time", ([1, 2, 3], [(3, False)]), stepped, save_period=0, late=3)
    exported = in_folder(_exported)
    yield example("an export", (1, False), exported, is_there=False, first=0)
    yield example("an export in place of an earlier one", (1, False), exported, is_there=True, first=1)
    yield example("an export of a run that was over", (0, True), exported, is_there=True, first=2)
    yield example("a missing export of a run that was over", (1, False), exported, is_there=False, first=2)
    yield example(
        "no export of a run that continues", (0, False), exported, is_there=False, first=0, finishes=False
    )
    yield example(
        "a loop out of time at its last step", ([1, 2, 3, 4, 5], [(5, False)]), stepped, save_period=0, late=5
    )


def _start(folder: Path, **options: Any) -> Any:
    """Return how a run starts in a folder: (step, continues the log, earlier starts, is finished), and its parts."""
    config = _run(folder, **options)
    printed = StringIO()
    with redirect_stdout(printed):
        attempt = begin_attempt(config, config.checkpointing, config.logger, ALONE)
    starts = [one["resumed_from"] for one in attempt.log_facts["attempts"]]
    return (
        (attempt.step, attempt.continues_log, starts, attempt.is_finished),
        attempt,
        config,
        printed.getvalue(),
    )


def _run(folder: Path, **options: Any) -> GRPORunConfig:
    named = {
        "logger__log_dir": str(folder / "log"),
        "logger__tensorboard_enabled": True,
        "checkpointing__enabled": True,
        "checkpointing__checkpoint_dir": str(folder / "kept"),
        **options,
    }
    return configuration({name.replace("__", "."): value for name, value in named.items()})


def _started(
    folder: Path,
    *,
    saves: int | None,
    finished: bool = False,
    again: Mapping[str, Any] | None = None,
    **options: Any,
) -> Any:
    """Start a run, save after a step, and start it again; return the facts of both starts and what was printed."""
    first, attempt, config, _ = _start(folder, **options)
    with RunLogger(config.logger, continues=attempt.continues_log) as logger:
        logger.log_run_info(config, 3, "cpu", attempt=attempt.log_facts)
        logger.log({"loss": 1.0}, 1, "train")
        logger.log({"loss": 2.0}, 2, "train")
    if saves is not None:
        facts = RunFacts(
            run_id=attempt.run_id, seed=3, examples=EXAMPLES, config=config.model_dump(mode="json")
        )
        Checkpointer(config.checkpointing, MadePolicy(), {}, facts=facts, world=ALONE).save(
            saves, None, finished=finished
        )
    second, other, _, printed = _start(folder, **{**options, **(again or {})})
    steps = read_logs(folder / "log" / "tensorboard").series.get("train/loss")
    left = [] if steps is None else steps.steps.tolist()
    said = [line.split("option: ")[1] for line in printed.splitlines() if "option: " in line]
    return first, second, left, attempt.run_id == other.run_id, said


def _of_starts() -> Iterator[WorkedExample]:
    started = in_folder(_started)
    new = (0, False, [None], False)
    saving = {"checkpointing__save_period": 1, "checkpointing__async_save": False}
    yield example(
        "a run that is resumed", (new, (1, True, [None, 1], False), [1], True, []), started, saves=1, **saving
    )
    yield example(
        "a run that had reached its goal",
        (new, (2, True, [None, 2], True), [1, 2], True, []),
        started,
        saves=2,
        finished=True,
        **saving,
    )
    yield example(
        "a run that was killed before its first save",
        (new, (0, True, [None, None], False), [], True, []),
        started,
        saves=None,
        **saving,
    )
    yield example(
        "another run in its place",
        (new, (0, False, [None], False), [1, 2], False, []),
        started,
        saves=None,
        again={"grpo__seed": 9},
        **saving,
    )
    yield example(
        "a run that does not save",
        (new, (0, False, [None], False), [1, 2], False, []),
        started,
        saves=None,
        checkpointing__save_period=0,
    )
    changed = ["grpo.async_grpo.stall_timeout_seconds", "policy.optimizer.lr"]
    yield example(
        "changed options by their whole names",
        changed,
        lambda: [
            line.split(" was ")[0]
            for line in started(
                saves=1,
                **saving,
                grpo__async_grpo__enabled=True,
                policy__generation__colocated__enabled=False,
                again={"grpo__async_grpo__stall_timeout_seconds": 7.0, "policy__optimizer__lr": 0.125},
            )[4]
        ],
    )
    yield example(
        "a changed option with both values",
        ["policy.optimizer.lr was 0.5, is 0.125"],
        lambda: started(saves=1, **saving, policy__optimizer__lr=0.5, again={"policy__optimizer__lr": 0.125})[
            4
        ],
    )
    yield example("the third start of a run", [None, 1, 1], in_folder(_third), **saving)
    yield refused("another run than the checkpoint", "a log of another run", in_folder(_mixed))


def _third(folder: Path, **options: Any) -> Any:
    _started(folder, saves=1, **options)
    _, attempt, config, _ = _start(folder, **options)
    with RunLogger(config.logger, continues=True) as logger:
        logger.log_run_info(config, 3, "cpu", attempt=attempt.log_facts)
    return _start(folder, **options)[0][2]


def _exported(folder: Path, *, is_there: bool, first: int, finishes: bool = True) -> Any:
    """Return how often a run exports its model, and whether the former export is left."""
    saver, final = checkpointer(folder, save_period=0), folder / "final"
    exports: list[Any] = []
    if is_there:
        final.mkdir()
        (final / "former").touch()
    session: Any = SimpleNamespace(
        attempt=SimpleNamespace(step=first, is_finished=False),
        checkpointer=saver,
        logger=SimpleNamespace(names=lambda prefix: []),
        final=final,
        world=ALONE,
        policy=SimpleNamespace(save=exports.append),
    )
    steps = Steps(session, 2)
    for _ in steps:
        if not finishes:
            break
    steps.export()
    return len(exports), (final / "former").exists()


def _mixed(folder: Path) -> Any:
    options: dict[str, Any] = {"checkpointing__save_period": 1, "checkpointing__async_save": False}
    _started(folder, saves=1, **options)
    path = folder / "log" / "run_info.json"
    facts = json.loads(path.read_text(encoding="utf-8"))
    path.write_text(json.dumps({**facts, "run_id": "other"}), encoding="utf-8")
    return _start(folder, **options)


def _cut(folder: Path, after: int) -> Any:
    """Return the steps and files that are left of a log of steps 0 to 3, the last record of which is cut short.

    An attempt that ended after step 1 logged steps 0 and 1 in a file of its own.
    """
    for name, steps in (("0", (0, 1)), ("1", (2, 3))):
        writer = EventWriter(folder / "written")
        for step in steps:
            writer.write({"a": float(step)}, step)
            (folder / f"made_data_step{step}.jsonl").touch()
        writer.close()
        (path,) = (folder / "written").iterdir()
        (folder / "tensorboard").mkdir(exist_ok=True)
        path = path.rename(folder / "tensorboard" / f"{path.name}.{name}")
    (folder / "run_info.json").touch()
    path.write_bytes(path.read_bytes()[:-3])
    cut_log(folder, after)
    series = read_logs(folder / "tensorboard").series.get("a")
    names = sorted(name.stem.removeprefix("made_data_step") for name in folder.glob("*.jsonl"))
    return [] if series is None else series.steps.tolist(), names, (folder / "run_info.json").exists()


def _of_logs() -> Iterator[WorkedExample]:
    cut = in_folder(_cut)
    for after, right in ((3, [0, 1, 2]), (1, [0, 1]), (0, [0]), (-1, [])):
        files = [str(step) for step in range(after + 1)]
        yield example(f"a log cut after step {after}", (right, files, True), cut, after)
    for after in (9, 1):
        name = f"the file of a log cut after step {after}"
        yield example(name, (after == 9, 1), in_folder(_cut_whole), after)


def _cut_whole(folder: Path, after: int) -> Any:
    """Return whether the file of a log of two steps is the same as before, and how many there are.

    A file that is cut is another one with the name of the first, so that none is ever seen half-written.
    """
    writer = EventWriter(folder / "tensorboard")
    for step in (1, 2):
        writer.write({"a": 0.5}, step)
    writer.close()
    (path,) = (folder / "tensorboard").iterdir()
    with path.open("rb") as held:  # keeps the number of the file from being used again
        cut_log(folder, after)
        return held.fileno() >= 0 and os.fstat(held.fileno()).st_ino == path.stat().st_ino, len(
            list((folder / "tensorboard").iterdir())
        )


class _Noting(Observer):
    """An observer that notes its events."""

    def __init__(self, *, needs_gradients: bool = False) -> None:
        self.needs_gradients = needs_gradients
        self.noted: list[str] = []

    def __getattribute__(self, name: str) -> Any:
        if name in EVENTS:
            return lambda *words: self.noted.append(name)
        return super().__getattribute__(name)


EVENTS = ("started", "synced", "passed", "trained", "tuned", "scored", "validated", "saved", "ended")
"""Events of an observer, and how many things each gets besides the session."""


def _noted() -> Any:
    one, other = _Noting(), _Noting(needs_gradients=True)
    both: Any = Observers([one, other])
    session: Any = None
    for name, words in zip(EVENTS, (0, 0, 1, 1, 1, 3, 3, 1, 0), strict=True):
        getattr(both, name)(session, *range(words))
    return one.noted, other.noted, both.needs_gradients, Observers([one]).needs_gradients


def _of_observers() -> Iterator[WorkedExample]:
    yield example("every observer gets every event", (list(EVENTS), list(EVENTS), True, False), _noted)
    yield refused("another run", "a log that is there already", in_folder(_logged_again))


def _logged_again(folder: Path) -> None:
    (folder / "run_info.json").touch()
    RunLogger(LoggerConfig(log_dir=str(folder)))


def _of_saves() -> Iterator[WorkedExample]:
    def saved(*, tag: str | None = "validation/accuracy") -> Any:
        session = made_session(checkpoint_metric=tag)
        calls: list[Any] = []
        session.checkpointer = SimpleNamespace(
            save=lambda step, metric, *, finished: calls.append((step, metric, finished))
        )
        session.logger.log({"accuracy": 0.5}, 2, "validation")
        session.logger.log({"accuracy": 0.75}, 2, "train")
        for step in (2, 3):
            Session.save(session, step, finished=step == 3)
        timed = [(prefix, at, sorted(of)) for prefix, at, of in session.logger.scalars[2:]]
        return calls, timed, session.noted

    timed = [("timing/train", step, ["checkpointing"]) for step in (2, 3)]
    noted = [("saved", 2), ("saved", 3)]
    yield example("metrics of their own step", ([(2, 0.5, False), (3, None, True)], timed, noted), saved)
    yield example("no metric", ([(2, None, False), (3, None, True)], timed, noted), saved, tag=None)

    def prepared() -> Any:
        session = made_session()
        synced = SimpleNamespace(sync=lambda: (session.noted.append("synced"), {"bytes": 3.0})[1])
        session.weight_sync = synced
        figures = Session.prepare_for_generation(session)
        return dict(figures), session.noted, sorted(session.timer.take())

    phases = ["prepare_for_generation/total", "prepare_for_generation/transfer_and_update_weights"]
    yield example("what a sync returns", ({"bytes": 3.0}, ["freed", "synced", ("synced",)], phases), prepared)
    note = grpo.RewardNote

    def closing(*steps: Rollouts, environment: Any = None) -> str:
        one = note()
        session: Any = SimpleNamespace(worker=SimpleNamespace(environment=environment))
        for step, rows in enumerate(steps, 1):
            one.trained(session, SimpleNamespace(step=step, rollouts=rows))  # type: ignore[arg-type]
        return quietly(one.ended, session)

    zeros = rollouts().rows([2, 3])
    said = "every completion of steps 1 to 2 has reward 0: the policy had nothing to learn from"
    yield example("a run without a reward", f"{said}\n", closing, zeros, zeros)
    unanswered = f"{said}; data.environment answered no completion, so that every one is a single turn\n"
    yield example("a run without a reward or an answer", unanswered, closing, zeros, zeros, environment=1)
    yield example("a run with a reward at one step", "", closing, zeros, rollouts(), zeros)
