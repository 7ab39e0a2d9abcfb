"""A stack that trains nothing and leaves right evidence in a moment; `mode` says how it misbehaves.

python toy_command.py kind=sft model=DIR out=DIR steps=N seed=N [from=CHECKPOINT] [epoch=N] [mode=NAME]

With `epoch`, a checkpoint is saved after that many steps, numbered from 0, beside one state that each save but the last
replaces.
"""

from __future__ import annotations

import json
import math
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
from safetensors.numpy import load_file, save_file

WRONG_LINES: dict[str, Callable[[int], dict[str, float]]] = {
    "nan": lambda step: {"loss": math.nan},
    "no-gradient": lambda step: {"grad_norm": 0.0},
    "unlearning": lambda step: {"loss": 1.0 + step},
    "off-its-reference": lambda step: {"loss": 0.5 / step},
    "chosen-unlearned": lambda step: {"rewards/margins": -0.1 * step},
}
"""What a mode logs in place of the right values of a step."""


def main() -> int:
    """Run; write a line of the log and a checkpoint for each step, and the model at the end."""
    given = dict(word.split("=", 1) for word in sys.argv[1:])
    steps = int(given.get("steps") or given["max_steps"])
    mode, out = given.get("mode", "right"), Path(given["out"])
    if mode == "forks":
        detached = [sys.executable, __file__, *sys.argv[1:-1], "mode=slow"]
        subprocess.Popen(
            detached, start_new_session=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
        )
        return 0
    if mode == "slow":
        subprocess.run(["sleep", "60"], check=True)
    if mode == "crashes":
        (out / "run-1").mkdir()
        (out / "run-1" / "log.jsonl").touch()
        raise ValueError("the model has another shape")
    start = given.get("from")
    first, epoch = 1, int(given.get("epoch", "1"))
    if start is not None and "epoch" in given:
        first = epoch * (int(Path(start).name.partition("-")[2]) + 1) + 1
        if (out / "state.txt").read_text() != str(first - 1):
            raise ValueError("the state is of another step")
    elif start is not None:
        first = int(Path(start).name.partition("-")[2]) + 1
    weights = load_file(Path(start or given["model"]) / "model.safetensors")
    if mode == "forgets":
        first, weights = 1, load_file(Path(given["model"]) / "model.safetensors")
    folders = ["run-1", "run-2"] if mode == "two-runs" else ["run-1"]
    oldest: dict[str, np.ndarray] = {}
    for step in range(first, steps + 1):
        weights = {name: value + np.float32(0.5 / step) for name, value in weights.items()}
        line = {"step": step, "loss": 1.0 / step, "grad_norm": 0.5, "lr": 0.1 / step}
        if given.get("kind") == "dpo":
            line |= {"loss": 0.693147 / step, "rewards/margins": 0.1 * (step - 1)}
        if mode in WRONG_LINES:
            line |= WRONG_LINES[mode](step)
        for folder in folders if mode != "no-log" else []:
            (out / folder).mkdir(exist_ok=True)
            with (out / folder / "log.jsonl").open("a") as log:
                log.write(json.dumps(line) + "\n")
        print(f"\r{step}/{steps}", end="", flush=True)
        if "epoch" not in given:
            oldest = oldest or weights
            save(out / f"checkpoint-{step}", oldest if mode == "old-saves" else weights)
        elif step % epoch == 0:
            save(out / f"epoch-{step // epoch - 1}", weights)
            if step < steps:
                (out / "state.txt").write_text(str(step))
        if mode == "stops" and step == 1:
            print(
                '\nTraceback (most recent call last):\n  File "x.py", line 1\nValueError: lost',
                file=sys.stderr,
            )
            return 0
    save(
        out / "final",
        load_file(Path(given["model"]) / "model.safetensors") if mode == "stale-export" else weights,
    )
    return 0


def save(folder: Path, weights: dict[str, np.ndarray]) -> None:
    """Save tensors and what else makes a model folder."""
    folder.mkdir(parents=True, exist_ok=True)
    save_file(weights, folder / "model.safetensors")
    (folder / "config.json").write_text('{"vocab_size": 259}')


if __name__ == "__main__":
    raise SystemExit(main())
