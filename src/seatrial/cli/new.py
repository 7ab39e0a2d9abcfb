"""`seatrial new`: a file to start from, with a test that runs at once.

Templates are data of this package. `templates/KIND.txt` and `templates/test_KIND.txt` make a kind; an adapter's are
`templates/adapter_STACK.txt`, all with the one test `templates/test_adapter.txt`: a stack is added by adding its file.
`{{module}}` and `{{cls}}` stand for the name of the module, and for the class made of it.
"""

from __future__ import annotations

import argparse
import re
import sys
from collections.abc import Sequence
from pathlib import Path

from seatrial.cli.intermixed import IntermixedParser
from seatrial.errors import UsageError
from seatrial.files import not_written, write_text
from seatrial.verdict import EXIT_PASS

TEMPLATES = Path(__file__).resolve().parent / "templates"

KINDS = {
    "reader": "reads a log format that Seatrial does not know",
    "relation": "a law that every correct stack satisfies, checked on made inputs",
    "rule": "watches the logged metrics of a run of any stack",
    "target": "a stack under test: how it is launched, and where its evidence is",
}
"""Kinds of extensions, each with an entry point group `seatrial.<kind>s`, and a description."""

_ENTRY_POINT = """\
in your package's pyproject.toml:
    [project.entry-points."seatrial.{kind}s"]
    {module} = "{value}"
"""
_VALUES = {
    "reader": "{module}",
    "relation": "{module}",
    "rule": "{module}:RULES",
    "target": "{module}:{cls}",
}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments of `seatrial new`."""
    kinds = parser.add_subparsers(dest="kind", metavar="|".join([*KINDS, "adapter"]), required=True)
    commands = []
    for kind, summary in KINDS.items():
        commands.append(kinds.add_parser(kind, help=summary, allow_abbrev=False))
    adapter = kinds.add_parser(
        "adapter",
        help="connects a stack's own loss, advantages or trainer to the relations",
        allow_abbrev=False,
    )
    adapter.add_argument("stack", choices=stacks(), help="stack to adapt; `bare` is for your own functions")
    for command in [*commands, adapter]:
        command.add_argument(
            "name",
            metavar="NAME",
            nargs="?" if command is adapter else None,
            help="name of the module, such as my_log"
            + (" (default: my_STACK)" if command is adapter else ""),
        )
        command.add_argument(
            "--output",
            type=Path,
            default=Path(),
            metavar="DIR",
            help="folder to write the files to (default: here)",
        )
    target = kinds.choices["target"]
    target.add_argument(
        "--yaml",
        type=Path,
        metavar="RUN_DIR",
        help="write NAME.yaml, a stack without Python, from what a finished run wrote; its command follows --",
    )
    target.set_defaults(argv=[])
    if isinstance(target, IntermixedParser):  # the page of commands is drawn from argparse's own parser
        target.handed_on = "argv"


def stacks() -> list[str]:
    """Return the stacks for which there is an adapter template."""
    return sorted(path.stem.removeprefix("adapter_") for path in TEMPLATES.glob("adapter_*.txt"))


def run(arguments: argparse.Namespace) -> int:
    """Write `NAME.py` and `test_NAME.py`, and print how they are used.

    Raises:
        UsageError: the name is not a valid module name, or a file exists.
        BlockedError: the files cannot be written.
    """
    kind, folder = arguments.kind, arguments.output
    template = f"adapter_{arguments.stack}" if kind == "adapter" else kind
    name = f"my_{arguments.stack}" if arguments.name is None else arguments.name
    if not re.fullmatch(r"[a-z][a-z0-9_]*", name):
        raise UsageError(
            f"{name!r} is not a valid module name: use lower-case letters, digits and _, such as my_{kind}"
        )
    if kind == "target" and (arguments.yaml or arguments.argv):
        return _write_yaml(folder / f"{name}.yaml", arguments.yaml, arguments.argv)
    if name in sys.stdlib_module_names:
        raise UsageError(f"{name!r} is a module of Python, which {name}.py would hide: take another name")
    words = {"module": name, "cls": "".join(part.capitalize() for part in name.split("_"))}
    _write(folder / f"{name}.py", folder / f"test_{name}.py", template, f"test_{kind}", words)
    print(f"try it:  python -m pytest -q {folder / f'test_{name}.py'}")
    if kind == "adapter":
        print("use it:  seatrial relations {module}:{cls}".format(**words))
    else:
        entry = _ENTRY_POINT.format(kind=kind, module=name, value=_VALUES[kind].format(**words))
        print(f"use it:  {entry}", end="")
    return EXIT_PASS


def _write_yaml(path: Path, run: Path | None, argv: Sequence[str]) -> int:
    """Write the YAML file of a stack, and print how it is used."""
    from seatrial.targets.command.draft import draft

    if run is None:
        raise UsageError("a command after -- needs --yaml RUN_DIR: the folder that it wrote")
    if path.exists():
        raise UsageError(f"{path} is there already: take another name, or --output another folder")
    text = draft(run, argv)
    path.parent.mkdir(parents=True, exist_ok=True)
    write_text(path, text)
    print(
        f"wrote {path}\ncheck it:  seatrial doctor --target {path}\nuse it:    seatrial run --target {path} --level 0"
    )
    return EXIT_PASS


def _write(path: Path, test: Path, template: str, test_template: str, words: dict[str, str]) -> None:
    """Write both files, or neither if one of them exists."""
    files = {path: template, test: test_template}
    for file in files:
        if file.exists():
            raise UsageError(f"{file} is there already: take another name, or --output another folder")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        for file, source in files.items():
            with file.open("x", encoding="utf-8") as stream:
                stream.write(_filled((TEMPLATES / f"{source}.txt").read_text(encoding="utf-8"), words))
            print(f"wrote {file}")
    except OSError as error:
        raise not_written("write", path, error) from error


def _filled(text: str, words: dict[str, str]) -> str:
    return re.sub(r"\{\{(\w+)\}\}", lambda found: words[found.group(1)], text)
