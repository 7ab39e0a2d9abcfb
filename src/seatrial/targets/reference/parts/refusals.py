"""What refrl's parts refuse, and what is next to it: `seatrial.relations.contracts.refusals`."""

from __future__ import annotations

from collections.abc import Sequence

from seatrial.relations.contracts.refusals import Trial
from seatrial.targets.reference.limits.decoders import decoder_trials
from seatrial.targets.reference.limits.files import file_trials
from seatrial.targets.reference.limits.generation import sampling_trials, sync_trials
from seatrial.targets.reference.limits.policies import (
    adapter_trials,
    layout_trials,
    scoring_trials,
)


class ReferenceRefusals:
    """See `seatrial.relations.contracts.refusals`."""

    def trials(self) -> Sequence[Trial]:
        return [
            *sampling_trials(),
            *sync_trials(),
            *decoder_trials(),
            *layout_trials(),
            *adapter_trials(),
            *scoring_trials(),
            *file_trials(),
        ]
