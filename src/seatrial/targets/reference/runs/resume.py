"""refrl started several times in one place: the adapter's part for `seatrial.relations.contracts.resume`."""

from __future__ import annotations

import importlib
import json
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file

from refrl.training.grpo import run_grpo
from refrl.training.session import Observer, Session, TunedStep
from refrl.training.sft import run_sft
from seatrial.evidence.read import read_logs
from seatrial.relations import NotServed
from seatrial.relations.contracts.resume import Kill, ResumedRun
from seatrial.relations.contracts.resumed_training import TrainedRun, TrainingPlan
from seatrial.relations.records.run import GroupRecord
from seatrial.targets.reference.configuration import configuration, tuning_configuration
from seatrial.targets.reference.runs.ranks import run_until_killed
from seatrial.targets.reference.runs.short import quiet, with_own_parts

CLOCKED = ("timing/", "performance/", "train/buffer_size")
"""Series that depend on the clock, as does how many groups wait when a step of an asynchronous run begins."""
PREFIX = "base_model.model."
"""What PEFT puts before the name of every tensor; it reads no others."""


class ReferenceResumes:
    """See `seatrial.relations.contracts.resume`."""

    options: Mapping[str, Any]

    def resumable_run(
        self, options: Mapping[str, Any], *, seed: int, num_starts: int, last: Mapping[str, Any]
    ) -> ResumedRun:
        if last.get("policy.megatron_cfg.enabled"):
            _need_megatron()
        with tempfile.TemporaryDirectory() as folder, quiet():
            root = Path(folder)
            chosen = self._saving_in(root, options, seed)
            ending = configuration({**chosen, "checkpointing.checkpoint_must_save_by": "00:00:00:00"})
            for _ in range(num_starts - 1):
                run_grpo(ending)
            run_grpo(configuration({**chosen, **with_own_parts(last)}))
            return left_run(root / "log", root / "checkpoints", Path(ending.policy.model_name))

    def killed_run(self, options: Mapping[str, Any], *, seed: int, kills: Sequence[Kill]) -> ResumedRun:
        if options.get("policy.megatron_cfg.enabled"):
            _need_megatron()
        with tempfile.TemporaryDirectory() as folder, quiet():
            root = Path(folder)
            config = configuration(self._saving_in(root, options, seed))
            for kill in kills:
                run_until_killed(config, root, kill)
            run_grpo(config)
            return left_run(root / "log", root / "checkpoints", Path(config.policy.model_name))

    def _saving_in(self, root: Path, options: Mapping[str, Any], seed: int) -> dict[str, Any]:
        """Return the options of a run that logs its rows and saves after every step below `root`."""
        fixed = {
            "grpo.seed": seed,
            "logger.log_dir": str(root / "log"),
            "logger.tensorboard_enabled": True,
            "logger.log_train_data": True,
            "checkpointing.checkpoint_dir": str(root / "checkpoints"),
            "checkpointing.enabled": True,
        }
        return with_own_parts({**self.options, "checkpointing.save_period": 1, **options, **fixed})


def _need_megatron() -> None:
    """Look whether Megatron-core can serve a run on the CPU.

    Raises:
        NotServed: it takes the CUDA devices that it finds.
        ModuleNotFoundError: it is not installed.
    """
    if torch.cuda.is_available():
        raise NotServed("Megatron-core takes the CUDA devices, and the other start runs on the CPU")
    importlib.import_module("megatron.core")


def left_run(log_dir: Path, checkpoints: Path, model: Path) -> ResumedRun:
    """Return what a run left.

    Args:
        log_dir: its log folder.
        checkpoints: its folder of checkpoints.
        model: directory of the initial model.
    """
    log = read_logs(log_dir / "tensorboard")
    series = {tag: of for tag, of in log.series.items() if not tag.startswith(CLOCKED)}
    rows = {
        int(path.stem.rpartition("step")[2]): tuple(
            json.loads(line)["prompt_id"] for line in path.read_text(encoding="utf-8").splitlines()
        )
        for path in log_dir.glob("train_data_step*.jsonl")
    }
    kept = sorted(int(path.name.removeprefix("step_")) for path in checkpoints.glob("step_*"))
    adapters = checkpoints / "final" / "adapter"
    scale = 0.0
    if adapters.is_dir():
        config = json.loads((adapters / "adapter_config.json").read_text(encoding="utf-8"))
        scale = config["lora_alpha"] / config["r"]
    return ResumedRun(
        log={
            tag: tuple(zip(of.steps.tolist(), of.values.tolist(), strict=True)) for tag, of in series.items()
        },
        steps_twice=tuple(tag for tag, of in series.items() if of.duplicates or of.abandoned),
        served=dict(sorted(rows.items())),
        state=saved_state(checkpoints / f"step_{kept[-1]}") if kept else {},
        went_on_from=tuple(one["resumed_from"] or 0 for one in _attempts(log_dir)),
        kept_steps=tuple(kept),
        exported=_tensors(checkpoints / "final"),
        exported_files=_files(checkpoints / "final"),
        initial_files=_files(model),
        adapters={
            name.removeprefix(PREFIX): value
            for name, value in _tensors(adapters).items()
            if name.startswith(PREFIX)
        },
        adapter_scale=scale,
        exported_draft=_tensors(checkpoints / "final" / "draft"),
        groups=_groups(log_dir),
    )


def _groups(log_dir: Path) -> dict[int, tuple[GroupRecord, ...]]:
    """Return the fates of all groups by step, those that no step took last."""
    found: dict[int, tuple[GroupRecord, ...]] = {}
    for name in ("group_data", "unused_group_data"):
        for path in log_dir.glob(f"{name}_step*.jsonl"):
            lines = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]
            step = int(path.stem.rpartition("step")[2])
            found[step] = found.get(step, ()) + tuple(
                GroupRecord(
                    number=line["number"],
                    prompt_id=line["prompt_id"],
                    fate=line["fate"],
                    weight_version=line["weight_step"],
                )
                for line in lines
            )
    return dict(sorted(found.items()))


def _files(directory: Path) -> dict[str, Any]:
    """Return the files below a model's directory, except for weights and their index."""
    return {
        str(path.relative_to(directory)): json.loads(path.read_bytes())
        if path.suffix == ".json"
        else path.read_bytes()
        for path in sorted(directory.rglob("*"))
        if path.is_file() and ".safetensors" not in path.name
    }


def _attempts(log_dir: Path) -> list[dict[str, Any]]:
    info = json.loads((log_dir / "run_info.json").read_text(encoding="utf-8"))
    attempts: list[dict[str, Any]] = info["attempts"]
    return attempts


def saved_state(directory: Path) -> dict[str, Any]:
    """Return tensors and counters of a checkpoint."""
    info = json.loads((directory / "training_info.json").read_text(encoding="utf-8"))
    return {
        **_tensors(directory / "policy"),
        **{name: info[name] for name in ("step", "policy", "parts", "seed")},
    }


def _tensors(directory: Path) -> dict[str, torch.Tensor]:
    return {
        name: tensor
        for path in sorted(directory.glob("*.safetensors"))
        for name, tensor in load_file(path).items()
    }


class _EndedError(Exception):
    """Ends a part of a run from within."""


class _Watch(Observer):
    """Notes what steps serve, over all parts of a run, and ends a part."""

    def __init__(self) -> None:
        self.served: dict[int, tuple[int, ...]] = {}
        self.rates: dict[int, float] = {}
        self.ends_after: int | None = None
        self.loses_a_step = False

    def tuned(self, session: Session, step: TunedStep) -> None:
        """Note a step; a lost one is overwritten by the one that replaces it."""
        numbers = {example.prompt_id: number for number, example in enumerate(session.train_examples)}
        self.served[step.step] = tuple(numbers[prompt] for prompt in step.batch.group_ids_B.tolist())
        self.rates[step.step] = step.metrics["lr"]
        if self.loses_a_step and self.ends_after is not None and step.step > self.ends_after:
            raise _EndedError

    def saved(self, session: Session, step: int) -> None:
        """End where the plan says, with the checkpoint written."""
        if step == self.ends_after and not self.loses_a_step:
            raise _EndedError


class ReferenceResumedTraining:
    """See `seatrial.relations.contracts.resumed_training`."""

    has_dropout = False
    serves_every_example = True

    def train_as_planned(self, plan: TrainingPlan) -> TrainedRun:
        if plan.batch_size % plan.num_micro_batches:
            raise NotServed("micro-batches of a step are of one size")
        with tempfile.TemporaryDirectory() as folder, quiet():
            config = tuning_configuration(_options(plan, Path(folder)))
            watch = _Watch()
            watch.loses_a_step = plan.loses_a_step
            for watch.ends_after in (*plan.ends_after, None):
                try:
                    run_sft(config, watch)
                except _EndedError:
                    continue
            return _trained(Path(folder), plan, watch)


def _options(plan: TrainingPlan, folder: Path) -> Mapping[str, object]:
    return {
        "sft.max_num_steps": plan.num_steps,
        "sft.seed": plan.seed,
        "data.num_train": plan.num_examples,
        "policy.train_global_batch_size": plan.batch_size,
        "policy.train_micro_batch_size": plan.batch_size // plan.num_micro_batches,
        "policy.scheduler.name": plan.schedule,
        "logger.log_dir": str(folder / "log"),
        "logger.tensorboard_enabled": True,
        "checkpointing.enabled": True,
        "checkpointing.async_save": False,
        "checkpointing.save_period": 1,
        "checkpointing.checkpoint_dir": str(folder / "checkpoints"),
    }


def _trained(folder: Path, plan: TrainingPlan, watch: _Watch) -> TrainedRun:
    state = saved_state(folder / "checkpoints" / f"step_{plan.num_steps}")
    tensors = {name: value for name, value in state.items() if name.startswith(("model.", "optimizer."))}
    series = {
        tag: of
        for tag, of in read_logs(folder / "log" / "tensorboard").series.items()
        if not tag.startswith(CLOCKED)
    }
    log = [
        (tag, step, value)
        for tag, of in series.items()
        for step, value in zip(of.steps.tolist(), of.values.tolist(), strict=True)
    ]
    # What the reader leaves out since it was written again counts as such.
    again = [(tag, int(of.steps[-1]), float(of.values[-1])) for tag, of in series.items() if of.duplicates]
    return TrainedRun(
        weights={name: value for name, value in tensors.items() if name.startswith("model.")},
        optimizer={name: value for name, value in tensors.items() if name.startswith("optimizer.")},
        served=watch.served,
        rates=watch.rates,
        log=[*log, *again],
    )
