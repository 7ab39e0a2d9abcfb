"""An argument parser that accepts options before, between and after positional arguments."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from typing import Any


class IntermixedParser(argparse.ArgumentParser):
    """Accepts options anywhere, unless a command passes its last arguments on unchanged (`-- COMMAND`)."""

    handed_on: str | None = None
    """Name of the list that takes what follows `--`; None where argparse decides."""
    _is_inside = False

    def parse_known_args(  # type: ignore[override]
        self, args: Sequence[str] | None = None, namespace: argparse.Namespace | None = None
    ) -> tuple[argparse.Namespace, list[str]]:
        """Parse as argparse does, with intermixed options where possible."""
        if self.handed_on is not None and "--" in (args or ()):
            words = list(args or ())
            place = words.index("--")
            result, extras = self.parse_known_args(words[:place], namespace)
            setattr(result, self.handed_on, words[place + 1 :])
            return result, extras
        if self._is_inside or "--" in (args or ()) or not self._may_intermix():
            return super().parse_known_args(args, namespace)
        # argparse's own intermixed parsing calls this method again for its two passes.
        self._is_inside = True
        try:
            found: Any = self.parse_known_intermixed_args(args, namespace)
        finally:
            self._is_inside = False
        return found[0], found[1]

    def _may_intermix(self) -> bool:
        handed_on = (argparse.PARSER, argparse.REMAINDER)
        positionals = self._get_positional_actions()
        grouped = any(
            action in group._group_actions
            for group in self._mutually_exclusive_groups
            for action in positionals
        )
        return not grouped and not any(action.nargs in handed_on for action in positionals)
