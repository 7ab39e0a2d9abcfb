"""`python -m seatrial.faults.verify [--run] [ID ...]`: check that the tables of faults fit refrl's source.

Says which mutants and plants no longer stand exactly once in their module. With `--run` each plant is put into a copy
of refrl, a run of a few steps is made with and without it, and every trace that both left is compared: a plant must
end with exit status 0 and leave something different.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import os
import runpy
import shutil
import signal
import sys
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from importlib import import_module
from pathlib import Path
from typing import Any, Literal

import seatrial
from seatrial.faults.inputs import OWN_PART, write_models, write_rows
from seatrial.faults.mutate import all_mutants
from seatrial.faults.plant import Plant, all_plants, source_path
from seatrial.faults.traces import differences, read_traces
from seatrial.targets.reference.target import ARCHITECTURES

PACKAGE = Path(seatrial.__file__).parents[1] / "refrl"
RECIPES: dict[str, tuple[str, tuple[str, ...]]] = {
    "grpo": ("grpo-smoke", ()),
    "grpo-vlm": ("grpo-vlm", ()),
    "sft": (
        "sft-warmup",
        (
            "sft.max_num_steps=3",
            "sft.val_period=2",
            "sft.max_val_samples=16",
            "policy.train_global_batch_size=16",
            "policy.train_micro_batch_size=8",
        ),
    ),
}
"""Configuration of each loop's run, and what is changed in it."""
HEAVY = (
    "torch.distributed",
    "transformers.models.qwen3.modeling_qwen3",
    "transformers.models.llama.modeling_llama",
    "transformers.tokenization_utils_fast",
    "tensorboard.summary.writer.record_writer",
    "tensorboard.compat.proto.event_pb2",
    "pydantic",
)
"""Imported once, before a process is forked for each run."""
RUN_SECONDS = 120.0


@dataclass(frozen=True, kw_only=True)
class Ran:
    """Exit status, output and traces of a run."""

    status: int | Literal["timeout"]
    traces: Mapping[str, str]

    @property
    def last_words(self) -> str:
        """Last line of its output."""
        lines = self.traces["console"].strip().splitlines()
        return lines[-1] if lines else ""


@dataclass
class Bench:
    """Runs refrl, with and without faults, below one folder."""

    folder: Path
    _sound: dict[str, Ran] = field(default_factory=dict, init=False)

    @cached_property
    def source(self) -> Path:
        """A copy of refrl, so that all runs use the same source."""
        shutil.copytree(
            PACKAGE, self.folder / "sound" / "refrl", ignore=shutil.ignore_patterns("__pycache__")
        )
        for module in HEAVY:
            import_module(module)
        # Its table of expressions takes longer to compile than a run.
        import_module("transformers.conversion_mapping").get_checkpoint_conversion_mapping("qwen3")
        return self.folder / "sound"

    @cached_property
    def places(self) -> dict[str, str]:
        """Paths that options name in braces: models and files of rows."""
        places = {}
        for name, words in {"qwen3": (), **ARCHITECTURES}.items():
            output = self.folder / name
            made = self._refrl(self.source, ["make-model", *words, "--output", str(output)])
            assert made.status == 0, made.last_words
            places[name] = str(output)
        return {**places, **write_models(self.folder, Path(places["qwen3"])), **write_rows(self.folder)}

    def sound(self, plant: Plant) -> Ran:
        """Return the run without the fault; it is made once for each set of options."""
        key = json.dumps([plant.loop, plant.options, plant.starts], sort_keys=True)
        if key not in self._sound:
            self._sound[key] = self._refrl(self.source, self._words(plant), plant.starts)
        return self._sound[key]

    def faulty(self, plant: Plant) -> Ran:
        """Return the run with the fault."""
        copy = self.folder / "faulty"
        shutil.rmtree(copy, ignore_errors=True)
        shutil.copytree(self.source, copy, ignore=shutil.ignore_patterns("__pycache__"))
        path = source_path(plant.module, copy / "refrl")
        path.write_text(path.read_text(encoding="utf-8").replace(plant.old, plant.new), encoding="utf-8")
        return self._refrl(copy, self._words(plant), plant.starts)

    def _words(self, plant: Plant) -> list[str]:
        recipe, changed = RECIPES[plant.loop]
        words = [plant.loop.partition("-")[0], "--config", recipe, *changed]
        words += [f"policy.model_name={self.places['qwen3']}"]
        words += ["logger.log_dir=logs", "checkpointing.checkpoint_dir=checkpoints"]
        return words + [f"{key}={self._value(value)}" for key, value in plant.options.items()]

    def _value(self, value: Any) -> str:
        text = value if isinstance(value, str) else json.dumps(value)
        for name, place in self.places.items():
            text = text.replace("{" + name + "}", place)
        return text

    def _refrl(self, source: Path, words: Sequence[str], starts: int = 1) -> Ran:
        folder = self.folder / "run"
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir()
        (folder / "own.py").write_text(OWN_PART)
        status: int | None = 0
        for _ in range(starts):
            if status == 0:
                status = self._started(source, folder, words)
        return Ran(status="timeout" if status is None else status, traces=read_traces(folder))

    def _started(self, source: Path, folder: Path, words: Sequence[str]) -> int | None:
        """Return the exit status of one start, or None after a timeout."""
        process = multiprocessing.get_context("fork").Process(
            target=_become_refrl, args=(source, folder, words)
        )
        process.start()
        process.join(RUN_SECONDS)
        status = process.exitcode
        if status is None:
            assert process.pid is not None
            os.killpg(process.pid, signal.SIGKILL)
            process.join()
        return status


def _become_refrl(source: Path, folder: Path, words: Sequence[str]) -> None:
    """Run `python -m refrl WORDS` with the refrl of a folder, in this forked process."""
    os.setsid()
    console = os.open(folder / "console.txt", os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    os.dup2(console, 1)
    os.dup2(console, 2)
    os.chdir(folder)
    os.environ["PYTHONPATH"] = str(source)
    sys.path.insert(0, str(source))
    sys.argv = ["refrl", *words]
    runpy.run_path(str(source / "refrl" / "__main__.py"), run_name="__main__")


def misfits() -> list[str]:
    """Return a line for each mutant and plant whose text does not occur exactly once in its module."""
    faults = [("mutant", fault.id, fault.module, fault.old) for fault in all_mutants()]
    faults += [("plant", fault.id, fault.module, fault.old) for fault in all_plants()]
    found = []
    for kind, fault_id, module, old in faults:
        count = source_path(module, PACKAGE).read_text(encoding="utf-8").count(old)
        if count != 1:
            found.append(f"{kind} {fault_id}: its text occurs {count} times in {module}")
    return found


def check_run(bench: Bench, plant: Plant) -> tuple[bool, str]:
    """Return whether a plant is silent and has an effect, and a line that describes the effect."""
    sound, faulty = bench.sound(plant), bench.faulty(plant)
    found = differences(sound.traces, faulty.traces)
    if sound.status != faulty.status:
        found = [f"exit status {sound.status} without the fault", *found]
    if faulty.status != 0:
        return False, f"{plant.id}: not silent, the run ends with {faulty.status}: {faulty.last_words}"
    return bool(found), f"{plant.id}: {', '.join(found) or 'nothing differs'}"


def main(argv: Sequence[str]) -> int:
    """Return 0 if every table fits."""
    parser = argparse.ArgumentParser(prog="python -m seatrial.faults.verify", description=__doc__)
    parser.add_argument("--run", action="store_true", help="make a run with and without each plant")
    parser.add_argument("ids", nargs="*", metavar="ID", help="plants to run; all where none is named")
    arguments = parser.parse_args(argv)
    bad = misfits()
    print("\n".join(bad or [f"{len(all_mutants())} mutants and {len(all_plants())} plants fit the source"]))
    if not arguments.run:
        return int(bool(bad))
    with tempfile.TemporaryDirectory(prefix="plants-") as folder:
        bench = Bench(Path(folder))
        for plant in all_plants():
            if not arguments.ids or plant.id in arguments.ids:
                good, line = check_run(bench, plant)
                print("ok  " if good else "BAD ", line, flush=True)
                if not good:
                    bad.append(line)
    return int(bool(bad))


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
