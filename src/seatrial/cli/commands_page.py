"""The page of all commands, drawn from their parsers: docs/evidence/commands.md."""

from __future__ import annotations

import argparse
import importlib
from collections.abc import Iterator, Mapping

from seatrial.cli import COMMANDS


def commands_page(note: str) -> str:
    """Return every command of both programs with its arguments.

    Args:
        note: a sentence on how the page is made.
    """
    from seatrial.targets.reference.manual import command_parsers

    lines = [
        "# Commands",
        "",
        f"{note} `COMMAND --help` prints the same. Options may come before or after the other arguments of a command,",
        "but for what follows a `--`. Exit codes: 0 Pass, 1 Fail, 2 wrong usage, 3 Blocked, 5 nothing ran,",
        "130 interrupted ([verdicts](../extend/verdicts.md)).",
    ]
    lines += _program("seatrial", _own_parsers())
    lines += _program("refrl", command_parsers())
    return "\n".join(lines) + "\n"


def _own_parsers() -> dict[str, argparse.ArgumentParser]:
    parsers = {}
    for name, summary in COMMANDS.items():
        parsers[name] = argparse.ArgumentParser(prog=f"seatrial {name}", description=summary)
        importlib.import_module(f"seatrial.cli.{name}").add_arguments(parsers[name])
    return parsers


def _program(program: str, parsers: Mapping[str, argparse.ArgumentParser]) -> Iterator[str]:
    yield from ("", f"## {program}", "", "| command | does |", "|---|---|")
    for name, parser in parsers.items():
        yield f"| [`{program} {name}`](#{program}-{name}) | {_cell(parser.description or '')} |"
    for parser in parsers.values():
        yield from _command(parser)


def _command(parser: argparse.ArgumentParser) -> Iterator[str]:
    """Yield the heading and the table of a command, then those of the commands inside it."""
    inner = [action for action in parser._actions if isinstance(action, argparse._SubParsersAction)]
    yield from ("", f"### {parser.prog}", "", f"{_sentence(parser.description or '')}")
    shown = [
        action for action in parser._actions if action not in inner and "--help" not in action.option_strings
    ]
    if shown:
        yield from ("", "| argument | meaning |", "|---|---|")
        yield from (f"| {_name(action)} | {_cell(_help(parser, action))} |" for action in shown)
    for action in inner:
        summaries = {choice.dest: choice.help or "" for choice in action._choices_actions}
        for name, held in action.choices.items():
            held.description = held.description or summaries.get(name)
            yield from _command(held)


def _name(action: argparse.Action) -> str:
    """Return an argument as it is written on the command line."""
    if action.nargs == 0:
        value = ""
    elif action.metavar is None and action.choices is not None:
        value = " or ".join(map(str, action.choices))
    else:
        value = (
            action.metavar
            if isinstance(action.metavar, str)
            else (action.metavar or (action.dest.upper(),))[0]
        )
    many = " ..." if action.nargs in ("*", "+", argparse.REMAINDER) else ""
    option = ", ".join(action.option_strings)
    text = f"{option} {value}".strip() + many
    return f"`{text}` (required)" if action.required and option else f"`{text}`"


def _help(parser: argparse.ArgumentParser, action: argparse.Action) -> str:
    return parser._get_formatter()._expand_help(action) if action.help else ""


def _sentence(text: str) -> str:
    whole = " ".join(text.split())
    return whole[:1].upper() + whole[1:] + ("" if whole.endswith(".") else ".")


def _cell(text: str) -> str:
    return " ".join(text.replace("|", "\\|").replace("<", "&lt;").split())
