"""An argument parser that reports wrong usage in one line with the remedy."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from typing import Any, NoReturn

from refrl.nearest import hint, meant


class OneLineParser(argparse.ArgumentParser):
    """Names the nearest option or choice instead of printing the usage."""

    _words: Sequence[str] = ()
    """What is parsed: an error names an option in it that does not exist."""

    def parse_known_args(  # type: ignore[override]
        self, args: Sequence[str] | None = None, namespace: argparse.Namespace | None = None
    ) -> tuple[argparse.Namespace, list[str]]:
        """Parse as argparse does; arguments that are left are an error."""
        self._words = tuple(args or ())
        found, left = super().parse_known_args(args, namespace)
        if left:
            self.error(f"{left[0]!r} is one argument too many")
        return found, left

    def error(self, message: str) -> NoReturn:
        """Print one line and exit with 2."""
        options = [name for name in self._option_string_actions if name.startswith("--")]
        given = (word.partition("=")[0] for word in self._words if word.startswith("--"))
        unknown = next((name for name in given if name not in options), None)
        if unknown is not None and not any(
            action.nargs == argparse.PARSER for action in self._get_positional_actions()
        ):
            message = " ".join(filter(None, (f"there is no option {unknown};", meant(unknown, options))))
        self.exit(2, f"{self.prog}: {message.rstrip(';')}; see {self.prog} --help\n")

    def _check_value(self, action: argparse.Action, value: Any) -> None:
        if action.choices is not None and value not in action.choices:
            known = [str(choice) for choice in action.choices]
            raise argparse.ArgumentError(action, f"{value!r} is unknown; {hint(str(value), known)}")
