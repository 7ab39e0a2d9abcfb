"""The remaining steps of a run, the checkpoints between them, and the export after the last."""

from __future__ import annotations

from collections.abc import Iterator

from refrl.checkpointing.layout import export_final
from refrl.training.session import Session


class Steps:
    """Iterates over the steps: the loop body trains and validates; a due checkpoint is saved after the body."""

    def __init__(self, session: Session, num_steps: int) -> None:
        """Continue after the last step of earlier attempts.

        Args:
            session: of the run.
            num_steps: number of steps of the whole run.
        """
        self._session = session
        self._num_steps = num_steps
        self._first = session.attempt.step + 1
        self._is_complete = session.attempt.is_finished or self._first > num_steps
        self._has_trained = False

    def finish(self) -> None:
        """Stop after the current step: the run has reached its goal."""
        self._is_complete = True

    def __iter__(self) -> Iterator[int]:
        """Yield the number of each step, from 1 in a new run."""
        checkpointer = self._session.checkpointer
        for step in range(self._first, self._num_steps + 1):
            if self._is_complete:
                return
            self._has_trained = True
            yield step
            if step == self._first:
                checkpointer.check_training_metric(self._session.logger.names("train"))
            self._is_complete |= step == self._num_steps
            is_out_of_time = checkpointer.is_out_of_time()
            if checkpointer.is_due(step, ends=self._is_complete, is_out_of_time=is_out_of_time):
                self._session.save(step, finished=self._is_complete and step < self._num_steps)
            if is_out_of_time and not self._is_complete:
                print(
                    f"step {step}: saved and stopped because checkpointing.checkpoint_must_save_by has passed",
                    flush=True,
                )
                return

    def export(self) -> None:
        """Export the trained model if the run is complete; without training, an earlier attempt's export stays."""
        final, world = self._session.final, self._session.world
        if final is None or not self._is_complete:
            return
        is_there = world.gather([final.exists()])[0]
        if self._has_trained or not is_there:
            export_final(self._session.policy, final, world)
