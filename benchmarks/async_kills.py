"""Kills of runs with asynchronous rollouts: does each resume to the rows, prompts and weights of the unbroken run?

    python benchmarks/async_kills.py --kills 100 --json kills.jsonl [--jobs 2] [--device cuda] [--policy hf dtensor]

Sets of options (backend of the policy, adapters, replicas, staleness, in-flight updates, placement, precision, filters,
how checkpoints are written, how weights travel) are chosen so that every two values meet. Each set runs unbroken twice,
which shows whether it repeats its own bits. Each kill takes the next set, and what it does is drawn from its number:

- `moment`: the trainer ends while a batch is sampled, a step trains, weights are synced or a checkpoint is due;
- `trainer`: SIGKILL at a random time after a step;
- `checkpoint`: SIGKILL while the files of a checkpoint are being written;
- `generator`: SIGKILL of one of the engines that have a process.

Every third run that was killed at a `moment` is killed once more at its last step. Then the same command runs to the
end. One line of JSON a kill is appended to the file; kills that it holds already are not repeated. Outcomes:

- `equal`: log, rows, prompts, groups, state, export and adapters are those of the unbroken run, bit for bit;
- `ledger`: each group has one fate, and each step's rows are of its groups, in a run that loses rollouts by design (an
  engine that others replace, or in-flight updates, with which a run has no checkpoints and starts in a new directory);
- `not repeatable`: the same, and the prompts are those of the unbroken run, whose repeat has other bits;
- `not killed`: the run ended first, in three draws. `wrong`: anything else, with what differs. Exits 1 if there is one.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import os
import random
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import yaml

from seatrial.chaos.acts import PARTS, find_victim, kill, read_parts
from seatrial.errors import BlockedError, UsageError
from seatrial.relations.cases.pairwise import names_of, pairwise
from seatrial.relations.contracts.resume import Kill, ResumedRun
from seatrial.relations.laws.run.asynchronous import ASYNC, IN_FLIGHT
from seatrial.relations.laws.run.killed import misused_groups
from seatrial.relations.laws.run.resume import differences
from seatrial.relations.runs import BASE, dotted
from seatrial.targets.reference.configuration import allowed, configuration, wide_model_directory
from seatrial.targets.reference.runs.resume import left_run
from seatrial.targets.reference.runs.short import with_own_parts

STEPS = 6
SECONDS = 400.0
"""A start that takes longer counts as one that hangs."""
PARTS_OF_A_RUN = ("log", "served", "groups", "state", "exported", "adapters")
LOSSES = "log: train/num_lost_replicas"
REFUSED = "holds the log of another run"
"""What a run without checkpoints says when its log folder is used again."""
DIMENSIONS: Mapping[str, Mapping[str, Mapping[str, Any]]] = {
    "policy": {
        "hf": {},
        "dtensor": {"policy.dtensor_cfg.enabled": True},
        "megatron": {"policy.megatron_cfg.enabled": True},
    },
    "adapters": {"all weights": {}, "LoRA": {"policy.lora_cfg.enabled": True, "policy.lora_cfg.dim": 3}},
    "replicas": {f"{num} replicas": {"grpo.async_grpo.num_replicas": num} for num in (2, 1, 3)},
    "age": {f"age {age}": {"grpo.async_grpo.max_trajectory_age_steps": age} for age in (1, 2, 3)},
    "placement": {name: {"policy.generation.placement": name} for name in ("process", "inline")},
    "precision": {name: {"policy.precision": name} for name in ("float32", "bfloat16")},
    "groups": {
        "all kept": {},
        "dynamic sampling": {
            "grpo.use_dynamic_sampling": True,
            "data.num_train": 24,
            "data.verifier": "coarse",
        },
        "zero variance dropped": {"grpo.async_grpo.drop_zero_variance": True, "data.num_train": 24},
    },
    "updates": {
        "waiting": {},
        "in flight": {
            **dotted(IN_FLIGHT),
            "grpo.max_num_steps": STEPS,
            "checkpointing.save_period": 0,
            "data.verifier": "graded",  # completions of full length are never near enough
        },
    },
    "saving": {"in background": {}, "at once": {"checkpointing.async_save": False}},
    "weights": {"whole": {}, "changes": {"policy.generation.delta_compression.enabled": True}},
}


@dataclass
class OptionSet:
    """A configuration, and its unbroken runs, which are made once."""

    name: str
    options: Mapping[str, Any]
    lock: threading.Lock = field(default_factory=threading.Lock)
    runs: list[Run] = field(default_factory=list)

    @property
    def in_flight(self) -> bool:
        """Whether weights change while rows are sampled, so that the run has no checkpoints."""
        return bool(self.options.get("grpo.async_grpo.in_flight_weight_updates"))

    def unbroken(self, root: Path) -> tuple[Run, Run]:
        """Return the two unbroken runs."""
        with self.lock:
            for number in range(len(self.runs), 2):
                run = Run(root / f"unbroken-{self.options['grpo.seed']}-{number}", self.options)
                status = run.start()
                if status:
                    raise ChildProcessError(f"the unbroken run ended with {status}: {run.console()[-600:]}")
                self.runs.append(run)
            return self.runs[0], self.runs[1]


@dataclass(frozen=True)
class Strike:
    """What is done to a start of a run."""

    kind: str
    step: int
    moment: str = ""
    """Of the kind `moment`: see `seatrial.relations.contracts.resume.Kill`."""
    seconds: float = 0.0
    """After what the kind waits for."""
    part: str = "trainer"

    def has_come(self, run: Run) -> bool:
        """Return whether its moment has come."""
        if self.kind == "checkpoint":
            return any((run.folder / "checkpoints").glob(f".step_{self.step}.*"))
        return (run.log / f"train_data_step{self.step}.jsonl").exists() if self.step else run.has_parts()


class Run:
    """A run of refrl in a folder; each start is a process group of its own."""

    def __init__(self, folder: Path, options: Mapping[str, Any]) -> None:
        """Write the configuration.

        Args:
            folder: of the run; made if missing.
            options: dotted names.
        """
        self.folder, self.log = folder, folder / "log"
        folder.mkdir(exist_ok=True)
        places = {"logger.log_dir": self.log, "checkpointing.checkpoint_dir": folder / "checkpoints"}
        self.config = configuration({**options, **{name: str(path) for name, path in places.items()}})
        (folder / "config.json").write_text(self.config.model_dump_json(), encoding="utf-8")
        written = yaml.safe_dump(self.config.model_dump(mode="json"))
        (folder / "config.yaml").write_text(written, encoding="utf-8")
        self.is_struck = False
        """Whether the last start was."""

    def start(self, strike: Strike | None = None) -> int:
        """Run until the end or the strike; return the exit status (a killed process has -9, and -1 is a hang)."""
        words = ["-m", "refrl", "grpo", "--config", str(self.folder / "config.yaml")]
        recording = self.folder / "recording"
        if strike is not None and strike.kind == "moment":
            moment = json.dumps(asdict(Kill(strike.moment, strike.step)))  # type: ignore[arg-type]
            killed_by_itself = "seatrial.targets.reference.runs.ranks"
            words = ["-m", killed_by_itself, str(self.folder / "config.json"), str(recording), moment]
        hidden = {"CUDA_VISIBLE_DEVICES": ""} if self.config.cluster.device == "cpu" else {}
        quiet = {"OMP_NUM_THREADS": "1", "CUBLAS_WORKSPACE_CONFIG": ":4096:8", **hidden}
        with (self.folder / "console.txt").open("ab") as console:
            process = subprocess.Popen(
                [sys.executable, *words],
                stdout=console,
                stderr=subprocess.STDOUT,
                env={**os.environ, **quiet},
                start_new_session=True,
            )
            try:
                self.is_struck = (
                    strike is not None and strike.kind != "moment" and self._strike(process, strike)
                )
                process.wait(SECONDS)
            except subprocess.TimeoutExpired:
                os.killpg(process.pid, signal.SIGKILL)
                process.wait()
                return -1
        if strike is not None and strike.kind == "moment":
            self.is_struck = process.returncode == 0 and not recording.exists()
            recording.unlink(missing_ok=True)
        return process.returncode

    def _strike(self, process: subprocess.Popen[bytes], strike: Strike) -> bool:
        """Wait for the moment, and kill; return whether the process that was meant still ran."""
        deadline = time.monotonic() + SECONDS
        while not strike.has_come(self):
            if process.poll() is not None or time.monotonic() > deadline:
                return False
            time.sleep(0.002)
        time.sleep(strike.seconds)
        try:
            victim = find_victim(str(process.pid) if strike.part == "trainer" else strike.part, self.log)
        except UsageError:
            return False
        return process.poll() is None and kill(victim, None, threading.Event())

    def has_parts(self) -> bool:
        """Return whether it has named the processes of its parts."""
        return (self.log / PARTS).exists() and bool(read_parts(self.log / PARTS))

    def console(self) -> str:
        """Return what all starts printed."""
        return (self.folder / "console.txt").read_text(encoding="utf-8", errors="replace")

    def left(self) -> ResumedRun:
        """Return what it left."""
        return left_run(self.log, self.folder / "checkpoints", Path(self.config.policy.model_name))


def main(argv: Sequence[str]) -> int:
    """Kill what is missing in the file, and print the outcomes."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--kills", type=int, default=100)
    parser.add_argument("--jobs", type=int, default=1, help="runs at once")
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    parser.add_argument("--json", type=Path, required=True)
    parser.add_argument(
        "--policy", nargs="*", choices=tuple(DIMENSIONS["policy"]), help="default: installed ones"
    )
    parser.add_argument(
        "--print-sets", action="store_true", help="print the sets of options, and run nothing"
    )
    chosen = parser.parse_args(argv)
    installed = [
        name for name in DIMENSIONS["policy"] if name != "megatron" or importlib.util.find_spec("megatron")
    ]
    sets = option_sets(chosen.policy or installed, chosen.device)
    if chosen.print_sets:
        print("\n".join(one.name for one in sets))
        return 0
    known = (
        [json.loads(line) for line in chosen.json.read_text().splitlines()] if chosen.json.exists() else []
    )
    missing = sorted(set(range(chosen.kills)) - {one["kill"] for one in known})
    writing = threading.Lock()
    with tempfile.TemporaryDirectory() as folder, ThreadPoolExecutor(chosen.jobs) as pool:

        def judge(number: int) -> dict[str, Any]:
            began = time.monotonic()
            chosen_set = sets[number % len(sets)]
            found = {"kill": number, "device": chosen.device, "set": chosen_set.name}
            try:
                found |= _judged(number, chosen_set, Path(folder))
            except (OSError, BlockedError) as error:  # a run that fails, or leaves less than it should
                found |= {"outcome": "wrong", "kind": "none", "kills": [], "differences": [str(error)]}
            found["seconds"] = round(time.monotonic() - began, 1)
            with writing, chosen.json.open("a") as lines:
                lines.write(json.dumps(found) + "\n")
                print(number, found["outcome"], found["kills"], found["differences"][:3], flush=True)
            return found

        known += pool.map(judge, missing)
    for (outcome, kind), num in sorted(Counter((one["outcome"], one["kind"]) for one in known).items()):
        print(f"{outcome:16} {kind:12} {num}")
    num_kills = sum(len(one["kills"]) for one in known if one["outcome"] != "not killed")
    print(
        f"{len(known)} runs, {num_kills} kills, {len({one['set'] for one in known})} of {len(sets)} sets of options"
    )
    return int(any(one["outcome"] == "wrong" for one in known))


def option_sets(policies: Sequence[str], device: str) -> list[OptionSet]:
    """Return sets of options in which every two values meet that the schema allows together.

    Args:
        policies: backends.
        device: of training and engines.
    """
    dimensions = {**DIMENSIONS, "policy": {name: DIMENSIONS["policy"][name] for name in policies}}
    names = {name: list(values) for name, values in dimensions.items()}
    fixed = {
        **dotted(ASYNC),
        "grpo.max_num_steps": STEPS,
        "policy.model_name": str(wide_model_directory(tied=False)),
        "cluster.device": device,
        "logger.tensorboard_enabled": True,
        "logger.log_train_data": True,
        "checkpointing.enabled": True,
        "checkpointing.save_period": 1,
    }

    def options_of(row: Mapping[str, int]) -> dict[str, Any]:
        of_row = (dimensions[name][names[name][index]] for name, index in row.items())
        return with_own_parts(
            {**BASE, **fixed, **{key: value for one in of_row for key, value in one.items()}}
        )

    rows = pairwise({name: len(of) for name, of in names.items()}, lambda row: allowed(options_of(row)))
    return [
        OptionSet(
            f"{policies[row['policy']]}: {names_of({**row, 'policy': 0}, names)}",
            {**options_of(row), "grpo.seed": seed},
        )
        for seed, row in enumerate(rows)
    ]


def drawn(number: int, attempt: int, one: OptionSet) -> Strike:
    """Return what is done in an attempt at a kill."""
    draw = random.Random(f"{number} {attempt}")
    has_engines = one.options["policy.generation.placement"] == "process"
    saves = not one.in_flight
    kinds = ["moment", "moment", "trainer"] + ["checkpoint"] * saves + ["generator"] * has_engines
    kind, step = draw.choice(kinds), draw.randrange(1, STEPS)
    if kind == "moment":
        moments = ["sampling", "training", "syncing"] + ["saving"] * saves
        return Strike(kind, step, draw.choice(moments))
    if kind == "checkpoint":
        return Strike(kind, step, seconds=draw.uniform(0, 0.02))
    if kind == "generator":
        engine = draw.randrange(one.options["grpo.async_grpo.num_replicas"])
        return Strike(kind, step - 1, seconds=draw.uniform(0, 0.3), part=f"generation/{engine}")
    return Strike(kind, step - 1, seconds=draw.uniform(0, 0.3))


def _judged(number: int, one: OptionSet, root: Path) -> dict[str, Any]:
    """Return the outcome of a kill: what was done, the exit statuses, and what differs from the unbroken run."""
    unbroken = one.unbroken(root)
    for attempt in range(3):
        run, strike = Run(root / f"{number}-{attempt}", one.options), drawn(number, attempt, one)
        statuses = [run.start(strike)]
        if run.is_struck:
            break
    strikes = [strike]
    if strike.kind == "moment" and number % 3 == 0 and not one.in_flight:
        strikes.append(Strike("moment", STEPS, ("training", "saving")[number // 3 % 2]))
        statuses.append(run.start(strikes[-1]))
    facts = {
        "kind": strike.kind,
        "kills": [" ".join(str(v) for v in asdict(s).values() if v) for s in strikes],
    }
    if not run.is_struck:
        outcome = "wrong" if statuses[-1] else "not killed"
        return {**facts, "outcome": outcome, "statuses": statuses, "differences": [run.console()[-600:]]}
    wrong: list[str] = []
    continued = strike.kind == "generator" and statuses[-1] == 0
    if strike.kind == "generator" and not continued and strike.part not in run.console():
        wrong.append(f"the console does not name {strike.part}: {run.console()[-600:]}")
    if not continued:
        statuses.append(run.start())
        if one.in_flight and statuses[-1] == 2 and REFUSED in run.console():
            run = Run(root / f"{number}-again", one.options)
            statuses.append(run.start())
    if statuses[-1] != 0:
        wrong.append(f"the last start ended with {statuses[-1]}: {run.console()[-600:]}")
        return {**facts, "outcome": "wrong", "statuses": statuses, "differences": wrong}
    left = run.left()
    found, repeat = unlike(unbroken[0], run), unlike(*unbroken)
    lost_engine = strike.kind == "generator" and continued
    found = [what for what in found if not (lost_engine and what == LOSSES)]
    wrong += misused_groups(left)
    by_design = one.in_flight or lost_engine
    if not by_design and repeat:
        wrong += [what for what in found if what.startswith("served") and what not in repeat]
    elif not by_design:
        wrong += found
    outcome = "not repeatable" if repeat and not by_design else "ledger"
    outcome = "wrong" if wrong else outcome if found else "equal"
    resumed = {"resumed_from": left.went_on_from, "repeat": repeat[:20]}
    return {
        **facts,
        "outcome": outcome,
        "statuses": statuses,
        **resumed,
        "differences": (wrong or found)[:20],
    }


def unlike(whole: Run, other: Run) -> list[str]:
    """Return the names of what differs between two runs."""
    first, second = (
        {path.name: path.read_text(encoding="utf-8") for path in run.log.glob("train_data_step*.jsonl")}
        for run in (whole, other)
    )
    rows = [f"rows: {name}" for name in sorted({**first, **second}) if first.get(name) != second.get(name)]
    return rows + differences(whole.left(), other.left(), PARTS_OF_A_RUN)


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
