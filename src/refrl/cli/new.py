"""`refrl new`: a file to start from."""

from __future__ import annotations

import argparse
import re
from pathlib import Path

from refrl.errors import ConfigError

KINDS = ("loss", "verifier", "task")
TEMPLATES = Path(__file__).resolve().parent / "templates"

USE = {
    "loss": "refrl grpo --config grpo-smoke policy.model_name=MODEL loss_fn.kind={module}:{cls}",
    "verifier": "refrl grpo --config grpo-smoke policy.model_name=MODEL data.verifier={module}:{name}",
    "task": "refrl grpo --config grpo-smoke policy.model_name=MODEL data.task={module}:{cls} data.task_args={{}}",
}
"""How the new part is put to use."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare what is wanted, its name, and where it goes."""
    parser.add_argument("kind", choices=KINDS, help="what is written")
    parser.add_argument(
        "name", metavar="NAME", help="of the module: letters, digits and _, such as word_overlap"
    )
    parser.add_argument("--output", type=Path, default=Path(), metavar="DIR", help="where (default: here)")


def run(arguments: argparse.Namespace) -> None:
    """Write `NAME.py` and `test_NAME.py`, and say how to use them.

    Raises:
        ConfigError: the name is none that Python can import, or a file is there already.
    """
    name = arguments.name
    if not re.fullmatch(r"[a-z][a-z0-9_]*", name):
        raise ConfigError(
            f"{name!r} is no name of a module: small letters, digits and _, such as word_overlap"
        )
    words = {"module": name, "name": name, "cls": "".join(part.capitalize() for part in name.split("_"))}
    files = {
        arguments.output / f"{name}.py": TEMPLATES / f"{arguments.kind}.txt",
        arguments.output / f"test_{name}.py": TEMPLATES / f"test_{arguments.kind}.txt",
    }
    for path in files:
        if path.exists():
            raise ConfigError(f"{path} is there already: take another name, or --output another folder")
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
