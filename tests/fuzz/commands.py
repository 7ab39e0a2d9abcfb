"""Feeds damaged logs to the commands: each ends with an exit code, and none with a traceback.

    python -m tests.fuzz.commands FOLDER [--cases 2000] [--seed 0] [--half tuning]

FOLDER holds ID/NAME for the labelled public logs (`benchmarks/rules_corpus.py --fetch`). Prints how many inputs ended
with each exit code, and exits with 1 after a traceback, whose input it names.
"""

from __future__ import annotations

import argparse
import contextlib
import io
import random
import sys
import tempfile
import traceback
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

from tests.fuzz.damage import mutate, odd_values, truncate

from seatrial.cli import main

DAMAGES = (mutate, odd_values, truncate)
COMMANDS = (
    ("watch", "--missing"),
    ("tags",),
    ("check", 'mean(data["loss"]) < 10', 'max(data["reward"]) < 1e9'),
    ("triage",),
)
CODES = {0, 1, 2, 3, 5}
MAX_BYTES = 1 << 20


def run(path: Path, command: tuple[str, ...]) -> int:
    """Run a command on a log and return its exit code; what it prints is dropped."""
    with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()):
        try:
            return main([command[0], str(path), *command[1:]])
        except SystemExit as error:
            return int(error.code or 0)


def cases(
    files: list[Path], number: int, seed: int, into: Path
) -> Iterator[tuple[int, Path, tuple[str, ...]]]:
    """Yield the seed of each case, its damaged file and its command."""
    for place in range(seed, seed + number):
        generator = random.Random(place)
        valid = generator.choice(files)
        content = valid.read_bytes()[:MAX_BYTES]
        path = into / valid.name
        path.write_bytes(generator.choice(DAMAGES)(generator, content))
        yield place, path, COMMANDS[place % len(COMMANDS)]
        path.unlink()


def _main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folder", type=Path)
    parser.add_argument("--cases", type=int, default=2000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--half", choices=("tuning", "held-out"), default="tuning")
    options = parser.parse_args()
    first = "01234567" if options.half == "tuning" else "89abcdef"
    files = sorted(
        path
        for path in options.folder.glob("*/*")
        if path.is_file() and path.parent.name[0] in first and len(path.parent.name) == 10
    )
    codes: Counter[int] = Counter()
    num_broken = 0
    with tempfile.TemporaryDirectory() as into:
        for seed, path, command in cases(files, options.cases, options.seed, Path(into)):
            try:
                codes[run(path, command)] += 1
            except Exception:  # noqa: BLE001 (any of them is what is looked for)
                num_broken += 1
                print(f"seed {seed}: {' '.join(command)} on {path.name}")
                traceback.print_exc(limit=-4, file=sys.stdout)
    print(f"{options.cases} damaged files: exit codes {dict(sorted(codes.items()))}, {num_broken} tracebacks")
    return int(num_broken > 0 or not CODES.issuperset(codes))


if __name__ == "__main__":
    sys.exit(_main())
