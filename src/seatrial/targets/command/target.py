"""The target of a YAML file: the stack's own command line, with the options of each trial."""

from __future__ import annotations

import json
import math
import os
import shlex
import shutil
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import yaml

import seatrial
from seatrial.errors import BlockedError, UsageError
from seatrial.files import write_text
from seatrial.nearest import hint
from seatrial.targets.base import CHECKOUT_VARIABLE, AdvantageFacts, Job, JobRequest, Need, TrainingJob
from seatrial.targets.command.data import write_data
from seatrial.targets.command.evidence import FIRST, Collector, absent, first_checkpoint, snapshot
from seatrial.targets.command.schema import PATTERNS, Option, Recipe, Stack, filled, read_stack
from seatrial.targets.common import preflight
from seatrial.verdict import Verdict

TRIALS = {"grpo-checkpoint-save": "checkpoint-save", "grpo-learning": "learning-signal"}
"""Recipes of the file by the name under which trials request them, where the two differ."""
MODEL = "model="
SPACE_GIB = 1.0
"""For the runs of a made model."""
SOURCES = Path(seatrial.__file__).resolve().parent.parent


class CommandTarget:
    """Any stack that a YAML file describes. A `seatrial.targets.base.Target`."""

    runs_elsewhere = True
    """Whether the stack's modules are imported by its command alone, not by this process."""

    def __init__(self, path: Path) -> None:
        """Read the file.

        Raises:
            UsageError: it is missing, or a key is unknown, missing or of a wrong type.
        """
        self.stack: Stack = read_stack(path)
        self.name = path.stem
        self.source = str(path.resolve())
        self.modules = tuple(self.stack.modules)
        self.packages = self.stack.packages
        self.trials = frozenset(self.stack.recipes) - {"sft-warmup"}

    def preflight(self) -> None:
        """Check that each program of the file exists."""
        for name, recipe in self.stack.recipes.items():
            program = filled(recipe.run[0], {"here": self.stack.path.parent})
            path = recipe.environment.get("PATH", os.environ.get("PATH"))
            if shutil.which(program, path=path) is None:
                raise BlockedError(
                    f"{self.stack.path}: recipes.{name}: {program!r} is not found; give its path, such as "
                    "{here}/venv/bin/" + Path(program).name
                )

    def check_overrides(self, overrides: Sequence[str]) -> None:
        """Check that each is `name=value`, and that no trial sets it; the stack checks the names.

        `model=DIR` is the given model, also where the stack's own option has that name.
        """
        for word in overrides:
            name, equals, _ = word.partition("=")
            if not equals or not name:
                raise UsageError(f"{word!r} is not name=value")
            if word.startswith(MODEL):
                continue
            for recipe in self.stack.recipes.values():
                if "{" in str(recipe.options.get(name, "")):
                    raise UsageError(f"{name} is set by the trial: {recipe.options[name]}")

    def expected_origins(self) -> Mapping[str, Path]:
        """Return the folders that the file states for its modules."""
        return {name: folder for name, folder in self.stack.modules.items() if folder is not None}

    def given_model(self, overrides: Sequence[str]) -> Path | None:
        """Return the folder of `model=DIR`, made absolute."""
        names = [word.removeprefix(MODEL) for word in overrides if word.startswith(MODEL)]
        if not names:
            return None
        model = Path(names[-1])
        if not (model / "config.json").is_file() or not any(model.glob("*.safetensors")):
            raise BlockedError(
                f"model={model} has no config.json or no *.safetensors; without model= one is made"
            )
        return model.resolve()

    def make_model(self, output: Path, seed: int) -> Job:
        """Return the command that makes a tiny model with a byte-level tokenizer."""
        words = ("--output", str(output), "--seed", str(seed))
        argv = (sys.executable, "-m", "seatrial.targets.common.tiny", *words)
        return Job(what="making a tiny model", argv=argv, environment=_own_environment())

    def dry_run(self, trials: Sequence[tuple[int, str]], output: Path) -> Iterator[str]:
        """Yield the command of each trial, where its evidence is, and what cannot be judged."""
        for level, name in trials:
            recipe = self.stack.recipes.get(name)
            if recipe is None:
                yield f"level {level} {name}: Not requested: {self.stack.path.name} has no recipe {name}"
                continue
            directory = output / name
            values = self._values(recipe, directory, directory / "model", seed=0)
            yield f"level {level} {name}: {recipe.kind}, {recipe.steps} steps"
            for variable, value in self._environment(recipe, values).items():
                yield f"  export {variable}={shlex.quote(value)}"
            words = (filled(word, values) for word in recipe.run)
            yield f"  {shlex.join([*words, *self._written(recipe.options, values, writes=False)])}"
            for key in PATTERNS:
                pattern = getattr(self.stack, key)
                if pattern is not None:
                    yield f"  {key:<12} {filled(pattern, values)}"
            for reason in absent(self.stack, recipe, validates=name == "learning-signal").values():
                yield f"  not judged   {reason}"

    def preflight_items(self, trials: Sequence[str]) -> Iterator[Verdict]:
        """Yield what the runs need: programs, and where their interpreter imports the stack's modules from."""
        seen = set()
        for name in [*trials, "sft-warmup"]:
            recipe = self.stack.recipes.get(name)
            if recipe is None:
                continue
            values = self._values(recipe, Path("outputs"), Path("outputs"), seed=0)
            program = filled(recipe.run[0], values)
            if program in seen:
                continue
            seen.add(program)
            environment = self._environment(recipe, values)
            path = environment.get("PATH", os.environ.get("PATH"))
            yield from preflight.programs([program], path)
            python = preflight.interpreter_of(program, path)
            if python is None or not self.modules:
                yield preflight.verdict("imports of the run", None, f"{program} names no Python")
                continue
            yield from preflight.origins("run", python, self.modules, self.expected_origins(), environment)
        yield preflight.space("runs", Path("runs"), SPACE_GIB)
        yield preflight.ray_cluster()
        yield from preflight.schedulers()

    def components(self) -> None:
        """Return None: a command has no parts that relations can call."""

    def need(self, trial: str) -> Need:
        """Return what the recipe of a trial declares."""
        recipe = self.stack.recipes[trial]
        if recipe.gpus is None:
            return Need(minutes=recipe.minutes)
        return Need(num_gpus=recipe.gpus, minutes=recipe.minutes, states_gpus=True)

    def recipe(self, requested: str) -> Recipe:
        """Return the recipe of a request.

        Raises:
            UsageError: the file has none.
        """
        name = TRIALS.get(requested, requested)
        if name not in self.stack.recipes:
            raise UsageError(
                f"{self.stack.path} has no recipe {name}; {hint(name, sorted(self.stack.recipes))}"
            )
        return self.stack.recipes[name]

    def job(self, request: JobRequest) -> TrainingJob:
        """Return the command of a recipe; its data and options file are written now."""
        recipe, directory = self.recipe(request.recipe), request.directory
        values = self._values(recipe, directory, request.model, seed=1000 * request.seed + request.number)
        write_data(directory, recipe.kind, request.seed)
        (directory / "out").mkdir(exist_ok=True)
        start = first_checkpoint(self.stack, values) if (directory / FIRST).is_dir() else None
        options: dict[str, Option] = {**recipe.options, **_parsed(request.overrides)}
        if start is not None:
            values["checkpoint"] = start[1]
            options.update(self.stack.resume)
        environment = self._environment(recipe, values)
        advantage = recipe.advantage
        return TrainingJob(
            what=f"{self.name}, {TRIALS.get(request.recipe, request.recipe)}, run {request.number + 1}",
            argv=(*(filled(word, values) for word in recipe.run), *self._written(options, values)),
            environment=environment,
            log_dir=directory / "logs",
            ledger_dir=directory / "rows",
            initial_model=request.model,
            final_model=directory / "final",
            num_steps=recipe.steps,
            first_step=1 if start is None else start[0] + 1,
            num_rows_per_step=recipe.rows or 0,
            num_generations_per_prompt=recipe.group,
            num_updates_per_step=recipe.updates,
            precision=recipe.precision,
            ratio_clip=(0.0, math.inf) if recipe.clip is None else recipe.clip,
            advantage=None if advantage is None else _advantage(self.stack.path, advantage),
            has_reference=recipe.reference,
            verifier=recipe.verifier,
            checkpoint_steps=recipe.saves,
            own_checks=recipe.checks,
            expected_failures=recipe.known_failures,
            vocabulary_size=_vocabulary_size(request.model),
            byte_level=False,
            collect=Collector(
                stack=self.stack,
                recipe=recipe,
                values=values,
                directory=directory,
                before=snapshot(self.stack, values),
                ends_early=request.ends_early,
                validates=request.recipe == "grpo-learning",
                environment=_own_environment(),
            ),
        )

    def _values(self, recipe: Recipe, directory: Path, model: Path, *, seed: int) -> dict[str, object]:
        """Return the values of the placeholders; folders are absolute, because stacks put other folders before them."""
        directory = directory.absolute()
        return {
            "model": model.absolute(),
            "data": directory / "data",
            "out": directory / "out",
            "seed": seed,
            "steps": recipe.steps,
            "epochs": None if recipe.epoch_steps is None else recipe.steps // recipe.epoch_steps,
            "epoch_steps": recipe.epoch_steps,
            "rows": recipe.rows,
            "group": recipe.group,
            "kind": recipe.kind,
            "here": self.stack.path.parent,
            "checkout": os.environ.get(CHECKOUT_VARIABLE) or Path.cwd(),
            "config": directory / "options.yaml",
        }

    def _environment(self, recipe: Recipe, values: Mapping[str, object]) -> dict[str, str]:
        """Return the variables of a command: the file's, and the folders of the file and of the data on PYTHONPATH."""
        given = {name: filled(value, values) for name, value in recipe.environment.items()}
        checkout = os.environ.get(CHECKOUT_VARIABLE)
        places = [
            *([str(Path(checkout) / "src"), checkout] if checkout else []),
            given.get("PYTHONPATH"),
            str(values["here"]),
            str(values["data"]),
            os.environ.get("PYTHONPATH"),
        ]
        # A cache of data sets hides that a file of the same name has changed.
        cache = str(Path(str(values["out"])).with_name("datasets-cache"))
        path = os.pathsep.join(place for place in places if place)
        return {"HF_DATASETS_CACHE": cache, **given, "PYTHONPATH": path}

    def _written(
        self, options: Mapping[str, Option], values: Mapping[str, object], *, writes: bool = True
    ) -> Iterator[str]:
        """Yield options as arguments, or write them to the file `{config}`."""
        style = self.stack.override
        if style == "yaml" and not writes:
            return
        if style == "yaml":
            tree: dict[str, Any] = {}
            for name, value in options.items():
                _put(tree, name.split("."), _filled(value, values))
            write_text(Path(str(values["config"])), yaml.safe_dump(tree, sort_keys=False))
            return
        for name, value in options.items():
            given = _filled(value, values)
            if isinstance(style, str):
                words = "[" + ",".join(map(_word, given)) + "]" if isinstance(given, list) else _word(given)
                yield filled(style, {"name": name, "value": words})
                continue
            for part in style:
                if part == "{value}" and isinstance(given, list):
                    yield from map(_word, given)
                else:
                    yield filled(part, {"name": name, "value": _word(given)})


def _own_environment() -> dict[str, str]:
    """Return the variables of Seatrial's own commands."""
    path = os.pathsep.join(filter(None, [str(SOURCES), os.environ.get("PYTHONPATH", "")]))
    return {
        "PYTHONPATH": path,
        "HF_HUB_OFFLINE": "1",
        "TOKENIZERS_PARALLELISM": "false",
        "CUDA_VISIBLE_DEVICES": "",
    }


def _parsed(overrides: Sequence[str]) -> dict[str, Option]:
    pairs = (word.partition("=") for word in overrides if not word.startswith(MODEL))
    return {name: yaml.safe_load(value) for name, _, value in pairs}


def _filled(value: Any, values: Mapping[str, object]) -> Any:
    """Return a value with its placeholders replaced; a text that is one placeholder of a number becomes the number."""
    if isinstance(value, list):
        return [_filled(one, values) for one in value]
    if isinstance(value, dict):
        return {name: _filled(one, values) for name, one in value.items()}
    if not isinstance(value, str):
        return value
    whole = values.get(value[1:-1]) if value.startswith("{") and value.endswith("}") else None
    return whole if isinstance(whole, int) else filled(value, values)


def _word(value: Any) -> str:
    """Return a value as an argument."""
    if value is None or isinstance(value, bool):
        return "null" if value is None else str(value).lower()
    return json.dumps(value) if isinstance(value, dict | list) else str(value)


def _put(tree: dict[str, Any], keys: Sequence[str], value: Any) -> None:
    for key in keys[:-1]:
        tree = tree.setdefault(key, {})
    tree[keys[-1]] = value


def _advantage(path: Path, given: Mapping[str, Any]) -> AdvantageFacts:
    keys = ("estimator", "scale", "epsilon")
    if set(given) != set(keys):
        raise UsageError(f"{path}: advantage has the keys {', '.join(given)}; write {', '.join(keys)}")
    return AdvantageFacts(
        estimator=str(given["estimator"]), scale=str(given["scale"]), epsilon=float(given["epsilon"])
    )


def _vocabulary_size(model: Path) -> int | None:
    try:
        size = json.loads((model / "config.json").read_text(encoding="utf-8")).get("vocab_size")
    except (OSError, ValueError, AttributeError):
        return None
    return size if isinstance(size, int) else None
