"""Runs in the environment `formats`: writes logs with the real libraries, reads them, and prints what was read.

python formats_worker.py write FORMAT FOLDER
python formats_worker.py read FOLDER [TAG ...]
python formats_worker.py fuzz FILE random_bytes|mutate CASES SECONDS
"""

from __future__ import annotations

import importlib.util
import json
import math
import os
import sys
from pathlib import Path
from typing import Any

import numpy as np

STEPS = range(1, 21)


def value_at(step: int) -> float:
    """Return the logged value of a step: NaN at 5, infinity at 6."""
    return {5: math.nan, 6: math.inf}.get(step, 1.0 / step)


def write_wandb(folder: Path) -> None:
    """Two attempts of one run: steps 1 to 20, then again from 15 to 17."""
    os.environ.update(WANDB_MODE="offline", WANDB_SILENT="true", WANDB_DIR=str(folder))
    import wandb

    for steps, offset in ((STEPS, 0.0), (range(15, 18), 100.0)):
        run = wandb.init(
            project="p",
            dir=str(folder),
            id="trial",
            resume="allow",
            settings=wandb.Settings(x_disable_stats=True),
        )
        for step in steps:
            row = {
                "train/loss": value_at(step) + offset,
                "validation": {"accuracy": 0.5},
                "nothing": None,
                "note": "x" * 3000,
                "weights": wandb.Histogram([1, 2, 3]),
            }
            run.log(row, step=step)
        run.finish()


def write_mlflow_files(folder: Path) -> None:
    """A run in a file store."""
    os.environ["MLFLOW_ALLOW_FILE_STORE"] = "true"
    _write_mlflow((folder / "mlruns").as_uri(), folder)


def write_mlflow_store(folder: Path) -> None:
    """A run in a SQLite store."""
    _write_mlflow(f"sqlite:///{folder / 'mlflow.db'}", folder)


def _write_mlflow(uri: str, folder: Path) -> None:
    import mlflow

    mlflow.set_tracking_uri(uri)
    experiment = mlflow.create_experiment("e", artifact_location=(folder / "artifacts").as_uri())
    with mlflow.start_run(experiment_id=experiment):
        mlflow.log_param("lr", 0.1)
        for step in STEPS:
            mlflow.log_metrics({"train/loss": value_at(step), "accuracy": 0.5}, step=step)


def write_trackio(folder: Path) -> None:
    """A run of one project."""
    os.environ.update(TRACKIO_DIR=str(folder), HF_HUB_OFFLINE="1")
    import trackio

    trackio.init(project="p", name="r")
    for step in STEPS:
        trackio.log(
            {"train/loss": value_at(step), "validation": {"accuracy": 0.5}, "nothing": None}, step=step
        )
    trackio.finish()


def write_verl(folder: Path) -> None:
    """An experiment by verl's own file logger: its module of trackers, as it is installed, without its package.

    The package imports torch and Ray before anything else; this module needs neither.
    """
    os.environ["VERL_FILE_LOGGER_ROOT"] = str(folder)
    package = importlib.util.find_spec("verl")
    assert package is not None
    assert package.submodule_search_locations
    file = Path(package.submodule_search_locations[0], "utils", "tracking.py")
    spec = importlib.util.spec_from_file_location("verl_tracking", file)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    tracking = module.Tracking("project", "experiment", default_backend=["file"], config={})
    for step in STEPS:
        tracking.log({"train/loss": value_at(step), "validation/accuracy": np.float32(0.5)}, step=step)
    tracking.finish()


def read(folder: Path, tags: list[str]) -> dict[str, Any]:
    """Read a folder and return what was found as JSON values."""
    from seatrial.errors import BlockedError
    from seatrial.evidence.read import read_logs

    try:
        log = read_logs(folder, set(tags) or None)
    except BlockedError as error:
        return {"blocked": str(error)}
    return {
        "series": {
            tag: {
                "steps": series.steps.tolist(),
                "values": [str(value) for value in series.values.tolist()],
                "nulls": 0 if series.nulls is None else int(series.nulls.sum()),
                "abandoned": series.abandoned,
                "timed": series.wall_times is not None,
            }
            for tag, series in log.series.items()
        },
        "unread": dict(log.unread),
        "damage": [item.what for item in log.damage],
        "notes": list(log.notes),
    }


def fuzz_wandb(file: Path, kind: str, cases: int, seconds: float) -> dict[str, Any]:
    """Read many damaged copies of a file in its place; anything but a log or Blocked ends in a traceback."""
    # Not `tests.fuzz`: verl installs a package `tests` of its own.
    from fuzz import damage, readers
    from seatrial.evidence.readers import wandb

    tried, num_read = readers.fuzz(wandb, file, getattr(damage, kind), cases, seconds)
    return {"tried": tried, "read": num_read}


def main(words: list[str]) -> None:
    """Do what the command line says."""
    if words[0] == "write":
        globals()[f"write_{words[1]}"](Path(words[2]))
        return
    if words[0] == "fuzz":
        result = fuzz_wandb(Path(words[1]), words[2], int(words[3]), float(words[4]))
    else:
        result = read(Path(words[1]), words[2:])
    print(json.dumps(result))


if __name__ == "__main__":
    main(sys.argv[1:])
