"""The YAML file of a stack: its keys, and the run that it describes for each trial."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any

from seatrial.errors import UsageError
from seatrial.nearest import hint
from seatrial.strict_yaml import read_yaml
from seatrial.targets.base import Need

RECIPES: Mapping[str, str] = {
    "grpo-smoke": "grpo",
    "sft-smoke": "sft",
    "dpo-smoke": "dpo",
    "grpo-lora": "grpo",
    "checkpoint-save": "grpo",
    "sft-resume-diamond": "sft",
    "sft-warmup": "sft",
    "learning-signal": "grpo",
}
"""Recipes by the trial that needs them, with the kind of training; `sft-warmup` belongs to `learning-signal`."""
KINDS = ("sft", "dpo", "grpo")
PLACEHOLDERS: Mapping[str, str] = {
    "model": "folder of the model that training starts from",
    "data": "folder of the data that Seatrial makes",
    "out": "empty folder for everything that the run writes",
    "seed": "seed of the run",
    "steps": "number of optimizer steps",
    "epochs": "steps divided by `epoch_steps`",
    "epoch_steps": "optimizer steps of an epoch",
    "rows": "rows of a step",
    "group": "completions of a prompt",
    "kind": "sft, dpo or grpo",
    "here": "folder of the YAML file",
    "checkout": "checkout under test in `seatrial compare`, else the current folder",
    "config": "file of the options, if `override: yaml`",
    "checkpoint": "checkpoint to continue from (in `resume`), or to export (in `convert`)",
}
REQUIRED = ("model", "out", "seed", "steps")
COUNTS = ("step", "epoch")
"""Placeholders of `checkpoints`, of which it has one."""
_PLACEHOLDER = re.compile(r"\{(\w+)\}")
Option = str | int | float | bool | None | list[Any]


@dataclass(frozen=True, kw_only=True)
class Recipe:
    """One run of the stack; what all recipes share may be at the top of the file."""

    run: tuple[str, ...]
    """Program and arguments; no shell interprets them."""
    options: Mapping[str, Option] = field(default_factory=dict)
    """Options in the stack's own names, written as `override` says."""
    environment: Mapping[str, str] = field(default_factory=dict)
    kind: str = ""
    """`sft`, `dpo` or `grpo`."""
    steps: int
    """Optimizer steps."""
    epoch_steps: int | None = None
    """Optimizer steps of an epoch, where checkpoints are by `{epoch}`."""
    rows: int | None = None
    """Rows of a step; completions for GRPO. None: as the run's first step has."""
    group: int = 1
    """Completions of a prompt."""
    updates: int = 1
    """Optimizer steps of one batch of completions."""
    gpus: int | None = None
    """GPUs that the run uses at once; a job of Slurm requests them. None: not stated, one where there are any."""
    minutes: float = Need().minutes
    """Longest time that the trial may take; a run with a budget stops it then."""
    precision: str = "float32"
    """Of the weights that score: `float32`, `bfloat16`, `int8`."""
    clip: tuple[float, float] | None = None
    """The interval of the clamped probability ratio."""
    reference: bool = False
    """Whether a frozen reference policy takes part, so that the distance to it is logged."""
    adapters: bool = False
    """Whether low-rank adapters are trained, and exported in PEFT's form."""
    verifier: str | None = None
    """Name of the reward rule, so that rewards are recomputed."""
    advantage: Mapping[str, Any] | None = None
    """`{estimator: grpo, scale: group, epsilon: 1e-4}`, so that advantages are recomputed."""
    saves: tuple[int, ...] = ()
    """Steps whose checkpoints exist at the end."""
    checks: Mapping[str, str] = field(default_factory=dict)
    """Further checks of a smoke, each with what a pass means."""
    known_failures: Mapping[str, str] = field(default_factory=dict)
    """Verdicts, by name, that the stack is known to fail, each with the reason."""


@dataclass(frozen=True, kw_only=True)
class Stack:
    """What the YAML file says of a stack."""

    path: Path
    override: str | tuple[str, ...] = "{name}={value}"
    """How an option is written: a text, a list of arguments, or `yaml` for a file `{config}`."""
    resume: Mapping[str, Option] = field(default_factory=dict)
    """Options of a start that continues from `{checkpoint}`."""
    modules: Mapping[str, Path | None] = field(default_factory=dict)
    """Modules whose import origin is evidence, with the folder that they must come from, if any."""
    packages: tuple[str, ...] = ()
    logs: str
    """Glob of the logged series: a folder or files."""
    rows: str | None = None
    """Glob of the trained rows."""
    checkpoints: str | None = None
    """Checkpoint folders, with `{step}` or `{epoch}`."""
    first_epoch: int = 0
    """Number of the first epoch in the names of checkpoints."""
    state: str | None = None
    """Glob of what a resume needs in addition to the checkpoint folder, such as one optimizer file for all."""
    export: str | None = None
    """Glob of the exported model or adapter; None: the last checkpoint."""
    convert: tuple[str, ...] = ()
    """Command that exports `{checkpoint}` to `{out}/seatrial-export`, for stacks with sharded checkpoints."""
    metrics: Mapping[str, str] = field(default_factory=dict)
    """The stack's names of series by ours, where the vocabulary does not know them: `{train/loss: my/loss}`."""
    chat: bool = False
    """Whether held-out prompts are answered through the model's chat template."""
    timeout: float | None = None
    recipes: Mapping[str, Recipe] = field(default_factory=dict)


PATTERNS = ("logs", "rows", "checkpoints", "state", "export")
"""Keys whose globs say where a run leaves its evidence."""
_SHARED = {one.name for one in fields(Recipe)}
_OWN = {one.name for one in fields(Stack)} - {"path"}
_LISTS = {"run", "convert"}
_AMBIGUOUS = {"rows"}
"""At the top a glob of files, in a recipe a number."""
_KIND_OPTIONS = {f"{kind}_options" for kind in KINDS}
"""Options of all recipes of a kind."""


def read_stack(path: Path) -> Stack:
    """Return what a YAML file says of a stack.

    Raises:
        UsageError: the file is missing, a key is unknown, missing or of a wrong type: one line with the key.
    """
    content = read_yaml(path, "target")
    if not isinstance(content, dict):
        raise UsageError(f"{path}: a target is a mapping with `run`, `logs` and `recipes`")
    shared = _SHARED - _AMBIGUOUS
    _known(path, "", content, _OWN | shared | _KIND_OPTIONS)
    for key in ("logs", "recipes"):
        if not content.get(key):
            raise UsageError(f"{path}: {key} is missing: {_MISSING[key]}")
    recipes = content["recipes"]
    if not isinstance(recipes, dict):
        raise UsageError(f"{path}: recipes is not a mapping of trials: {', '.join(RECIPES)}")
    _known(path, "recipes.", recipes, RECIPES)
    common = {key: value for key, value in content.items() if key in shared | _KIND_OPTIONS}
    made = {name: _recipe(path, name, common, fields_of) for name, fields_of in recipes.items()}
    own = {
        key: _typed(path, key, value, Stack)
        for key, value in content.items()
        if key in _OWN - {"recipes", "modules"}
    }
    own["modules"] = _modules(path, content.get("modules") or {})
    own.setdefault("packages", tuple(name.split(".")[0] for name in own["modules"]))
    stack = Stack(path=path.resolve(), recipes=made, **own)
    _check_patterns(stack)
    for name, recipe in made.items():
        _check_placeholders(stack, name, recipe)
    return stack


_MISSING = {
    "logs": 'where the run logs its series, such as "{out}/runs"',
    "recipes": "options of the run of each trial, such as `grpo-smoke: {steps: 3, options: {...}}`",
    "run": 'program and arguments, such as [trl, "{kind}"]',
    "steps": "number of optimizer steps of the recipe",
}


def _recipe(path: Path, name: str, common: Mapping[str, Any], own: Any) -> Recipe:
    if own is None:
        own = {}
    if not isinstance(own, dict):
        raise UsageError(f"{path}: recipes.{name} is not a mapping")
    _known(path, f"recipes.{name}.", own, _SHARED)
    merged = {**{key: value for key, value in common.items() if key not in _KIND_OPTIONS}, **own}
    merged.setdefault("kind", RECIPES[name])
    of_kind = f"{merged['kind']}_options"
    for key in ("options", "environment", "checks", "known_failures"):
        parts = [common.get(key), common.get(of_kind) if key == "options" else None, own.get(key)]
        if not all(isinstance(part, dict | None) for part in parts):
            raise UsageError(f"{path}: recipes.{name}: {key} is not a mapping")
        merged[key] = {name: value for part in parts for name, value in (part or {}).items()}
    merged["options"] = {key: value for key, value in merged["options"].items() if value is not None}
    for key in ("run", "steps"):
        if key not in merged:
            raise UsageError(f"{path}: recipes.{name} has no {key}: {_MISSING[key]}")
    made = Recipe(
        **{key: _typed(path, f"recipes.{name}.{key}", value, Recipe) for key, value in merged.items()}
    )
    if made.kind not in KINDS:
        raise UsageError(f"{path}: recipes.{name}.kind {made.kind!r} is unknown; {hint(made.kind, KINDS)}")
    if made.precision not in ("float32", "bfloat16", "int8"):
        raise UsageError(f"{path}: precision {made.precision!r} is not float32, bfloat16 or int8")
    if (made.gpus or 0) < 0 or not made.minutes > 0:
        raise UsageError(
            f"{path}: recipes.{name}: gpus is {made.gpus} and minutes {made.minutes}; write 0 or more, and more than 0"
        )
    if made.epoch_steps is not None and (made.epoch_steps < 1 or made.steps % made.epoch_steps):
        raise UsageError(
            f"{path}: recipes.{name}: epoch_steps is {made.epoch_steps} and steps {made.steps}; write whole epochs"
        )
    if name == "sft-resume-diamond" and made.steps // (made.epoch_steps or 1) < 2:
        counted = "steps" if made.epoch_steps is None else f"steps, of {made.epoch_steps} an epoch"
        raise UsageError(
            f"{path}: recipes.{name} has {made.steps} {counted}; a run that is resumed needs 2 checkpoints or more"
        )
    return made


def _known(path: Path, place: str, content: Mapping[Any, Any], known: Iterator[str] | Any) -> None:
    names = sorted(known)
    for key in content:
        if key not in names:
            raise UsageError(f"{path}: {place}{key} is unknown; {hint(str(key), names)}")


def _typed(path: Path, key: str, value: Any, owner: type) -> Any:
    """Return a value in its field's type."""
    name = key.rpartition(".")[2]
    wanted = {one.name: str(one.type) for one in fields(owner)}[name]
    if name in _LISTS or (name == "override" and isinstance(value, list)):
        if (
            not isinstance(value, list)
            or not value
            or not all(isinstance(word, str | int | float) for word in value)
        ):
            raise UsageError(f"{path}: {key} is {value!r}; write a list of arguments: {_MISSING['run']}")
        return tuple(str(word) for word in value)
    if wanted.startswith("tuple"):
        if not isinstance(value, list):
            raise UsageError(f"{path}: {key} is {value!r}; write a list")
        return tuple(value)
    expected: Any = {"int": int, "bool": bool, "str": str, "float": (int, float)}.get(
        wanted.split(" | ")[0].split("[")[0]
    )
    if wanted.startswith("Mapping"):
        expected = dict
    good = (value is None and "None" in wanted) or isinstance(value, expected)
    if not good or (isinstance(value, bool) and expected is int):
        raise UsageError(
            f"{path}: {key} is {value!r}; expected {wanted.split(' | ')[0].partition('[')[0].lower()}"
        )
    if name == "environment":
        return {str(one): str(of) for one, of in value.items()}
    return value


def _modules(path: Path, given: Any) -> dict[str, Path | None]:
    if isinstance(given, list):
        return {str(name): None for name in given}
    if not isinstance(given, dict):
        raise UsageError(f"{path}: modules is neither a list of names nor a mapping of names to folders")
    return {
        str(name): None if place is None else (path.parent / str(place)).resolve()
        for name, place in given.items()
    }


def _check_patterns(stack: Stack) -> None:
    known = {"out", "here", "checkout", "data", "model", "kind", "seed"}
    for key in PATTERNS:
        pattern = getattr(stack, key)
        for name in _PLACEHOLDER.findall(pattern or ""):
            if name not in known and not (name in COUNTS and key == "checkpoints"):
                raise UsageError(
                    f"{stack.path}: {key} has the placeholder {{{name}}}; {hint(name, sorted(known))}"
                )
    if stack.checkpoints is None:
        return
    if sum(stack.checkpoints.count(f"{{{count}}}") for count in COUNTS) != 1:
        raise UsageError(
            f"{stack.path}: checkpoints has neither {{step}} nor {{epoch}}, or two of them: write "
            '"{out}/checkpoint-{step}" or "{out}/epoch_{epoch}"'
        )
    for name, recipe in stack.recipes.items():
        if "{epoch}" in stack.checkpoints and recipe.epoch_steps is None:
            raise UsageError(
                f"{stack.path}: recipes.{name} has no epoch_steps, and checkpoints are by {{epoch}}: write how many "
                "optimizer steps an epoch has"
            )


def _check_placeholders(stack: Stack, name: str, recipe: Recipe) -> None:
    """Check the placeholders of a recipe's command: known ones, and those without which a trial cannot be run."""
    words = [*recipe.run, *_texts(recipe.options), *recipe.environment.values()]
    used = {found for word in words for found in _PLACEHOLDER.findall(word)}
    resume = {found for word in _texts(stack.resume) for found in _PLACEHOLDER.findall(word)}
    for found in sorted(used | resume):
        if found not in PLACEHOLDERS:
            raise UsageError(
                f"{stack.path}: recipes.{name} has the placeholder {{{found}}}; {hint(found, PLACEHOLDERS)}"
            )
    if recipe.epoch_steps is None and (lacking := sorted(used & {"epochs", "epoch_steps"})):
        raise UsageError(
            f"{stack.path}: recipes.{name} has {{{lacking[0]}}} and no epoch_steps: write how many optimizer steps "
            "an epoch has"
        )
    for needed in REQUIRED:
        if needed not in used and not (needed == "steps" and "epochs" in used):
            raise UsageError(
                f"{stack.path}: recipes.{name}: {{{needed}}} is in neither run, options nor environment: "
                f"{PLACEHOLDERS[needed]}"
            )
    if stack.override == "yaml" and "config" not in used:
        raise UsageError(f"{stack.path}: recipes.{name}: override is yaml and {{config}} is not in run")
    if name == "sft-resume-diamond" and "checkpoint" not in resume:
        raise UsageError(
            f'{stack.path}: recipes.{name} needs resume with {{checkpoint}}: such as {{resume_from: "{{checkpoint}}"}}'
        )
    if name == "learning-signal" and "data" not in used:
        raise UsageError(
            f"{stack.path}: recipes.{name}: {{data}} is not used, so held-out prompts may be trained on"
        )


def _texts(values: Mapping[str, Option] | Sequence[Any]) -> Iterator[str]:
    for value in values.values() if isinstance(values, Mapping) else values:
        if isinstance(value, list | dict):
            yield from _texts(value)
        else:
            yield str(value)


def filled(text: str, values: Mapping[str, object]) -> str:
    """Return a text with its placeholders replaced."""
    return _PLACEHOLDER.sub(lambda found: str(values.get(found[1], found[0])), text)
