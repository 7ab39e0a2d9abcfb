"""Documentation of refrl's configuration and commands."""

from __future__ import annotations

import argparse
import importlib

from refrl.cli import COMMANDS
from refrl.config.describe import configuration_page

__all__ = ["command_parsers", "configuration_page"]


def command_parsers() -> dict[str, argparse.ArgumentParser]:
    """Return the parser of each command, by its name."""
    parsers = {}
    for name, (module, summary) in COMMANDS.items():
        parsers[name] = argparse.ArgumentParser(prog=f"refrl {name}", description=summary)
        importlib.import_module(module).add_arguments(parsers[name])
    return parsers
