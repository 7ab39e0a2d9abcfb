"""refrl's command, its defaults and its files of prompts, offered to the relations."""

from __future__ import annotations

import contextlib
import io
import os
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import yaml

from refrl.cli import main
from refrl.cli.new import KINDS
from refrl.config import DataConfig
from refrl.tasks import Example
from refrl.training import build
from seatrial.relations.contracts.command import Ended, ReadPrompt, ReadPrompts
from seatrial.targets.reference.configuration import configuration, dotted, least, table
from seatrial.targets.reference.runs.forking import run_forked

COMMAND = "SEATRIAL_REFRL_COMMAND"
"""Variable with the module, and its first words, that is run in place of refrl: a fault is planted so."""
SECONDS = 300.0
WRITING: Mapping[str, Sequence[str]] = {
    "make-model": ("make-model",),
    "make-model of experts": ("make-model", "--family", "qwen3_moe"),
    **{f"new {kind}": ("new", kind, "word_overlap") for kind in KINDS},
}
"""The commands that write files, by name."""
CHANGED_MODELS: Mapping[str, Mapping[str, Sequence[str]]] = {
    "make-model": {
        "family": ("llama",),
        "hidden-size": ("48",),
        "num-layers": ("3",),
        "num-heads": ("8",),
        "num-kv-heads": ("1",),
        "head-dim": ("64",),
        "intermediate-size": ("80",),
        "max-positions": ("100",),
        "seed": ("1",),
        "initializer-range": ("0.3",),
        "small-norms": (),
        "tie-word-embeddings": (),
        "draft-head": (),
    },
    "make-model of experts": {"num-experts": ("8",), "experts-per-token": ("1",)},
}
"""By command: its options, with values that must change the model."""


class ReferenceCommands:
    """See `seatrial.relations.contracts.command`."""

    options: Mapping[str, Any]
    output_option = "--output"

    def writing_commands(self) -> Mapping[str, Sequence[str]]:
        return WRITING

    def options_of(self, command: str) -> Mapping[str, Sequence[str]]:
        return {name: (f"--{name}", *values) for name, values in CHANGED_MODELS.get(command, {}).items()}

    def run_in(self, folder: Path, words: Sequence[str]) -> Ended:
        before = Path.cwd()
        output = io.StringIO()
        os.chdir(folder)
        try:
            with contextlib.redirect_stdout(output), contextlib.redirect_stderr(output):
                status = main(list(words))
        finally:
            os.chdir(before)
        return Ended(status=status, output=output.getvalue())

    def effective_options(self, overrides: Sequence[str]) -> Ended:
        ended = self._grpo(["--print-config"], overrides)
        if ended.status != 0:
            return ended
        try:
            printed = yaml.safe_load(ended.output)
        except yaml.YAMLError:
            return ended
        return replace(ended, options=dotted(printed)) if isinstance(printed, dict) else ended

    def run_command(self, overrides: Sequence[str]) -> Ended:
        return self._grpo([], ["grpo.max_num_steps=3", *overrides])

    def documented_defaults(self) -> Mapping[str, Any]:
        documented: dict[str, Any] = table("defaults")
        return documented

    def effective_defaults(self) -> Mapping[str, Any]:
        return least()

    def read_prompts(
        self,
        path: Path,
        *,
        held_out: Path | None = None,
        num_held_out: int | None = None,
        drop_shared: bool = False,
        with_solutions: bool = True,
    ) -> ReadPrompts:
        chosen = {"validation_path": str(held_out)} if held_out is not None else {}
        if drop_shared:
            chosen["on_overlap"] = "drop"
        splits = build.build_splits(
            DataConfig(
                train_path=str(path),
                solution_key="solution" if with_solutions else None,
                num_validation=num_held_out,
                **chosen,  # type: ignore[arg-type]
            )
        )
        return ReadPrompts(train=_read(splits.train), held_out=_read(splits.validation))

    def _grpo(self, flags: Sequence[str], overrides: Sequence[str]) -> Ended:
        with tempfile.TemporaryDirectory() as folder:
            fixed = {"logger.log_dir": f"{folder}/log"}
            written = Path(folder) / "config.yaml"
            config = configuration({**self.options, **fixed}).model_dump(mode="json")
            written.write_text(yaml.safe_dump(config), encoding="utf-8")
            words = ["grpo", "--config", str(written), *flags, *overrides]
            if COMMAND not in os.environ:
                status, output = run_forked(main, words, SECONDS)
                return Ended(status=status, output=output)
            ended = subprocess.run(
                [sys.executable, "-m", *os.environ[COMMAND].split(), *words],
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                text=True,
                timeout=SECONDS,
                start_new_session=True,
                check=False,
            )
        return Ended(status=ended.returncode, output=ended.stdout)


def _read(examples: Sequence[Example]) -> list[ReadPrompt]:
    return [
        ReadPrompt(prompt_id=one.prompt_id, prompt=one.prompt, answer=one.answer, solution=one.solution)
        for one in examples
    ]
