"""The command line: one small module per command, imported when it is called.

A command module `seatrial.cli.<name>` offers `add_arguments(parser)` and `run(arguments) -> int` (exit code).
"""

from __future__ import annotations

import argparse
import atexit
import gc
import importlib
import sys
from collections.abc import Sequence

from seatrial.cli.intermixed import IntermixedParser
from seatrial.errors import BlockedError, UsageError
from seatrial.verdict import EXIT_BLOCKED, EXIT_INTERRUPTED, EXIT_USAGE

GROUPS: dict[str, dict[str, str]] = {
    "a run is in progress": {
        "watch": "run black-box rules on the log of any stack, while it trains or after",
        "chaos": "kill, pause or slow a part of a run, and report whether the run handles it",
        "container": "run a command inside a container with its arguments intact",
    },
    "a run is over": {
        "check": "judge logs by expressions such as 'max(data[\"train/loss\"]) < 2'",
        "report": "draw a page from a run directory or from one or two logs",
        "triage": "say why a run crashed: the first error, where the cause is, what to do next",
        "ledger": "check the rows that a run trained on against the laws of RL post-training",
        "syncproof": "check that the sampler's weights are the trained ones",
        "tags": "show the contents of a log, tag by tag",
        "dump": "write all scalars of a log as metrics.json",
        "migrate": "convert shell scripts that call NeMo RL's checker into suites",
    },
    "I changed the loss": {
        "relations": "check a stack's components against the laws of RL post-training",
        "explain": "explain an id from a message: a known bug, a relation, a law, a rule",
        "equivalence": "run configurations that must agree, and compare them with one reference",
        "new": "write a file to start from: reader, relation, rule, target or adapter",
    },
    "I maintain a stack": {
        "run": "test a stack in trials and print the verdict",
        "faults": "plant known bugs in the reference stack and report which relations detect them",
        "doctor": "check this machine before a run",
        "completion": "print shell code that completes commands and options",
    },
    "a nightly broke": {
        "compare": "run the same trials on two commits or releases, and name what the second broke",
        "bisect": "find the commit that broke it, even with noisy runs",
        "baseline": "learn the noise of repeated runs and judge new runs by it",
        "trend": "show how values changed over many runs, and where their level shifted",
    },
}
"""Every command with its one-line help, grouped by the user's situation."""
COMMANDS = {name: summary for group in GROUPS.values() for name, summary in group.items()}


class _GroupedHelp(argparse.HelpFormatter):
    """Prints the commands by group."""

    def _format_action(self, action: argparse.Action) -> str:
        if not isinstance(action, argparse._SubParsersAction):
            return super()._format_action(action)
        lines = []
        for group, commands in GROUPS.items():
            lines.append(f"\n{group}:")
            lines += [f"  {name:<12} {summary}" for name, summary in commands.items()]
        return "\n".join(lines) + "\n"


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command.

    Returns:
        The exit code: 0 Pass, 1 Fail, 2 wrong usage, 3 Blocked, 5 nothing ran, 130 interrupted.
    """
    # At its end the interpreter looks through all that was imported for what could be freed: a second for torch.
    atexit.register(gc.freeze)
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
    parser = IntermixedParser(
        prog="seatrial",
        description="Tests RL post-training stacks for language models: does it work, and does it learn?",
        epilog="seatrial COMMAND --help prints the options of a command.",
        formatter_class=_GroupedHelp,
        allow_abbrev=False,
    )
    parser.add_argument("--version", action="store_true", help="print the version and exit")
    commands = parser.add_subparsers(title="commands", dest="command", metavar="COMMAND")
    name_called = next((word for word in words if not word.startswith("-")), None)
    for name, summary in COMMANDS.items():
        command = commands.add_parser(name, help=summary, description=summary, allow_abbrev=False)
        if name == name_called:
            importlib.import_module(f"seatrial.cli.{name}").add_arguments(command)
    if "--version" in words[:1]:
        from seatrial import __version__

        print(f"seatrial {__version__}")
        raise SystemExit(0)
    return parser
