"""Short runs of refrl, sound and with planted faults, under every sensor that watches a run; no judgement here.

    python benchmarks/rules_faults.py OUTPUT.jsonl.gz [--clean 20] [--seeds 0,1] [--minutes 8] [--workers 16]
                                      [--steps 30] [--faults 12] [--only ID ...]

Clean runs are made first: `--clean` seeds of each of five configurations. Then, seed by seed, for each plant of the
catalogue a run with it and one without it under the same options (made once for plants that share them); `--faults`
takes the first so many in the order of a hash of their ids. The guards
(`seatrial.targets.reference.guards.observer:RecordingGuards`) record and stop nothing. A line is written for each run:
its series, the laws that its rows break, what the guards saw. What a file holds already is not made again.
`rules_judge.py` says what the rules see.
"""

from __future__ import annotations

import argparse
import compileall
import gzip
import hashlib
import importlib
import json
import multiprocessing
import os
import py_compile
import runpy
import shutil
import signal
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import seatrial
from seatrial.evidence.ledger.read import read_ledger
from seatrial.evidence.ledger.readers.base import ReadOptions
from seatrial.evidence.read import read_logs
from seatrial.faults.inputs import OWN_PART
from seatrial.faults.plant import Plant, all_plants, source_path
from seatrial.faults.verify import HEAVY, RECIPES, Bench
from seatrial.targets.base import JobRequest
from seatrial.targets.reference.target import ReferenceTarget
from seatrial.trials.sensors.ledger import ledger_verdicts
from seatrial.verdict import Outcome

CONFIGURATIONS: dict[str, dict[str, Any]] = {
    "smoke": {},
    "no-kl": {"loss_fn.reference_policy_kl_penalty": 0.0},
    "two-updates": {"policy.train_global_batch_size": 8, "policy.train_micro_batch_size": 4},
    "top-p": {"policy.generation.top_p": 0.8},
    "long-task": {
        "data.task_args.max_length": 5,
        "policy.generation.max_new_tokens": 12,
        "policy.optimizer.lr": 3e-3,
    },
}
GUARDS = "seatrial.targets.reference.guards.observer:RecordingGuards"
SECONDS = 150.0
"""Time limit of one start."""


@dataclass(frozen=True, kw_only=True)
class Task:
    """One run."""

    kind: str
    """`clean`, `sound` or `fault`."""
    name: str
    """Configuration, hash of the options, or id of the plant."""
    seed: int
    loop: str
    options: dict[str, Any]
    starts: int = 1
    plant: Plant | None = None

    @property
    def key(self) -> str:
        """What tells it from all others."""
        return f"{self.kind}/{self.name}/{self.seed}"


def key_of(plant: Plant) -> str:
    """Return the name of the runs without the fault that are made under its options."""
    text = json.dumps([plant.loop, plant.options, plant.starts], sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()[:12]


def hash_of(plant: Plant) -> str:
    """Return what orders and halves the plants."""
    return hashlib.sha256(plant.id.encode()).hexdigest()


def tasks(arguments: argparse.Namespace) -> Iterator[Task]:
    """Yield the runs in the order in which they are made."""
    for seed in range(arguments.clean):
        for name, options in CONFIGURATIONS.items():
            yield Task(kind="clean", name=name, seed=seed, loop="grpo", options=options)
    plants = sorted(all_plants(), key=hash_of)
    if arguments.only:
        plants = [plant for plant in plants if plant.id in arguments.only]
    sound = set()
    for seed in arguments.seeds:
        for plant in plants[: arguments.faults]:
            shared = {"loop": plant.loop, "options": dict(plant.options), "starts": plant.starts}
            if (key_of(plant), seed) not in sound:
                sound.add((key_of(plant), seed))
                yield Task(kind="sound", name=key_of(plant), seed=seed, **shared)
            yield Task(kind="fault", name=plant.id, seed=seed, plant=plant, **shared)


class Runs:
    """Makes runs below one folder, each of a copy of refrl of its own."""

    def __init__(self, folder: Path, steps: int) -> None:
        """Copy and compile refrl once, and make the models and rows that options name."""
        self.folder, self.steps = folder, steps
        for module in HEAVY:
            importlib.import_module(module)
        bench = Bench(folder)
        self.source, self.places = bench.source, bench.places
        # Checked by nobody: the copies, which are links, stay compiled.
        mode = py_compile.PycInvalidationMode.UNCHECKED_HASH
        compileall.compile_dir(str(self.source), quiet=2, invalidation_mode=mode)

    def words(self, task: Task) -> list[str]:
        """Return the command line after `refrl`: the options of the task come last and win."""
        recipe, changed = RECIPES[task.loop]
        steps = [f"{task.loop}.max_num_steps={self.steps}"] if task.starts == 1 else []
        changed = tuple(word for word in changed if "max_num_steps" not in word or not steps)
        words = [task.loop, "--config", recipe, *changed, *steps, f"{task.loop}.seed={task.seed}"]
        words += [f"{task.loop}.val_period=10", f"policy.model_name={self.places['qwen3']}"]
        words += ["logger.log_dir=logs", "checkpointing.checkpoint_dir=checkpoints"]
        words += [f"logger.observers=[{GUARDS}]"]
        return words + [f"{key}={self._value(value)}" for key, value in task.options.items()]

    def _value(self, value: Any) -> str:
        text = value if isinstance(value, str) else json.dumps(value)
        for name, place in self.places.items():
            text = text.replace("{" + name + "}", place)
        return text

    def make(self, task: Task) -> dict[str, Any]:
        """Make one run, and return what it left."""
        with tempfile.TemporaryDirectory(dir=self.folder) as name:
            place = Path(name)
            copy, run = place / "copy", place / "run"
            shutil.copytree(self.source, copy, copy_function=os.link)
            run.mkdir()
            (run / "own.py").write_text(OWN_PART)
            if task.plant is not None:
                _change(copy / "refrl", task.plant)
            status: int | None = 0
            for _ in range(task.starts):
                if status == 0:
                    status = _in_a_process(SECONDS, _become_refrl, copy, run, self.words(task))
            record = {"key": task.key, "loop": task.loop, "options": task.options, "status": status}
            answer = place / "answer.json"
            _in_a_process(SECONDS, _sense, run, answer, self, task)
            sensed = json.loads(answer.read_text()) if answer.exists() else {"not_sensed": True}
            return {**record, "sound": key_of(task.plant) if task.plant else None, **sensed}


def _change(package: Path, plant: Plant) -> None:
    """Plant a fault in a copy of refrl that is made of links."""
    path = source_path(plant.module, package)
    source = path.read_text(encoding="utf-8")
    assert source.count(plant.old) == 1, plant.id
    path.unlink()
    path.write_text(source.replace(plant.old, plant.new), encoding="utf-8")
    for compiled in (path.parent / "__pycache__").glob(f"{path.stem}.*.pyc"):
        compiled.unlink()


def _in_a_process(seconds: float, target: Any, *arguments: Any) -> int | None:
    """Return the exit status of a function in a forked process; None where it took too long and was ended."""
    process = multiprocessing.get_context("fork").Process(target=target, args=arguments)
    process.start()
    process.join(seconds)
    if process.exitcode is None:
        assert process.pid is not None
        os.killpg(process.pid, signal.SIGKILL)
        process.join()
        return None
    return process.exitcode


def _become_refrl(source: Path, folder: Path, words: Sequence[str]) -> None:
    """Run `python -m refrl WORDS` with the refrl of a folder, in this forked process."""
    os.setsid()
    console = os.open(folder / "console.txt", os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    os.dup2(console, 1)
    os.dup2(console, 2)
    os.chdir(folder)
    own = Path(seatrial.__file__).parents[1]
    os.environ["PYTHONPATH"] = os.pathsep.join([str(source), str(own)])
    sys.path.insert(0, str(source))
    sys.argv = ["refrl", *words]
    runpy.run_path(str(source / "refrl" / "__main__.py"), run_name="__main__")


def _sense(folder: Path, answer: Path, runs: Runs, task: Task) -> None:
    """Write what a run logged, which laws its rows break and what the guards saw."""
    os.setsid()
    os.chdir(folder)  # parts of the run's own lie there
    found: dict[str, Any] = {"last_words": (folder / "console.txt").read_text(errors="replace")[-300:]}
    guards = folder / "logs" / "guards.json"
    if guards.exists():
        read = json.loads(guards.read_text())
        found["guards"] = {name: one["failed"]["reason"] for name, one in read.items() if one["failed"]}
    log = read_logs(folder / "logs")
    found["series"] = {
        tag: [series.steps.tolist(), [float(f"{value:.9g}") for value in series.values]]
        for tag, series in log.series.items()
    }
    answer.write_text(json.dumps(found))
    if task.loop == "grpo":
        words = [
            word for word in runs.words(task)[3:] if "=" in word and not word.startswith(("logger.", "ch"))
        ]
        request = JobRequest(
            recipe="grpo-smoke",
            model=Path(runs.places["qwen3"]),
            directory=folder,
            seed=0,
            overrides=[word for word in words if not word.startswith("policy.model_name=")],
        )
        job = ReferenceTarget().job(request)
        verdicts = ledger_verdicts(read_ledger(folder / "logs", ReadOptions()).rows, job)
        failed = [verdict for verdict in verdicts if verdict.outcome is Outcome.FAIL]
        found["ledger"] = {verdict.name: verdict.reason for verdict in failed}
        answer.write_text(json.dumps(found))


def made_by_workers(
    runs: Runs, left: Sequence[Task], num_workers: int, ends: float
) -> Iterator[dict[str, Any]]:
    """Yield the record of each run as it is made, by processes that take the next one until it is too late."""
    context = multiprocessing.get_context("fork")
    taken, records = context.Value("i", 0), context.Queue()

    def work() -> None:
        while time.monotonic() < ends:
            with taken.get_lock():
                number = taken.value
                taken.value += 1
            if number >= len(left):
                break
            records.put(runs.make(left[number]))
        records.put(None)

    workers = [context.Process(target=work) for _ in range(num_workers)]
    for worker in workers:
        worker.start()
    num_done = 0
    while num_done < num_workers:
        record = records.get()
        num_done += record is None
        if record is not None:
            yield record
    for worker in workers:
        worker.join()


def main() -> int:
    """Make the runs that are not there."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("output", type=Path)
    parser.add_argument("--clean", type=int, default=0, help="seeds of each configuration")
    parser.add_argument(
        "--seeds", type=lambda text: [int(word) for word in text.split(",") if word], default=[]
    )
    parser.add_argument("--minutes", type=float, default=8.0, help="begin no run after so long")
    parser.add_argument("--workers", type=int, default=os.cpu_count())
    parser.add_argument("--steps", type=int, default=30)
    parser.add_argument("--faults", type=int)
    parser.add_argument("--only", nargs="*", default=[])
    arguments = parser.parse_args()
    os.environ.update({"OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1", "CUDA_VISIBLE_DEVICES": ""})
    begun = time.monotonic()
    made = set()
    if arguments.output.exists():
        with gzip.open(arguments.output, "rt") as lines:
            made = {json.loads(line)["key"] for line in lines}
    with tempfile.TemporaryDirectory(prefix="rules-") as name:
        runs = Runs(Path(name), arguments.steps)
        left = [task for task in tasks(arguments) if task.key not in made]
        number = 0
        with gzip.open(arguments.output, "at") as output:
            for record in made_by_workers(runs, left, arguments.workers, begun + 60 * arguments.minutes):
                number += 1
                output.write(json.dumps(record) + "\n")
    print(f"{number} of {len(left)} runs made in {(time.monotonic() - begun) / 60:.1f} minutes")
    return 0


if __name__ == "__main__":
    sys.exit(main())
