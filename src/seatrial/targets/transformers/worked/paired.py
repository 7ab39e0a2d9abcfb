"""The worked examples of every pair of options: one adapter for files, texts and masks."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from seatrial.targets.common.worked_rows import Row, Worked
from seatrial.targets.transformers.worked.pairs_added import PAIRED_ADDED_ROWS
from seatrial.targets.transformers.worked.pairs_chats import PAIRED_CHAT_ROWS
from seatrial.targets.transformers.worked.pairs_files import PAIRED_FILE_ROWS
from seatrial.targets.transformers.worked.pairs_masks import PAIRED_MASK_ROWS
from seatrial.targets.transformers.worked.pairs_texts import PAIRED_TEXT_ROWS

ROWS: Sequence[Row] = (
    *PAIRED_FILE_ROWS,
    *PAIRED_TEXT_ROWS,
    *PAIRED_MASK_ROWS,
    *PAIRED_CHAT_ROWS,
    *PAIRED_ADDED_ROWS,
)


class OfPairs(Worked):
    """What is saved, read, encoded and masked with every pair of options; see `contracts.worked`."""

    package = "transformers"
    worked_rows = ROWS


ADAPTERS: dict[str, type[Any]] = {"worked-pairs": OfPairs}
