"""`refrl new`: writes a starting point for a loss, a verifier or a task."""

from __future__ import annotations

import argparse
import re
import sys
from pathlib import Path

from refrl.errors import ConfigError

KINDS = ("loss", "verifier", "task")
TEMPLATES = Path(__file__).resolve().parent / "templates"

USE = {
    "loss": "refrl grpo --config grpo-smoke policy.model_name=MODEL loss_fn.kind={module}:{cls}",
    "verifier": "refrl grpo --config grpo-smoke policy.model_name=MODEL data.verifier={module}:{name}",
    "task": "refrl grpo --config grpo-smoke policy.model_name=MODEL data.task={module}:{cls} data.task_args={{}}",
}
"""The command that uses the new part."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the kind, the name and the output directory."""
    parser.add_argument("kind", choices=KINDS, help="what to write")
    parser.add_argument(
        "name", metavar="NAME", help="of the module: letters, digits and _, such as word_overlap"
    )
    parser.add_argument("--output", type=Path, default=Path(), metavar="DIR", help="where (default: here)")


def run(arguments: argparse.Namespace) -> None:
    """Write `NAME.py` and `test_NAME.py`, and print how to use them.

    Raises:
        ConfigError: the name is not a valid module name, or a file exists already.
    """
    name = arguments.name
    if not re.fullmatch(r"[a-z][a-z0-9_]*", name):
        raise ConfigError(
            f"{name!r} is not a module name: use lower-case letters, digits and _, such as word_overlap"
        )
    if name in sys.stdlib_module_names:
        raise ConfigError(f"{name!r} is a module of Python, which {name}.py would hide: use another name")
    words = {"module": name, "name": name, "cls": "".join(part.capitalize() for part in name.split("_"))}
    files = {
        arguments.output / f"{name}.py": TEMPLATES / f"{arguments.kind}.txt",
        arguments.output / f"test_{name}.py": TEMPLATES / f"test_{arguments.kind}.txt",
    }
    for path in files:
        if path.exists():
            raise ConfigError(f"{path} exists already: use another name, or --output another directory")
    arguments.output.mkdir(parents=True, exist_ok=True)
    for path, template in files.items():
        text = template.read_text(encoding="utf-8")
        for key, value in words.items():
            text = text.replace("{{" + key + "}}", value)
        with path.open("x", encoding="utf-8") as stream:
            stream.write(text)
        print(f"wrote {path}")
    print("try it:  " + " ".join(["python -m pytest -q", str(arguments.output / f"test_{name}.py")]))
    print("use it:  " + USE[arguments.kind].format(**words))
