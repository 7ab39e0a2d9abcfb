"""`refrl recipes`."""

from __future__ import annotations

import argparse

from refrl.recipes import recipe_loop, recipe_names, recipe_path, recipe_summary


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the recipe to print, if any."""
    parser.add_argument("name", nargs="?", metavar="NAME", help="print this recipe as it is written")


def run(arguments: argparse.Namespace) -> None:
    """List every recipe with its command, or print one.

    Raises:
        ConfigError: no recipe has that name.
    """
    if arguments.name is not None:
        print(recipe_path(arguments.name).read_text(encoding="utf-8"), end="")
        return
    for name in recipe_names():
        print(f"refrl {recipe_loop(name):<5}--config {name:<16} {recipe_summary(name)}")
