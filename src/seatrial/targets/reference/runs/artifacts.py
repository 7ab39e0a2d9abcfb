"""What a run of refrl leaves on disk: the adapter's part for `seatrial.relations.contracts.left`."""

from __future__ import annotations

import json
import re
import stat
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from refrl.config import GRPORunConfig, validate_config
from refrl.models.tokenization import load_tokenizer
from refrl.training.grpo import run_grpo
from refrl.training.recorder import RunRecorder
from seatrial.evidence.read import read_logs
from seatrial.relations.contracts.left import PROBES, LeftRow, LeftRun
from seatrial.relations.records.run import RunRecord
from seatrial.targets.reference.configuration import configuration, dotted, effective, table
from seatrial.targets.reference.runs.short import quiet, record_of, with_own_parts

EVERYTHING = {
    "logger.tensorboard_enabled": True,
    "logger.log_train_data": True,
    "checkpointing.enabled": True,
}


class ReferenceLeftovers:
    """See `seatrial.relations.contracts.left`."""

    options: Mapping[str, Any]

    def left_run(self, options: Mapping[str, Any], *, seed: int) -> LeftRun:
        with tempfile.TemporaryDirectory() as folder, quiet():
            root = Path(folder) / "run"
            root.mkdir()
            fixed = {
                "grpo.seed": seed,
                "logger.log_dir": str(root / "log"),
                "checkpointing.checkpoint_dir": str(root / "checkpoints"),
            }
            config = configuration({**self.options, **EVERYTHING, **with_own_parts(options), **fixed})
            recorder, started = RunRecorder(), time.perf_counter()
            run_grpo(config, recorder)
            seconds = time.perf_counter() - started
            steps = {0: 0} | {step["version"]: step["step"] for step in recorder.recording["steps"]}
            return _read(root, config, record_of(recorder.recording, config), seconds, steps)

    def documented_series(self) -> Mapping[str, bool]:
        found: dict[str, bool] = table("artifacts")["series"]
        return found

    def documented_paths(self) -> Sequence[str]:
        found: list[str] = table("artifacts")["paths"]
        return found


def _read(
    root: Path, config: GRPORunConfig, record: RunRecord, seconds: float, steps: Mapping[int, int]
) -> LeftRun:
    """Read a run's directory; `steps` says which step ended with a version of the weights."""
    log_dir, final = root / "log", root / "checkpoints" / "final"
    info = _run_info(log_dir / "run_info.json")
    return LeftRun(
        record=record,
        series=_series(log_dir / "tensorboard") if (log_dir / "tensorboard").is_dir() else {},
        seed=info.get("seed"),
        options=_recorded(info["config"]) if info else {},
        rows=tuple(_rows(log_dir, steps)),
        modes={
            f"{path.relative_to(root)}{'/' * path.is_dir()}": stat.S_IMODE(path.stat().st_mode)
            for path in sorted(root.rglob("*"))
        },
        exported_ids=_probed(final) if final.is_dir() else None,
        given_ids=_probed(Path(config.policy.model_name)),
        seconds=seconds,
    )


def _recorded(config: Mapping[str, Any]) -> dict[str, Any]:
    """Return the options that a record names, with the resolved values of those whose default depends on others."""
    named = dotted(config)
    resolved = effective(validate_config(GRPORunConfig, config, source="run_info.json"))
    return {name: resolved.get(name, value) for name, value in named.items()}


def _run_info(path: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(path.read_text(encoding="utf-8")) if path.is_file() else {}
    return found


def _series(directory: Path) -> dict[str, tuple[tuple[int, float], ...]]:
    log = read_logs(directory)
    return {
        tag: tuple(zip(of.steps.tolist(), of.values.tolist(), strict=True)) for tag, of in log.series.items()
    }


def _rows(log_dir: Path, steps: Mapping[int, int]) -> Iterator[LeftRow]:
    paths = {
        int(re.sub(r"\D", "", path.stem.rpartition("step")[2])): path
        for path in log_dir.glob("train_data_step*.jsonl")
    }
    for _, path in sorted(paths.items()):
        for line in path.read_text(encoding="utf-8").splitlines():
            row = json.loads(line)
            yield LeftRow(
                step=row["step"],
                prompt_id=row["prompt_id"],
                token_ids=tuple(row["token_ids"]),
                completion=row["completion"],
                sampling_logprobs=tuple(row["generation_logprobs"]),
                reward=row["reward"],
                advantage=row["advantage"],
                judged=not row["verifier_error"],
                mask=tuple(row["loss_mask"][row["prompt_length"] : len(row["token_ids"])]),
                weight_version=steps.get(row["weight_version"], -1),
            )


def _probed(directory: Path) -> tuple[tuple[int, ...], ...]:
    if not (directory / "tokenizer.json").is_file():
        return ()
    tokenizer = load_tokenizer(directory)
    return tuple(tuple(tokenizer.encode(text, add_special_tokens=True)) for text in PROBES)
