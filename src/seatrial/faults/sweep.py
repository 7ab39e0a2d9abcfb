"""`python -m seatrial.faults.sweep [--minutes M] [FAULT ...]`: measure and record what detects each planted fault.

Relations are asked one by one until one sees the fault: in the cell of the options that
the fault names, and in the default one. What none detects runs in a level-0 trial, and then against the relations that
take longest. A fault that nothing sees is a miss; if its module needs a package that is not installed, it is
unmeasured. What is recorded and not named is left alone, so that a long measurement can be done in parts.
"""

from __future__ import annotations

import argparse
import json
import tempfile
import time
from collections.abc import Mapping, Sequence
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from seatrial.errors import UsageError
from seatrial.evidence.identity.redaction import Redactor
from seatrial.faults.launch import entry
from seatrial.faults.matrix import cell_of, first_seen
from seatrial.faults.mutate import Mutant, all_mutants
from seatrial.faults.plant import Plant, all_plants
from seatrial.faults.planting import PlantingError
from seatrial.faults.record import Seen, data_file, load, save
from seatrial.faults.verify import Bench
from seatrial.relations.law import Relation
from seatrial.relations.registry import all_relations
from seatrial.targets.reference.target import ReferenceTarget
from seatrial.trials.grpo_smoke import GrpoSmoke
from seatrial.trials.rundir import RunDirectory
from seatrial.trials.runner import Request, new_results, run_trials
from seatrial.trials.sharding import Shard
from seatrial.verdict import EXIT_USAGE, Outcome

SECONDS = 120.0
"""Time limit of each command of a trial."""


LONG = ("R18.command", "R18.run", "R1.run", "R2.placement", "R11.run", "R13.run", "R13.async")
"""Relations that start commands, make a run for every option, runs of two processes, and many runs."""
RUNS = ("run", "fine_tuning")
"""Components whose relations run first: a plant in the wiring changes what a run does."""
DATA_PLANE = (
    *("DP1.writes", "DP2.claims", "DP3.reads", "DP4.lifecycle"),
    *("R14.data_plane", "R19.data_plane", "R27.data_plane"),
    *("DP5.partitions", "DP6.restart", "DP7.metas", "DP8.columns", "DP9.filters"),
    *("DP10.steps", "DP11.buffer", "DP12.clients", "DP13.model"),
)
"""Relations of the data plane and of the rollout flow through it."""
ASYNCHRONOUS = ("R14.async", "R19.async")
UPDATES = ("R9.run", "R10.run", "R12.run", "R10.update", "R24.run")
"""Relations of a run's rows and updates, run with the plant's options."""
LAYOUTS = ("R2", "R25")
"""Relations of training on several processes; they do not depend on the plant's options."""
STATE = ("R13.run", "R13.async", "R21.export", "R13.trainer")
ADAPTERS = ("R10.adapters", "R7.adapters")
PATHS = (
    *("R6.architectures", "R9.architectures", "R12.architectures"),
    *("R17.media", "R23.architectures", "R28.media"),
)
"""Relations of models with images, audio, experts or draft heads, and of int8 samplers."""
PARTS = (
    *(f"R35.{name}" for name in ("drawing", "decoders", "optimizer", "updates", "weights")),
    *("R35.adapters", "R35.records", "R35.policies", "R18.refused"),
)
"""Relations that call small parts alone."""
ENGINES = ("R26.rows", "R7.trained", "R6.engine", "R19.engine", "R26.engine", "R6.run")
WORKED = tuple(
    f"refrl.{name}"
    for name in (
        *(
            "algorithms",
            "checkpointing",
            "cli",
            "config",
            "data_plane",
            "directories",
            "distributed",
            "errors",
        ),
        *("generation", "logging", "masking", "media", "models", "policy", "rewards", "rollout", "runtime"),
        *("streams", "tasks", "timing", "training", "weight_sync"),
    )
)
"""Packages whose functions have worked examples (R34.worked), which take a second."""
NEAREST = {
    "refrl.__main__": ("R18.command",),
    "refrl.cli": ("R18.command", "R18.written"),
    "refrl.config": ("R18.defaults", "R18.own", "R18.names", "R18.command"),
    "refrl.data_plane": DATA_PLANE,
    "refrl.directories": ("R21.left",),
    "refrl.generation.broadcast_link": ("R19.links",),
    "refrl.generation.pool": ("R19.pool",),
    "refrl.generation.quantized": PATHS,
    "refrl.media": PATHS,
    "refrl.generation.ray_link": ("R19.engine",),
    "refrl.generation.vllm": ENGINES,
    "refrl.generation.megatron": ENGINES,
    "refrl.generation.receiving": ENGINES,
    "refrl.generation": (*PARTS, "R6.run", "R26.sampler", "R19.parts", "R14.async"),
    "refrl.runtime.generator_process": ("R26.engine", "R19.engine", "R23.schedule"),
    "refrl.logging": ("R22.left", "R21.left"),
    "refrl.rewards.scoring": ("R22.left",),
    "refrl.streams": ("R26.streams",),
    "refrl.tasks.files": ("R14.files",),
    "refrl.tasks.media": ("R17.media",),
    "refrl.tasks": ("R14.tasks", "R17.tasks", "R14.files"),
    "refrl.timing": ("R22.left",),
    "refrl.runtime.ray_ranks": ("R2.placement", "R18.command"),
    "refrl.runtime": ("R1.run", "R2.placement", "R18.command"),
    "refrl.distributed": (*PARTS, "R1.run", "R2.placement"),
    "refrl.rollout.multi_turn": ("R19.turns", "R6.engine"),
    "refrl.rollout.sync": ("R1.run", "R6.architectures", "R19.turns", "R19.episodes"),
    "refrl.rollout.environments": ("R17.tasks",),
    "refrl.rollout": ("DP11.buffer", "R19.turns", "R19.episodes", *ASYNCHRONOUS, "R13.async"),
    "refrl.training.asynchronous": (*ASYNCHRONOUS, "R13.async"),
    "refrl.training.sft": ("R28.media",),
    "refrl.models.loading": (*PARTS, "R9.architectures"),
    "refrl.training.validation": ("R23.schedule", "R23.run", "R22.run"),
    "refrl.training.step_records": ("R22.left", "R22.run"),
    "refrl.checkpointing": ("R21.saving", "R13.run", "R21.export", "R21.kept", "R21.left"),
    "refrl.weight_sync": (
        *PARTS,
        "R7.sync",
        "R8.sync",
        "R19.sync",
        "R7.trained",
        "R6.engine",
        "R6.run",
        "R7.adapters",
        "R19.links",
    ),
    "refrl.policy.auxiliaries": PATHS,
    "refrl.policy.auxiliary": PATHS,
    "refrl.policy.draft": (*PATHS, "R13.run"),
    "refrl.policy.routers": PATHS,
    "refrl.policy.lora": ADAPTERS,
    "refrl.policy.adapter_files": ("R10.adapters",),
    "refrl.policy.dtensor.spread_model": ADAPTERS,
    "refrl.policy.megatron.adapters": ADAPTERS,
    "refrl.policy.megatron.weights": ADAPTERS,
    "refrl.policy.dtensor": (*LAYOUTS, *UPDATES, *STATE),
    "refrl.policy.megatron": (*UPDATES, *LAYOUTS, *STATE),
    "refrl.policy.optimizer": ("R20.run",),
    "refrl.policy": (*PARTS, *UPDATES, "R22.run"),
}
"""Relations about a module, by module; for a plant in it or in a submodule they run first."""
NOT_BY_DEFAULT = (
    "refrl.generation.vllm",
    "refrl.generation.megatron",
    "refrl.policy.dtensor",
    "refrl.policy.megatron",
    "refrl.runtime.ray_ranks",
)
"""Modules imported only by runs that configure them; with default options only the nearest relations reach them."""
NEEDS = {
    "refrl.algorithms.chunked_triton": "triton",
    "refrl.generation.static.triton_ops": "triton",
    "refrl.data_plane.ray": "ray",
    "refrl.data_plane.transfer_queue": "transfer_queue",
    "refrl.generation.ray_link": "ray",
    "refrl.runtime.ray_cluster": "ray",
    "refrl.runtime.ray_ranks": "ray",
    "refrl.generation.vllm": "vllm",
    "refrl.generation.megatron": "megatron",
    "refrl.policy.megatron": "megatron",
}
"""Packages that modules need, by module: without them a fault that the nearest relations do not see is unmeasured."""


def relations_for(plant: Plant) -> list[str]:
    """Return the relations to run for a plant, most effective for their cost first, without `LONG`."""
    rewards = plant.module.startswith("refrl.rewards.")
    asked = [relation for relation in all_relations() if rewards or relation.component != "reward"]
    first = RUNS if plant.loop == "grpo" else RUNS[::-1]

    def place(relation: Relation) -> int:
        return first.index(relation.component) if relation.component in first else len(first)

    nearest = nearest_relations(plant)
    rest = [relation.id for relation in sorted(asked, key=place) if relation.id not in LONG]
    return [*nearest, *(relation for relation in rest if relation not in nearest)]


def nearest_relations(plant: Plant) -> list[str]:
    """Return the relations about a plant's module, or about the subject that the plant names."""
    found = [
        relation
        for name, relations in NEAREST.items()
        if _is_in(plant.module, name)
        for relation in relations
    ]
    if any(_is_in(plant.module, name) for name in WORKED):
        found.insert(0, "R34.worked")
    if plant.starts > 1:
        found.insert(0, "R13.run")
    if plant.options.get("cluster.num_processes", 1) > 1 and _is_in(plant.module, "refrl.policy"):
        found.insert(0, "R2")
    return list(dict.fromkeys(found))


def _is_in(module: str, name: str) -> bool:
    """Return whether a module is the named one or a submodule of it."""
    return module == name or module.startswith(f"{name}.")


def look(fault: Mutant | Plant, places: Mapping[str, str]) -> Seen:
    """Return what detects a fault; without a package that its module needs, the nearest relations alone are asked.

    Args:
        fault: a mutant or a plant.
        places: models and files that its options name in braces (`seatrial.faults.verify.Bench.places`).
    """
    if isinstance(fault, Mutant):
        return _seen(first_seen(fault, cell_of(fault), fault.relations)) or Seen(by=None, said="")
    if missing_package(fault):
        return look_with(fault, nearest_relations(fault)) or Seen(by=None, said="")
    seen = look_with(fault, relations_for(fault))
    if seen is not None:
        return seen
    left = [relation for relation in LONG if relation not in relations_for(fault)]
    level = _level_0_sees(fault, places) if fault.loop == "grpo" else None
    if _needs_its_cell(fault):
        return level or Seen(by=None, said="")
    return level or _seen(first_seen(fault, {}, left)) or Seen(by=None, said="")


def look_with(plant: Plant, relations: Sequence[str]) -> Seen | None:
    """Return which of these relations detects a plant, with the plant's options or the default ones, or None."""
    served = _served(plant.options)
    for cell in [served] * bool(served) + [{}]:
        asked = [
            one for one in relations if cell or not _needs_its_cell(plant) or one in nearest_relations(plant)
        ]
        seen = _seen(first_seen(plant, cell, asked))
        if seen is not None:
            return seen
    return None


def _needs_its_cell(plant: Plant) -> bool:
    """Return whether a run with default options does not import the plant's module."""
    return any(_is_in(plant.module, name) for name in NOT_BY_DEFAULT)


def missing_package(fault: Mutant | Plant) -> str | None:
    """Return the package that a fault's module needs and that is not installed, or None."""
    for name, package in NEEDS.items():
        if _is_in(fault.module, name) and find_spec(package) is None:
            return package
    return None


def _seen(found: tuple[str, str] | None) -> Seen | None:
    return None if found is None else Seen(by=found[0], said=found[1])


def _level_0_sees(fault: Plant, places: Mapping[str, str]) -> Seen | None:
    """Return the failure of a level-0 trial with the fault's options, if the trial passes without the fault."""
    words = tuple(f"{key}={_text(value, places)}" for key, value in fault.options.items())
    failed = level_0(fault.id, words)
    return None if failed is None or level_0(None, words) is not None else Seen(by="level 0", said=failed)


@cache
def level_0(fault_id: str | None, overrides: tuple[str, ...] = ()) -> str | None:
    """Return name and reason of the first failed verdict of a level-0 trial, or None.

    Args:
        fault_id: what is planted; None: nothing.
        overrides: `a.b=value` words.
    """
    request = Request(
        trials=[GrpoSmoke()], words="level 0", seed=0, overrides=overrides, timeout_seconds=SECONDS
    )
    target = ReferenceTarget() if fault_id is None else ReferenceTarget(entry=entry(fault_id))
    with tempfile.TemporaryDirectory() as folder, RunDirectory.create(Path(folder), target.name) as directory:
        results = new_results(directory, target, request, Redactor())
        run_trials(directory, results, target, request, lambda text: None)
    (trial,) = results.requested_trials()
    failed = [verdict for verdict in trial.verdicts if verdict.outcome is Outcome.FAIL]
    return f"{failed[0].name}: {failed[0].reason}" if failed else None


def _served(options: Mapping[str, Any]) -> dict[str, Any]:
    """Return the options that apply to the adapter, without model, files, devices and number of processes."""
    own = ("policy.model_name", "logger.", "checkpointing.", "cluster.num_", "cluster.device", "sft.")
    return {key: value for key, value in options.items() if key != "data" and not key.startswith(own)}


def _text(value: Any, places: Mapping[str, str]) -> str:
    text = value if isinstance(value, str) else json.dumps(value)
    for name, place in places.items():
        text = text.replace("{" + name + "}", place)
    return text


def _again(fault: Mutant | Plant, before: Seen | None, relations: Sequence[str] | None) -> Seen | None:
    """Return the result of relations added since a fault was missed; None if all relations must run."""
    if relations is None or before is None or isinstance(fault, Mutant):
        return None
    return look_with(fault, relations) or before


def merge(paths: Sequence[Path], output: Path) -> int:
    """Add the detections of several files to the output; the file named last counts where two have one fault."""
    found = load(output)
    for path in paths:
        if not path.is_file():
            print(f"--merge {path}: no such file; name the --output of a shard")
            return EXIT_USAGE
        found.update(load(path))
    save(output, found)
    print(f"{len(found)} faults in {output}, {sum(seen.by is None for seen in found.values())} missed")
    return 0


def main(argv: Sequence[str] | None = None) -> int:
    """Measure the named faults, or those not yet measured."""
    parser = argparse.ArgumentParser(prog="python -m seatrial.faults.sweep", description=__doc__)
    parser.add_argument("faults", nargs="*", metavar="FAULT", help="measure these again")
    parser.add_argument("--minutes", type=float, default=60.0, help="begin no fault after so long")
    parser.add_argument(
        "--relations",
        type=lambda text: text.split(","),
        help="ask these of what was missed, such as R20.run,R28.answers; what they do not see stays as it is recorded",
    )
    parser.add_argument("--output", type=Path, default=data_file(), help="default: the package's own record")
    parser.add_argument("--shard", metavar="I/N", help="measure every N-th fault, from the I-th")
    parser.add_argument(
        "--merge",
        nargs="+",
        type=Path,
        default=[],
        metavar="FILE",
        help="add what other shards measured, and stop",
    )
    arguments = parser.parse_args(argv)
    if arguments.merge:
        return merge(arguments.merge, arguments.output)
    try:
        shard = Shard.parse(arguments.shard) if arguments.shard is not None else None
    except UsageError as error:
        parser.error(str(error))
    started = time.monotonic()
    faults: list[Mutant | Plant] = [*all_mutants(), *all_plants()]
    known = {fault.id: fault for fault in faults}
    found = {name: seen for name, seen in load(arguments.output).items() if name in known}
    with tempfile.TemporaryDirectory(prefix="sweep-") as folder:
        places = Bench(Path(folder)).places
        open_faults = [name for name in known if name not in found]
        if arguments.relations:
            open_faults = [name for name, seen in found.items() if seen.by is None]
        wanted = arguments.faults or open_faults
        for name in wanted if shard is None else shard.take(wanted):
            if time.monotonic() - started > 60 * arguments.minutes:
                break
            fault = known[name]
            try:
                seen = _again(fault, found.get(name), arguments.relations) or look(fault, places)
            except PlantingError as error:
                print(f"{name}: not measured: {error}", flush=True)
                continue
            if seen.by is None and (package := missing_package(fault)):
                found.pop(name, None)
                print(f"{name}: unmeasured, needs {package}", flush=True)
            else:
                found[name] = seen
                print(f"{name}: {seen.by or 'MISSED'}  {seen.said[:100]}", flush=True)
            save(arguments.output, found)
    left = [name for name in known if name not in found]
    missed = [name for name, seen in found.items() if seen.by is None]
    print(
        f"{len(found)} of {len(known)} measured, {len(missed)} missed"
        + (f"; next: {left[0]}" if left else "")
    )
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
