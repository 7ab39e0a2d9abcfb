"""Contract of supervised fine-tuning: the stack's real loop for a few steps, from options to evidence.

Part of `seatrial.relations.contracts`. Options are dotted names after NeMo RL's configuration: `sft.max_num_steps`,
`.val_period`, `.val_at_start`, `policy.tokenizer.chat_template` (a Jinja template or None), and those of `policy.*` and
`data.*` that `contracts.run` names, `data.task_args` (`min_length`, `max_length`: rows of unequal length). Model, task
and verifier are the adapter's: a tiny model of float32, and answers of different lengths that get full marks.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Protocol, runtime_checkable

from seatrial.relations.records.tuning import TuningRecord

if TYPE_CHECKING:
    from torch import Tensor


@runtime_checkable
class FineTuning(Protocol):
    """Short runs of supervised fine-tuning, and the plain model and tokenizer that check them."""

    def short_tuning(self, options: Mapping[str, Any], *, seed: int) -> TuningRecord:
        """Run the stack's loop with these options and return what it left; see `contracts.run.ShortRun.short_run`.

        Raises:
            NotServed: the stack has no such option or value, by design.
        """
        ...

    def next_token_logits(self, weights: Mapping[str, Tensor], ids: Sequence[int]) -> Tensor:
        """See `contracts.run.ShortRun`."""
        ...

    def decode(self, ids: Sequence[int]) -> str:
        """Return the text of ids, special tokens shown."""
        ...
