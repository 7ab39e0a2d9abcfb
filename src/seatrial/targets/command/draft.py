"""A first YAML file of a stack, written from the folder of a finished run and the command that wrote it."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml

from seatrial.errors import BlockedError, UsageError
from seatrial.evidence.ledger.read import read_ledger
from seatrial.evidence.read import read_logs
from seatrial.rules.monitor import LAST_STEP_OPTIONS
from seatrial.targets.command.schema import KINDS

STYLES: Mapping[str, str | list[str]] = {
    "--name=value": "--{name}={value}",
    "--name value": ["--{name}", "{value}"],
    "name=value": "{name}={value}",
}
"""Values of the key `override`, by what a word of a command looks like."""
PER_EPOCH = {
    "max_steps_per_epoch": "{epoch_steps}",
    "epochs": "{epochs}",
    "num_epochs": "{epochs}",
    "num_train_epochs": "{epochs}",
}
"""Options whose value follows from the steps, where checkpoints are by epoch."""
SMOKES = {kind: f"{kind}-smoke" for kind in KINDS}
_NAMED = re.compile(r"--([A-Za-z][\w.-]*)(=(.*))?", re.DOTALL)
_HYDRA = re.compile(r"(\+{0,2}[A-Za-z_][\w./@]*)=(.*)", re.DOTALL)
_VARIABLE = re.compile(r"([A-Z_][A-Z0-9_]*)=(.*)", re.DOTALL)
_COUNTED = re.compile(r"(.*?)(\d+)")
_LONG_NUMBER = re.compile(r"\d{4,}")


@dataclass(kw_only=True)
class _Draft:
    """What has been found so far."""

    folder: Path
    run: list[str] = field(default_factory=list)
    style: str = "name=value"
    options: dict[str, Any] = field(default_factory=dict)
    environment: dict[str, str] = field(
        default_factory=lambda: {"HF_HUB_OFFLINE": "1", "OMP_NUM_THREADS": "1"}
    )
    found: dict[str, str] = field(default_factory=dict)
    """Keys of the file with their patterns."""
    notes: list[str] = field(default_factory=list)
    """What the user has to look at."""
    kind: str = "sft"
    steps: int = 0
    epochs: int = 0
    """Number of checkpoints by epoch; 0 where they are by step, or there are none."""


def draft(folder: Path, command: Sequence[str]) -> str:
    """Return the text of a YAML file; comments say what it cannot know.

    Args:
        folder: what the run wrote.
        command: program and arguments of the run, as they were given in the current folder.

    Raises:
        UsageError: there is no such folder, or no command.
    """
    if not folder.is_dir():
        raise UsageError(f"{folder}: no such folder; give the one that a finished run wrote")
    if not command:
        raise UsageError(
            "the command of the run is missing; write it after --: seatrial new target NAME --yaml DIR -- ..."
        )
    made = _Draft(folder=folder.resolve())
    _read_command(made, command)
    _find_checkpoints(made)
    _find_logs(made)
    _find_rows(made, command)
    _put_placeholders(made)
    return "".join(f"{line}\n" for line in _lines(made))


def _read_command(made: _Draft, command: Sequence[str]) -> None:
    """Split a command into what stays and options, in the style that most of its options have."""
    words = list(command)
    while len(words) > 1 and (variable := _VARIABLE.fullmatch(words[0])):
        made.environment[variable[1]] = variable[2]
        del words[0]
    forms: dict[str, int] = defaultdict(int)
    for place, word in enumerate(words[1:], 1):
        if named := _NAMED.fullmatch(word):
            has_value = place + 1 < len(words) and not words[place + 1].startswith("--")
            forms["--name=value" if named[2] else "--name value"] += bool(named[2]) or has_value
        elif _HYDRA.fullmatch(word):
            forms["name=value"] += 1
    made.style = max(forms, key=lambda form: forms[form], default=made.style)
    place = 0
    while place < len(words):
        word = words[place]
        place += 1
        named = _NAMED.fullmatch(word) if place > 1 else None
        hydra = _HYDRA.fullmatch(word) if place > 1 else None
        if made.style == "name=value" and hydra:
            made.options[hydra[1]] = _value(hydra[2])
        elif made.style == "--name=value" and named and named[2]:
            made.options[named[1]] = _value(named[3])
        elif made.style == "--name value" and named and not named[2]:
            values = []
            while place < len(words) and not words[place].startswith("--"):
                values.append(_value(words[place]))
                place += 1
            if values:
                made.options[named[1]] = values[0] if len(values) == 1 else values
            else:
                made.run.append(word)
        else:
            made.run.append(word)


def _value(word: str) -> Any:
    """Return a word as YAML has it, where it is written back the same."""
    return int(word) if re.fullmatch(r"0|-?[1-9]\d*", word) else word


def _find_checkpoints(made: _Draft) -> None:
    """Find folders of weights whose place has a number, and the exported model."""
    groups: dict[tuple[str, str, str], list[int]] = defaultdict(list)
    plain = []
    for folder in sorted({file.parent for file in made.folder.rglob("*.safetensors")}):
        parts = folder.relative_to(made.folder).parts
        counted = [(at, found) for at, part in enumerate(parts) if (found := _COUNTED.fullmatch(part))]
        if not counted:
            plain.append("/".join(parts))
            continue
        at, found = counted[-1]
        before, after = "/".join(parts[:at]), "/".join(parts[at + 1 :])
        groups[(f"{before}/{found[1]}" if before else found[1], after, found[1])].append(int(found[2]))
    if groups:
        (start, end, name), numbers = max(groups.items(), key=lambda of: len(of[1]))
        by_epoch = min(numbers) == 0 or "epoch" in name.lower()
        count = "{epoch}" if by_epoch else "{step}"
        made.found["checkpoints"] = "/".join(filter(None, ["{out}", f"{_any(start)}{count}", end]))
        made.epochs = len(numbers) if by_epoch else 0
        if by_epoch and min(numbers):
            made.found["first_epoch"] = str(min(numbers))
    if plain:
        made.found["export"] = "/".join(filter(None, ["{out}", _any(plain[0])]))


def _find_logs(made: _Draft) -> None:
    try:
        log = read_logs(made.folder)
    except BlockedError as error:
        made.notes.append(f"logs: {error}")
        return
    made.found["logs"] = _place(made, [Path(source) for source in log.sources])
    made.steps = max((int(series.steps.max()) for series in log.series.values() if len(series)), default=0)


def _find_rows(made: _Draft, command: Sequence[str]) -> None:
    try:
        rows = read_ledger(made.folder)
    except BlockedError as error:
        made.notes.append(f"rows: {error}")
    else:
        if rows.files:
            made.found["rows"] = _place(made, rows.files)
    text = " ".join(command).lower()
    made.kind = next(
        (kind for kind in ("grpo", "dpo", "sft") if kind in text), "grpo" if "rows" in made.found else "sft"
    )


def _place(made: _Draft, files: Sequence[Path]) -> str:
    """Return the pattern of files below the run's folder: their first folder, or the file."""
    relative = [(made.folder / file).resolve().relative_to(made.folder) for file in files]
    first = min(relative, key=lambda one: len(one.parts))
    return f"{{out}}/{_any(first.parts[0])}" if len({one.parts[0] for one in relative}) == 1 else "{out}"


def _any(name: str) -> str:
    """Return a name with a star for a time or a process id, which another run does not have."""
    return re.sub(r"(\*[-_.:]?)+\*", "*", _LONG_NUMBER.sub("*", name))


def _put_placeholders(made: _Draft) -> None:
    """Put placeholders for the paths, the seed and the steps of the run."""
    for name, value in made.options.items():
        made.options[name] = _replaced(made, name.lstrip("+"), value)
    program = Path(made.run[0])
    first = str(program.absolute()) if len(program.parts) > 1 and program.exists() else made.run[0]
    made.run = [first, *(_replaced(made, "", word) for word in made.run[1:])]
    used = str(made.run) + str(made.options)
    for placeholder, what in (
        ("model", "folder of the model"),
        ("out", "output folder"),
        ("seed", "seed"),
        ("steps", "number of optimizer steps"),
        ("data", "training data"),
    ):
        names = ("{epochs}",) if placeholder == "steps" else ()
        if not any(one in used for one in (f"{{{placeholder}", *names)):
            made.notes.append(f"{{{placeholder}}} is in no option: which one is the {what}?")


def _replaced(made: _Draft, name: str, value: Any) -> Any:
    last = name.rpartition(".")[2].replace("-", "_").lower()
    if last == "seed":
        return "{seed}"
    if last in LAST_STEP_OPTIONS:
        return "{steps}"
    if made.epochs and last in PER_EPOCH:
        return PER_EPOCH[last]
    if isinstance(value, list):
        return [_replaced(made, name, one) for one in value]
    path = Path(str(value))
    if not isinstance(value, str) or not value or not path.exists():
        return value
    resolved = path.resolve()
    if resolved.is_relative_to(made.folder):
        return "/".join(["{out}", *resolved.relative_to(made.folder).parts])
    for depth, folder in enumerate([resolved, *resolved.parents[:1]]):
        if (folder / "config.json").is_file() and any(folder.glob("tokenizer*")):
            return "{model}" if depth == 0 else f"{{model}}/{resolved.name}"
    if resolved.suffix in (".json", ".jsonl", ".parquet") and "data" in name:
        made.notes.append(
            f"{name} was {value}: are its columns prompt and completion? messages/train.jsonl has conversations"
        )
        return "{data}/plain/train.jsonl"
    if resolved.is_dir() and "data" in name:
        made.notes.append(f"{name} was {value}: does the stack read a folder with train.jsonl?")
        return "{data}/plain"
    return str(resolved)


def _lines(made: _Draft) -> Iterator[str]:
    smoke = SMOKES[made.kind]
    yield f"# {made.run[0]}: seatrial run --target THIS_FILE --level 0. Written from a run in {made.folder.name}."
    yield from (f"# look: {note}" for note in made.notes)
    yield f"run: {_flow(made.run)}"
    yield f"override: {_flow(STYLES[made.style])}"
    yield "options:  # in the stack's own names; remove what only your machine needs"
    yield from (f"  {_flow(name)}: {_flow(value)}" for name, value in made.options.items())
    yield f"environment: {_flow(made.environment)}"
    yield "# modules: [name]  # Python modules whose import origin is recorded"
    yield f"logs: {_flow(made.found.get('logs', '{out}/logs'))}"
    for key, what in (
        ("rows", "rows that GRPO trained on"),
        ("checkpoints", "checkpoint folders, with {step} or {epoch}"),
        ("export", "folder of the exported model; without it the last checkpoint"),
    ):
        yield f"{key}: {_flow(made.found[key])}" if key in made.found else f"# {key}:  # {what}: none found"
    if "first_epoch" in made.found:
        yield f"first_epoch: {made.found['first_epoch']}"
    yield '# resume: {OPTION: "{checkpoint}"}  # options of a start that continues, for sft-resume-diamond'
    yield f"kind: {made.kind}"
    steps = made.steps or 3
    epoch = ", epoch_steps: " + str(max(1, steps // made.epochs)) if made.epochs else ""
    yield "recipes:  # one run for each trial; rows: of a step"
    yield f"  {smoke}: {{steps: {steps}{epoch}}}"
    if "checkpoints" in made.found:
        yield f"  # checkpoint-save: {{steps: {steps}{epoch}, saves: [{steps}]}}  # steps that are there at the end"


def _flow(value: Any) -> str:
    """Return a value on one line of YAML."""
    text: str = yaml.safe_dump(value, default_flow_style=True, width=10**6)
    return text.removesuffix("\n").removesuffix("\n...")
