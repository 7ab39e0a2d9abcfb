"""Processor time and memory of `check` and `watch` on a large JSON Lines file, next to plain `json.loads` of each line.

    python benchmarks/jsonl_memory.py [--mebibytes 82] [--columns 30] [--json FILE]

The file is made in a temporary folder. Each command runs in a process of its own, after one that compiles the modules;
its largest resident memory is given in sizes of the file, and its processor time in times of a process that parses each
line and drops it.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import NamedTuple

MEASURE = """
import resource, subprocess, sys
ran = subprocess.run(sys.argv[1:], stdout=subprocess.DEVNULL, check=False)
used = resource.getrusage(resource.RUSAGE_CHILDREN)
print(ran.returncode, used.ru_utime + used.ru_stime, used.ru_maxrss)
"""
PARSE = "import json, sys\nfor line in open(sys.argv[1]):\n    json.loads(line)"


class Cost(NamedTuple):
    """What a process took."""

    code: int
    seconds: float
    kibibytes: int


def measure(*command: str) -> Cost:
    """Run a command and return its exit code, processor time and largest resident memory."""
    ran = subprocess.run(
        [sys.executable, "-c", MEASURE, *command],
        capture_output=True,
        text=True,
        check=True,
        env=_environment(),
    )
    code, seconds, memory = ran.stdout.split()
    return Cost(int(code), float(seconds), int(memory))


def _environment() -> dict[str, str]:
    """Return the variables of this process, with which modules are compiled once, as those of a package are."""
    return {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}


def write(path: Path, mebibytes: int, columns: int) -> None:
    """Write rows of random numbers, and one with text in 500."""
    draw = random.Random(0)
    size = step = 0
    with path.open("w") as file:
        while size < mebibytes << 20:
            step += 1
            row = {"step": step, **{f"train/metric_{place}": draw.random() for place in range(columns)}}
            size += file.write(json.dumps(row if step % 500 else {**row, "note": "x"}) + "\n")


def main() -> None:
    """Measure and print the ratios."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--mebibytes", type=int, default=82)
    parser.add_argument("--columns", type=int, default=30)
    parser.add_argument("--json", type=Path, help="write the figures there")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "metrics.jsonl")
        write(path, options.mebibytes, options.columns)
        size = path.stat().st_size
        plain = measure(sys.executable, "-c", PARSE, str(path))
        seatrial = (sys.executable, "-m", "seatrial")
        for command in ("check", "watch"):
            measure(*seatrial, command, str(path.with_suffix(".none")))
        costs = {
            "check": measure(*seatrial, "check", str(path), 'max(data["train/metric_3"]) < 1.1'),
            "watch": measure(*seatrial, "watch", str(path)),
        }
    found = {}
    for name, cost in costs.items():
        found[name] = {
            "seconds": round(cost.seconds, 2),
            "times_json_loads": round(cost.seconds / plain.seconds, 2),
            "memory_in_files": round(1024 * cost.kibibytes / size, 2),
            "exit": cost.code,
        }
        print(name, found[name])
    print(f"json.loads alone: {plain.seconds:.2f} s; file of {size / 1e6:.0f} MB")
    if options.json:
        options.json.write_text(json.dumps(found, indent=1) + "\n")


if __name__ == "__main__":
    main()
