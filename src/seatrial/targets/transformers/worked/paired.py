"""The worked examples of pairs of options: of `generate`, of its parts, and of pipelines; one adapter of its own."""

from __future__ import annotations

from typing import Any

from seatrial.targets.common.worked_rows import Worked
from seatrial.targets.transformers.worked.answered_pairs import ANSWERED_ROWS
from seatrial.targets.transformers.worked.batched_pairs import BATCHED_ROWS
from seatrial.targets.transformers.worked.generated_pairs import GENERATED_ROWS
from seatrial.targets.transformers.worked.piped_pairs import PIPED_ROWS
from seatrial.targets.transformers.worked.spanned_pairs import SPANNED_ROWS


class OfPairs(Worked):
    """What `generate` and pipelines give for any two of their options; see `contracts.worked`."""

    package = "transformers"
    worked_rows = (*GENERATED_ROWS, *BATCHED_ROWS, *PIPED_ROWS, *ANSWERED_ROWS, *SPANNED_ROWS)


ADAPTERS: dict[str, type[Any]] = {"worked-pairs": OfPairs}
