"""What `transformers.Trainer` is known to do wrong with every model; see `docs/evidence/findings.md`."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cached_property

from seatrial.targets.common.known import KnownFailure, KnowsFailures, before

UPDATES = ("three micro-batches an update", "four micro-batches an update", "a number of updates")
LOST_ROWS = KnownFailure(
    "the micro-batches of an epoch's last update are counted by its examples: some are left out",
    finding="Transformers: the steps of its Trainer before 5.0",
    releases=before("transformers", "4.52"),
).of(*(f"R12.epochs/{what}, {updates}" for what in ("rows", "loss and gradient") for updates in UPDATES))


class TrainerSteps(KnowsFailures):
    """An adapter of a run of the trainer: what it breaks is known of every model."""

    @cached_property
    def expected_failures(self) -> Mapping[str, str]:
        """The reasons of the model's own failures, and of the trainer's."""
        common = {law: str(LOST_ROWS) for law in LOST_ROWS.laws if LOST_ROWS.releases(self)}
        return {**common, **super().expected_failures}
