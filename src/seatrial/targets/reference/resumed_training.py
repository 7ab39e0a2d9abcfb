"""`refrl sft` ended after a checkpoint and started again, offered to the relations."""

from __future__ import annotations

import tempfile
from collections.abc import Mapping
from pathlib import Path

from refrl.training.observed import TunedStep
from refrl.training.session import Observer, Session
from refrl.training.sft import run_sft
from seatrial.evidence.read import read_logs
from seatrial.relations.contracts.resumed_training import TrainedRun, TrainingPlan
from seatrial.relations.not_served import NotServed
from seatrial.targets.reference.configuration import tuning_configuration
from seatrial.targets.reference.resuming import CLOCKED, saved_state
from seatrial.targets.reference.runs import quiet


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
