"""Inputs for the runs of `seatrial.faults.verify`: variants of the tiny model, files of rows, a custom part."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

OWN_PART = '''"""A custom advantage and a custom loss, each with an option."""

from refrl.algorithms.advantages import AdvantageEstimator, group_mean
from refrl.algorithms.losses.base import Surrogate, TokenLoss
from refrl.config.base import Section


class Scaled(AdvantageEstimator):
    """The reward less the group's mean, times a factor."""

    class Options(Section):
        factor: float = 1.0

    def advantages(self, rewards, index_B):
        return self.options.factor * (rewards - group_mean(rewards, index_B))


class Weighed(TokenLoss):
    """The ratio times the advantage, times a factor."""

    class Options(Section):
        factor: float = 1.0

    def surrogate(self, inputs):
        ratio_BT = (inputs.logprobs_BT - inputs.old_logprobs_BT).exp()
        return Surrogate(-self.options.factor * inputs.advantages_B1 * ratio_BT, ratio_BT, ratio_BT)
'''
"""A module in the folder of the run."""

VARIANTS: dict[str, dict[str, Any]] = {
    "generic": {"rope_scaling": {"rope_type": "dynamic", "factor": 2.0}},
    "windowed": {"use_sliding_window": True, "sliding_window": 4, "max_window_layers": 0},
}
"""Models that the lean decoder does not support: additions to the configuration of a tiny model."""


def write_models(folder: Path, model: Path) -> dict[str, str]:
    """Write the variants of a model; return their directories by name."""
    for name, changes in VARIANTS.items():
        shutil.copytree(model, folder / name)
        config = json.loads((model / "config.json").read_text())
        (folder / name / "config.json").write_text(json.dumps({**config, **changes}))
    return {name: str(folder / name) for name in VARIANTS}


def write_rows(folder: Path) -> dict[str, str]:
    """Write files of rows of several kinds; return their paths by name.

    Some prompts occur twice, one is in `held_out` too, a line is empty and the last has no end. Answers are
    numbers, a pattern that a random completion matches now and then, and tests of programs.
    """
    from pyarrow import Table, ipc, parquet

    rows = [_row(f"say {number % 20}:", number % 20) for number in range(24)]
    rows.append(_row("say more:", 25))
    held_out = [_row("say 3:", 3), *(_row(f"tell {number}:", number) for number in range(11))]
    paths = {name: folder / f"{name}.jsonl" for name in ("rows", "held_out")}
    for name, chosen in (("rows", rows), ("held_out", held_out)):
        lines = [json.dumps(row) for row in chosen]
        paths[name].write_text("\n".join([*lines[:-3], "", *lines[-3:]]))
    paths |= {"parquet": folder / "rows.parquet", "arrow": folder / "rows.arrow", "parts": folder / "parts"}
    table = Table.from_pylist(rows)
    parquet.write_table(table, paths["parquet"], row_group_size=5)
    with ipc.new_stream(paths["arrow"], table.schema) as stream:
        stream.write_table(table)
    paths["parts"].mkdir()
    for number in range(3):
        parquet.write_table(table.slice(8 * number, 8), paths["parts"] / f"train-{number}.parquet")
    return {name: str(path) for name, path in paths.items()}


def _row(prompt: str, number: int) -> dict[str, Any]:
    return {
        "ask": {"q": prompt},
        "a": number,
        "s": f"{number}!",
        "p": ".*[a-h].*",
        "w": "",
        "t": json.dumps([{"stdin": "", "stdout": ""}]),
    }
