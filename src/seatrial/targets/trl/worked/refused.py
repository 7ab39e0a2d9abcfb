"""Worked examples of files of options: a name that no option has is refused."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from seatrial.targets.trl.worked.rows import Row

FILES: Mapping[str, tuple[str, str]] = {
    "a name of an option": ("count: 3\n", "3"),
    "a name that no option has": ("count: 3\nwords: x\n", "refused"),
    "a misspelt name": ("cuont: 3\n", "refused"),
    "a name that no option has, after environment variables": ("env:\n  A_B: '1'\nother: 3\n", "refused"),
}
"""Files of options, and the count that is read of them."""


@dataclass
class _Counted:
    """Options with a number."""

    count: int = 1


def _read(file: str, parser_class: Callable[..., Any]) -> str:
    """Return the count that a parser reads of a file of options, or that it refuses the file."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "options.yaml")
        path.write_text(file)
        try:
            (found,) = parser_class((_Counted,)).parse_args_and_config(["--config", str(path)])
        except ValueError:
            return "refused"
    return str(found.count)


REFUSED_ROWS: Sequence[Row] = [
    Row(
        "options",
        "trl:TrlParser trl.scripts.utils:TrlParser",
        f"a file with {name}",
        partial(_read, file),
        right,
        "0.19",
    )
    for name, (file, right) in FILES.items()
]
