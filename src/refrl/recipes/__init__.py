"""The configurations that come with refrl: package data, named without their suffix."""

from __future__ import annotations

from pathlib import Path

from refrl.errors import ConfigError
from refrl.nearest import hint

FOLDER = Path(__file__).resolve().parent


def recipe_names() -> list[str]:
    """Return the names of all recipes."""
    return sorted(path.stem for path in FOLDER.glob("*.yaml"))


def recipe_path(name: str) -> Path:
    """Return the file of a recipe.

    Raises:
        ConfigError: there is none of that name; the nearest one is named.
    """
    path = FOLDER / f"{name}.yaml"
    if name not in recipe_names():
        raise ConfigError(f"there is no recipe {name!r}; {hint(name, recipe_names())}")
    return path


def find_config(given: str) -> Path:
    """Return the file that `--config` names: a path, or the name of a recipe.

    A word without a folder and without a suffix is the name of a recipe where no such file exists.

    Raises:
        ConfigError: it is neither a file nor the name of a recipe.
    """
    path = Path(given)
    if path.is_file() or path.suffix or len(path.parts) > 1:
        return path
    return recipe_path(given)


def recipe_loop(name: str) -> str:
    """Return the command that a recipe is for: `grpo` or `sft`.

    Raises:
        ConfigError: there is no such recipe.
    """
    text = recipe_path(name).read_text(encoding="utf-8")
    return "sft" if any(line.startswith("sft:") for line in text.splitlines()) else "grpo"


def recipe_summary(name: str) -> str:
    """Return the first line of a recipe's comment.

    Raises:
        ConfigError: there is no such recipe.
    """
    first = recipe_path(name).read_text(encoding="utf-8").split("\n", 1)[0]
    return first.removeprefix("#").strip()
