"""An observer that kills the process of a run of refrl at a chosen moment, as SIGKILL would: nothing is cleaned up."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NoReturn
from unittest.mock import patch

from torch import Tensor

from refrl.checkpointing.layout import whole_checkpoints
from refrl.config import CheckpointingConfig
from refrl.generation.base import Completion
from refrl.rollout.sync import RolloutWorker
from refrl.training.session import Observer, PassedBatch, Session, TrainedStep
from seatrial.relations.contracts.resume import Kill

SECONDS = 60.0
"""For the first checkpoint to be written; then the run is killed without it."""


class Killer(Observer):
    """Kills the process; it patches what no event of an observer reaches."""

    def __init__(self, kill: Kill, checkpointing: CheckpointingConfig) -> None:
        """Begin with no step taken and no batch sampled."""
        self._kill, self._checkpointing = kill, checkpointing
        self._step = self._num_batches = 0

    def started(self, session: Session) -> None:
        """Wait for the batch, where one is named."""
        self._step = session.attempt.step
        if self._kill.moment != "sampling":
            return
        sample = RolloutWorker.sample

        def counted(worker: RolloutWorker, *words: Any) -> Sequence[Completion]:
            completions = sample(worker, *words)
            self._num_batches += 1
            if self._num_batches == self._kill.step:
                self._wait_for_a_checkpoint()
                _end()
            return completions

        patch.object(RolloutWorker, "sample", counted).start()

    def passed(self, session: Session, micro: PassedBatch) -> None:
        """End between the forward and the backward pass."""
        if self._is_at("training", self._step + 1):
            self._wait_for_a_checkpoint()
            _end()

    def trained(self, session: Session, step: TrainedStep) -> None:
        """Wait for the sync that follows the step."""
        self._step = step.step
        if not self._is_at("syncing", step.step):
            return
        named_weights = session.policy.named_weights

        def cut() -> Iterator[tuple[str, Tensor]]:
            weights = list(named_weights())
            yield from weights[: len(weights) // 2]
            self._wait_for_a_checkpoint()
            _end()

        patch.object(session.policy, "named_weights", cut).start()

    def saved(self, session: Session, step: int) -> None:
        """End while the checkpoint may still be written."""
        if self._is_at("saving", step):
            _end()

    def _wait_for_a_checkpoint(self) -> None:
        """Wait until a checkpoint that is being written is whole; training continues with what is sampled ahead."""
        if not 0 < self._checkpointing.save_period <= self._step:
            return
        deadline = time.monotonic() + SECONDS
        while not whole_checkpoints(Path(self._checkpointing.checkpoint_dir)) and time.monotonic() < deadline:
            time.sleep(0.02)

    def _is_at(self, moment: str, step: int) -> bool:
        return (moment, step) == (self._kill.moment, self._kill.step)


def _end() -> NoReturn:
    """End this process at once; status 0 distinguishes it from a failure."""
    os._exit(0)
