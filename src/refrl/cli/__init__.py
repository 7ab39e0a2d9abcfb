"""The command line: `refrl grpo|sft --config FILE key=value ...`, `profile`, `recipes`, `new` and `make-model`.

Exit codes: 0 success, 1 training cannot continue, 2 wrong usage, 130 interrupted, 143 terminated.
"""

from __future__ import annotations

import argparse
import importlib
import signal
import sys
from collections.abc import Sequence
from types import FrameType

from refrl.cli.parser import OneLineParser
from refrl.errors import ConfigError, out_of_memory
from refrl.masking import masked_text

COMMANDS = {
    "grpo": ("refrl.cli.train", "train with group-relative policy optimization"),
    "sft": ("refrl.cli.train", "fine-tune on the answers"),
    "profile": ("refrl.cli.profile", "profile one training step: a trace and a table"),
    "recipes": ("refrl.cli.recipes", "list the configurations that come with refrl"),
    "new": ("refrl.cli.new", "write a loss, a verifier or a task to start from, with a test"),
    "make-model": ("refrl.cli.make_model", "make a tiny byte-level model as a Hugging Face directory"),
}
"""Every command: its module, imported when it is called, and its help."""

EXIT_FAILED = 1
EXIT_USAGE = 2
EXIT_INTERRUPTED = 130
EXIT_TERMINATED = 143


class Terminated(BaseException):
    """SIGTERM arrived; like KeyboardInterrupt, it bypasses error handlers and closes what is open."""


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command and return its exit code."""
    words = list(sys.argv[1:] if argv is None else argv)
    arguments = _parser(words).parse_args(words)
    # A shell starts background jobs with SIGINT ignored; a run must be stoppable regardless of how it was started.
    previous = {
        signal.SIGINT: signal.signal(signal.SIGINT, signal.default_int_handler),
        signal.SIGTERM: signal.signal(signal.SIGTERM, _terminate),
    }
    try:
        importlib.import_module(COMMANDS[arguments.command][0]).run(arguments)
    except ConfigError as error:
        return _fail(arguments.command, error, EXIT_USAGE)
    except (OSError, ArithmeticError) as error:  # includes TrainingError and non-finite logits
        return _fail(arguments.command, error, EXIT_FAILED)
    except (MemoryError, RuntimeError) as error:
        reason = out_of_memory(error)
        if reason is None:
            raise
        return _fail(arguments.command, reason, EXIT_FAILED)
    except KeyboardInterrupt:
        return _fail(arguments.command, "interrupted", EXIT_INTERRUPTED)
    except Terminated:
        return _fail(arguments.command, "terminated", EXIT_TERMINATED)
    finally:
        for number, handler in previous.items():
            signal.signal(number, handler)
    return 0


def _parser(words: Sequence[str]) -> argparse.ArgumentParser:
    parser = OneLineParser(prog="refrl", description="A compact, real GRPO and SFT stack.")
    commands = parser.add_subparsers(dest="command", metavar="COMMAND", required=True)
    called = next((word for word in words if not word.startswith("-")), None)
    for name, (module, summary) in COMMANDS.items():
        command = commands.add_parser(name, help=summary, description=summary, allow_abbrev=False)
        if name == called:
            importlib.import_module(module).add_arguments(command)
    return parser


def _fail(command: str, reason: object, code: int) -> int:
    print(f"refrl {command}: {masked_text(' '.join(str(reason).split()))}", file=sys.stderr)
    return code


def _terminate(number: int, frame: FrameType | None) -> None:
    raise Terminated
