"""Arguments that commands share."""

from __future__ import annotations

import argparse
from pathlib import Path


def add_config_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare `--config FILE key=value ...`."""
    parser.add_argument("--config", type=Path, required=True, metavar="FILE", help="YAML configuration")
    parser.add_argument(
        "overrides",
        nargs="*",
        metavar="key=value",
        help="values that replace the file's, such as grpo.seed=1",
    )
