"""The commands `trl NAME`: what they launch, by options of a command line and of a file."""

from __future__ import annotations

import contextlib
import importlib
import importlib.util
import sys
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any
from unittest.mock import patch

import yaml

from seatrial.relations.not_served import NotServed
from seatrial.targets.common.target import Gone, release
from seatrial.targets.common.trainers import new_folder
from seatrial.targets.trl.former import LAUNCHES
from seatrial.targets.trl.worked.launched import KINDS, quiet
from seatrial.targets.trl.worked.rows import Row
from seatrial.targets.trl.worked.seen import or_refused

OWN = ("--model_name_or_path", "m", "--dataset_name", "d", "--use_cpu", "true", "--bf16", "false")
"""Words that every script needs here."""
ALL_CASES = ("sft", "dpo")
FEW = ("a file", "processes, at the end")
"""Of the commands that are not in `ALL_CASES`."""


def _launched(script: str, words: Sequence[str], file: Mapping[str, Any] | None, _: Any) -> dict[str, Any]:
    """Return what a command launches, and what its script would read."""
    cli = importlib.import_module("trl.cli")
    launches: list[Any] = []
    with contextlib.ExitStack() as stack:
        if hasattr(cli, "launch_command"):
            stack.enter_context(patch.object(cli, "launch_command", launches.append))
        else:
            launcher = importlib.import_module("trl.cli.accelerate_launcher")
            own = {"launch_command_fn": launches.append}
            stack.enter_context(patch.dict(launcher.launch_training_script.__kwdefaults__, own))
        folder = Path(new_folder())
        (folder / "launch.yaml").write_text("compute_environment: LOCAL_MACHINE\nnum_processes: 5\n")
        given = [word.replace("FOLDER", str(folder)) for word in words]
        if file is not None:
            text = yaml.safe_dump(dict(file)).replace("FOLDER", str(folder))
            (folder / "options.yaml").write_text(text, encoding="utf-8")
            given += ["--config", str(folder / "options.yaml")]
        copies = ["--num_generations", "2"] if KINDS[script][1] == "prompts" else []
        own_words = [*OWN, *copies, "--output_dir", str(folder)]
        stack.enter_context(patch.object(sys, "argv", ["trl", script, *given, *own_words]))
        stack.enter_context(quiet())
        with contextlib.suppress(SystemExit):
            cli.main() if hasattr(cli, "main") else importlib.import_module("trl.cli.main").main()
    if not launches:
        raise NotServed(f"the command {script} launches nothing")
    options = vars(launches[0])
    parser = importlib.import_module(f"trl.scripts.{script}").make_parser()
    read = parser.parse_args_and_config(options["training_script_args"], return_remaining_strings=True)[:3]
    return {
        "file": Path(str(options["config_file"])).name,
        "processes": options["num_processes"],
        "script": Path(options["training_script"]).name,
        "rows of a batch": read[1].per_device_train_batch_size,
        "rate": read[1].learning_rate,
        "rank": read[2].lora_r,
    }


def _commands() -> Sequence[Row]:
    """Return the rows of the commands.

    Raises:
        Gone: the release has no commands that launch scripts with options of their own.
    """
    if "accelerate_config" not in _source_of_commands():
        raise Gone(f"the commands of trl {release('trl')} take no file of a launch")
    sized = ("--per_device_train_batch_size", "2", "--learning_rate", "0.25", "--lora_r", "2")
    right = {"file": "None", "processes": None, "rows of a batch": 2, "rate": 0.25, "rank": 2}
    of_file = {"accelerate_config": "FOLDER/launch.yaml", "num_processes": 3}
    cases: Mapping[str, tuple[Sequence[str], Mapping[str, Any] | None, Mapping[str, Any]]] = {
        "no options of the launch": (sized, None, {}),
        "a file": (("--accelerate_config", "FOLDER/launch.yaml", *sized), None, {"file": "launch.yaml"}),
        "a file by name, at the end": (
            (*sized, "--accelerate_config", "zero2"),
            None,
            {"file": "zero2.yaml"},
        ),
        "processes": (("--num_processes", "2", *sized), None, {"processes": 2}),
        "processes, at the end": ((*sized, "--num_processes", "2"), None, {"processes": 2}),
        "both in a file of options": (sized, of_file, {"file": "launch.yaml", "processes": 3}),
        "processes in both": (
            ("--num_processes", "2", *sized),
            of_file,
            {"file": "launch.yaml", "processes": 2},
        ),
    }
    return [
        Row(
            "commands",
            f"trl.scripts.{script}:main",
            f"{script}, {what}",
            or_refused(partial(_launched, script, words, file)),
            {**right, "script": f"{script}.py", **own},
            known=LAUNCHES if script != "sft" else None,
        )
        for script in KINDS
        for what, (words, file, own) in cases.items()
        if script in ALL_CASES or what in FEW
        if importlib.util.find_spec(f"trl.scripts.{script}")
    ]


def _source_of_commands() -> str:
    cli = importlib.import_module("trl.cli")
    files = [Path(str(cli.__file__)), *Path(str(cli.__file__)).parent.glob("accelerate_*.py")]
    return "".join(file.read_text(encoding="utf-8") for file in files)


COMMANDS: Mapping[str, Callable[[], Sequence[Row]]] = {"commands": _commands}
