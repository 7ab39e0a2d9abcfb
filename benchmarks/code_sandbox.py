"""What a run in the sandbox costs by kind, against Python alone; the kinds take turns.

    python benchmarks/code_sandbox.py [--rounds 20]

`plain` starts the same isolated interpreter on the same program with no limit at all.
"""

from __future__ import annotations

import argparse
import statistics
import subprocess
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from refrl.rewards.sandbox import SandboxLimits, run_python
from refrl.rewards.sandbox_kinds import KINDS, executable
from refrl.rewards.verifiers import VerifierError

PROGRAM = "print(sum(map(int, input().split())))"
LIMITS = SandboxLimits(wall_seconds=60, cpu_seconds=30)


def plain() -> None:
    """Run the program with nothing around it."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "program.py"
        path.write_text(PROGRAM)
        words = [executable(), "-I", "-S", "-B", str(path)]
        subprocess.run(words, input=b"2 3\n", env={}, cwd=folder, check=True, stdout=subprocess.PIPE)


def ways() -> dict[str, Callable[[], object]]:
    """Return what is measured: Python alone, and the kinds that this machine permits."""
    found: dict[str, Callable[[], object]] = {"plain": plain}
    for kind in KINDS:
        try:
            run_python(PROGRAM, "2 3\n", LIMITS, kind)
        except VerifierError as error:
            print(f"{kind}: not on this machine: {error}")
            continue
        found[kind] = lambda kind=kind: run_python(PROGRAM, "2 3\n", LIMITS, kind)
    return found


def main() -> None:
    """Measure and print the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=20)
    arguments = parser.parse_args()
    actions = ways()
    seconds: dict[str, list[float]] = {name: [] for name in actions}
    for _ in range(arguments.rounds):
        for name, action in actions.items():
            started = time.perf_counter()
            action()
            seconds[name].append(time.perf_counter() - started)
    alone = statistics.median(seconds["plain"])
    print("| kind | median | fastest | median / plain |")
    print("|---|---|---|---|")
    for name, taken in seconds.items():
        median = statistics.median(taken)
        print(f"| {name} | {1000 * median:.0f} ms | {1000 * min(taken):.0f} ms | {median / alone:.2f} |")


if __name__ == "__main__":
    main()
