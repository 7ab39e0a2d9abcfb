"""Measure which planted faults are seen by the trials that execute them.

    python benchmarks/plants_by_trials.py --output SEEN.json [--choices CHOICES.toml] [--jobs N] [--seconds S]
                                          [--minutes M] [ID ...]

Every trial runs its recipe on the sound stack first, and records the lines of refrl that its runs execute
(`executed_lines.py`). A plant is executed by the trials whose runs execute its changed lines. All trials of the lowest
level that executes it are measured, and the trial that the choices name, with its options:

    [cosine-of-a-quarter-turn]
    trial = "grpo-smoke"
    options = "own"

`options` are overrides: `own` takes the plant's own, a table names others, and without it the trial runs its recipe as
it is; `none` names no trial. Where the sound stack refuses the overrides, the trial runs without them. A plant is seen
where a verdict of one of these trials fails that does not fail on the sound stack under the same overrides. A trial
that cannot run here (Blocked on the sound stack, or over its time limit) does not count.

Every run is written to the output when it ends, and the lines next to it (`SEEN.lines.json`), so that the same command
continues.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import os
import signal
import tempfile
import time
import tomllib
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import asdict, dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

from executed_lines import Lines, digest_of_sources, executes, lines_of, read_lines, recording

from seatrial.errors import UsageError
from seatrial.evidence.identity.redaction import Redactor
from seatrial.faults.launch import entry
from seatrial.faults.plant import Plant, all_plants
from seatrial.faults.verify import Bench
from seatrial.files import write_text
from seatrial.targets.reference.target import ReferenceTarget
from seatrial.trials.plan import MAX_LEVEL, select_trials
from seatrial.trials.rundir import RunDirectory
from seatrial.trials.runner import Request, new_results, run_trials
from seatrial.verdict import Outcome

Perform = Callable[["Run"], "tuple[Run, Said, Lines] | None"]
LEFT_OUT = ("policy.model_name",)
"""Options that a trial sets itself."""


class TooLate(KeyboardInterrupt):
    """A trial is over its time limit; upon an interrupt it stops its commands."""


class Run(NamedTuple):
    """One run of a trial."""

    trial: str
    overrides: tuple[str, ...] = ()
    fault: str = ""
    """Id of the plant; empty: the sound stack."""

    @property
    def key(self) -> str:
        """Its name in the output."""
        return json.dumps(self)


@dataclass(frozen=True)
class Said:
    """What a trial says."""

    outcome: str
    """`fail`, `pass`, `blocked` or `late`."""
    first: str = ""
    """The first verdict that is not a pass, with its reason."""
    failed: Sequence[str] = ()
    """Names of the verdicts that fail."""
    seconds: float = 0.0


@dataclass
class Known:
    """What has been measured."""

    said: dict[str, Said] = field(default_factory=dict)
    """By the key of a run."""
    lines: dict[str, Lines] = field(default_factory=dict)
    """Lines of refrl that a run of the sound stack executes, by its key."""

    def ran(self, run: Run) -> bool:
        """Return whether a run came to verdicts."""
        said = self.said.get(run.key)
        return said is not None and said.outcome in ("pass", "fail")


def words_of(options: Mapping[str, Any], places: Mapping[str, str]) -> tuple[str, ...]:
    """Return options as `a.b=value` words, with the places that they name in braces."""
    words = []
    for key, value in options.items():
        text = value if isinstance(value, str) else json.dumps(value)
        for name, place in places.items():
            text = text.replace("{" + name + "}", place)
        if key not in LEFT_OUT:
            words.append(f"{key}={text}")
    return tuple(words)


def chosen_run(plant: Plant, choice: Mapping[str, Any] | None, places: Mapping[str, str]) -> Run | None:
    """Return the run of the sound stack that a choice names for a plant."""
    if choice is None or choice["trial"] == "none":
        return None
    options = choice.get("options", {})
    return Run(choice["trial"], words_of(plant.options if options == "own" else options, places))


def runs_for(wanted: Lines, chosen: Run | None, levels: Mapping[str, int], known: Known) -> list[Run]:
    """Return the sound runs to be repeated with a plant: of the lowest level that executes it, and the chosen one.

    Args:
        wanted: lines of the plant.
        chosen: the run that a choice names; without its overrides where the sound stack refuses them.
        levels: of the trials.
        known: the runs of the sound stack.
    """
    executing = [
        name
        for name in levels
        if known.ran(Run(name)) and executes(known.lines.get(Run(name).key, {}), wanted)
    ]
    lowest = min((levels[name] for name in executing), default=None)
    runs = [Run(name) for name in executing if levels[name] == lowest]
    if chosen is not None:
        chosen = chosen if known.ran(chosen) else Run(chosen.trial)
        if known.ran(chosen) and chosen not in runs:
            runs.append(chosen)
    return runs


def conclude(plant: str, wanted: Lines, runs: Sequence[Run], known: Known) -> dict[str, Any] | None:
    """Return what is known of a plant once all of its runs are measured, else None."""
    faulty = {run: known.said.get(run._replace(fault=plant).key) for run in runs}
    if None in faulty.values():
        return None
    seeing = {
        f"{run.trial} {' '.join(run.overrides)}".strip(): said.first
        for run, said in faulty.items()
        if said is not None and not {*said.failed} <= {*known.said[run.key].failed}
    }
    return {
        "executed": any(executes(known.lines.get(run.key, {}), wanted) for run in runs),
        "trials": {
            f"{run.trial} {' '.join(run.overrides)}".strip()[:200]: said.outcome
            for run, said in faulty.items()
            if said
        },
        "seen": bool(seeing),
        "by": seeing,
    }


def summary(found: Mapping[str, Mapping[str, Any]], ids: Sequence[str]) -> str:
    """Return the rates in words."""
    executed = [found[name]["seen"] for name in ids if name in found and found[name]["executed"]]
    others = [found[name]["seen"] for name in ids if name in found and not found[name]["executed"]]
    return (
        f"{sum(executed)} of {len(executed)} plants that a trial executes are seen by it; of {len(others)} that none "
        f"was recorded executing, {sum(others)}; {len(ids) - len(executed) - len(others)} not measured"
    )


def perform(run: Run, seconds: float, until: float) -> tuple[Run, Said, Lines] | None:
    """Run a trial; return what it says and, on the sound stack, the lines that it executes; None after `until`.

    Args:
        run: the trial, its overrides and the plant.
        seconds: limit of the trial; each of its commands may take half of it, so that one that hangs is judged.
        until: time of the clock after which none begins.
    """
    if time.time() > until:
        return None
    os.environ["CUDA_VISIBLE_DEVICES"] = ""  # Megatron-core takes the GPUs that it finds
    started = time.monotonic()
    signal.signal(signal.SIGALRM, _late)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        (folder / "lines").mkdir()
        signal.setitimer(signal.ITIMER_REAL, seconds)
        try:
            said = _said(run, seconds / 2, folder)
        except TooLate:
            said = Said("late", f"no end within {seconds:.0f} s")
        finally:
            signal.setitimer(signal.ITIMER_REAL, 0)
        return run, replace(said, seconds=round(time.monotonic() - started, 1)), read_lines(folder / "lines")


def _late(number: int, frame: object) -> None:
    raise TooLate


def _said(run: Run, seconds: float, folder: Path) -> Said:
    target = (
        ReferenceTarget(entry=entry(run.fault))
        if run.fault
        else ReferenceTarget(environment=recording(folder / "lines"))
    )
    request = Request(
        trials=select_trials(None, [run.trial]),
        words=run.trial,
        seed=0,
        overrides=run.overrides,
        timeout_seconds=seconds,
    )
    with RunDirectory.create(folder / "run", target.name) as directory:
        results = new_results(directory, target, request, Redactor())
        run_trials(directory, results, target, request, lambda text: None)
    (result,) = results.requested_trials()
    failed = [verdict for verdict in result.verdicts if verdict.outcome is Outcome.FAIL]
    blocked = [verdict for verdict in result.verdicts if verdict.outcome is Outcome.BLOCKED]
    word = "fail" if failed else "blocked" if blocked else "pass"
    first = next((f"{verdict.name}: {verdict.reason}" for verdict in failed or blocked), "")
    return Said(word, first[:500], [verdict.name for verdict in failed])


def measure(
    runs: Iterable[Run], known: Known, perform_one: Perform, jobs: int, save: Callable[[], None]
) -> None:
    """Perform the runs that are not known yet, several at once; save after each."""
    left = list(dict.fromkeys(run for run in runs if run.key not in known.said))
    # Spawned, not forked: each has its own signal handlers.
    with ProcessPoolExecutor(jobs, mp_context=multiprocessing.get_context("spawn")) as pool:
        for future in as_completed([pool.submit(perform_one, run) for run in left]):
            if (result := future.result()) is None:
                continue
            run, said, lines = result
            known.said[run.key] = said
            if not run.fault:
                known.lines[run.key] = lines
            save()
            print(*run, said.outcome, f"{said.seconds:.0f} s", said.first[:100], flush=True)


def read_known(output: Path) -> Known:
    """Return what an earlier call measured of the same sources of refrl.

    Raises:
        UsageError: they have changed since.
    """
    if not output.exists():
        return Known()
    lines = json.loads(lines_file(output).read_text(encoding="utf-8"))
    if lines["sources"] != digest_of_sources():
        raise UsageError(f"refrl has changed since {output} was begun: give another --output")
    runs = json.loads(output.read_text(encoding="utf-8"))["runs"]
    return Known({key: Said(**said) for key, said in runs.items()}, lines["lines"])


def lines_file(output: Path) -> Path:
    """Return where the lines of the sound stack are kept."""
    return output.with_suffix(".lines.json")


def main(argv: Sequence[str] | None = None) -> int:
    """Measure the named plants, or all that the choices list; runs that the output holds are not repeated."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--output", type=Path, required=True)
    parser.add_argument(
        "--choices", type=Path, help="the trial and its options that each plant was written for"
    )
    parser.add_argument("--jobs", type=int, default=1, help="trials at once")
    parser.add_argument("--seconds", type=float, default=600.0, help="limit of a trial")
    parser.add_argument("--minutes", type=float, default=60.0, help="begin no trial after so long")
    parser.add_argument("ids", nargs="*", metavar="ID")
    arguments = parser.parse_args(argv)
    choices = tomllib.loads(arguments.choices.read_text(encoding="utf-8")) if arguments.choices else {}
    plants = {plant.id: plant for plant in all_plants()}
    ids = arguments.ids or [*choices]
    if unknown := [name for name in ids if name not in plants]:
        parser.error(f"no plants: {', '.join(unknown)}; name plants of seatrial/faults/plants")
    if not ids:
        parser.error("name plants, or give --choices")
    known = read_known(arguments.output)
    found: dict[str, dict[str, Any]] = {}

    def save() -> None:
        output = {"runs": {key: asdict(said) for key, said in known.said.items()}, "plants": found}
        record = {"sources": digest_of_sources(), "lines": known.lines}
        write_text(lines_file(arguments.output), json.dumps(record))
        write_text(arguments.output, json.dumps(output, indent=1) + "\n")

    perform_one = partial(perform, seconds=arguments.seconds, until=time.time() + 60 * arguments.minutes)
    levels = {trial.name: trial.level for trial in select_trials(range(MAX_LEVEL + 1), ())}
    with tempfile.TemporaryDirectory(prefix="trials-") as folder:
        places = Bench(Path(folder)).places if choices else {}
        chosen = {name: chosen_run(plants[name], choices.get(name), places) for name in ids}
        sound = [*map(Run, levels), *filter(None, chosen.values())]
        measure(sound, known, perform_one, arguments.jobs, save)
        unrun = [
            Run(run.trial) for run in sound if not known.ran(run)
        ]  # without the overrides that it refuses
        measure(unrun, known, perform_one, arguments.jobs, save)
        wanted = {name: lines_of(plants[name]) for name in ids}
        runs = {name: runs_for(wanted[name], chosen[name], levels, known) for name in ids}
        faulty = [run._replace(fault=name) for name in ids for run in runs[name]]
        measure(faulty, known, perform_one, arguments.jobs, save)
    for name in ids:
        if (concluded := conclude(name, wanted[name], runs[name], known)) is not None:
            found[name] = concluded
            print(name, "seen" if concluded["seen"] else "NOT SEEN", *list(concluded["by"].items())[:1])
    save()
    print(summary(found, ids))
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
