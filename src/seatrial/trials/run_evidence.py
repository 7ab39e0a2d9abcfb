"""Everything that one training command left; each part is read once, when a sensor first needs it."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from functools import cached_property

from seatrial.errors import BlockedError
from seatrial.evidence.identity.origins import Import
from seatrial.evidence.ledger.read import read_ledger
from seatrial.evidence.ledger.readers.refrl import read_validation
from seatrial.evidence.ledger.schema import LedgerRow, ValidationRow
from seatrial.evidence.read import read_logs
from seatrial.evidence.runlog import RunLog, Series
from seatrial.evidence.weights import StoredTensor, WeightComparison, compare_weights
from seatrial.launch import Launched
from seatrial.targets.base import TrainingJob
from seatrial.vocabulary import tags_read_as

NOT_GIVEN = "not given"
"""Detail of a NotRequested verdict whose evidence the target does not give."""


class NotGivenError(BlockedError):
    """The target does not say where a run leaves this evidence, so nothing that needs it is judged."""


def find_series(log: RunLog, tag: str) -> Series | None:
    """Return a series of a log, also one that the stack calls otherwise; None if the log does not have it."""
    held = tags_read_as({tag}, log.tags()).get(tag, tag)
    return log.series.get(tag, log.series.get(held))


class RunEvidence:
    """Evidence of one training run; a part that cannot be read raises BlockedError when it is asked for."""

    def __init__(self, job: TrainingJob, launched: Launched, imports: Sequence[Import]) -> None:
        """Remember where to look."""
        self.job = job
        self.launched = launched
        self.imports = imports
        self.checkpoints: dict[int, Mapping[str, StoredTensor]] = {}
        """Tensors of each checkpoint that a sensor has read, by step (`sensors.saved.tensors_at`)."""
        self.find_unreached: Callable[[RunEvidence], frozenset[str]] = lambda evidence: frozenset()

    def need(self, part: str) -> None:
        """Check that the target gives this evidence.

        Raises:
            NotGivenError: it does not.
        """
        if part in self.job.absent:
            raise NotGivenError(self.job.absent[part])

    @cached_property
    def log(self) -> RunLog:
        """The logged series."""
        return read_logs(self.job.log_dir)

    def need_whole_log(self) -> None:
        """Raise an error where the log is damaged: what is missing may have been there.

        Raises:
            BlockedError: it is, with the first damage.
        """
        if self.log.damage:
            raise BlockedError(f"the log is damaged: {self.log.damage[0].what}")

    @cached_property
    def ledger(self) -> Sequence[LedgerRow]:
        """The trained rows."""
        self.need("rows")
        return read_ledger(self.job.ledger_dir).rows

    @cached_property
    def validation(self) -> dict[int, list[ValidationRow]]:
        """The rows of each validation, by step."""
        self.need("answers")
        return read_validation(self.job.ledger_dir)

    @cached_property
    def weights(self) -> WeightComparison:
        """The trained model against the one it started from."""
        self.need("export")
        return compare_weights(self.job.initial_model, self.job.final_model)

    @cached_property
    def unreached_experts(self) -> frozenset[str]:
        """Names of the experts' tensors that no token of the trained rows was sent to; none by default."""
        return self.find_unreached(self)

    def series(self, tag: str) -> Series | None:
        """Return one logged series, also one that the stack calls otherwise; None when the run did not log it."""
        return find_series(self.log, tag)

    @cached_property
    def steps_without_signal(self) -> list[int]:
        """Steps at which every group of the ledger has equal rewards, none missing: nothing to learn.

        None where the target gives no rows.
        """
        if "rows" in self.job.absent:
            return []
        rewards: dict[int, dict[int, set[float | None]]] = defaultdict(lambda: defaultdict(set))
        for row in self.ledger:
            rewards[row.step][row.prompt_id].add(row.reward)
        return [
            step
            for step, groups in sorted(rewards.items())
            if all(len(of) == 1 and None not in of for of in groups.values())
        ]

    @property
    def is_without_signal(self) -> bool:
        """Whether there are rows, and every group of every step has equal rewards."""
        silent = self.steps_without_signal
        return bool(silent) and len(silent) == len({row.step for row in self.ledger})
