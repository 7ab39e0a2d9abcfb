"""The command line: one small module per command, imported when it is called.

A command module `seatrial.cli.<name>` offers `add_arguments(parser)` and `run(arguments) -> int` (exit code).
"""

from __future__ import annotations

import argparse
import importlib
import sys
from collections.abc import Sequence

from seatrial.cli.intermixed import IntermixedParser
from seatrial.errors import BlockedError, UsageError
from seatrial.verdict import EXIT_BLOCKED, EXIT_INTERRUPTED, EXIT_USAGE

COMMANDS: dict[str, str] = {
    "run": "put a stack through trials and print the verdict",
    "watch": "put black-box rules to a run of any stack, while it trains or after",
    "triage": "say why a run died: the first error, where it lies, what to do next",
    "check": "judge logs by expressions such as 'max(data[\"train/loss\"]) < 2'",
    "migrate": "make suites from shell scripts that call NeMo RL's checker",
    "dump": "write all scalars of a log as metrics.json",
    "tags": "show what a log holds, tag by tag",
    "baseline": "learn the noise of repeated runs, and hold new runs to it",
    "equivalence": "run configurations that must agree, and hold them to one reference",
    "trend": "show how values moved over many runs, and where their level changed",
    "report": "draw the views of a run directory again",
    "ledger": "hold the rows that a run trained on to the laws of RL post-training",
    "syncproof": "hold the weights that a sampler serves to those that were trained",
    "new": "write a file to start from: reader, relation, rule, target or adapter",
    "relations": "hold a stack's components to the laws of RL post-training",
    "faults": "plant known bugs in the reference stack, and see what notices",
    "chaos": "kill, pause or slow a part of a run, and see what the run makes of it",
    "container": "run a command inside a container, its arguments intact",
    "bisect": "find the commit that broke it, also when runs are noisy",
    "doctor": "look at this machine before a run",
    "completion": "print what makes a shell complete commands and options",
}
"""Every command with its one-line help; the module is imported only when the command is called."""


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command.

    Returns:
        The exit code: 0 Pass, 1 Fail, 2 wrong usage, 3 Blocked, 5 nothing ran, 130 interrupted.
    """
    words = list(sys.argv[1:] if argv is None else argv)
    parser = _parser(words)
    arguments = parser.parse_args(words)
    if arguments.command is None:
        parser.print_help()
        return EXIT_USAGE
    try:
        return int(importlib.import_module(f"seatrial.cli.{arguments.command}").run(arguments))
    except UsageError as error:
        print(f"seatrial {arguments.command}: {error}", file=sys.stderr)
        return EXIT_USAGE
    except BlockedError as error:
        print(f"seatrial {arguments.command}: Blocked: {error}", file=sys.stderr)
        return EXIT_BLOCKED
    except BrokenPipeError:
        sys.stderr.close()
        return EXIT_INTERRUPTED
    except KeyboardInterrupt:
        print(f"\nseatrial {arguments.command}: interrupted", file=sys.stderr)
        return EXIT_INTERRUPTED


def _parser(words: Sequence[str]) -> argparse.ArgumentParser:
    """Build the parser; only the command that is called adds its arguments."""
    parser = argparse.ArgumentParser(
        prog="seatrial",
        description="Takes RL post-training stacks out on trial: does it work, and does it learn?",
        allow_abbrev=False,
    )
    parser.add_argument("--version", action="store_true", help="print the version and exit")
    commands = parser.add_subparsers(dest="command", metavar="COMMAND", parser_class=IntermixedParser)
    called = next((word for word in words if not word.startswith("-")), None)
    for name, summary in COMMANDS.items():
        command = commands.add_parser(name, help=summary, description=summary, allow_abbrev=False)
        if name == called:
            importlib.import_module(f"seatrial.cli.{name}").add_arguments(command)
    if "--version" in words[:1]:
        from seatrial import __version__

        print(f"seatrial {__version__}")
        raise SystemExit(0)
    return parser
