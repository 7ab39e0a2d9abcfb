"""Trials of a stack that runs from a checkout on GPUs, as stages: what would be launched, and what must be true of it.

A stage is one of the checkout's own scripts, or a command, with options after it. `dry_run` prints every command, file
and gate. `resolved` runs a script behind a stand-in for the stack's launcher (`stand_in.py`), which composes the
configuration that the script requests, without the stack, torch or a GPU: a key that the checkout does not know is an
error there, and what the stage expects is compared with what was composed.
"""

from __future__ import annotations

import json
import os
import shlex
import stat
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from seatrial.errors import BlockedError, UsageError
from seatrial.launch import run_command
from seatrial.packaged import read_table
from seatrial.targets.common import stand_in

CHECKOUT, BRIDGE = "checkout", "bridge"
RESOLVE_SECONDS = 120.0


@dataclass(frozen=True, kw_only=True)
class Stage:
    """What one trial is on a checkout."""

    trial: str
    seed: str
    """The item of the workflow that it covers."""
    script: str = ""
    """A maintained script of the checkout; empty where `command` is given."""
    command: tuple[str, ...] = ()
    environment: Mapping[str, str] = field(default_factory=dict)
    words: tuple[str, ...] = ()
    """Options after the script's own."""
    model: str
    gpus: int
    expects: Mapping[str, Any] = field(default_factory=dict)
    """What the composed configuration must say, by dotted key."""
    log_has: tuple[str, ...] = ()
    """Texts that the console log must have, as evidence of what served the run."""
    log_without: tuple[str, ...] = ()
    files: tuple[str, ...] = ()
    gates: tuple[str, ...] = ()
    note: str = ""


@dataclass(frozen=True, kw_only=True)
class ComponentCheck:
    """Tests of a component that must pass before the first expensive run."""

    what: str
    where: str
    command: tuple[str, ...]
    tests: tuple[str, ...]
    """Paths of which each must exist: pytest ends with status 4 otherwise, before any test."""
    below: str = ""
    """Folder that the paths are relative to."""
    note: str = ""


@dataclass(frozen=True, kw_only=True)
class Stages:
    """A stack's table of stages."""

    stack: str
    remote: str
    bridge: str
    """Megatron-Bridge inside the checkout; empty where it has none."""
    submodules: tuple[str, ...]
    programs: tuple[str, ...]
    launch: tuple[str, ...]
    environment: Mapping[str, str]
    words: tuple[str, ...]
    """After every command; a script that has gates of its own reads its own log folder, which is not overridden."""
    scripts_have_gates: bool
    """Whether a script writes to the folder of its own name, and checks its log there."""
    evidence: tuple[str, ...]
    script_evidence: tuple[str, ...] = ()
    """Below the folder of a script that has gates."""
    must_not_set: tuple[str, ...]
    checks: tuple[ComponentCheck, ...]
    stages: Mapping[str, Stage]
    absent: Mapping[str, str]
    """Trials that the stack cannot have, each with the reason."""
    worker_python: str = ""
    """Python of a training worker, where the stack gives its workers environments of their own."""


def read_stages(package: str) -> Stages:
    """Return the table of a package of targets: its `stages.yaml`."""
    content = read_table(package, "stages.yaml")
    stages = {row["trial"]: Stage(**_tuples(row)) for row in content.pop("stages")}
    checks = tuple(ComponentCheck(**_tuples(row)) for row in content.pop("checks"))
    return Stages(stages=stages, checks=checks, **_tuples(content))


def _tuples(row: Mapping[str, Any]) -> dict[str, Any]:
    return {key: tuple(value) if isinstance(value, list) else value for key, value in row.items()}


@dataclass(frozen=True, kw_only=True)
class Checkout:
    """Where a stack's repositories and the output of its trials are."""

    stages: Stages
    path: Path
    bridge: Path | None
    """Checkout of Megatron-Bridge; None: the one inside the stack's checkout."""
    environment: Mapping[str, str]
    """Ours; it names caches."""

    def values(self, output: Path) -> dict[str, str]:
        """Return the values of the placeholders."""
        home = self.environment.get("HF_HOME", str(Path.home() / ".cache" / "huggingface"))
        copy = output.parent / "checkout"
        return {
            "out": str(output),
            "copy": str(copy),
            "bridge": str(self.bridge or copy / (self.stages.bridge or "Megatron-Bridge")),
            "hf_home": home,
            "venvs": self.environment.get("NEMO_RL_VENV_DIR", str(copy / "venvs")),
            "model_path": self.environment.get("MODEL_PATH", f"{home}/models"),
        }

    def argv(self, stage: Stage, output: Path) -> tuple[str, ...]:
        """Return the command of a stage, in the copy of the checkout."""
        values = self.values(output)
        words = stage.words if self.writes_itself(stage) else (*self.stages.words, *stage.words)
        first = stage.command or (*self.stages.launch, stage.script)
        return tuple(word.format(**values) if "{" in word else word for word in (*first, *words))

    def writes_itself(self, stage: Stage) -> bool:
        """Return whether a stage's script chooses the folder of its evidence."""
        return self.stages.scripts_have_gates and bool(stage.script)

    def variables(self, stage: Stage, output: Path) -> dict[str, str]:
        """Return the environment variables of a stage."""
        values = self.values(output)
        given = {**self.stages.environment, **stage.environment}
        return {name: value.format(**values) for name, value in given.items()}


def dry_run(checkout: Checkout, trials: Sequence[tuple[int, str]], output: Path) -> Iterator[str]:
    """Yield what each trial would launch, read and require, line by line.

    Args:
        checkout: of the stack.
        trials: (level, name) of each requested trial.
        output: folder for the evidence.
    """
    table = checkout.stages
    copy = output / "checkout"
    yield f"{table.stack} from {checkout.path}"
    yield "\nfirst, in a copy of the checkout, because the scripts delete and write their own folders in it:"
    yield f"  git -C {checkout.path} worktree add {copy} HEAD"
    yield f"  git -C {copy} submodule update --init --recursive"
    bridge = checkout.values(output / "x")["bridge"]
    for folder in (copy, Path(bridge)):
        yield f"  git -C {folder} rev-parse HEAD && git -C {folder} status --short"
    yield "  gate     driver and worker import megatron.bridge and megatron.core from below " + bridge
    if table.worker_python:
        worker = table.worker_python.format(**checkout.values(output / "x"))
        yield f"  worker   {worker} -c 'import megatron.bridge, megatron.core'"
    for check in table.checks:
        where = check.where.format(**checkout.values(output / "x"))
        yield f"\ncomponent check: {check.what}"
        yield f"  cd {where}"
        yield f"  {shlex.join([*check.command, *check.tests])}"
        yield f"  gate     exit status 0, and at least one test of each of the {len(check.tests)} files ran"
        yield from ([f"  note     {check.note}"] if check.note else [])
    for level, name in trials:
        yield ""
        if name not in table.stages:
            reason = table.absent.get(name, f"{table.stack} has no stage for it")
            yield f"level {level} {name}: Not requested: {reason}"
            continue
        yield from _described(checkout, table.stages[name], level, output / name)


def _described(checkout: Checkout, stage: Stage, level: int, output: Path) -> Iterator[str]:
    values = checkout.values(output)
    yield f"level {level} {stage.trial}: {stage.seed}"
    yield f"  needs    {stage.gpus} GPUs, {stage.model} in the cache"
    yield f"  cd {values['copy']}"
    for name, value in checkout.variables(stage, output).items():
        yield f"  export {name}={shlex.quote(value)}"
    yield f"  {shlex.join(checkout.argv(stage, output))}"
    if checkout.writes_itself(stage):
        folder = f"{values['copy']}/{stage.script.removesuffix('.sh')}"
        yield f"  mv {folder} {values['out']}/script   # at once: another start of the script deletes it"
        evidence = [f"{values['out']}/script/{text}" for text in checkout.stages.script_evidence]
    else:
        evidence = [text.format(**values) for text in checkout.stages.evidence]
    for text in (*evidence, *(text.format(**values) for text in stage.files)):
        yield f"  file     {text}"
    for key, value in stage.expects.items():
        yield f"  config   {key} = {json.dumps(value)}"
    for text in stage.log_has:
        yield f"  log has  {text!r}"
    for text in stage.log_without:
        yield f"  log without {text!r}"
    for gate in stage.gates:
        yield f"  gate     {gate}"
    yield from ([f"  note     {stage.note}"] if stage.note else [])


def resolved(checkout: Checkout, stage: Stage, output: Path, python: str = sys.executable) -> dict[str, Any]:
    """Return the configuration of the last training command of a stage, by dotted key.

    The script runs in the checkout, with `uv` and `python3` replaced by the stand-in and a HOME of its own; give a
    copy, because scripts delete folders of the checkout.

    Args:
        checkout: whose `path` is that copy.
        stage: what is run.
        output: folder for the stand-in and its record.
        python: interpreter that has `hydra-core` and `omegaconf`.

    Raises:
        BlockedError: the script sets a key that the checkout does not know, or starts no training.
    """
    programs, record = output / "bin", output / "resolved.json"
    programs.mkdir(parents=True, exist_ok=True)
    text = f"#!{python}\n{Path(str(stand_in.__file__)).read_text(encoding='utf-8')}"
    for name in ("uv", "python3", *stand_in.INSTALLERS):
        program = programs / name
        program.write_text(text, encoding="utf-8")
        program.chmod(program.stat().st_mode | stat.S_IXUSR)
    environment = {
        **{name: value for name, value in os.environ.items() if name in ("PATH", "LANG", "TMPDIR")},
        **checkout.variables(stage, output),
        "PATH": f"{programs}{os.pathsep}{os.environ['PATH']}",
        "HOME": str(output),
        "HF_HOME": str(output),
        "VERL_USE_UV": "0",
        stand_in.RECORD: str(record),
        stand_in.ROOT: str(checkout.path),
    }
    argv = checkout.argv(stage, output)
    launched = run_command(
        argv,
        log_path=output / "resolve.log",
        environment=environment,
        timeout_seconds=RESOLVE_SECONDS,
        directory=checkout.path,
    )
    if not record.is_file():
        said = (output / "resolve.log").read_text(encoding="utf-8", errors="replace").strip().splitlines()
        last = said[-1] if said else "nothing was printed"
        raise BlockedError(f"{stage.trial}: no training command was reached ({launched.describe()}): {last}")
    found: dict[str, Any] = json.loads(record.read_text(encoding="utf-8"))
    if "error" in found:
        raise BlockedError(f"{stage.trial}: {found['error']}")
    return found


def unmet(stage: Stage, configuration: Mapping[str, Any]) -> list[str]:
    """Return what a stage expects of its configuration and does not find, in words."""
    return [
        f"{key} is {configuration.get(key, 'not set')!r}, expected {value!r}"
        for key, value in stage.expects.items()
        if key not in configuration or configuration[key] != value
    ]


def checkout_of(
    stages: Stages, overrides: Sequence[str], environment: Mapping[str, str], variable: str
) -> Checkout:
    """Return the checkout that `checkout=DIR` (or an environment variable) and `bridge=DIR` name.

    Raises:
        UsageError: another word is given.
        BlockedError: no checkout is named, or it is not there.
    """
    given: dict[str, str] = {}
    for word in overrides:
        name, equals, value = word.partition("=")
        if not equals or name not in (CHECKOUT, BRIDGE):
            raise UsageError(f"{word}: trials of {stages.stack} take checkout=DIR and bridge=DIR")
        given[name] = value
    place = given.get(CHECKOUT) or environment.get(variable)
    if not place:
        raise BlockedError(f"give checkout=DIR or set {variable}: git clone {stages.remote}")
    path = Path(place).expanduser().resolve()
    if not path.is_dir():
        raise BlockedError(f"checkout={place} is not a folder: git clone {stages.remote} {place}")
    bridge = given.get(BRIDGE) or environment.get("BRIDGE_REPO")
    return Checkout(
        stages=stages,
        path=path,
        bridge=None if not bridge else Path(bridge).expanduser().resolve(),
        environment=environment,
    )
