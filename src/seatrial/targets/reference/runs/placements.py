"""Short runs of refrl on two ranks that its launcher, torchrun or Ray starts: `contracts.placements`."""

from __future__ import annotations

import importlib.util
import json
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from seatrial.relations.contracts.placements import PlacedRun
from seatrial.targets.reference.configuration import configuration
from seatrial.targets.reference.runs.ranks import recorded, recorded_by_torchrun
from seatrial.targets.reference.runs.short import quiet, record_of, with_own_parts


class ReferencePlacements:
    """See `seatrial.relations.contracts.placements`."""

    options: Mapping[str, Any]

    def placements(self) -> Sequence[str]:
        return tuple(way for way in ("process", "torchrun", "ray") if way not in self.absent_placements)

    @property
    def absent_placements(self) -> Mapping[str, str]:
        """Ways that need a package that is not installed, with the reason: they are declared, not Blocked."""
        has_ray = importlib.util.find_spec("ray") is not None
        return {} if has_ray else {"ray": "Ray is not installed; pip install 'seatrial[ray]'"}

    def placed_run(self, options: Mapping[str, Any], *, seed: int) -> PlacedRun:
        chosen = {**self.options, **with_own_parts(options)}
        placement = chosen.pop("placement")
        with tempfile.TemporaryDirectory() as folder, quiet():
            fixed = {
                "grpo.seed": seed,
                "logger.log_dir": f"{folder}/log",
                "cluster.num_processes": 2,
                "cluster.placement": "ray" if placement == "ray" else "process",
            }
            config = configuration({**chosen, **fixed})
            record = recorded_by_torchrun if placement == "torchrun" else recorded
            recording = record(config, Path(folder))
            said = json.loads(Path(folder, "log", "run_info.json").read_text(encoding="utf-8"))
        return PlacedRun(record_of(recording, config), said["placement"]["by"])
