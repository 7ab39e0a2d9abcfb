"""Puts the rules to short runs of refrl: clean ones in five configurations, and ones with a planted fault.

    python benchmarks/rules_refrl.py run FOLDER clean --seeds 20 [--steps 40]
    python benchmarks/rules_refrl.py run FOLDER planted --faults 30 [--seeds 1] [--steps 40]
    python benchmarks/rules_refrl.py judge FOLDER

`run` leaves the log of each run below FOLDER and goes on where it was ended; `judge` puts the rules to all that is
there: false alarms in clean runs, and which planted faults are flagged, of those that changed any logged series
against the clean run of the same seed. Plants are drawn by a hash of their id, and run with the options that each
names. Exits 1 where a clean run alarms.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np

from seatrial.errors import BlockedError
from seatrial.evidence.read import read_logs
from seatrial.evidence.runlog import RunLog
from seatrial.faults.plant import Plant, all_plants
from seatrial.rules.engine import judge_log
from seatrial.rules.registry import all_rules
from seatrial.rules.rule import Level

CONFIGURATIONS: dict[str, tuple[str, ...]] = {
    "smoke": (),
    "no-kl": ("loss_fn.reference_policy_kl_penalty=0.0",),
    "two-updates": ("policy.train_global_batch_size=8", "policy.train_micro_batch_size=4"),
    "top-p": ("policy.generation.top_p=0.8",),
    "long-task": (
        "data.task_args.max_length=5",
        "policy.generation.max_new_tokens=12",
        "policy.optimizer.lr=3e-3",
    ),
}
WALL_CLOCK = ("timing/", "performance/", "ray/")
"""Tags that no two runs share."""
SECONDS = 600.0


def words(folder: Path, seed: int, steps: int, options: Sequence[str]) -> list[str]:
    """Return the command line of refrl for one run."""
    return [
        "grpo",
        "--config",
        "grpo-smoke",
        f"grpo.seed={seed}",
        f"grpo.max_num_steps={steps}",
        "grpo.val_at_start=false",
        "grpo.val_at_end=false",
        f"logger.log_dir={folder / 'logs'}",
        f"checkpointing.checkpoint_dir={folder / 'checkpoints'}",
        *options,
    ]


def run_once(folder: Path, launcher: Sequence[str], line: Sequence[str]) -> None:
    """Make one run, unless it is there; its exit status goes beside its log."""
    if (folder / "status").exists():
        return
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    with (folder / "run.log").open("wb") as log:
        ended = subprocess.run(
            [sys.executable, *launcher, *line],
            stdout=log,
            stderr=log,
            timeout=SECONDS,
            check=False,
            env={**os.environ, "OMP_NUM_THREADS": "1"},
        )
    shutil.rmtree(folder / "checkpoints", ignore_errors=True)
    (folder / "status").write_text(str(ended.returncode))


def model_in(folder: Path) -> str:
    """Return the option that names the tiny model, made once."""
    model = folder / "model"
    if not model.exists():
        subprocess.run([sys.executable, "-m", "refrl", "make-model", "--output", str(model)], check=True)
    return f"policy.model_name={model}"


def drawn(number: int) -> list[Plant]:
    """Return plants of the GRPO loop that need no files of their own, in the order of a hash of their ids."""
    fit = [
        plant for plant in all_plants() if plant.loop == "grpo" and "{" not in json.dumps(plant.options)[1:-1]
    ]
    return sorted(fit, key=lambda plant: hashlib.sha256(plant.id.encode()).hexdigest())[:number]


def options_of(plant: Plant) -> list[str]:
    """Return the options of a plant as words."""
    return [f"{name}={json.dumps(value)}" for name, value in plant.options.items()]


def run_clean(folder: Path, seeds: int, steps: int) -> None:
    """Make the clean runs, one seed of every configuration after the other."""
    model = model_in(folder)
    for seed in range(seeds):
        for name, options in CONFIGURATIONS.items():
            place = folder / "clean" / name / str(seed)
            run_once(place, ["-m", "refrl"], words(place, seed, steps, [model, *options]))


def run_planted(folder: Path, faults: int, seeds: int, steps: int) -> None:
    """Make a run with each fault, and one without it under the same options."""
    model = model_in(folder)
    for plant in drawn(faults):
        for seed in range(seeds):
            place = folder / "planted" / plant.id / str(seed)
            options = [model, *options_of(plant)]
            launch = ["-m", "seatrial.faults.launch", plant.id, "--"]
            run_once(place, launch, words(place, seed, steps, options))
            sound = place.parent / f"{seed}-sound"
            run_once(sound, ["-m", "refrl"], words(sound, seed, steps, options))


def logs_below(folder: Path) -> Iterator[tuple[Path, RunLog]]:
    """Yield each run below a folder that ended well, with its log."""
    for status in sorted(folder.rglob("status")):
        if status.read_text() == "0":
            try:
                yield status.parent, read_logs(status.parent / "logs")
            except BlockedError as error:
                print(f"{status.parent}: {error}")


def alarms_of(log: RunLog) -> list[str]:
    """Return `rule@step` of every alarm."""
    judged = judge_log(log, all_rules())
    return [f"{item.rule.id}@{item.finding.step}" for item in judged if item.finding.level is Level.ALARM]


def changed(log: RunLog, sound: RunLog) -> bool:
    """Say whether any logged series but those of the clock differs."""
    tags = {tag for one in (log, sound) for tag in one.series if not tag.startswith(WALL_CLOCK)}
    return any(
        tag not in log.series
        or tag not in sound.series
        or not np.array_equal(log.series[tag].values, sound.series[tag].values, equal_nan=True)
        for tag in tags
    )


def judge(folder: Path) -> int:
    """Print what the rules say of every run; return 1 where a clean one alarms."""
    number = false_alarms = 0
    by_configuration: dict[str, list[int]] = {}
    for place, log in logs_below(folder / "clean"):
        alarms = alarms_of(log)
        counts = by_configuration.setdefault(place.parent.name, [0, 0])
        counts[0] += 1
        counts[1] += bool(alarms)
        number, false_alarms = number + 1, false_alarms + bool(alarms)
        if alarms:
            print(f"clean {place.relative_to(folder)}: {', '.join(alarms)}")
    for name, (runs, loud) in by_configuration.items():
        print(f"clean {name}: {loud} of {runs} alarm")
    print(f"clean: {false_alarms} of {number} alarm")
    seen = shown = 0
    for place, log in logs_below(folder / "planted"):
        sound = place.parent / f"{place.name}-sound"
        if place.name.endswith("-sound") or not (sound / "logs").exists():
            continue
        differs, alarms = changed(log, read_logs(sound / "logs")), alarms_of(log)
        shown += differs
        seen += differs and bool(alarms)
        print(
            f"planted {place.parent.name}: {'' if differs else 'no series differs; '}{', '.join(alarms) or '-'}"
        )
    print(f"planted: {seen} of {shown} that change a logged series are flagged")
    return 1 if false_alarms else 0


def main() -> int:
    """Run, or judge."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    commands = parser.add_subparsers(dest="command", required=True)
    run = commands.add_parser("run")
    run.add_argument("folder", type=Path)
    run.add_argument("kind", choices=["clean", "planted"])
    run.add_argument("--seeds", type=int, default=1)
    run.add_argument("--faults", type=int, default=30)
    run.add_argument("--steps", type=int, default=40)
    commands.add_parser("judge").add_argument("folder", type=Path)
    arguments = parser.parse_args()
    folder = arguments.folder.resolve()
    if arguments.command == "judge":
        return judge(folder)
    if arguments.kind == "clean":
        run_clean(folder, arguments.seeds, arguments.steps)
    else:
        run_planted(folder, arguments.faults, arguments.seeds, arguments.steps)
    return 0


if __name__ == "__main__":
    sys.exit(main())
