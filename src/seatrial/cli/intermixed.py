"""An argument parser that accepts options anywhere and reports a mistake in one line with the remedy."""

from __future__ import annotations

import argparse
import itertools
import math
from collections.abc import Sequence
from typing import Any, NoReturn

from seatrial.nearest import hint
from seatrial.verdict import EXIT_USAGE


class IntermixedParser(argparse.ArgumentParser):
    """Accepts options before, between and after positional arguments, and names the nearest option or choice.

    A command that passes its last arguments on unchanged (`-- COMMAND`) is parsed as argparse does.
    """

    handed_on: str | None = None
    """Name of the list that takes what follows `--`; None where argparse decides."""
    _is_inside = False
    _words: Sequence[str] = ()
    """What is parsed: an error names an option in it that does not exist."""

    def __init__(self, *arguments: Any, **options: Any) -> None:
        """Make a parser whose options of type `int` and `float` refuse what no command can use."""
        super().__init__(*arguments, **options)
        self.register("type", float, _finite)
        self.register("type", int, _sixty_four_bits)

    def parse_known_args(  # type: ignore[override]
        self, args: Sequence[str] | None = None, namespace: argparse.Namespace | None = None
    ) -> tuple[argparse.Namespace, list[str]]:
        """Parse as argparse does, with intermixed options where possible; arguments that are left are an error."""
        if self._is_inside:
            return super().parse_known_args(args, namespace)
        self._words = tuple(args or ())
        if self.handed_on is not None and "--" in self._words:
            words = list(self._words)
            place = words.index("--")
            result, extras = self.parse_known_args(words[:place], namespace)
            setattr(result, self.handed_on, words[place + 1 :])
            return result, extras
        found: Any
        if "--" in self._words or not self._may_intermix():
            found = super().parse_known_args(args, namespace)
        else:
            # argparse's own intermixed parsing calls this method again for its two passes.
            self._is_inside = True
            try:
                found = self.parse_known_intermixed_args(args, namespace)
            finally:
                self._is_inside = False
        if found[1]:
            self.error(f"{found[1][0]!r} is one argument too many")
        return found[0], found[1]

    def error(self, message: str) -> NoReturn:
        """Print one line and exit with 2."""
        options = self._option_string_actions
        given = itertools.takewhile(lambda word: word != "--", self._words)
        names = (word.partition("=")[0] for word in given if word.startswith("--"))
        unknown = next((name for name in names if name not in options), None)
        if unknown is not None and not self._hands_on():
            message = f"there is no option {unknown}; {hint(unknown, [name for name in options if name[:2] == '--'])}"
        self.exit(EXIT_USAGE, f"{self.prog}: {message}; see {self.prog} --help\n")

    def _check_value(self, action: argparse.Action, value: Any) -> None:
        if action.choices is not None and value not in action.choices:
            known = [str(choice) for choice in action.choices]
            raise argparse.ArgumentError(action, f"{value!r} is unknown; {hint(str(value), known)}")

    def _hands_on(self) -> bool:
        """Return whether the last arguments belong to another command."""
        handed_on = (argparse.PARSER, argparse.REMAINDER)
        return any(action.nargs in handed_on for action in self._get_positional_actions())

    def _may_intermix(self) -> bool:
        positionals = self._get_positional_actions()
        grouped = any(
            action in group._group_actions
            for group in self._mutually_exclusive_groups
            for action in positionals
        )
        return not grouped and not self._hands_on()


def _finite(text: str) -> float:
    value = float(text)
    if not math.isfinite(value):
        raise argparse.ArgumentTypeError(f"{text!r} is not a finite number")
    return value


def _sixty_four_bits(text: str) -> int:
    value = int(text)
    if abs(value) >= 2**63:
        raise argparse.ArgumentTypeError(f"{text} is too large")
    return value
