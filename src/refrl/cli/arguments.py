"""Arguments that commands share."""

from __future__ import annotations

import argparse
from pathlib import Path

from refrl.launcher import is_launcher, launch


def add_config_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare `--config FILE key=value ...`."""
    parser.add_argument("--config", type=Path, required=True, metavar="FILE", help="YAML configuration")
    parser.add_argument(
        "overrides",
        nargs="*",
        metavar="key=value",
        help="values that replace the file's, such as grpo.seed=1",
    )


def launch_processes(arguments: argparse.Namespace, num_processes: int) -> bool:
    """Run the command in so many processes, and wait for them; False where this process is the one, or one of them."""
    if not is_launcher(num_processes):
        return False
    launch([arguments.command, "--config", str(arguments.config), *arguments.overrides], num_processes)
    return True
